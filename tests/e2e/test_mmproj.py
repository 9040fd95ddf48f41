"""Vision towers in GGUF files (mmproj): rows and logits of a model that was converted to two files are those of
transformers for its folder (tests/golden/mmproj.py)."""

import os
import sys

import numpy as np
import pytest

import llmc
from golden_run import ROOT, weights
from test_vision import RUNNABLE, check, images, read, run

sys.path.append(os.path.join(ROOT, "tests", "serve"))
import mmproj  # noqa: E402
import tiny_vision  # noqa: E402

CASES = [
    "smolvlm-plain",
    "smolvlm-scale3",
    "smolvlm-idefics3-bf16",
    "llava-plain",
    "qwen2_vl-plain",
    "qwen2_5_vl-plain",
    "qwen3_vl-plain",
    "qwen3_vl-bf16",
    "qwen3_vl-moe",
    "gemma3-plain",
    "pixtral-bf16",
    "pixtral-llava",
    "internvl-plain",
]


def open_tower(folder, given, **more):
    given = {"kv.dtype": "f32"} | given
    return llmc.Model(str(folder / "mmproj-model.gguf"), tower=True, set=given, **more)


class OneFrame:
    """A case whose patches have one frame of their two, as the towers of GGUF files read them"""

    def __init__(self, case):
        self.case = case

    def __getattr__(self, name):
        return getattr(self.case, name)

    def patches(self, side):
        frames = self.config["vision_config"].get("temporal_patch_size", 1)
        for p, at in self.case.patches(side):
            p = p.reshape(len(p), 3, frames, -1)
            yield np.ascontiguousarray(p[:, :, 0]).reshape(len(p), -1), at


# The cases have values that files of llama.cpp do not have: another activation than SigLIP's, other
# windowed layers and another scale than those of Gemma 3.
TOWER = {"smolvlm-scale3": {"ffn.act": "gelu"}}
TEXT = {"gemma3-plain": {"attention.window_layers": "[0, 2]", "attention.scale": 0.25}}


def whole(folder, name, **how):
    case = weights.Vision(name)
    model = mmproj.build(folder, case)
    with open_tower(folder, TOWER.get(name, {}), **how).session(seqs=len(case.grids)) as s:
        rows = images(s, OneFrame(case))
    check(rows, case.rows)
    given = {"kv.dtype": "f32", "vision.part": "rows"} | TEXT.get(name, {})
    with llmc.Model(str(model), set=given, **how).session(n_out=512) as s:
        check(read(s, case, rows), case.logits)
        check(read(s, case, rows, 3), case.logits)


@pytest.mark.parametrize("name", CASES)
def test_reference(name, tmp_path):
    whole(tmp_path, name, device="ref")


@pytest.mark.parametrize("name", RUNNABLE)
def test_images_are_prepared_as_for_the_folder(name, tmp_path):
    """By the keys of the file, and what they leave out as published models have it."""
    model = tiny_vision.build_gguf(tmp_path / "gguf", name)
    tower = os.path.join(os.path.dirname(model), "mmproj-F16.gguf")
    frames = weights.Vision(name).config["vision_config"].get("temporal_patch_size", 1)
    with (
        llmc.ImageProcessor(tiny_vision.build(tmp_path / "hf", name=name)) as hf,
        llmc.ImageProcessor(tower) as own,
    ):
        for path in tiny_vision.IMAGES:
            a, b = hf.prepare(llmc.Image(path)), own.prepare(llmc.Image(path))
            for k in "positions", "tiles", "grid", "n_tokens", "text", "placeholder", "token":
                assert getattr(a, k) == getattr(b, k), k
            want = np.array(a.rows).reshape(len(a.positions), 3, frames, -1)[:, :, 0]
            got = np.array(b.rows).reshape(len(b.positions), 3, -1)
            assert np.abs(want - got).max() < 1e-6


def test_a_processor(tmp_path):
    whole(tmp_path, "qwen3_vl-bf16", device="cpu", arch="generic")


def test_run(tmp_path):
    """llmc run with an image, with the tower that --mmproj names and with the one next to it"""
    model = tiny_vision.build_gguf(tmp_path / "gguf", "qwen2_vl-plain")
    tower = os.path.join(os.path.dirname(model), "mmproj-F16.gguf")
    marks = tiny_vision.tiny_model.vocabulary(tiny_vision.MODELS["qwen2_vl-plain"][0])
    at = marks.index("<|image_pad|>")
    n = run_of_tokens(tower)
    ids, image = [20, *[at] * n, 21], tiny_vision.IMAGES[0]
    first = run(model, ids, "--image", image, "--device", "ref")
    os.rename(tower, tmp_path / "other.gguf")
    more = "--image", image, "--device", "ref"
    assert run(model, ids, *more, "--mmproj", tmp_path / "other.gguf") == first
    assert "has no mmproj-*.gguf: name the file with --mmproj" in run(model, ids, *more, code=1)


def run_of_tokens(tower):
    with llmc.ImageProcessor(tower) as p:
        return p.prepare(llmc.Image(tiny_vision.IMAGES[0])).n_tokens


def test_the_file_next_to_the_model(tmp_path):
    """The one whose name fits, of the preferred type; one that does not fit is left out."""
    case = weights.Vision("qwen3_vl-plain")
    model = mmproj.build(tmp_path, case)
    (tmp_path / "mmproj-model.gguf").rename(tmp_path / "mmproj-model-F32.gguf")
    for name in "mmproj-other-F16.gguf", "mmproj-model-BF16.gguf", "mmproj-model-Q8_0.gguf":
        (tmp_path / name).write_bytes(b"GGUF")
    given, log = {"vision.part": "rows"}, []
    with pytest.raises(llmc.Error, match="mmproj-model-BF16.gguf"):
        llmc.Model(str(model), set=given, no_weights=True)
    (tmp_path / "mmproj-model-BF16.gguf").unlink()
    m = llmc.Model(str(model), set=given, no_weights=True)
    assert (m["vision.token"], m["rope.sections"]) == (str(case.image_token), "[2, 3, 3]")
    assert m["vision.deep"] == "[0, 1]"
    # by name, whatever is next to the model; images are then required
    tower = tmp_path / "mmproj-model-F32.gguf"
    m = llmc.Model(str(model), mmproj=tower, no_weights=True)
    assert m["vision.part"] == "rows"
    other = tmp_path / "upper" / "other"
    other.mkdir(parents=True)
    mmproj.write_tower(other / "mmproj-F16.gguf", weights.Vision("qwen2_vl-plain"))
    with pytest.raises(llmc.Error, match="the tower makes 1 rows of 48 elements per token, model "):
        llmc.Model(str(model), mmproj=other / "mmproj-F16.gguf", no_weights=True)
    model.rename(other / "model.gguf")
    m = llmc.Model(str(other / "model.gguf"), no_weights=True, log=lambda level, s: log.append(s))
    assert m["vision.part"] == "none" and "mmproj" not in "".join(log)
    with pytest.raises(llmc.Error, match="has no mmproj-.*gguf: name the file with --mmproj"):
        (other / "mmproj-F16.gguf").unlink()
        llmc.Model(str(other / "model.gguf"), set=given, no_weights=True)


def reads_images(path):
    try:
        llmc.Model(str(path), set={"vision.part": "rows"}, no_weights=True)
    except llmc.Error as e:
        assert "images need the vision tower of this model" in str(e)
        return False
    return True


def test_towers_of_other_models(tmp_path):
    """A tower in a folder of several models is of those whose name it has."""
    case = weights.Vision("qwen2_vl-plain")
    names = "M-7B-VL-Q4_K_M", "M-7B-VL-UD-Q2_K_XL", "M-7B", "coder"
    for name in names:
        mmproj.write_text(tmp_path / f"{name}.gguf", case)

    def parts(tower):
        mmproj.write_tower(tmp_path / tower, case)
        out = [reads_images(tmp_path / f"{name}.gguf") for name in names]
        (tmp_path / tower).unlink()
        return out

    for tower in "mmproj-M-7B-VL-F16.gguf", "M-7B-VL.mmproj-Q8_0.gguf", "mmproj-m-7b-vl.gguf":
        assert parts(tower) == [True, True, False, False], tower
    for tower in "mmproj-F16.gguf", "mmproj.gguf", "mmproj-M-7B-Chat-F16.gguf":
        assert parts(tower) == [False] * 4, tower
    mmproj.write_tower(tmp_path / "mmproj-F16.gguf", case)
    given = {"vision.part": "rows"}
    with pytest.raises(llmc.Error, match="has other models and no mmproj.* with this model's name"):
        llmc.Model(str(tmp_path / "coder.gguf"), set=given, no_weights=True)
    for name in names[2:]:
        (tmp_path / f"{name}.gguf").unlink()
    assert [reads_images(tmp_path / f"{name}.gguf") for name in names[:2]] == [True, True]


def test_the_tower_in_the_upper_folder(tmp_path):
    """Large models have a folder per quantisation."""
    case = weights.Vision("qwen2_vl-plain")
    inner = tmp_path / "UD-Q4_K_XL"
    inner.mkdir()
    mmproj.write_text(inner / "M-UD-Q4_K_XL.gguf", case)
    mmproj.write_tower(tmp_path / "mmproj-F16.gguf", case)
    assert reads_images(inner / "M-UD-Q4_K_XL.gguf")
    (tmp_path / "mmproj-F16.gguf").rename(tmp_path / "mmproj-other-F16.gguf")
    assert not reads_images(inner / "M-UD-Q4_K_XL.gguf")
    (tmp_path / "mmproj-other-F16.gguf").rename(tmp_path / "mmproj-F16.gguf")
    mmproj.write_text(tmp_path / "coder.gguf", case)
    assert not reads_images(inner / "M-UD-Q4_K_XL.gguf")


def test_a_projector_needs_the_positions_of_its_model(tmp_path):
    case = weights.Vision("smolvlm-plain")
    tokens = [f"<{i}>" for i in range(case.config["text_config"]["vocab_size"])]
    tokens[case.image_token - 1] = "<|image_pad|>"
    mmproj.write_text(tmp_path / "model.gguf", case, tokens=tokens)
    tower = tmp_path / "mmproj-F16.gguf"
    mmproj.write_tower(tower, weights.Vision("qwen2_vl-plain"))
    for how in {"mmproj": tower}, {"set": {"vision.part": "rows"}}:
        with pytest.raises(llmc.Error, match="tower of another model: .* has no sections"):
            llmc.Model(str(tmp_path / "model.gguf"), no_weights=True, **how)


def test_what_is_refused(tmp_path):
    case = weights.Vision("smolvlm-plain")
    model = mmproj.build(tmp_path, case)
    tower = tmp_path / "mmproj-model.gguf"
    with pytest.raises(llmc.Error, match="vision tower of a model: open the model's own GGUF"):
        llmc.Model(str(tower), no_weights=True)
    with pytest.raises(llmc.Error, match="a vision tower is expected, which is a file of its own"):
        llmc.Model(str(model), tower=True, no_weights=True)
    with pytest.raises(llmc.Error, match="is for the language model of a GGUF file"):
        llmc.Model(case.build(tmp_path / "hf"), mmproj=tower, no_weights=True)
    case.image_token = 7
    mmproj.write_text(model, case, tokens=["<a>"] * 131)
    with open(model, "rb") as f:
        data = f.read()
    model.write_bytes(data.replace(b"<image>", b"<imago>"))
    with pytest.raises(llmc.Error, match="the vocabulary has no token <image>"):
        llmc.Model(str(model), mmproj=tower, no_weights=True)
    for kind, text in (
        (b"resampler", "no rules for the images of a vision tower of the type .resampler."),
        (b"idefics3", "clip.vision.patch_size|patch size"),
    ):
        mmproj.write_tower(tower, case, keys={"patch_size": None} if kind[0] == 105 else {})
        data = tower.read_bytes()
        n = len(kind).to_bytes(8, "little")
        tower.write_bytes(data.replace(b"\x08\0\0\0\0\0\0\0idefics3", n + kind))
        with pytest.raises(llmc.Error, match=text):
            llmc.Model(str(model), mmproj=tower, no_weights=True)
    with pytest.raises(llmc.Error):
        llmc.ImageProcessor(tower)


def test_a_tower_with_windows_has_their_pattern(tmp_path):
    """The period of the layers that attend to the whole image has no default."""
    case = weights.Vision("qwen2_5_vl-plain")
    mmproj.build(tmp_path, case)
    tower = tmp_path / "mmproj-model.gguf"
    mmproj.write_tower(tower, case, keys={"n_wa_pattern": None})
    with pytest.raises(llmc.Error, match="n_wa_pattern"):
        open_tower(tmp_path, {}, no_weights=True)


@pytest.mark.parametrize("name", ["llava-plain", "qwen2_vl-plain", "gemma3-plain"])
def test_older_files(name, tmp_path):
    """Matrices of the feed-forward that are named the other way round"""
    case = weights.Vision(name)
    swap = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}

    def change(tensors):
        out = {}
        for name, x in tensors.items():
            parts = name.split(".")
            out[".".join(swap.get(p, p) for p in parts)] = x
        return out

    keys = {"feed_forward_length": 0}
    mmproj.write_tower(tmp_path / "mmproj-model.gguf", case, change, keys)
    with open_tower(tmp_path, {}, device="ref").session(seqs=len(case.grids)) as s:
        check(images(s, OneFrame(case)), case.rows)
