"""Each format is decoded to the pixels that Pillow reads; damage, limits and unknown data are refused by name."""

import json
import os
import struct
import subprocess
import zlib

import pytest
from image_lib import IMAGES, ROOT, decode

EXPECTED = json.loads((IMAGES / "pixels.json").read_text())
GOOD = {name: e for name, e in EXPECTED.items() if "error" not in e}
E_INPUT = -1


def rgba(image):
    if image.channels == 4:
        return image.pixels
    out = bytearray(b"\xff" * (4 * image.width * image.height))
    for c in range(3):
        out[c::4] = image.pixels[c::3]
    return bytes(out)


def difference(image, expected):
    """Largest difference of the sampled pixels"""
    flat = rgba(image)
    return max(
        abs(a - b)
        for at, *pixel in expected["samples"]
        for a, b in zip(flat[4 * at : 4 * at + 4], pixel, strict=True)
    )


def test_every_file_of_the_folder_has_expected_pixels():
    files = {p.name for p in IMAGES.iterdir() if p.suffix != ".json"}
    assert files == set(EXPECTED) and len(GOOD) > 60


def test_images_are_decoded_as_pillow_does():
    for (name, e), image in zip(GOOD.items(), decode([IMAGES / n for n in GOOD]), strict=True):
        assert image.status == 0, (name, image.text)
        assert (image.width, image.height) == (e["width"], e["height"]), name
        assert difference(image, e) == 0, name
        assert zlib.crc32(rgba(image)) == e["crc32"], name


def test_truncated_files_are_refused():
    cut = [name for name, e in EXPECTED.items() if "error" in e]
    assert len(cut) == 8
    for name, image in zip(cut, decode([IMAGES / n for n in cut]), strict=True):
        assert image.status == E_INPUT and image.width == 0, name
        assert "is truncated." in image.text, (name, image.text)


def png_head(width, height):
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


def announcing(width, height):
    """Files whose header announces a size, with hardly any data"""
    jpeg = bytearray((IMAGES / "jpeg-420.jpg").read_bytes())
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", height, width)
    webp = bytearray((IMAGES / "webp-animated.webp").read_bytes())
    at = webp.index(b"VP8X") + 12
    webp[at : at + 6] = b"".join(struct.pack("<i", n - 1)[:3] for n in (width, height))
    gif = b"GIF89a" + struct.pack("<HH", width, height) + bytes(3)
    gif += b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + bytes([2, 2, 0x4C, 1, 0]) + b";"
    bmp = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54)
    bmp += struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return {
        "PNG": png_head(width, height) + bytes([0, 0, 0, 9]) + b"IDAT",
        "JPEG": bytes(jpeg),
        "WebP": bytes(webp),
        "GIF": gif,
        "BMP": bmp,
    }


def refused(data, tmp_path, **options):
    path = tmp_path / "image"
    path.write_bytes(data)
    (image,) = decode([path], **options)
    assert image.status == E_INPUT and image.width == 0
    return image.text


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WebP", "GIF", "BMP"])
def test_a_size_over_the_limit_is_refused_from_the_header(tmp_path, format):
    data = announcing(16000, 16001)[format]
    text = refused(data, tmp_path)
    assert f"The {format} image has 16000 x 16001 pixels; at most 67108864 are accepted" in text
    assert "at most 100 are" in refused(announcing(101, 1)[format], tmp_path, max_pixels=100)


def test_a_size_of_zero_is_refused(tmp_path):
    for format in ("BMP", "JPEG"):
        refused(announcing(0, 5)[format], tmp_path)


def test_other_formats_are_refused_by_name(tmp_path):
    names = {
        "TIFF": b"II*\0abcd",
        "AVIF": b"\0\0\0 ftypavif",
        "HEIC": b"\0\0\0 ftypheic",
        "JPEG XL": b"\xff\x0aabc",
        "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n",
        "PDF": b"%PDF-1.7",
        "icon": b"\0\0\1\0",
    }
    for name, data in names.items():
        text = refused(data, tmp_path)
        assert f"The image is a {name} file" in text and "JPEG, PNG, WebP, GIF, BMP" in text
    assert "first bytes 3c 68 74 6d)" in refused(b"<html>", tmp_path)
    assert "(0 bytes, first bytes)" in refused(b"", tmp_path)


def test_a_progressive_file_of_many_scans_is_refused(tmp_path):
    """Each scan costs a pass over the image: 300 repetitions of the last scan are too many."""
    data = (IMAGES / "jpeg-progressive.jpg").read_bytes()
    at = data.rindex(b"\xff\xda")
    text = refused(data[:at] + data[at:-2] * 300 + data[-2:], tmp_path)
    assert "more than 256 scans" in text


def test_a_format_that_is_not_built_is_refused_by_name(tmp_path):
    program = tmp_path / "pixels"
    build = os.environ.get("BUILD", "build")
    libs = ["yaml-0.1", "jansson", "libpcre2-8", "libutf8proc"]
    flags = subprocess.run(["pkg-config", "--libs", *libs], capture_output=True, text=True)
    sources = [f"image/{name}.c" for name in ("image", "decode")]
    compiler = [os.environ.get("CC", "cc"), "-I.", "-Iinclude", "-D_GNU_SOURCE", "-std=gnu11"]
    command = [*compiler, *sources, "tests/image/pixels.c", f"{build}/libllmc.a"]
    subprocess.run(
        [*command, *flags.stdout.split(), "-lm", "-lpthread", "-ldl", "-o", program],
        cwd=ROOT,
        check=True,
    )
    names = {"JPEG": "jpeg-1x1.jpg", "PNG": "png-1x1.png", "WebP": "webp-lossy.webp"}
    images = decode([IMAGES / n for n in names.values()], program=program)
    for name, image in zip(names, images, strict=True):
        assert image.status == -6  # LLMC_E_MISSING
        assert f"no decoder for {name}; it reads GIF, BMP." in image.text
    (gif,) = decode([IMAGES / "gif-palette.gif"], program=program)
    assert gif.status == 0
