"""Calls build/pixels, which decodes and prepares images."""

import os
import pathlib
import struct
import subprocess
from dataclasses import dataclass

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
    done = subprocess.run([program, *map(str, args)], capture_output=True, timeout=120)
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
