#!/usr/bin/env python3
"""Write images/rows.json: what the image processors of transformers make of the files of images/.

    V/bin/pip install torch torchvision transformers pillow && V/bin/python tests/golden/make_image_rows.py

Per processor, its configuration, and per image: sizes, the text that replaces the placeholder, the
checksum of all patches as 8-bit samples, and some of their values. make_images.py comes first.
sizes.json has grids and text for many sizes of images, with configurations of published models."""

import json
import pathlib
import sys
import zlib
from types import SimpleNamespace as Fake

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoImageProcessor  # noqa: F401
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.gemma4_unified.image_processing_gemma4_unified import (
    Gemma4UnifiedImageProcessor,
)
from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava.image_processing_llava import LlavaImageProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_llava_next import LlavaNextImageProcessor
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.paligemma.processing_paligemma import PaliGemmaProcessor
from transformers.models.pixtral.image_processing_pixtral import PixtralImageProcessor
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

HERE = pathlib.Path(__file__).parent / "images"
FILES = """png-rgb.png png-grey.png png-rgba.png png-palette-alpha-interlaced.png png-rgb16.png png-1x1.png
png-1x3000.png png-3000x1.png jpeg-420.jpg jpeg-cmyk.jpg jpeg-progressive.jpg jpeg-orientation6.jpg
webp-lossy-alpha.webp webp-animated-alpha.webp gif-offset-transparent.gif bmp-rle8.bmp webp-large.webp webp-tall.webp""".split()
SAMPLES = 6

GEMMA = Fake(
    full_image_sequence="\n\n<start_of_image>" + "<image_soft_token>" * 5 + "<end_of_image>\n\n"
)
GEMMA4 = Fake(boi_token="<|image>", eoi_token="<image|>", image_token="<|image|>")
SPLIT = Fake(
    fake_image_token="<fake_token_around_image>",
    image_token="<image>",
    global_image_token="<global-img>",
    global_image_tag="<global-img>",
    image_seq_len=4,
)
VISION = {"vision_config": {"patch_size": 14}}
LLAVA = {
    "num_additional_image_tokens": 1,
    "vision_feature_select_strategy": "default",
    "patch_size": 14,
}


def case(model, cls, settings, text, processor=None, config=VISION, **call):
    return Fake(
        model=model,
        cls=cls,
        settings=settings,
        text=text,
        processor=processor or {},
        config={"model_type": model, **config},
        call=call,
    )


def qwen(p):
    return lambda inputs: Qwen3VLProcessor.replace_image_token(
        Fake(image_processor=p, image_token="<|image_pad|>"), inputs, 0
    )


def run(cls, fake):
    return lambda p: lambda inputs: cls.replace_image_token(fake, inputs, 0)


def pixtral(patch, merge):
    fake = Fake(
        patch_size=patch,
        spatial_merge_size=merge,
        image_token="[IMG]",
        image_break_token="[IMG_BREAK]",
        image_end_token="[IMG_END]",
    )
    return run(PixtralProcessor, fake)


def llava(p):
    fake = Fake(image_token="<image>", **LLAVA)
    return lambda inputs: LlavaProcessor.replace_image_token(fake, inputs, 0)


def llava_next(p):
    fake = Fake(image_token="<image>", image_processor=p, **LLAVA)
    for name in ("_get_number_of_features", "_get_unpadded_features"):
        method = getattr(LlavaNextProcessor, name)
        setattr(fake, name, lambda *a, m=method: m(fake, *a))
    return lambda inputs: LlavaNextProcessor.replace_image_token(fake, inputs, 0)


INTERN = Fake(
    start_image_token="<img>",
    end_image_token="</img>",
    image_token="<IMG_CONTEXT>",
    image_seq_length=4,
)
PALI = Fake(image_token="<image>", image_seq_length=9)
SMALL = {"size": {"longest_edge": 224}, "max_image_size": {"longest_edge": 56}}
PINPOINTS = {
    "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56]],
    "size": {"shortest_edge": 56},
    "crop_size": {"height": 56, "width": 56},
}

CASES = {
    "qwen2_vl": case("qwen2_vl", Qwen2VLImageProcessor, {"max_pixels": 30000}, qwen),
    "qwen2_vl-pil": case(
        "qwen2_5_vl", Qwen2VLImageProcessorPil, {"max_pixels": 20000, "min_pixels": 1000}, qwen
    ),
    "qwen3_vl": case(
        "qwen3_vl",
        Qwen2VLImageProcessor,
        {
            "patch_size": 16,
            "size": {"shortest_edge": 4096, "longest_edge": 20000},
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
        qwen,
    ),
    "gemma3": case(
        "gemma3",
        Gemma3ImageProcessor,
        {"size": {"height": 70, "width": 56}},
        run(Gemma3Processor, GEMMA),
        {"image_seq_length": 5},
        do_pan_and_scan=False,
    ),
    "gemma3-crops": case(
        "gemma3",
        Gemma3ImageProcessor,
        {
            "size": {"height": 42, "width": 42},
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 16,
            "pan_and_scan_max_num_crops": 4,
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
        run(Gemma3Processor, GEMMA),
        {"image_seq_length": 5},
    ),
    "gemma4": case(
        "gemma4",
        Gemma4ImageProcessor,
        {"patch_size": 8, "max_soft_tokens": 70},
        run(Gemma4Processor, GEMMA4),
    ),
    "gemma4_unified": case(
        "gemma4_unified",
        Gemma4UnifiedImageProcessor,
        {"patch_size": 8, "max_soft_tokens": 70},
        run(Gemma4UnifiedProcessor, GEMMA4),
    ),
    "smolvlm": case(
        "smolvlm", SmolVLMImageProcessor, SMALL, run(SmolVLMProcessor, SPLIT), {"image_seq_len": 4}
    ),
    "smolvlm-pil": case(
        "smolvlm",
        SmolVLMImageProcessorPil,
        SMALL,
        run(SmolVLMProcessor, SPLIT),
        {"image_seq_len": 4},
    ),
    "idefics3-whole": case(
        "idefics3",
        Idefics3ImageProcessor,
        {**SMALL, "do_image_splitting": False},
        run(Idefics3Processor, SPLIT),
        {"image_seq_len": 4},
    ),
    "pixtral": case(
        "mistral3",
        PixtralImageProcessor,
        {"size": {"longest_edge": 154}, "patch_size": 14},
        pixtral(14, 2),
        {"patch_size": 14, "spatial_merge_size": 2},
        {**VISION, "spatial_merge_size": 2},
        patch_size={"height": 28, "width": 28},
    ),
    "llava-clip": case(
        "llava",
        CLIPImageProcessor,
        {"size": {"shortest_edge": 70}, "crop_size": {"height": 70, "width": 70}},
        llava,
        LLAVA,
    ),
    "llava-clip-pil": case(
        "llava",
        CLIPImageProcessorPil,
        {"size": {"shortest_edge": 56}, "crop_size": {"height": 84, "width": 70}},
        llava,
        LLAVA,
    ),
    "llava-square": case(
        "llava",
        LlavaImageProcessor,
        {"do_pad": True, "size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
        llava,
        LLAVA,
    ),
    "llava_next": case("llava_next", LlavaNextImageProcessor, PINPOINTS, llava_next, LLAVA),
    "internvl": case(
        "internvl",
        GotOcr2ImageProcessor,
        {"size": {"height": 28, "width": 42}, "max_patches": 6},
        run(InternVLProcessor, INTERN),
        {"image_seq_length": 4},
        crop_to_patches=True,
    ),
    "paligemma": case(
        "paligemma",
        SiglipImageProcessor,
        {"size": {"height": 42, "width": 45}, "image_seq_length": 9},
        run(PaliGemmaProcessor, PALI),
    ),
}


PUBLISHED = {
    "qwen2_vl": case("qwen2_vl", Qwen2VLImageProcessor, {}, qwen),
    "qwen3_vl": case(
        "qwen3_vl",
        Qwen2VLImageProcessor,
        {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 1048576}},
        qwen,
    ),
    "gemma3-crops": case(
        "gemma3",
        Gemma3ImageProcessor,
        {
            "size": {"height": 56, "width": 56},
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 256,
            "pan_and_scan_max_num_crops": 4,
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
        run(Gemma3Processor, GEMMA),
        {"image_seq_length": 5},
    ),
    "gemma4": case("gemma4", Gemma4ImageProcessor, {}, run(Gemma4Processor, GEMMA4)),
    "smolvlm": case(
        "smolvlm",
        SmolVLMImageProcessor,
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        run(SmolVLMProcessor, SPLIT),
        {"image_seq_len": 4},
    ),
    "idefics3": case(
        "idefics3", Idefics3ImageProcessor, {}, run(Idefics3Processor, SPLIT), {"image_seq_len": 4}
    ),
    "pixtral": case(
        "pixtral",
        PixtralImageProcessor,
        {"patch_size": 14},
        pixtral(14, 1),
        {"patch_size": 14, "spatial_merge_size": 1},
        patch_size={"height": 14, "width": 14},
    ),
    "llava_next": case(
        "llava_next",
        LlavaNextImageProcessor,
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        llava_next,
        LLAVA,
    ),
    "internvl": case(
        "internvl",
        GotOcr2ImageProcessor,
        {"size": {"height": 448, "width": 448}},
        run(InternVLProcessor, INTERN),
        {"image_seq_length": 4},
        crop_to_patches=True,
    ),
}
SIZES = [
    (w * 89 % 1361 + 3, h * 211 % 1249 + 2) for w, h in zip(range(1, 41), range(7, 47), strict=True)
] + [(1, 1), (2, 1), (14, 14), (28, 27), (13, 700), (700, 13), (336, 336), (448, 449), (1024, 1024)]


def pixels(inputs):
    return np.asarray(inputs["pixel_values"], dtype=np.float32)


def conv_rows(a, patch):
    """Return the patches of [3, H, W] as rows, in the element order of a convolution's weight, and
    their grid."""
    h, w = a.shape[1] // patch, a.shape[2] // patch
    a = a[:, : h * patch, : w * patch].reshape(3, h, patch, w, patch)
    return a.transpose(1, 3, 0, 2, 4).reshape(h * w, -1), [h, w]


def rows_of(c, inputs):
    """Return the rows of all tiles, and the grid of each tile."""
    values = inputs["pixel_values"]
    if "image_grid_thw" in inputs:
        return pixels(inputs), [inputs["image_grid_thw"][0].tolist()[1:]]
    if "image_position_ids" in inputs:
        at = np.asarray(inputs["image_position_ids"])[0]
        real = at[:, 0] >= 0
        return pixels(inputs)[0][real], [[int(at[:, 1].max()) + 1, int(at[:, 0].max()) + 1]]
    if isinstance(values, list):
        values = np.stack([np.asarray(v) for v in values])
    values = np.asarray(values, dtype=np.float32)
    tiles = values.reshape(-1, *values.shape[-3:])
    made = [conv_rows(t, 14) for t in tiles]
    return np.concatenate([r for r, _ in made]), [g for _, g in made]


def samples_of_8_bits(c, p, rows):
    """Undo the normalisation of rows; the results are integers."""
    last = c.model.startswith("gemma4")
    mean, std = np.array(p.image_mean or 0), np.array(p.image_std or 1)
    channel = (
        np.arange(rows.shape[1]) % 3 if last else np.arange(rows.shape[1]) * 3 // rows.shape[1]
    )
    if p.do_normalize:
        rows = rows * std[channel] + mean[channel]
    v = rows.astype(np.float64) * 255
    assert np.abs(v - v.round()).max() < 0.01, "not 8 bits"
    return v.round().astype(np.uint8)


def inputs_of(c, p, im):
    call = dict(c.call)
    if c.cls in (SmolVLMImageProcessor, SmolVLMImageProcessorPil, Idefics3ImageProcessor):
        call["return_row_col_info"] = True
    tensors = None if c.cls is PixtralImageProcessor else "np" if "Pil" in c.cls.__name__ else "pt"
    return p(im, return_tensors=tensors, **call)


def shape(c, p, width, height):
    """Return the grids of the tiles and the checksum of the text; None: the size is refused."""
    try:
        inputs = inputs_of(c, p, Image.new("RGB", (width, height)))
    except ValueError:
        return None
    grids = rows_of(c, inputs)[1]
    text = c.text(p)(inputs)
    same = len(set(map(tuple, grids))) == 1
    return [[*grids[0], len(grids)] if same else grids, zlib.crc32(text.encode())]


def entry(c, p, name):
    im = ImageOps.exif_transpose(Image.open(HERE / name))
    try:
        inputs = inputs_of(c, p, im)
    except ValueError as e:
        return {"error": str(e)}
    rows, grids = rows_of(c, inputs)
    text = c.text(p)(inputs)
    flat = rows.reshape(-1)
    at = np.linspace(0, flat.size - 1, SAMPLES).astype(int)
    return {
        "grids": grids if len(set(map(tuple, grids))) > 1 else [*grids[:1], len(grids)],
        "text": zlib.crc32(text.encode()),
        "start": text[:160],
        "crc32": zlib.crc32(samples_of_8_bits(c, p, rows).tobytes()),
        "samples": [[int(i), round(float(flat[i]), 6)] for i in at],
    }


def horizontal_first():
    """Make Pillow resize along rows first, because its versions from 13 on sometimes resize along
    columns first."""
    original = Image.Image.resize

    def resize(self, size, resample=None, *args, **kwargs):
        if size[0] != self.width and size[1] != self.height:
            self = original(self, (size[0], self.height), resample, *args, **kwargs)
        return original(self, size, resample, *args, **kwargs)

    Image.Image.resize = resize


def files_of(c):
    preprocessor = {"image_processor_type": c.cls.__name__, **c.settings}
    return {"preprocessor": preprocessor, "processor": c.processor, "config": c.config}


def write_sizes():
    lines = []
    for name, c in PUBLISHED.items():
        p = c.cls(**c.settings)
        sizes = {f"{w}x{h}": shape(c, p, w, h) for w, h in SIZES}
        lines.append(f"{json.dumps(name)}: {json.dumps({'files': files_of(c), 'sizes': sizes})}")
    (HERE / "sizes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    horizontal_first()
    only = sys.argv[1:]
    out = {}
    for name, c in CASES.items():
        if only and name not in only:
            continue
        p = c.cls(**c.settings)
        preprocessor = {"image_processor_type": c.cls.__name__, **c.settings}
        images = {f: entry(c, p, f) for f in FILES}
        out[name] = {
            "files": {"preprocessor": preprocessor, "processor": c.processor, "config": c.config},
            "images": images,
        }
    if only:
        print(json.dumps(out, indent=1))
        return
    lines = []
    for name, case_ in out.items():
        inner = ",\n".join(
            f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in case_["images"].items()
        )
        files = json.dumps(case_["files"])
        lines.append(f'{json.dumps(name)}: {{"files": {files}, "images": {{\n{inner}}}}}')
    (HERE / "rows.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    write_sizes()


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
