"""Model folders that read images, small enough to be built in each run: the tower and language
model of a case of tests/golden/vision, a byte-level tokenizer with the marks of images, and a
template that reads contents as lists of parts, as those of SmolVLM and Idefics 3 do.
"""

import base64
import json
import os
import struct
import zlib

import tiny_model
from tiny_model import weights

SIDE = 3  # largest grid of tiles
MARKS = [
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *[f"<row_{r + 1}_col_{c + 1}>" for r in range(SIDE) for c in range(SIDE)],
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SMOLVLM = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<|im_end|>",
}
INTERN = ["<IMG_CONTEXT>", "<img>", "</img>", "<video>"]
INTERN_TOKENS = dict(context_image_token=INTERN[0], start_image_token=INTERN[1])
INTERN_TOKENS |= dict(end_image_token=INTERN[2], video_token=INTERN[3])
GEMMA = ["<image_soft_token>", "<start_of_image>", "<end_of_image>"]
GEMMA_TOKENS = dict(image_token=GEMMA[0], boi_token=GEMMA[1], eoi_token=GEMMA[2])
QWEN = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
# models of tests/golden/vision: marks, the first of them that of a row of an image; text of an
# image in the template; special tokens; class of the processor
MODELS = {
    "smolvlm-plain": (MARKS, "<image>", SMOLVLM, "Idefics3Processor"),
    "llava-plain": (["<image>"], "<image>", {}, "LlavaProcessor"),
    "qwen2_vl-plain": (QWEN, "".join(QWEN[2:3] + QWEN[:1] + QWEN[3:]), {}, "Qwen2VLProcessor"),
    "qwen2_5_vl-plain": (QWEN, "".join(QWEN[2:3] + QWEN[:1] + QWEN[3:]), {}, "Qwen2_5_VLProcessor"),
    "qwen3_vl-plain": (QWEN, "".join(QWEN[2:3] + QWEN[:1] + QWEN[3:]), {}, "Qwen3VLProcessor"),
    "pixtral-plain": (["[IMG]", "[IMG_BREAK]", "[IMG_END]"], "[IMG]", {}, "PixtralProcessor"),
    "internvl-plain": (INTERN, INTERN[0], INTERN_TOKENS, "InternVLProcessor"),
    "gemma3-plain": (GEMMA, "<start_of_image>", GEMMA_TOKENS, "Gemma3Processor"),
}
IMAGES = os.path.join(weights.VISION, "image.png"), os.path.join(weights.VISION, "image-2.png")


def template_of(name):
    return TEMPLATE.replace("<image>", MODELS[name][1])


def sized(name, context):
    """The case of this model with the tokenizer's vocabulary, and that vocabulary"""
    marks = MODELS[name][0]
    vocabulary = tiny_model.vocabulary(marks)
    case = weights.Vision(name)
    ids = {"image_token_id": 0, "image_token_index": 0, "video_token_id": 1}
    for key, i in (ids | {"vision_start_token_id": 2, "vision_end_token_id": 3}).items():
        if key in case.config:
            case.config[key] = vocabulary.index(marks[i])
    text = case.config["text_config"]
    text.update(vocab_size=len(vocabulary), max_position_embeddings=context)
    for t in case.tensors:
        if "embed_tokens" in t or "lm_head" in t:
            case.tensors[t] = [len(vocabulary), case.tensors[t][1]]
    return case, vocabulary


def run_of(name):
    with open(os.path.join(weights.VISION, name, "run.json")) as f:
        return json.load(f)


def build(folder, template=None, context=2048, name="smolvlm-plain"):
    """Build the folder and return its path."""
    marks, _, special, processor = MODELS[name]
    case, _ = sized(name, context)
    case.build(folder)
    run = run_of(name)
    files = {
        "tokenizer": tiny_model.tokenizer(marks),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<unk>",
            "chat_template": template or template_of(name),
            "extra_special_tokens": special,
        },
        "preprocessor_config": run["preprocessor"],
        "processor_config": {"processor_class": processor, **run["processor"]},
    }
    for file, content in files.items():
        with open(os.path.join(folder, f"{file}.json"), "w") as f:
            json.dump(content, f)
    return str(folder)


def build_gguf(folder, name, context=2048):
    """The same as two GGUF files; return the path of the language model's."""
    import gguf
    import mmproj

    marks = MODELS[name][0]
    case, vocabulary = sized(name, context)
    case.image_token = vocabulary.index(marks[0])
    special = {*tiny_model.SPECIAL, *marks}
    kind = gguf.TokenType

    def tokenizer(w):
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list(vocabulary)
        w.add_token_types([kind.CONTROL if t in special else kind.NORMAL for t in vocabulary])
        w.add_token_merges(tiny_model.MERGES)
        w.add_bos_token_id(vocabulary.index("<s>"))
        w.add_eos_token_id(vocabulary.index("</s>"))
        w.add_add_bos_token(False)
        w.add_chat_template(template_of(name))

    os.makedirs(folder, exist_ok=True)
    model = os.path.join(folder, "model-Q8_0.gguf")
    mmproj.write_text(model, case, keys=tokenizer)
    given = {}
    rules = run_of(name)["preprocessor"]
    if "min_pixels" in rules:
        given = {"image_min_pixels": rules["min_pixels"], "image_max_pixels": rules["max_pixels"]}
    elif "shortest_edge" in rules["size"] and "longest_edge" in rules["size"]:
        given = {
            "image_min_pixels": rules["size"]["shortest_edge"],
            "image_max_pixels": rules["size"]["longest_edge"],
        }
    elif mmproj.kind_of(case) == "pixtral":
        given = {"image_size": rules["size"]["longest_edge"]}
    mmproj.write_tower(os.path.join(folder, "mmproj-F16.gguf"), case, keys=given)
    return model


def png_of(width, height, rows):
    """Bytes of an RGB PNG with these bytes of rows, each after its filter."""

    def chunk(kind, data):
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")


def png(width, height, seed=0):
    """Bytes of a PNG of a pattern."""
    rows = b"".join(
        b"\0" + bytes(v % 256 for x in range(width) for v in (x * 7 + seed * 50, y * 11, x * y))
        for y in range(height)
    )
    return png_of(width, height, rows)


def data_url(data, media="image/png"):
    return f"data:{media};base64," + base64.b64encode(data).decode()


def url_part(data, **more):
    return {"type": "image_url", "image_url": {"url": data_url(data), **more}}


def text_part(text):
    return {"type": "text", "text": text}
