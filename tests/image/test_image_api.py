"""llmc_image_* through the Python binding: sources of pixels, folders of processors, refusals."""

import json

import numpy as np
import pytest
from image_lib import IMAGES, decode, prepare

import llmc

CASES = json.loads((IMAGES / "rows.json").read_text())
NAMES = {
    "config": "config.json",
    "preprocessor": "preprocessor_config.json",
    "processor": "processor_config.json",
    "tokenizer": "tokenizer_config.json",
}


def folder(tmp_path, files):
    for key, value in files.items():
        (tmp_path / NAMES[key]).write_text(json.dumps(value))
    return tmp_path


class PilImage:
    """Behaves as a PIL image of mode P: its array has indices, so it must be converted."""

    def __init__(self, array):
        self.array, self.info, self.asked = array, {"transparency": 1}, None
        self.__array_interface__ = {"shape": array.shape[:2], "typestr": "|u1"}

    def getbands(self):
        return ("P",)

    def convert(self, mode):
        self.asked = mode
        return self.array


def test_pixels_come_from_bytes_paths_arrays_and_pil():
    path = IMAGES / "png-rgba.png"
    (expected,) = decode([path])
    shape = (expected.height, expected.width, expected.channels)
    array = np.frombuffer(expected.pixels, np.uint8).reshape(shape)
    pil = PilImage(array)
    for source in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), array, pil):
        with llmc.Image(source) as image:
            assert image.shape == shape and image.pixels() == expected.pixels
    assert pil.asked == "RGBA"
    with llmc.Image(array[::-1, ::2]) as image:
        assert image.pixels() == array[::-1, ::2].tobytes()
    with llmc.Image(array[..., 0]) as image:
        assert image.pixels() == np.repeat(array[..., :1], 3, -1).tobytes()


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "smolvlm"])
def test_a_folder_prepares_images_as_the_model_needs(tmp_path, name):
    rules, path = CASES[name]["files"], IMAGES / "webp-large.webp"
    (expected,) = prepare(rules, [path])
    with llmc.ImageProcessor(folder(tmp_path, rules)) as p, llmc.Image(path) as image:
        out = p.prepare(image)
    assert out.text == expected.text and out.n_tokens == expected.n_token
    assert out.text.count(out.token) == out.n_tokens
    assert [list(t) for t in out.tiles] == expected.grids and out.grid == expected.tiles
    assert out.positions == expected.positions
    assert out.rows.shape == (len(expected.positions), expected.row_elems)
    assert bytes(out.rows) == bytes(expected.values)


def test_a_processor_within_processor_config_is_read(tmp_path):
    files = CASES["qwen3_vl"]["files"]
    both = {"config": files["config"], "processor": {"image_processor": files["preprocessor"]}}
    with llmc.ImageProcessor(folder(tmp_path, both)) as p:
        out = p.prepare(llmc.Image(IMAGES / "jpeg-420.jpg"))
    assert bytes(out.rows) == bytes(prepare(files, [IMAGES / "jpeg-420.jpg"])[0].values)


REFUSED = {
    "type": ({"config": {"model_type": "mystery"}}, 'model of type "mystery"'),
    "class": ({"preprocessor": {"image_processor_type": "OddImageProcessor"}}, "OddImageProcessor"),
    "step": ({"preprocessor": {"do_flip_channel_order": True}}, "the step do_flip_channel_order"),
    "size": ({"preprocessor": {"size": {"max_height": 3}}}, "key max_height"),
    "value": ({"preprocessor": {"patch_size": "big"}}, 'patch_size = "big" is not possible'),
    "resample": ({"preprocessor": {"resample": 5}}, "resample = 5 is not possible"),
    "std": ({"preprocessor": {"image_std": [1, 0, 1]}}, "image_std has a 0"),
    "patch": ({"preprocessor": {"patch_size": 0}}, "no usable patch size"),
    "scale": ({"preprocessor": {"rescale_factor": 0}}, "rescale_factor is not above 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_configurations_without_an_equivalent_are_refused(tmp_path, name):
    files, text = REFUSED[name]
    files = {"config": {"model_type": "qwen2_vl"}, **files}
    with pytest.raises(llmc.Error, match=text.replace('"', ".")) as e:
        llmc.ImageProcessor(folder(tmp_path, files))
    assert e.value.name == "LLMC_E_INPUT"


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match="numpy array, not int"):
        llmc.Image(3)
    with pytest.raises(TypeError, match="uint8"):
        llmc.Image(np.zeros((2, 2, 3), np.float32))
    with pytest.raises(llmc.RangeError, match="2 channels"):
        llmc.Image(np.zeros((2, 2, 2), np.uint8))
    with pytest.raises(llmc.RangeError):
        llmc.Image(np.zeros((0, 2, 3), np.uint8))
    with pytest.raises(llmc.Error, match="851 pixels; at most 9|37 x 23 pixels; at most 9"):
        llmc.Image(IMAGES / "png-rgb.png", max_pixels=9)
    with pytest.raises(llmc.RangeError, match="must not be negative"):
        llmc.Image(IMAGES / "png-rgb.png", max_pixels=-1)
    with pytest.raises(llmc.Error, match="config.json"):
        llmc.ImageProcessor(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type"')
    with pytest.raises(llmc.Error, match="config.json:1"):
        llmc.ImageProcessor(tmp_path)
    p = llmc.ImageProcessor(folder(tmp_path, CASES["gemma4"]["files"]))
    image = llmc.Image(IMAGES / "png-rgb.png")
    image.close()
    with pytest.raises(llmc.ClosedError, match="this image is closed"):
        p.prepare(image)
    with pytest.raises(TypeError, match="not bytes"):
        p.prepare(b"pixels")
