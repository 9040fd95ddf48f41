"""Rows of the KV cache in numpy: the bytes that kernels of both targets must write, and the numbers that they must read (formats/kv_type.h).

r = encode("int4", x)          # x [..., dim] -> Rows: codes [..., groups * 32], scale and zero [..., groups]
decode("int4", r, dim)         # float64 [..., dim]
plane("int4", r, dim, True)    # bytes of planes [heads, bytes] of rows [32, heads]: keys on processors; False: values, and both on GPUs"""

import math
from typing import NamedTuple

import numpy as np

PAGE = 32
PLAIN = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
TYPES = ("f32", "f16", "bf16", "f8", "int8", "f8_32", "int8_32", "int6", "int4")
MOST = {"f8": 448, "f8_32": 448, "int8": 127, "int8_32": 127, "int6": 31}


class Rows(NamedTuple):
    code: np.ndarray
    scale: np.ndarray = None
    zero: np.ndarray = None


def plain(kv):
    return kv in PLAIN


def group(kv, dim):
    return 32 if kv in ("int6", "int4", "int4c") or kv.endswith("_32") else dim


def groups(kv, dim):
    return -(-dim // group(kv, dim))


def by_channel(kv):
    """keys whose scales belong to an element over the positions of a page"""
    return kv == "int4c"


def turns(kv):
    return not plain(kv) and not by_channel(kv)


def row_bytes(kv, dim):
    if plain(kv):
        return dim * PLAIN[kv]().itemsize
    return groups(kv, dim) * {"int6": 26, "int4": 20, "int4c": 20}.get(kv, group(kv, dim) + 2)


def turn(x):
    """x times the Hadamard matrices of the largest power of two that divides its width, in fp32 and in the kernels' order"""
    n = x.shape[-1] & -x.shape[-1]
    y = x.astype(np.float32).reshape(*x.shape[:-1], -1, n)
    half = 1
    while half < n:
        z = y.reshape(*y.shape[:-1], n // (2 * half), 2, half)
        y = np.stack([z[..., 0, :] + z[..., 1, :], z[..., 0, :] - z[..., 1, :]], -2).reshape(
            y.shape
        )
        half *= 2
    return (y * np.float32(1 / math.sqrt(n))).reshape(x.shape)


E4M3 = np.array(
    [
        (-1) ** (c >> 7)
        * ((8 + c % 8) * 2.0 ** ((c >> 3 & 15) - 10) if c >> 3 & 15 else c % 8 * 2.0**-9)
        for c in range(256)
    ]
)
FINITE = np.array([c for c in range(128) if c != 127])


def to_e4m3(x):
    """nearest, ties to the even code"""
    top = np.minimum(np.abs(x.astype(np.float64)), 448)
    at = np.searchsorted(E4M3[FINITE], top).clip(1, 126)
    lo, hi = E4M3[at - 1], E4M3[at]
    up = (top - lo > hi - top) | ((top - lo == hi - top) & (at % 2 == 0))
    return (np.where(up, at, at - 1) | np.signbit(x) * 128).astype(np.uint8)


def half(x):
    return np.clip(x, -65504, 65504).astype(np.float16)


def bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def encode(kv, x):
    x = np.asarray(x, np.float32)
    if plain(kv):
        return Rows(x if kv == "f32" else half(x) if kv == "f16" else bf16(x))
    if by_channel(kv):
        return encode_pages(x)
    dim, size = x.shape[-1], group(kv, x.shape[-1])
    pad = groups(kv, dim) * size - dim
    y = np.concatenate([x, np.repeat(x[..., -1:], pad, -1)], -1).reshape(*x.shape[:-1], -1, size)
    zero = None
    if kv == "int4":
        zero = half(y.min(-1))
        scale = (y.max(-1) - zero.astype(np.float32)) / np.float32(15)
    else:
        scale = np.abs(y).max(-1) / np.float32(MOST[kv])
    scale = half(np.maximum(scale, 0))
    wide = scale.astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(wide > 0, np.float32(1) / wide, np.float32(0))
    v = (y - (0 if zero is None else zero.astype(np.float32)[..., None])) * inverse[..., None]
    if kv.startswith("f8"):
        code = to_e4m3(v)
    elif kv.startswith("int8"):
        code = np.rint(v).clip(-127, 127).astype(np.int8).view(np.uint8)
    elif kv == "int6":
        code = (np.rint(v).clip(-31, 31) + 32).astype(np.uint8)
    else:
        code = np.rint(v).clip(0, 15).astype(np.uint8)
    code = code.reshape(*x.shape[:-1], -1)
    if pad:
        code[..., dim:] = 0
    return Rows(code, scale, zero)


def encode_pages(x):
    """x [n, ..., dim]: code of its shape, scale and zero [pages, ..., dim]; the scales of a page that is not full are NaN"""
    x = half(x).astype(np.float32)
    code = np.full(x.shape, 15, np.uint8)
    scale, zero = (
        np.full((-(-len(x) // PAGE), *x.shape[1:]), np.nan, np.float16) for _ in range(2)
    )
    for p in range(len(x) // PAGE):
        part = slice(p * PAGE, (p + 1) * PAGE)
        zero[p] = x[part].min(0)
        scale[p] = half((x[part].max(0) - zero[p].astype(np.float32)) / np.float32(15))
        wide = scale[p].astype(np.float32)
        with np.errstate(divide="ignore"):
            inverse = np.where(wide > 0, np.float32(1) / wide, np.float32(0))
        code[part] = np.rint((x[part] - zero[p].astype(np.float32)) * inverse).clip(0, 15)
    return Rows(code, scale, zero)


def decode(kv, r, dim):
    if by_channel(kv):
        page = np.arange(len(r.code)) // PAGE
        return r.code * r.scale.astype(float)[page] + r.zero.astype(float)[page]
    if plain(kv):
        return (
            (r.code.astype(np.uint32) << 16).view(np.float32) if kv == "bf16" else r.code
        ).astype(np.float64)
    size = group(kv, dim)
    c = (
        E4M3[r.code]
        if kv.startswith("f8")
        else r.code.view(np.int8).astype(float)
        if kv.startswith("int8")
        else r.code - 32.0
        if kv == "int6"
        else r.code.astype(float)
    )
    v = c.reshape(*c.shape[:-1], -1, size) * r.scale[..., None].astype(float) + (
        0 if r.zero is None else r.zero[..., None].astype(float)
    )
    return v.reshape(c.shape)[..., :dim]


def kept(kv, x, rotate=False):
    """x as attention reads it from rows of type kv, float64"""
    rotate = rotate and turns(kv)
    y = decode(kv, encode(kv, turn(x) if rotate else x), x.shape[-1])
    return turned_back(y) if rotate else y


def exact(kv):
    """type of the exact rows that accompany rows of type kv"""
    return kv if plain(kv) else "f16"


def kept_exact(kv, x, rotate=False):
    """x as attention reads it from the exact rows that accompany type kv, float64"""
    rotate = rotate and turns(kv)
    y = decode(exact(kv), encode(exact(kv), turn(x) if rotate else x), x.shape[-1])
    return turned_back(y) if rotate else y


def turned_back(y):
    n = y.shape[-1] & -y.shape[-1]
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return (y.reshape(*y.shape[:-1], -1, n) @ (h / math.sqrt(n))).reshape(y.shape)


def spans(kv, dim, at):
    """(first byte, bytes) of what row `at` has in a plane of values, quantised"""
    bits, scales = (4, 4) if kv == "int4" else (6, 2) if kv == "int6" else (8, 2)
    g, wide = groups(kv, dim), groups(kv, dim) * group(kv, dim)
    low = wide if bits == 8 else wide // 2
    out = [(at * low, low)]
    if bits == 6:
        out.append((PAGE * low + at * wide // 4, wide // 4))
    return [*out, (PAGE * wide * bits // 8 + at * g * scales, g * scales)]


def plane_by_channel(code, scale, zero, gpu=False):
    """code [32, heads, dim], scale and zero [heads, dim]: bytes [heads, bytes]; what elements beyond dim have is zero"""
    heads, dim = scale.shape
    wide = -(-dim // 32) * 32
    if gpu:
        low = np.zeros((heads, PAGE, wide), np.uint8)
        low[:, :, :dim] = np.moveaxis(code, 0, 1)
        low = low.reshape(heads, PAGE, wide // 32, 2, 16)
        scales = np.zeros((heads, wide, 2), np.float16)
        scales[:, :dim, 0], scales[:, :dim, 1] = scale, zero
        return np.concatenate(
            [
                (low[..., 0, :] | low[..., 1, :] << 4).reshape(heads, -1),
                scales.reshape(heads, -1).view(np.uint8),
            ],
            1,
        )
    low = np.zeros((heads, wide, PAGE), np.uint8)
    low[:, :dim] = np.moveaxis(code, 0, -1)
    scales = np.zeros((heads, 2, wide), np.float16)
    scales[:, 0, :dim], scales[:, 1, :dim] = scale, zero
    return np.concatenate(
        [
            (low[:, ::2] | low[:, 1::2] << 4).reshape(heads, -1),
            scales.reshape(heads, -1).view(np.uint8),
        ],
        1,
    )


def plane(kv, r, dim, key):
    """r: of rows [32, heads, dim]; bytes [heads, 32 * row_bytes]"""
    heads = r.code.shape[1]
    code = (
        np.moveaxis(r.code, 0, -1) if key else np.moveaxis(r.code, 0, 1)
    )  # [heads, dim, 32] or [heads, 32, dim]
    at = 1 if key else 2

    def flat(a):
        return np.ascontiguousarray(a).reshape(heads, -1).view(np.uint8)

    if plain(kv):
        return flat(code)
    parts = [code]
    if kv in ("int6", "int4"):
        g = groups(kv, dim)
        if key:
            low, high = code.reshape(heads, g * 16, 2, PAGE), code.reshape(heads, g * 8, 4, PAGE)
            at = 2
        else:
            low, high = code.reshape(heads, PAGE, g, 2, 16), code.reshape(heads, PAGE, g, 4, 8)
            at = 3
        low, high = (np.moveaxis(a, at, 0) for a in (low, high))
        parts = [low[0] & 15 | low[1] << 4]
        if kv == "int6":
            parts.append(high[0] >> 4 | high[1] >> 4 << 2 | high[2] >> 4 << 4 | high[3] >> 4 << 6)
    scale = np.moveaxis(r.scale, 0, -1) if key else np.moveaxis(r.scale, 0, 1)
    if r.zero is None:
        parts.append(scale)
    elif key:
        parts += [scale, np.moveaxis(r.zero, 0, -1)]
    else:
        parts.append(np.stack([scale, np.moveaxis(r.zero, 0, 1)], -1))
    return np.concatenate([flat(p) for p in parts], 1)
