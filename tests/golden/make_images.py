#!/usr/bin/env python3
"""Write images/: odd images of each format, and the pixels that Pillow reads from them.

    V/bin/pip install pillow numpy && V/bin/python tests/golden/make_images.py

Pillow decodes each file, applies the EXIF orientation and converts to RGBA. Greyscale PNG of 16 bits
is the exception: Pillow saturates it at 255, so the expected value is the upper byte."""

import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps, ImageSequence  # noqa: F401

HERE = pathlib.Path(__file__).parent / "images"
SAMPLES = 12


def picture(width, height, channels, seed=0):
    """Draw smooth colours with edges and some noise, as uint8 [height, width, channels]."""
    y, x, c = np.meshgrid(
        np.arange(height), np.arange(width), np.arange(channels), indexing="ij", sparse=True
    )
    smooth = 120 + 90 * np.sin((x * (c + 2) + 3 * y + seed) / 9.0) * np.cos((y - x * c) / 7.0)
    edge = np.where((x // 5 + y // 4) % 3 == c % 3, 40, 0)
    noise = ((x * 7919 + y * 104729 + c * 1299709 + seed * 15485863) % 1009) % 23
    return np.clip(smooth + edge + noise, 0, 255).astype(np.uint8)


def image(mode, width=37, height=23, seed=0):
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    a = picture(width, height, channels, seed)
    return Image.fromarray(a[..., 0] if channels == 1 else a, mode)


def saved(im, format, **options):
    b = io.BytesIO()
    im.save(b, format, **options)
    return b.getvalue()


def exif(orientation, big=True):
    e = Image.Exif()
    e[0x0112] = orientation
    e[0x010F] = "camera"
    e.endian = ">" if big else "<"
    return e.tobytes()


# ---- PNG files made without Pillow, which does not write all bit depths and no interlacing ----


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(rows, depth):
    """Convert rows of samples [height, n] to filtered bytes; filters 0 and 1 alternate."""
    out = b""
    for y, row in enumerate(rows):
        if depth == 16:
            raw = row.astype(">u2").tobytes()
        elif depth == 8:
            raw = row.astype(np.uint8).tobytes()
        else:
            per = 8 // depth
            padded = np.concatenate([row, np.zeros(-len(row) % per, row.dtype)]).reshape(-1, per)
            raw = bytes(
                sum(int(v) << (8 - depth * (i + 1)) for i, v in enumerate(group))
                for group in padded
            )
        out += b"\0" + raw
    return out


def png(samples, depth, color, extra=b"", interlace=False, after=b""):
    """samples: [height, width, channels]"""
    h, w, n = samples.shape
    if not interlace:
        data = packed(samples.reshape(h, w * n), depth)
    else:
        data = b""
        passes = [
            (0, 0, 8, 8),
            (0, 4, 8, 8),
            (4, 0, 8, 4),
            (0, 2, 4, 4),
            (2, 0, 4, 2),
            (0, 1, 2, 2),
            (1, 0, 2, 1),
        ]
        for y, x, dy, dx in passes:
            part = samples[y::dy, x::dx]
            if part.size:
                data += packed(part.reshape(part.shape[0], -1), depth)
    head = struct.pack(">IIBBBBB", w, h, depth, color, 0, 0, int(interlace))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", zlib.compress(data, 9))
        + after
        + chunk(b"IEND", b"")
    )


def wide(width, height, channels, seed):
    a = picture(width, height, channels, seed).astype(np.uint16)
    return a * 256 + picture(width, height, channels, seed + 1)


PALETTE = bytes((i * k + 30 * k) % 256 for i in range(16) for k in (37, 91, 11))


def pngs():
    few = picture(29, 17, 1, 5)
    yield "png-rgb", saved(image("RGB"), "PNG")
    yield "png-grey", saved(image("L"), "PNG")
    yield "png-rgba", saved(image("RGBA"), "PNG")
    yield "png-grey-alpha", saved(image("LA"), "PNG")
    yield "png-palette", saved(image("RGB").quantize(61), "PNG")
    yield "png-grey-1bit", png(few // 128, 1, 0)
    yield "png-grey-2bit", png(few // 64, 2, 0)
    yield "png-grey-4bit-interlaced", png(few // 16, 4, 0, interlace=True)
    yield "png-palette-4bit", png(few // 16, 4, 3, chunk(b"PLTE", PALETTE))
    transparent = chunk(b"PLTE", PALETTE) + chunk(b"tRNS", bytes([0, 255, 128, 77]))
    yield "png-palette-alpha-interlaced", png(few // 16, 4, 3, transparent, interlace=True)
    yield "png-short-palette", png(few // 16, 8, 3, chunk(b"PLTE", PALETTE[:15]))
    yield "png-rgb16", png(wide(19, 13, 3, 2), 16, 2)
    yield "png-rgba16-interlaced", png(wide(19, 13, 4, 3), 16, 6, interlace=True)
    yield "png-grey16", png(wide(19, 13, 1, 4), 16, 0)
    yield "png-grey-alpha16", png(wide(19, 13, 2, 4), 16, 4)
    keyed = picture(21, 11, 3)
    keyed[3:6, 4:9] = (9, 200, 31)
    key = struct.pack(">HHH", 9, 200, 31)
    yield "png-rgb-transparent-colour", png(keyed, 8, 2, chunk(b"tRNS", key))
    yield "png-grey-transparent", png(few, 8, 0, chunk(b"tRNS", struct.pack(">H", few[0, 0, 0])))
    yield "png-exif-after-pixels", png(keyed, 8, 2, after=chunk(b"eXIf", exif(6)[6:]))
    yield "png-1x1", saved(image("RGB", 1, 1), "PNG")
    yield "png-1x3000", saved(image("L", 1, 3000), "PNG", optimize=True)
    yield "png-3000x1", saved(image("L", 3000, 1), "PNG", optimize=True)
    yield "png-without-end", png(keyed, 8, 2)[:-16]


def jpegs():
    yield "jpeg-420", saved(image("RGB", 45, 31), "JPEG", quality=85)
    yield "jpeg-422", saved(image("RGB", 45, 31), "JPEG", quality=70, subsampling="4:2:2")
    yield "jpeg-444", saved(image("RGB", 45, 31), "JPEG", quality=95, subsampling="4:4:4")
    yield "jpeg-rgb", saved(image("RGB", 22, 15), "JPEG", quality=90, keep_rgb=True)
    yield "jpeg-grey", saved(image("L"), "JPEG")
    yield "jpeg-cmyk", saved(image("CMYK"), "JPEG", quality=90)
    yield "jpeg-progressive", saved(image("RGB", 45, 31), "JPEG", progressive=True)
    yield "jpeg-restarts", saved(image("RGB", 45, 31), "JPEG", restart_marker_blocks=1)
    for orientation in range(2, 9):
        options = {"exif": exif(orientation, big=orientation % 2 == 0), "quality": 60}
        yield f"jpeg-orientation{orientation}", saved(image("RGB", 17, 9), "JPEG", **options)
    yield "jpeg-1x1", saved(image("RGB", 1, 1), "JPEG")
    yield "jpeg-damaged", damaged(saved(image("RGB", 45, 31), "JPEG"))


def damaged(data):
    """Change some bytes of entropy-coded data; decoders then continue with other colours."""
    b = bytearray(data)
    at = len(b) * 3 // 4
    b[at : at + 3] = b"\x13\x57\x9b"
    return bytes(b)


def webps():
    yield "webp-lossy", saved(image("RGB"), "WEBP", quality=80)
    yield "webp-lossy-alpha", saved(image("RGBA"), "WEBP", quality=60)
    yield "webp-lossless", saved(image("RGB"), "WEBP", lossless=True)
    yield "webp-lossless-alpha", saved(image("RGBA"), "WEBP", lossless=True, exact=True)
    yield "webp-exif", saved(image("RGB", 17, 9), "WEBP", exif=exif(8)[6:])
    frames = [image("RGB", 20, 14, s) for s in (1, 2)]
    yield (
        "webp-animated",
        saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True),
    )
    first = Image.new("RGBA", (20, 14))
    first.paste(image("RGBA", 7, 5), (6, 4))
    more = [image("RGBA", 20, 14, 3)]
    yield (
        "webp-animated-alpha",
        saved(first, "WEBP", save_all=True, append_images=more, lossless=True),
    )


def gif_file(canvas, frame, palette, codes, background=0, control=b"", interlaced=False):
    """Build a GIF file. codes: LZW data in sub-blocks, with a clear code before every 100
    values."""
    x, y, w, h = frame
    bits = 0
    n = 0
    size = 8
    out = bytearray()

    def put(code, width):
        nonlocal bits, n
        bits |= code << n
        n += width
        while n >= 8:
            out.append(bits & 255)
            bits >>= 8
            n -= 8

    for i, value in enumerate(codes):
        if i % 100 == 0:
            put(256, 9)
        put(int(value), 9)
    put(257, 9)
    if n:
        out.append(bits)
    blocks = b"".join(
        bytes([len(out[i : i + 255])]) + bytes(out[i : i + 255]) for i in range(0, len(out), 255)
    )
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", *canvas, 0xF7, background, 0)
        + palette
        + control
        + b","
        + struct.pack("<HHHHB", x, y, w, h, 0x40 if interlaced else 0)
        + bytes([size])
        + blocks
        + b"\0;"
    )


def gifs():
    yield "gif-palette", saved(image("RGB").quantize(200), "GIF")
    yield "gif-grey", saved(image("L"), "GIF")
    yield "gif-transparent", saved(image("RGBA").quantize(31), "GIF", transparency=3)
    many = [image("RGB", 20, 14, s).quantize(16) for s in (1, 2)]
    yield "gif-animated", saved(many[0], "GIF", save_all=True, append_images=many[1:])
    palette = bytes((i * k) % 256 for i in range(256) for k in (1, 3, 5))
    a = picture(13, 11, 1, 7)[..., 0]
    yield "gif-offset", gif_file((20, 16), (4, 3, 13, 11), palette, a.ravel())
    order = [y for s, d in ((0, 8), (4, 8), (2, 4), (1, 2)) for y in range(s, 11, d)]
    yield (
        "gif-interlaced",
        gif_file((13, 11), (0, 0, 13, 11), palette, a[order].ravel(), interlaced=True),
    )
    control = b"!\xf9\x04\x01\0\0" + bytes([int(a[2, 2])]) + b"\0"
    yield (
        "gif-offset-transparent",
        gif_file((20, 16), (4, 3, 13, 11), palette, a.ravel(), control=control),
    )
    yield "gif-larger-than-canvas", gif_file((8, 8), (2, 1, 13, 11), palette, a.ravel())


def bmp_file(width, height, bits, compression, pixels, palette=b"", masks=b"", size=40):
    head = struct.pack(
        "<IiiHHIIiiII", size, width, height, 1, bits, compression, 0, 0, 0, len(palette) // 4, 0
    )
    extra = masks + bytes(max(0, size - 40 - len(masks)))
    at = 14 + 40 + len(extra) + len(palette)
    return (
        b"BM" + struct.pack("<IHHI", at + len(pixels), 0, 0, at) + head + extra + palette + pixels
    )


def bmps():
    yield "bmp-rgb", saved(image("RGB"), "BMP")
    yield "bmp-grey", saved(image("L"), "BMP")
    yield "bmp-palette", saved(image("RGB").quantize(99), "BMP")
    yield "bmp-1bit", saved(image("L").convert("1"), "BMP")
    yield "bmp-rgba", saved(image("RGBA"), "BMP")
    rng = picture(7, 5, 4, 9)
    top_down = rng.tobytes()
    yield "bmp-top-down-32", bmp_file(7, -5, 32, 0, top_down)
    v = (picture(6, 5, 1, 3).astype(np.uint16) * 251 + picture(6, 5, 1, 4))[..., 0]
    yield "bmp-555", bmp_file(6, 5, 16, 0, v.astype("<u2").tobytes())
    m565 = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    yield "bmp-565", bmp_file(6, 5, 16, 3, v.astype("<u2").tobytes(), masks=m565)
    mbgra = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    yield "bmp-alpha-masks", bmp_file(7, 5, 32, 3, top_down, masks=mbgra, size=56)
    palette = b"".join(bytes([(i * 7) % 256, (i * 3) % 256, i, 0]) for i in range(256))
    rle8 = bytes([5, 17, 0, 4, 1, 2, 3, 4, 0, 0, 9, 200, 0, 0]) + bytes([0, 3, 9, 8, 7, 0])
    rle8 += bytes([6, 77, 0, 0, 4, 5, 5, 6, 0, 1])
    yield "bmp-rle8", bmp_file(9, 4, 8, 1, rle8, palette)
    rle4 = bytes([9, 0x12, 0, 0, 0, 5, 0x34, 0x56, 0x70, 0, 4, 0x9A, 0, 0, 9, 0xBB, 0, 1])
    yield "bmp-rle4", bmp_file(9, 3, 4, 2, rle4, palette[:64])
    core = struct.pack("<IHHHH", 12, 5, 3, 1, 4) + bytes(i * 5 % 256 for i in range(48))
    rows = bytes([0x12, 0x34, 0x50, 0, 0x67, 0x89, 0xA0, 0, 0xBC, 0xDE, 0xF0, 0])
    yield "bmp-os2", b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + len(core)) + core + rows


def large():
    """Images that preprocessing cuts into tiles"""
    y, x = np.mgrid[:230, :410] / 410
    a = np.stack([x, y * 1.7, 0.5 + 0.5 * np.sin(20 * x * (1 + y))], -1)
    im = Image.fromarray((a * 255).clip(0, 255).astype(np.uint8))
    yield "webp-large", saved(im, "WEBP", quality=40)
    yield "webp-tall", saved(im.rotate(90, expand=True).crop((0, 0, 150, 410)), "WEBP", quality=40)


def cut(data, keep):
    return data[: int(len(data) * keep)]


def truncated():
    yield "cut-jpeg", cut(saved(image("RGB", 45, 31), "JPEG"), 0.8)
    yield "cut-jpeg-end", saved(image("RGB", 45, 31), "JPEG")[:-2]
    yield "cut-jpeg-progressive", cut(saved(image("RGB", 45, 31), "JPEG", progressive=True), 0.8)
    yield "cut-jpeg-head", saved(image("RGB", 45, 31), "JPEG")[:40]
    yield "cut-png", cut(saved(image("RGB"), "PNG"), 0.7)
    yield "cut-webp", cut(saved(image("RGB"), "WEBP"), 0.7)
    yield "cut-gif", cut(saved(image("RGB").quantize(200), "GIF"), 0.8)
    yield "cut-bmp", cut(saved(image("RGB"), "BMP"), 0.7)


def expected(name, data):
    """RGBA as uint8 [height, width, 4]"""
    im = Image.open(io.BytesIO(data))
    if name == "png-grey16":
        a = (np.array(im).astype(np.uint16) >> 8).astype(np.uint8)
        return np.stack([a, a, a, np.full_like(a, 255)], -1)
    return np.array(ImageOps.exif_transpose(im).convert("RGBA"))


def summary(a):
    """Return the size and checksum, and samples for the message of a test that fails."""
    flat = a.reshape(-1, 4)
    at = np.linspace(0, len(flat) - 1, SAMPLES).astype(int)
    return {
        "height": a.shape[0],
        "width": a.shape[1],
        "crc32": zlib.crc32(a.tobytes()),
        "samples": [[int(i), *map(int, flat[i])] for i in at],
    }


def main():
    HERE.mkdir(exist_ok=True)
    for old in HERE.iterdir():
        if old.suffix != ".json":
            old.unlink()
    table = {}
    for make in (pngs, jpegs, webps, gifs, bmps, large, truncated):
        for name, data in make():
            ext = {"png": "png", "jpeg": "jpg", "webp": "webp", "gif": "gif", "bmp": "bmp"}
            kind = name.split("-")[1] if name.startswith("cut") else name.split("-")[0]
            file = f"{name}.{ext[kind]}"
            (HERE / file).write_bytes(data)
            try:
                table[file] = summary(expected(name, data))
            except (OSError, SyntaxError, ValueError) as e:
                table[file] = {"error": str(e)}
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()]
    (HERE / "pixels.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
