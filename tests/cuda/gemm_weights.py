"""Matrices for GEMM tests: bytes as stored on the device (layouts row and planes), and their
values. The definitions of block formats follow ggml and are written independently, except those
of types with codes."""

import functools

import numpy as np

from code_blocks import CODES
from cuda_weights import Weights


TABLES = {  # tables of bitsandbytes 0.50
    "nf4": np.array(
        [
            -1.0,
            -0.6961928009986877,
            -0.5250730514526367,
            -0.39491748809814453,
            -0.28444138169288635,
            -0.18477343022823334,
            -0.09105003625154495,
            0.0,
            0.07958029955625534,
            0.16093020141124725,
            0.24611230194568634,
            0.33791524171829224,
            0.44070982933044434,
            0.5626170039176941,
            0.7229568362236023,
            1.0,
        ]
    ),
    "fp4": np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3]) / 12,
}


def bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def half(r, shape, lo, hi):
    return r.uniform(lo, hi, shape).astype(np.float16)


def plane(a, rows):
    """Return [rows, ..] as bytes, with each row padded to a multiple of 16"""
    a = np.ascontiguousarray(a).reshape(rows, -1).view(np.uint8)
    return np.pad(a, ((0, 0), (0, -a.shape[1] % 16)))


def nibbles(q):
    """Pack values [.., 32] into nibbles: byte i holds values i and i + 16."""
    return (q[..., :16] | q[..., 16:] << 4).astype(np.uint8)


def fifth(q):
    """Pack bits [.., 32] into one word: bit i is value i"""
    return (q.astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def fives(q):
    """Pack 5-bit values [.., 32] into five words. The halves of a word hold three pairs of values;
    the top bits of the halves are a bit of values 30 and 31"""
    w = np.zeros(q.shape[:-1] + (5,), np.uint32)
    for e in range(30):
        w[..., e // 6] |= (q[..., e] << e % 2 * 16 + e // 2 % 3 * 5).astype(np.uint32)
    for bit in range(5):
        w[..., bit] |= ((q[..., 30] >> bit & 1) << 15 | (q[..., 31] >> bit & 1) << 31).astype(
            np.uint32
        )
    return w


@functools.lru_cache
def turned():
    """Return, for each of the 32 bits of eight E2M1 values (bit b of column c has number 4 c + b),
    the word from which kernels extract only that bit. It is the inverse, over GF(2), of the
    kernels' extraction."""
    rows = []
    for c in range(8):  # columns 0..3, 16..19
        j, upper = c // 4 * 2 + c % 2, c % 4 // 2 * 16
        for p in 9, 10, 11, 15:
            rows.append(sum(1 << (p + upper - k) % 32 for k in ((0,), (3,), (7, 10), (7, 12))[j]))
    left, right = rows, [1 << i for i in range(32)]
    for b in range(32):
        at = next(i for i in range(b, 32) if left[i] >> b & 1)
        left[b], left[at], right[b], right[at] = left[at], left[b], right[at], right[b]
        for i in range(32):
            if i != b and left[i] >> b & 1:
                left[i] ^= left[b]
                right[i] ^= right[b]
    # right[b]: wanted bits that make bit b of the word
    return [sum(1 << b for b in range(32) if right[b] >> w & 1) for w in range(32)]


def e2m1(q):
    """Pack 4-bit values [.., 32] into four words"""
    w = np.zeros(q.shape[:-1] + (4,), np.uint32)
    for i in range(4):
        for c in range(8):
            code = q[..., c // 4 * 16 + 4 * i + c % 4]
            for b in range(4):
                w[..., i] ^= (code >> b & 1).astype(np.uint32) * np.uint32(turned()[4 * c + b])
    return w


def k_scales(sc, mn):
    """Pack 6-bit scales [.., 8] and minima [.., 8] into 12 bytes"""
    out = np.zeros(sc.shape[:-1] + (12,), np.uint8)
    for j in range(4):
        out[..., j] = sc[..., j] | (sc[..., j + 4] >> 4) << 6
        out[..., j + 4] = mn[..., j] | (mn[..., j + 4] >> 4) << 6
        out[..., j + 8] = (sc[..., j + 4] & 15) | (mn[..., j + 4] & 15) << 4
    return out


def make(r, rows, cols, dtype):
    """Returns (bytes, values [rows, cols])."""
    if dtype in ("bf16", "f16"):
        w = r.standard_normal((rows, cols)).astype(np.float32) * 0.1
        if dtype == "f16":
            h = w.astype(np.float16)
            return h.view(np.uint16), h.astype(np.float64)
        h = bf16(w)
        return h, (h.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype in CODES:  # as in formats/dequant.c, which is tested against the gguf package
        w = Weights(dtype, rows, cols, seed=int(r.integers(1 << 30)))
        return w.packed, w.value.astype(np.float64)
    if dtype.endswith("_k"):
        nb = cols // 256
        d = half(r, (rows, nb), 1e-4, 3e-4)
        if dtype == "q6_k":
            # values by half of the block and quarter of the half
            q = r.integers(0, 64, (rows, nb, 2, 4, 32))
            sc = r.integers(-128, 128, (rows, nb, 16)).astype(np.int8)
            ql = np.concatenate(
                [
                    q[..., 0, :] & 15 | (q[..., 2, :] & 15) << 4,
                    q[..., 1, :] & 15 | (q[..., 3, :] & 15) << 4,
                ],
                -1,
            ).astype(np.uint8)
            qh = sum((q[..., i, :] >> 4) << 2 * i for i in range(4)).astype(np.uint8)
            v = (
                d[..., None, None].astype(np.float64)
                * sc[..., None]
                * (q.reshape(rows, nb, 16, 16) - 32)
            )
            return np.concatenate(
                [plane(ql, rows), plane(qh, rows), plane(sc, rows), plane(d, rows)], 1
            ), v.reshape(rows, cols)
        bits = 5 if dtype == "q5_k" else 4
        q = r.integers(0, 1 << bits, (rows, nb, 8, 32))
        dm = half(r, (rows, nb), 1e-4, 3e-3)
        sc, mn = r.integers(0, 64, (rows, nb, 8)), r.integers(0, 64, (rows, nb, 8))
        head = np.concatenate(
            [d[..., None].view(np.uint8), dm[..., None].view(np.uint8), k_scales(sc, mn)], -1
        )
        if bits == 5:
            w = fives(q)
            parts = [plane(w[..., :4], rows), plane(w[..., 4], rows)]
        else:
            parts = [plane((q[:, :, 0::2] | q[:, :, 1::2] << 4).astype(np.uint8), rows)]
        v = (
            d[..., None, None].astype(np.float64) * sc[..., None] * q
            - dm[..., None, None].astype(np.float64) * mn[..., None]
        )
        return np.concatenate([*parts, plane(head, rows)], 1), v.reshape(rows, cols)
    if dtype in ("mxfp4", "nvfp4"):  # E2M1 with 8-bit scales
        levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
        q = r.integers(0, 16, (rows, cols // 32, 32))
        if dtype == "mxfp4":
            e = r.integers(110, 124, (rows, cols // 32)).astype(np.uint8)
            v = levels[q] * 2.0 ** (e[..., None].astype(int) - 127)
            return np.concatenate([plane(e2m1(q), rows), plane(e, rows)], 1), v.reshape(rows, cols)
        s = r.integers(8, 126, (rows, cols // 16)).astype(np.uint8)
        d = (0.00037 * (1 + r.random((rows, 1)))).astype(np.float32)  # one scale per row
        scale = (1 + (s & 7) / 8) * 2.0 ** ((s >> 3).astype(int) - 7) * d.astype(np.float64)
        v = levels[q].reshape(rows, -1, 16) * scale[..., None]
        return np.concatenate([plane(e2m1(q), rows), plane(s, rows), plane(d, rows)], 1), v.reshape(
            rows, cols
        )
    if dtype[:3] in ("nf4", "fp4"):
        codes = (
            TABLES[dtype[:3]].astype(np.float16).astype(np.float64)
        )  # tiles read them from a table of 16-bit values
        group = int(dtype[4:])
        q, d = (
            r.integers(0, 16, (rows, cols // group, group)),
            half(r, (rows, cols // group), 1e-3, 3e-1).astype(np.float32),
        )
        return np.concatenate([plane(nibbles(q.reshape(rows, -1, 32)), rows), plane(d, rows)], 1), (
            codes[q] * d[..., None].astype(np.float64)
        ).reshape(rows, cols)
    if (
        dtype[0] in "uf" and dtype[1] in "48"
    ):  # u4_128_f32: a scale and a zero point per 128 columns
        group = int(dtype.split("_")[1])
        bits, nb = int(dtype[1]), cols // group
        wide = dtype[0] == "f" or dtype.endswith("f32")
        d = half(r, (rows, nb), 1e-3, 3e-2).astype(np.float32 if wide else np.float16)
        if dtype[0] == "f":  # e4m3 without its NaN
            q = r.integers(0, 256, (rows, nb, group)).astype(np.uint8)
            q[q & 0x7F == 0x7F] = 0x40
            e, m = (q >> 3 & 15).astype(int), (q & 7).astype(float)
            v = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0)) * np.where(
                q & 128, -1, 1
            )
            d /= 100
            return np.concatenate([plane(q, rows), plane(d, rows)], 1), (
                v * d[..., None].astype(np.float64)
            ).reshape(rows, cols)
        q, z = r.integers(0, 1 << bits, (rows, nb, group)), r.integers(0, 1 << bits, (rows, nb))
        codes = q.astype(np.uint8) if bits == 8 else nibbles(q.reshape(rows, nb, -1, 32))
        return np.concatenate(
            [plane(codes, rows), plane(d, rows), plane(z.astype(np.uint8), rows)], 1
        ), ((q - z[..., None]) * d[..., None].astype(np.float64)).reshape(rows, cols)
    if dtype[0] in "um" and dtype[1:2].isdigit():  # two and three bits; m: a minimum per group
        bits, group = int(dtype[1]), int(dtype.split("_")[1])
        nb = cols // group
        q = r.integers(0, 1 << bits, (rows, nb, group))
        third = np.zeros((rows, 0), np.uint8)
        if bits == 4:
            codes = nibbles(q.reshape(rows, nb, -1, 32))
        elif bits == 8:
            codes = q.astype(np.uint8)
        # column 16 h + 4 k + c in byte 4 h + c, bits 2 k; third bits: column 4 i + c in byte c, bit
        # i
        else:
            low = (q & 3).reshape(rows, -1, 2, 4, 4).astype(np.uint8)
            codes = np.bitwise_or.reduce(low << (2 * np.arange(4, dtype=np.uint8))[:, None], 3)
            if bits == 3:
                third = plane(
                    np.bitwise_or.reduce(
                        (q >> 2).reshape(rows, -1, 8, 4).astype(np.uint8)
                        << np.arange(8, dtype=np.uint8)[:, None],
                        2,
                    ),
                    rows,
                )
        if dtype[0] == "m":
            d, m = (
                half(r, (rows, nb), 1e-3, 3e-2).astype(np.float32) * 1.01,
                half(r, (rows, nb), -0.5, 0.2).astype(np.float32) * 1.01,
            )
            v = q * d[..., None].astype(np.float64) + m[..., None]
            return np.concatenate(
                [plane(codes, rows), plane(d, rows), plane(m, rows), third], 1
            ), v.reshape(rows, cols)
        d, z = half(r, (rows, nb), 1e-3, 3e-2), r.integers(0, 1 << bits, (rows, nb))
        v = (q - z[..., None]) * d[..., None].astype(np.float64)
        return np.concatenate(
            [plane(codes, rows), plane(d, rows), plane(z.astype(np.uint8), rows), third], 1
        ), v.reshape(rows, cols)
    nb = cols // 32
    d, m = half(r, (rows, nb), 1e-3, 3e-2), half(r, (rows, nb), -0.2, 0.0)
    df, mf = d[..., None].astype(np.float64), m[..., None].astype(np.float64)
    if dtype == "q8_0":
        q = r.integers(-128, 128, (rows, nb, 32)).astype(np.int8)
        return np.concatenate([plane(q, rows), plane(d, rows)], 1), (q * df).reshape(rows, cols)
    bits, signed = int(dtype[1]), dtype.endswith("0")
    q = r.integers(0, 1 << bits, (rows, nb, 32))
    parts = [plane(nibbles(q & 15), rows)] + ([plane(fifth(q >> 4), rows)] if bits == 5 else [])
    parts.append(plane(d if signed else np.stack([d, m], -1), rows))
    return np.concatenate(parts, 1), (
        (q - (1 << bits - 1)) * df if signed else q * df + mf
    ).reshape(rows, cols)
