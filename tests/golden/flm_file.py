"""FastLLM's .flm in numpy: read as FastLLM reads it, and written for tests. make_flm.py compares it with FastLLM."""

import struct
from types import SimpleNamespace

import numpy as np

F32, BF16, INT8, INT4, F16, INT4_NOZERO, INT4_GROUP = 0, 1, 3, 4, 7, 8, 9


def ranges(lo, hi, bits):
    """Return (scale, zero) as FastLLM derives them from the minimum and maximum of a group."""
    lo, hi = np.minimum(lo, np.float32(0)), np.maximum(hi, np.float32(0))
    scale = ((hi - lo) / np.float32(2**bits - 1)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = np.clip(np.nan_to_num(-lo / scale), 0, 2**bits - 1)
    return scale, np.floor(zero + np.float32(0.5)).astype(
        np.float32
    )  # like C's round: halves away from zero


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def raw(self, n):
        self.at += n
        assert 0 <= n and self.at <= len(self.data)
        return self.data[self.at - n : self.at]

    def i32(self):
        return struct.unpack("<i", self.raw(4))[0]

    def text(self):
        return self.raw(self.i32()).decode()

    def array(self, dtype, n):
        return np.frombuffer(self.raw(n * np.dtype(dtype).itemsize), dtype)


def tensor(r, dims, kind):
    n = int(np.prod(dims))
    if kind in (F32, F16):
        return r.array("<f4" if kind == F32 else "<f2", n).astype(np.float32).reshape(dims)
    if kind == BF16:
        return (r.array("<u2", n).astype(np.uint32) << 16).view(np.float32).reshape(dims)
    assert r.i32() == 0
    groups, size = (r.i32(), r.i32()) if kind == INT4_GROUP else (1, dims[1])
    pairs = r.array("<f4", 2 * groups * dims[0]).reshape(dims[0], groups, 2)
    scale, zero = ranges(pairs[..., 0], pairs[..., 1], 8 if kind == INT8 else 4)
    if kind == INT8:
        q = r.array("u1", n)
    else:  # the even element is in the high bits, and rows are contiguous
        b = r.array("u1", (n + 1) // 2)
        q = np.stack([b >> 4, b & 15], 1).reshape(-1)[:n]
    at = np.minimum(np.arange(dims[1]) // size, groups - 1)
    return scale[:, at] * (q.reshape(dims).astype(np.float32) - zero[:, at])


def read(path):
    with open(path, "rb") as f:
        r = Reader(f.read())
    version, keys = r.i32(), {}
    if version >= 1:
        for _ in range(r.i32()):
            key = r.text()
            keys[key] = r.text()
    pieces, weights = [], {}
    for _ in range(r.i32()):
        piece = bytes(r.array("<i4", r.i32()).astype(np.uint8))
        pieces.append(
            (
                piece,
                r.i32(),
                float(r.array("<f4", 1)[0]) if keys.get("tokenizer_use_score") == "1" else 0.0,
            )
        )
    special = (
        [r.text() for _ in range(r.i32())]
        if keys.get("tokenizer_has_special_tokens") == "1"
        else []
    )
    for _ in range(r.i32()):
        name, dims = r.text(), [r.i32() for _ in range(r.i32())]
        weights[name] = tensor(r, dims, r.i32())
    assert r.at == len(r.data)
    return SimpleNamespace(
        version=version, keys=keys, pieces=pieces, special=special, weights=weights
    )


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<i", len(b)) + b


def matrix(name, dims, kind, data):
    return (
        text(name)
        + struct.pack(f"<i{len(dims)}i", len(dims), *dims)
        + struct.pack("<i", kind)
        + data
    )


def floats(name, x, kind=F32):
    return matrix(name, x.shape, kind, x.astype({F32: "<f4", F16: "<f2"}[kind]).tobytes())


def write(path, tensors, keys=None, pieces=(), special=None, version=2):
    """Write a file. tensors: the bytes of each tensor, from floats() and matrix(); vocabulary
    entries are (bytes, id, score)."""
    keys = dict(keys or {})
    out = struct.pack("<i", version)
    if version >= 1:
        if pieces:
            keys["tokenizer_use_score"] = "1"
        if special:
            keys["tokenizer_has_special_tokens"] = "1"
        out += struct.pack("<i", len(keys)) + b"".join(
            text(k) + text(str(v)) for k, v in keys.items()
        )
    out += struct.pack("<i", len(pieces))
    for piece, i, score in pieces:
        out += (
            struct.pack(f"<i{len(piece)}i", len(piece), *piece)
            + struct.pack("<i", i)
            + (struct.pack("<f", score) if version >= 1 else b"")
        )
    if special:
        out += struct.pack("<i", len(special)) + b"".join(map(text, special))
    out += struct.pack("<i", len(tensors)) + b"".join(tensors)
    with open(path, "wb") as f:
        f.write(out)
