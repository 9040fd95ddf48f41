"""Patches, sizes and text of images are those of the image processors of transformers."""

import json
import zlib

import numpy as np
import pytest
from image_lib import IMAGES, prepare

SIZES = json.loads((IMAGES / "sizes.json").read_text())
CASES = json.loads((IMAGES / "rows.json").read_text())


def eight_bits(rules, out):
    """Patches before normalisation, as bytes: CASES has their checksum"""
    rows = np.frombuffer(out.values, np.float32).reshape(-1, out.row_elems)
    defaults = {"Gemma4": (0, 1), "Gemma3": (0.5, 0.5), "Siglip": (0.5, 0.5)}
    defaults |= {"SmolVLM": (0.5, 0.5), "Idefics": (0.5, 0.5)}
    clip = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
    cls = rules["preprocessor"]["image_processor_type"]
    mean, std = next((v for k, v in defaults.items() if cls.startswith(k)), clip)
    mean = np.broadcast_to(rules["preprocessor"].get("image_mean", mean), 3)
    std = np.broadcast_to(rules["preprocessor"].get("image_std", std), 3)
    at = np.arange(out.row_elems)
    channel = at % 3 if cls.startswith("Gemma4") else at * 3 // out.row_elems
    v = (rows * std[channel] + mean[channel]).astype(np.float64) * 255
    assert np.abs(v - v.round()).max() < 0.01
    return v.round().astype(np.uint8).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_images_are_prepared_as_by_transformers(name):
    rules, expected = CASES[name]["files"], CASES[name]["images"]
    for (file, e), out in zip(
        expected.items(), prepare(rules, [IMAGES / f for f in expected]), strict=True
    ):
        if "error" in e:
            assert out.status == -1 and "too narrow" in out.error or "resized to" in out.error
            continue
        assert out.status == 0, (file, out.error)
        same = e["grids"] if isinstance(e["grids"][-1], list) else [e["grids"][0]] * e["grids"][1]
        assert out.grids == same, file
        assert out.text.startswith(e["start"]) and zlib.crc32(out.text.encode()) == e["text"], file
        for i, v in e["samples"]:
            assert abs(out.values[i] - v) < 2e-6, file
        assert zlib.crc32(eight_bits(rules, out)) == e["crc32"], file


@pytest.mark.parametrize("name", SIZES)
def test_sizes_tiles_and_text_of_published_configurations(name):
    rules, expected = SIZES[name]["files"], SIZES[name]["sizes"]
    assert sum(e is not None for e in expected.values()) > 40
    for (size, e), out in zip(
        expected.items(), prepare(rules, list(expected), with_rows=False), strict=True
    ):
        if e is None:
            assert out.status == -1, size
            continue
        assert out.status == 0, (size, out.error)
        same = e[0] if isinstance(e[0][0], list) else [e[0][:2]] * e[0][2]
        assert out.grids == same and zlib.crc32(out.text.encode()) == e[1], (size, out.text[:200])
