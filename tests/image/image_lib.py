"""Calls build/pixels, which decodes and prepares images."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
from dataclasses import dataclass

from waiting import HANG

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "tests/golden/images"
PIXELS = os.path.join(os.environ.get("BUILD", str(ROOT / "build")), "pixels")


@dataclass
class Decoded:
    status: int
    text: str
    width: int
    height: int
    channels: int
    pixels: bytes


class Records:
    """Values of the program's output, in sequence"""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        assert self.at + n <= len(self.data)
        self.at += n
        return self.data[self.at - n : self.at]

    def int(self):
        return struct.unpack("<i", self.take(4))[0]

    def text(self):
        return self.take(self.int()).decode()


def run(*args, program=PIXELS):
    done = subprocess.run([program, *map(str, args)], capture_output=True, timeout=HANG)
    assert done.returncode == 0, done.stderr.decode()
    return Records(done.stdout)


def decode(files, max_pixels=None, program=PIXELS):
    limit = [] if max_pixels is None else ["-p", max_pixels]
    r = run("decode", *limit, *files, program=program)
    out = []
    for _ in files:
        status, text, w, h, c = r.int(), r.text(), r.int(), r.int(), r.int()
        out.append(Decoded(status, text, w, h, c, r.take(w * h * c)))
    assert r.at == len(r.data)
    return out


@dataclass
class Rows:
    status: int
    error: str
    text: str
    n_token: int
    tiles: tuple
    grids: list
    positions: list
    values: memoryview  # float32 [n, row_elems]
    row_elems: int


def read_rows(r):
    status, error, text, n_token = r.int(), r.text(), r.text(), r.int()
    tiles = (r.int(), r.int())
    grids = [[r.int(), r.int()] for _ in range(r.int())]
    n, elems = r.int(), r.int()
    positions = list(struct.iter_unpack("<2i", r.take(8 * n)))
    values = memoryview(r.take(4 * n * elems)).cast("f")
    return Rows(status, error, text, n_token, tiles, grids, positions, values, elems)


def prepare(rules, images, with_rows=True):
    """Rows of image files; for "WIDTHxHEIGHT" sizes and text only. rules: name -> file's content"""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(rules, f)
        f.flush()
        r = run("rows" if with_rows else "sizes", f.name, *images)
    out = [read_rows(r) for _ in images]
    assert r.at == len(r.data)
    return out
