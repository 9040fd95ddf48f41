"""Matmul kernels against float64, and against each other bit for bit: single rows and batches, GEMV and
tiles, any number of parts. Tests every variant that this machine can run; the portable definition replaces v4.
It is one file because all tests use the same weights and the same float64 matmul.
"""

import ctypes as C
import os
import re
import subprocess

import numpy as np
import pytest

import harness as H
from code_blocks import CODES, MINS, blocks
from host_sources import PACKING

DTYPES = [
    "f32",
    "f16",
    "bf16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q4_k",
    "q5_k",
    "q6_k",
    "mxfp4",
    "nvfp4",
    *CODES,
    "u4_32",
    "u4_128",
    "u4_32_f32",
    "u4_128_f32",
    "u8_32",
    "u8_128",
    "u8_32_f32",
    "u8_128_f32",
    "f8_32",
    "f8_128",
    "nf4_32",
    "nf4_64",
    "fp4_32",
    "fp4_64",
    "u2_32",
    "u2_128",
    "u3_32",
    "u3_128",
    "m2_32",
    "m2_64",
    "m3_32",
    "m3_64",
    "m4_32",
    "m4_64",
    "m8_32",
    "m8_64",
]
NUMBER = {n: i for i, n in enumerate(DTYPES)}  # formats/dtype.h, checked below
SMALL = {
    "q4_0": 4,
    "q4_1": 4,
    "q5_0": 5,
    "q5_1": 5,
    "q8_0": 8,
    "q4_k": 4,
    "q5_k": 5,
    "q6_k": 6,
    "mxfp4": 4,
    "nvfp4": 4,
    **{n: c[2] for n, c in CODES.items()},
    **{n: int(n[1]) for n in DTYPES if n[0] == "u" or (n[0] == "m" and n != "mxfp4")},
}
GROUPS = [
    "u4_32",
    "u4_128_f32",
    "u4_128",
    "u8_32_f32",
    "u8_128",
    "f8_32",
    "f8_128",
    "nf4_64",
    "fp4_32",
    "u2_128",
    "u3_32",
    "m4_64",
    "m3_64",
    "m8_32",
]  # the other types differ from one of these in a single property
CODE_SAMPLE = [
    "q2_k",
    "q3_k",
    "iq4_nl",
    "iq3_s",
    "iq1_m",
]  # iq4_xs and iq2_s combine properties of two of these
# Compilation dominates the run time: use v4 if this machine has it, otherwise its portable
# definition (and once more below)
TARGETS = [t for t in H.TARGETS if t != "v4p" or "v4" not in H.TARGETS]
WIDE = [t for t in TARGETS if t != "generic"]
EVERY = "LLMC_CHECK_ALL" in os.environ  # make check-all

# Tests need fast compilation, not fast kernels. This level reports false uninitialised variables in
# loops over lanes.
FAST = ("-O1", "-Wno-maybe-uninitialized")


@pytest.fixture(scope="session")
def lib():
    """Packing and dequantisation of the library, which other tests compare with oracles."""
    so = H.host_library([*PACKING, "formats/layout.c"], ["-ffp-contract=off"], [H.ROOT / "include"])
    so.dtype_text.restype = C.c_char_p
    so.dtype_row_bytes.restype = C.c_int64
    so.dtype_row_bytes.argtypes = [C.c_int, C.c_int64]
    so.dequant_row.argtypes = [C.c_int, C.c_void_p, C.c_void_p, C.c_int64]
    so.quant_row.argtypes = [C.c_int, C.c_void_p, C.c_void_p, C.c_int64]
    for n in ("packed4", "packed8", "packed16"):
        getattr(so, n + "_bytes").restype = C.c_int64
        getattr(so, n + "_bytes").argtypes = [C.c_int, C.c_int64]
        getattr(so, n + "_pack").argtypes = [C.c_int, C.c_int64, C.c_void_p, C.c_void_p]
    assert [so.dtype_text(i).decode() for i in range(len(DTYPES))] == DTYPES
    return so


class Weights:
    """A matrix in file order, its exact values, and packed for a target."""

    def __init__(self, lib, dtype, rows, cols, seed=1, extreme=False):
        self.lib, self.dtype, self.rows, self.cols = lib, dtype, rows, cols
        d, rng = NUMBER[dtype], np.random.default_rng(seed)
        n = lib.dtype_row_bytes(d, cols)
        self.file = np.zeros((rows, n), np.uint8)
        if extreme:
            assert dtype in SMALL
            x = np.ones((rows, cols), np.float32)
        else:
            x = rng.standard_normal((rows, cols)).astype(np.float32)
        if dtype in CODES:
            self.file = blocks(rng, dtype, (rows, cols // CODES[dtype][0]), ends=extreme).reshape(
                rows, n
            )
        else:
            for r in range(rows):
                lib.quant_row(d, x[r].ctypes.data, self.file[r].ctypes.data, cols)
            if extreme:
                self._all_extreme(rng)
        self.value = np.zeros((rows, cols), np.float32)
        for r in range(rows):
            lib.dequant_row(d, self.file[r].ctypes.data, self.value[r].ctypes.data, cols)

    def _all_extreme(self, rng):
        """Elements at the ends of their range: row 0 all lowest, row 1 all highest, the others random."""
        if self.dtype[0] in "um" and self.dtype != "mxfp4":  # scale, zero point or minimum, codes
            columns, head = (
                int(self.dtype.split("_")[1]),
                8 if self.dtype[0] == "m" else 5 if self.dtype.endswith("f32") else 3,
            )
            b = self.file.reshape(self.rows, -1, head + columns * SMALL[self.dtype] // 8)
            b[:, :, head:] = rng.choice(
                [0, 0xFF] if SMALL[self.dtype] != 4 else [0, 0x0F, 0xF0, 0xFF], b[:, :, head:].shape
            )
            b[0, :, head:], b[1, :, head:] = 0, 0xFF
            return
        block = {
            "q4_0": 18,
            "q4_1": 20,
            "q5_0": 22,
            "q5_1": 24,
            "q8_0": 34,
            "q4_k": 144,
            "q5_k": 176,
            "q6_k": 210,
            "mxfp4": 17,
            "nvfp4": 40,
        }[self.dtype]
        b = self.file.reshape(self.rows, -1, block)
        skip = {
            "q4_0": 2,
            "q4_1": 4,
            "q5_0": 2,
            "q5_1": 4,
            "q8_0": 2,
            "q4_k": 16,
            "q5_k": 16,
            "q6_k": 0,
            "mxfp4": 1,
            "nvfp4": 8,
        }[self.dtype]
        end = 192 if self.dtype == "q6_k" else block
        if self.dtype == "q8_0":
            b[:, :, skip:] = rng.choice([0x80, 0x7F], b[:, :, skip:].shape)
            b[0, :, skip:], b[1, :, skip:] = 0x80, 0x7F
            return
        if self.dtype.endswith("fp4"):  # -6 and 6
            b[:, :, skip:] = rng.choice([0x77, 0x7F, 0xF7, 0xFF], b[:, :, skip:].shape)
            b[0, :, skip:], b[1, :, skip:] = 0xFF, 0x77
            return
        b[:, :, skip:end] = rng.choice([0, 0x0F, 0xF0, 0xFF], b[:, :, skip:end].shape)
        b[0, :, skip:end], b[1, :, skip:end] = 0, 0xFF

    def packed(self, target):
        R = int(H.LAYOUT[target][1:])
        name, d = f"packed{R}", NUMBER[self.dtype]
        one = getattr(self.lib, name + "_bytes")(d, self.cols)
        groups = -(-self.rows // R)
        out = H.aligned((groups, one), np.uint8)
        for g in range(groups):
            src = np.zeros((R, self.file.shape[1]), np.uint8)
            part = self.file[g * R : (g + 1) * R]
            src[: len(part)] = part
            getattr(self.lib, name + "_pack")(d, self.cols, src.ctypes.data, out[g].ctypes.data)
        return out


def quantised(x, bits):
    """Quantised activations (integers, scales), by the definition in templates/cpu/gemm/quantize_act.h."""
    top = np.float32(32512 if bits == 16 else 127)
    b = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    peak = np.abs(b).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        q = np.rint(b * (top / peak)).astype(np.float64)
        d = peak * (np.float32(1) / top)
    return np.where(peak < 1e-30, 0, q), np.where(peak < 1e-30, 0, d).astype(np.float64)


def seen(x, dtype, bits):
    if dtype not in SMALL:
        return x.astype(np.float64)
    q, d = quantised(x, bits)
    return (q * d).reshape(x.shape)


def rounded(x, down=None):
    """Round to bf16, as float64: ties to even; with `down`, ties towards zero if it is 1, else away from zero."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (
        (
            (u + (0x7FFF + (u >> 16 & 1) if down is None else np.uint32(0x8000) - down))
            & np.uint32(0xFFFF0000)
        )
        .view(np.float32)
        .astype(np.float64)
    )


def norm(x, kind, w=None, b=None, eps=1e-5, plus=0):
    x = x.astype(np.float64)
    if kind == "layer":
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        plus = 0
    elif kind == "rms":
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    else:
        return x
    if w is not None:
        x = x * (w.astype(np.float64) + plus)
    return x if b is None or kind != "layer" else x + b


def close(got, want, scale, rel):
    err = np.abs(got.astype(np.float64) - want)
    assert (err <= rel * scale + 1e-30).all(), (
        f"{np.nanmax(err / (scale + 1e-30)):.3g} of the sum of magnitudes, {rel} allowed"
    )


def same(a, b):
    """Compare bit for bit; all NaN are equal."""
    both = np.isnan(a) & np.isnan(b)
    assert ((a.view(np.int32) == b.view(np.int32)) | both).all()


def run_rows(kernel, x, w, rows, parts=1, extra=None, order=None, threads=False):
    """Run matmul on the rows of x; the output is poisoned and lies between two guards."""
    n = len(x)
    y = H.aligned((n + 2, rows))
    step = H.make_step([0] * n)
    xa = H.aligned(x.shape)
    xa[...] = x
    kernel.call(step, [xa, w, extra, y[1:]], parts, order=order, threads=threads)
    assert np.isnan(y[0]).all() and np.isnan(y[-1]).all(), "wrote outside of its rows"
    return y[1:-1].copy()


def columns(dtype):
    """Several chunks of a tile, the last one shorter."""
    return (
        768
        if dtype.endswith("k") or CODES.get(dtype, [0])[0] == 256
        else 640
        if "_128" in dtype or "_64" in dtype or dtype == "nvfp4"
        else 608
        if dtype in SMALL or "_32" in dtype
        else 203
    )


ROWS = 43
MORE = (
    [
        (t, d, b)
        for t, d, b in (
            ("vnni", "q4_1", 8),
            ("vnni", "q8_0", 16),
            ("amx", "q4_0", 16),
            ("amx", "q6_k", 8),
            ("amx", "q2_k", 16),
            ("amx", "bf16", 16),
            ("amx", "f16", 16),
            ("neon", "q4_k", 16),
            ("neon", "q6_k", 8),
            ("neon", "q8_0", 8),
            ("neon", "q8_0", 16),
            ("neon", "u8_128", 16),
            ("neon", "f16", 16),
            ("i8mm", "q4_1", 16),
            ("i8mm", "q4_k", 8),
            ("i8mm", "q6_k", 16),
            ("i8mm", "q8_0", 8),
            ("i8mm", "q8_0", 16),
            ("i8mm", "q2_k", 16),
            ("i8mm", "mxfp4", 16),
            ("i8mm", "iq3_s", 8),
        )
        if t in H.MORE
    ]
    if not EVERY
    else [(t, d, b) for t in H.MORE for d in DTYPES for b in (16, 8) if b == 16 or d in SMALL]
)
VARIANTS = (
    MORE
    + [
        (t, d, 16)
        for t in WIDE
        for d in DTYPES[:13] + (list(CODES) if EVERY else CODE_SAMPLE) + GROUPS
    ]
    + [
        (t, d, 8)
        for t in WIDE
        for d in (
            "q4_1",
            "q5_0",
            "q5_k",
            "q6_k",
            "q8_0",
            "u4_128",
            "u8_128",
            *(CODES if EVERY else ["q2_k"]),
        )
    ]
    + [
        ("generic", d, 16)
        for d in (
            "f32",
            "f16",
            "bf16",
            "q4_0",
            "q4_1",
            "q5_k",
            "q6_k",
            "q8_0",
            "u4_128",
            "u8_32",
            "f8_128",
            "mxfp4",
            "nf4_64",
            *(CODES if EVERY else ["iq2_xs"]),
        )
    ]
    + [("generic", "q4_1", 8)]
)


# alternate instruction sets per type: traits are shared, so each type is tested, and each set sees
# half of the types
if not EVERY:
    VARIANTS = [
        v
        for v in VARIANTS
        if v[0] not in WIDE or (NUMBER[v[1]] + WIDE.index(v[0]) + v[2] // 8) % 2 == 0
    ]


@pytest.mark.sample(11)
@pytest.mark.parametrize("target,dtype,bits", VARIANTS)
def test_a_row_is_right_and_the_same_in_any_batch(lib, target, dtype, bits):
    cols = 608 if target == "amx" and dtype in ("f16", "bf16") else columns(dtype)
    k = H.build("matmul", target, dict(ROWS=ROWS, COLS=cols, W_DTYPE=dtype, ACT_BITS=bits), FAST)
    w = Weights(lib, dtype, ROWS, cols)
    packed = w.packed(target)
    rng = np.random.default_rng(3)
    n = 101 if target == "v4p" else 200
    x = rng.standard_normal((n, cols)).astype(np.float32) * np.exp(
        rng.standard_normal((n, 1))
    ).astype(np.float32)
    x[5, 40:70] *= 1000
    x[6], x[7], x[8] = 0, 1e-41, -1e30
    all_rows = run_rows(k, x, packed, ROWS)
    xs = seen(x, dtype, bits)
    mags = np.abs(xs) @ np.abs(w.value.astype(np.float64)).T
    if dtype in (
        "q4_1",
        "q5_1",
        "q4_k",
        "q5_k",
        *MINS,
    ):  # min and scale may cancel: each has its own rounding
        mags *= 4
    close(all_rows, xs @ w.value.astype(np.float64).T, mags, 3e-6 if dtype in SMALL else 1e-5)
    if bits == 16:
        close(all_rows[9:], x[9:].astype(np.float64) @ w.value.astype(np.float64).T, mags[9:], 1e-4)
    for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33, 95, 97):
        same(run_rows(k, x[:m], packed, ROWS, parts=1 + m % 5), all_rows[:m])
    for parts in (2, 3, 5):
        same(run_rows(k, x, packed, ROWS, parts, order=range(parts - 1, -1, -1)), all_rows)
    for t in range(5, 9):
        same(run_rows(k, x[t : t + 1], packed, ROWS, 3), all_rows[t : t + 1])
        same(run_rows(k, x[t : t + 2], packed, ROWS, 2), all_rows[t : t + 2])


@pytest.mark.sample(6)
@pytest.mark.parametrize("target,dtype,bits", [v for v in VARIANTS if v[1] in SMALL])
def test_sums_hold_the_most_extreme_elements(lib, target, dtype, bits):
    cols = columns(dtype)
    k = H.build("matmul", target, dict(ROWS=ROWS, COLS=cols, W_DTYPE=dtype, ACT_BITS=bits), FAST)
    w = Weights(lib, dtype, ROWS, cols, extreme=True)
    packed = w.packed(target)
    rng = np.random.default_rng(4)
    x = rng.choice([-1.0, 1.0], (7, cols)).astype(np.float32)
    x[0], x[1] = 1, -1
    # low bytes of -128 and 127 combined with high bytes at both ends
    x[2] = rng.choice([-32512, 32512, 127, -128, 32383, -32384], cols) / 32512
    want = seen(x, dtype, bits) @ w.value.astype(np.float64).T
    mags = np.abs(seen(x, dtype, bits)) @ np.abs(w.value.astype(np.float64)).T
    if dtype in ("q4_1", "q5_1", "q4_k", "q5_k", *MINS) or re.match(
        r"[um]\d_", dtype
    ):  # in group types the zero point is a minimum
        mags = mags * 4 + np.abs(x).sum(-1, keepdims=True) * np.abs(w.value).max()
    for m in (1, 2, 7):
        close(run_rows(k, x[:m], packed, ROWS), want[:m], mags[:m], 3e-6)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "target,dtype",
    [(t, d) for t in TARGETS for d in ("q4_1", "q8_0", "q6_k", "f16")]
    + [(t, "f16") for t in H.MORE if t == "amx"],
)
def test_infinity_and_nan_stay_in_their_row(lib, target, dtype):
    cols = columns(dtype)
    k = H.build("matmul", target, dict(ROWS=ROWS, COLS=cols, W_DTYPE=dtype, ACT_BITS=16), FAST)
    packed = Weights(lib, dtype, ROWS, cols).packed(target)
    x = np.random.default_rng(5).standard_normal((20, cols)).astype(np.float32)
    clean = run_rows(k, x, packed, ROWS)
    bad = x.copy()
    bad[3, 0], bad[4, cols - 1], bad[11, 77], bad[12, 33], bad[19, 5] = (
        np.inf,
        np.nan,
        -np.inf,
        np.nan,
        np.nan,
    )
    hit = [3, 4, 11, 12, 19]
    got = run_rows(k, bad, packed, ROWS)
    same(np.delete(got, hit, 0), np.delete(clean, hit, 0))
    assert not np.isfinite(got[hit]).any()
    for t in hit:
        same(run_rows(k, bad[t : t + 1], packed, ROWS), got[t : t + 1])
        same(
            run_rows(k, bad[t : t + 1], packed, ROWS),
            run_rows(k, bad[max(t - 1, 0) : t + 1], packed, ROWS)[-1:],
        )


@pytest.mark.parametrize(
    "target,rows,cols", [(t, 70, 1536) for t in TARGETS] + [(t, 1, 32) for t in WIDE]
)
def test_other_shapes(lib, target, rows, cols):
    k = H.build("matmul", target, dict(ROWS=rows, COLS=cols, W_DTYPE="q4_1", ACT_BITS=16), FAST)
    w = Weights(lib, "q4_1", rows, cols)
    x = np.random.default_rng(6).standard_normal((11, cols)).astype(np.float32)
    bias = np.random.default_rng(7).standard_normal(rows).astype(np.float32)
    got = run_rows(k, x, w.packed(target), rows, 2, extra=bias)
    xs = seen(x, "q4_1", 16)
    close(
        got, xs @ w.value.astype(np.float64).T + bias, 4 * np.abs(xs) @ np.abs(w.value).T + 1, 3e-6
    )
    same(run_rows(k, x[:1], w.packed(target), rows, 3, extra=bias), got[:1])


@pytest.mark.parametrize("target", TARGETS)
def test_parts_in_threads(lib, target):
    k = H.build("matmul", target, dict(ROWS=ROWS, COLS=608, W_DTYPE="q4_1", ACT_BITS=16), FAST)
    packed = Weights(lib, "q4_1", ROWS, 608).packed(target)
    x = np.random.default_rng(8).standard_normal((9, 608)).astype(np.float32)
    same(run_rows(k, x, packed, ROWS, 4, threads=True), run_rows(k, x, packed, ROWS))


@pytest.mark.skipif("v4" not in H.TARGETS, reason="this processor lacks AVX-512")
@pytest.mark.parametrize("dtype,bits", [("q4_1", 16), ("q6_k", 8), ("q8_0", 16), ("f16", 16)])
def test_portable_v4_has_the_bits_of_v4(lib, dtype, bits):
    cols = columns(dtype)
    packed = Weights(lib, dtype, ROWS, cols).packed("v4")
    x = np.random.default_rng(19).standard_normal((12, cols)).astype(np.float32)
    a, b = (
        H.build("matmul", t, dict(ROWS=ROWS, COLS=cols, W_DTYPE=dtype, ACT_BITS=bits), FAST)
        for t in ("v4", "v4p")
    )
    for n in (1, 3, 12):
        same(run_rows(a, x[:n], packed, ROWS), run_rows(b, x[:n], packed, ROWS))


SAME = [
    ("amx", "v4", d, b)
    for d, b in (
        ("q4_1", 16),
        ("q8_0", 16),
        ("q5_k", 8),
        ("q6_k", 16),
        ("f32", 16),
        ("u4_128", 16),
        ("nvfp4", 16),
        ("nf4_32", 16),
    )
] + [("vnni", "v3", d, b) for d, b in (("q4_1", 16), ("q8_0", 8), ("q6_k", 8))]
SAME = (
    SAME
    if not EVERY
    else [
        (a, b, d, n)
        for a, b in (("amx", "v4"), ("vnni", "v3"))
        for d in DTYPES
        for n in (16, 8)
        if d in SMALL or (n == 16 and (a == "vnni" or d not in ("f16", "bf16")))
    ]
)


@pytest.mark.parametrize("target,than,dtype,bits", SAME)
def test_the_same_integers_make_the_same_bits(lib, target, than, dtype, bits):
    """Tiles and 256-bit dot products add the integers of v4 and v3, and scale them in their order."""
    if target not in H.MORE:
        pytest.skip(f"this processor has no {target}")
    cols = columns(dtype)
    packed = Weights(lib, dtype, ROWS, cols).packed(than)
    x = np.random.default_rng(21).standard_normal((130, cols)).astype(np.float32)
    a, b = (
        H.build("matmul", t, dict(ROWS=ROWS, COLS=cols, W_DTYPE=dtype, ACT_BITS=bits), FAST)
        for t in (target, than)
    )
    for n in (1, 4, 5, 11, 16, 17, 31, 33, 95, 97, 130):
        same(run_rows(a, x[:n], packed, ROWS, 1 + n % 3), run_rows(b, x[:n], packed, ROWS))


@pytest.mark.skipif("amx" not in H.MORE, reason="this processor has no tiles")
@pytest.mark.parametrize(
    "dtype",
    ["bf16", "f16", "q4_1", "q6_k", "nvfp4", "iq4_nl"]
    if not EVERY
    else [d for d in DTYPES if d != "f32"],
)
def test_plain_bf16_activations(lib, dtype):
    """activations: bf16: activations and scaled weights in one bf16 part each, their exact dot product, and the same row in any batch."""
    cols = 608 if dtype in ("f16", "bf16") else columns(dtype)
    k = H.build(
        "matmul", "amx", dict(ROWS=ROWS, COLS=cols, W_DTYPE=dtype, ACT_BITS=16, ACT_BF16=1), FAST
    )
    w = Weights(lib, dtype, ROWS, cols)
    packed = w.packed("amx")
    x = np.random.default_rng(22).standard_normal((300, cols)).astype(np.float32)
    plain = rounded(x)
    got = run_rows(k, x, packed, ROWS)
    value = w.value.astype(np.float64).T
    # rounding to nearest is 2^-9 of a weight; if scale and min cancel, the fp32 rounding of each is
    # visible too
    close(got, plain @ value, np.abs(plain) @ np.abs(value), 2.0**-9 * 1.01)
    err = np.abs(got - plain @ rounded(w.value, np.arange(cols, dtype=np.uint32) % 2).T) / (
        np.abs(plain) @ np.abs(value)
    )
    assert np.median(err) < 1e-6, "weights are rounded once, sums are fp32"
    assert np.abs(got - x @ value).max() > 1e-3, "activations keep their precision"
    for n in (1, 2, 5, 17, 33, 97):
        same(run_rows(k, x[:n], packed, ROWS, 2), got[:n])
    x[1, 33], x[20, 5] = np.inf, np.nan
    bad = run_rows(k, x[:40], packed, ROWS)
    same(np.delete(bad, [1, 20], 0), np.delete(got[:40], [1, 20], 0))
    assert not np.isfinite(bad[[1, 20]]).any()


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", TARGETS)
def test_matmuls_of_two_formats_and_column_counts_in_one_kernel(lib, target):
    text = (H.ROOT / "tests/kernels/two_weight_types.c").read_text()
    isa = target.replace("v4p", "v4")
    for name, dtype, cols, bits in (("wide", "q4_k", 512, 16), ("narrow", "q6_k", 256, 8)):
        p = H.expand("matmul", target, dict(ROWS=ROWS, COLS=cols, W_DTYPE=dtype, ACT_BITS=bits))[
            "products"
        ]
        text = H.called(f"#define {name}_functions {p[0]['symbol']}\n{text}", p, target, FAST)
    both = H.Kernel(
        H.compiled("two_weight_types", target, text, (*FAST, f"-DLLMC_TARGET_{isa}")),
        dict(symbol="two_weight_types", arg=[]),
    )
    w = [
        Weights(lib, "q4_k", ROWS, 512, 1),
        Weights(lib, "q6_k", ROWS, 256, 2),
        Weights(lib, "q6_k", ROWS, 256, 3),
    ]
    bits = [16, 8, 8]
    packed = [m.packed(target) for m in w]
    rng = np.random.default_rng(20)
    for n, parts in ((1, 1), (2, 3), (9, 2), (130, 3)):  # GEMV, tiles, split tokens
        x = [H.aligned((n, c)) for c in (512, 256)]
        for v in x:
            v[...] = rng.standard_normal(v.shape)
        y = [H.aligned((n, ROWS)) for _ in w]
        scratch = [H.aligned((parts * c * 1024,), np.uint8) for c in (512, 256)]
        both.call(
            H.make_step([0] * n),
            [x[0], packed[0], x[1], packed[1], packed[2], *y],
            parts,
            scratch=scratch,
        )
        for i, m in enumerate(w):
            xs = seen(x[i > 0], m.dtype, bits[i])
            close(y[i], xs @ m.value.astype(np.float64).T, 4 * np.abs(xs) @ np.abs(m.value).T, 3e-6)
            k = H.build(
                "matmul",
                target,
                dict(ROWS=ROWS, COLS=m.cols, W_DTYPE=m.dtype, ACT_BITS=bits[i]),
                FAST,
            )
            same(y[i], run_rows(k, x[i > 0], packed[i], ROWS, parts))


def vectors(cols, seed=9):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(cols) + 1).astype(np.float32), rng.standard_normal(cols).astype(
        np.float32
    )


def activation(name, x):
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu":
        from math import erf

        return 0.5 * x * (1 + np.vectorize(erf)(x * 0.5**0.5))
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def loose(dtype):
    """Tolerance relative to the sum of magnitudes: the kernel's norm rounds, and a 16-bit integer may be off by one."""
    return 4e-5 if dtype in SMALL else 1e-5


# target, dtype, norm, plus_one, act: each value of each at least once
FUSED = [
    (t, d, n, p, a)
    for t in TARGETS
    for d, n, p, a in (
        ("q4_1", "rms", 0, "silu"),
        ("f16", "layer", 0, "gelu"),
        ("q8_0", "rms", 1, "gelu_tanh"),
    )
    if t != "generic" or d == "q4_1"
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("target,dtype,kind,plus,act", FUSED)
@pytest.mark.parametrize("rows", [64, 43])
def test_norm_glu(lib, target, dtype, kind, plus, act, rows):
    if rows == 43 and dtype != "q4_1":
        pytest.skip("one type shows it")
    cols = 96
    k = H.build(
        "norm_glu",
        target,
        dict(
            ROWS=rows,
            COLS=cols,
            W_DTYPE=dtype,
            ACT_BITS=16,
            NORM=kind,
            EPS=1e-5,
            PLUS_ONE=plus,
            ACT=act,
        ),
        FAST,
    )
    w = Weights(lib, dtype, 2 * rows, cols)
    nw, nb = vectors(cols)
    x = np.random.default_rng(10).standard_normal((110, cols)).astype(np.float32)
    bias = np.random.default_rng(11).standard_normal(2 * rows).astype(np.float32)
    xn = norm(x, kind, nw, nb, plus=plus)
    packed = w.packed(target)

    def run(n, parts):
        y = H.aligned((n, rows))
        k.call(H.make_step([0] * n), [x, nw, nb, packed, bias, y], parts)
        return y

    got = run(110, 1)
    gu = xn @ w.value.astype(np.float64).T + bias
    mags = 4 * np.abs(xn) @ np.abs(w.value).T + 1
    want = activation(act, gu[:, :rows]) * gu[:, rows:]
    close(got, want, (mags[:, :rows] + 1) * (mags[:, rows:] + 1), loose(dtype))
    for n, parts in ((1, 1), (1, 3), (2, 2), (5, 3), (110, 2)):
        same(run(n, parts), got[:n])


@pytest.mark.sample(4)
@pytest.mark.parametrize("target,dtype,kind,plus,act", FUSED)
def test_norm_matmul_and_norm_act(lib, target, dtype, kind, plus, act):
    rows, cols = 43, 96
    params = dict(
        ROWS=rows,
        COLS=cols,
        W_DTYPE=dtype,
        ACT_BITS=16,
        NORM=kind,
        EPS=1e-5,
        PLUS_ONE=plus,
        ACT=act,
    )
    w = Weights(lib, dtype, rows, cols)
    nw, nb = vectors(cols)
    x = np.random.default_rng(12).standard_normal((9, cols)).astype(np.float32)
    packed = w.packed(target)
    mags = None
    for name, bias in (
        ("norm_matmul", vectors(rows)[1]),
        ("norm_act", None),
        ("norm_matmul", None),
    ):
        if name == "norm_act" and dtype == "q8_0":
            continue
        k = H.build(name, target, params, FAST)

        def run(n, parts):
            y = H.aligned((n, rows))
            k.call(
                H.make_step([0] * n),
                [x, nw, nb if bias is not None else None, packed, bias, y],
                parts,
            )
            return y

        xn = norm(x, kind, nw, nb if bias is not None else None, plus=plus)
        mags = 4 * np.abs(xn) @ np.abs(w.value).T + 1
        want = xn @ w.value.astype(np.float64).T + (0 if bias is None else bias)
        got = run(9, 1)
        close(got, activation(act, want) if name == "norm_act" else want, 2 * mags, loose(dtype))
        for n, parts in ((1, 3), (2, 2), (9, 4)):
            same(run(n, parts), got[:n])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("in_place", [False, True])
def test_matmul_add(lib, target, in_place):
    rows, cols, scale = 43, 160, 0.75
    k = H.build(
        "matmul_add",
        target,
        dict(ROWS=rows, COLS=cols, W_DTYPE="q5_0", ACT_BITS=16, SCALE=scale),
        FAST,
    )
    w = Weights(lib, "q5_0", rows, cols)
    x = np.random.default_rng(13).standard_normal((101, cols)).astype(np.float32)
    r = np.random.default_rng(14).standard_normal((101, rows)).astype(np.float32)
    bias = vectors(rows)[1]
    packed = w.packed(target)

    def run(n, parts):
        y = H.aligned((n, rows))
        res = r[:n].copy()
        k.call(H.make_step([0] * n), [x, packed, bias, res, res if in_place else y], parts)
        return res if in_place else y

    got = run(101, 1)
    xs = seen(x, "q5_0", 16)
    close(
        got,
        scale * r.astype(np.float64) + xs @ w.value.astype(np.float64).T + bias,
        np.abs(xs) @ np.abs(w.value).T + 1,
        3e-6,
    )
    for n, parts in ((1, 2), (2, 1), (7, 3), (101, 2)):
        same(run(n, parts), got[:n])


@pytest.mark.parametrize("target,cap", [(t, 30.0) for t in TARGETS] + [("generic", 0.0)])
def test_head(lib, target, cap):
    rows, cols, scale = 203, 64, 0.8
    k = H.build(
        "lm_head",
        target,
        dict(
            ROWS=rows,
            COLS=cols,
            W_DTYPE="q8_0",
            ACT_BITS=16,
            NORM="rms",
            EPS=1e-5,
            PLUS_ONE=0,
            SCALE=scale,
            SOFTCAP=cap,
        ),
        FAST,
    )
    w = Weights(lib, "q8_0", rows, cols)
    nw, _ = vectors(cols)
    x = np.random.default_rng(15).standard_normal((9, cols)).astype(np.float32)
    packed = w.packed(target)

    def run(wanted, parts):
        y = H.aligned((len(wanted) + 1, rows))
        k.call(H.make_step([0] * 9, out_row=wanted), [x, nw, None, packed, y], parts)
        assert np.isnan(y[-1]).all()
        return y[:-1]

    got = run(range(9), 1)
    want = scale * (norm(x, "rms", nw) @ w.value.astype(np.float64).T)
    want = cap * np.tanh(want / cap) if cap else want
    close(got, want, np.abs(norm(x, "rms", nw)) @ np.abs(w.value).T + 1, loose("q8_0"))
    same(run([7], 3), got[7:8])
    same(run([1, 8], 2), got[[1, 8]])
    same(run([0, 2, 4, 6], 5), got[[0, 2, 4, 6]])


def rotated(x, angle, dims, style):
    y, h = x.copy(), dims // 2
    c, s = angle[:h], angle[h:]
    a, b = (
        (slice(0, dims, 2), slice(1, dims, 2))
        if style == "interleaved"
        else (slice(0, h), slice(h, dims))
    )
    y[..., a] = x[..., a] * c - x[..., b] * s
    y[..., b] = x[..., b] * c + x[..., a] * s
    return y


QKV = [
    (t, *v)
    for t in TARGETS
    for v in (
        # dtype heads kv dim norm qk_norm rope_dims style kv_dtype bias
        ("q4_1", 3, 1, 64, "rms", False, 64, "half", "f16", False),
        ("q8_0", 4, 2, 20, "layer", True, 8, "interleaved", "f32", True),
        ("bf16", 2, 2, 24, "none", True, 24, "half", "f16", True),
        ("q6_k", 2, 1, 32, "rms", False, 0, "half", "f32", False),
    )
    if t != "generic" or v[0] in ("q8_0", "bf16")
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("target,dtype,heads,kv_heads,dim,kind,qk,rope_dims,style,kv,has_bias", QKV)
def test_norm_qkv(
    lib, target, dtype, heads, kv_heads, dim, kind, qk, rope_dims, style, kv, has_bias
):
    hidden = 256 if dtype == "q6_k" else 96
    rows = (heads + 2 * kv_heads) * dim
    per_page = kv_heads * dim * 2 * H.PAGE
    np_kv = np.float16 if kv == "f16" else np.float32
    k = H.build(
        "norm_qkv",
        target,
        dict(
            HIDDEN=hidden,
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=dim,
            W_DTYPE=dtype,
            ACT_BITS=16,
            NORM=kind,
            EPS=1e-5,
            PLUS_ONE=0,
            QK_EPS=1e-6,
            QK_PLUS_ONE=1 if style == "half" else 0,
            ROPE_DIMS=rope_dims,
            STYLE=style,
            HAS_ROPE=int(rope_dims > 0),
            KV_DTYPE=kv,
            KV_PAGE_BYTES=per_page * np_kv().itemsize,
        ),
        FAST,
    )
    w = Weights(lib, dtype, rows, hidden)
    packed = w.packed(target)
    nw, nb = vectors(hidden)
    qn, kn = vectors(dim, 16)
    bias = vectors(rows)[1] if has_bias else None
    lens = [40, 1, 90]
    pos = [7 + i for i in range(40)] + [33] + list(range(90))
    n_tok = len(pos)
    x = np.random.default_rng(17).standard_normal((n_tok, hidden)).astype(np.float32)
    angles = np.random.default_rng(18).uniform(-3, 3, (n_tok, rope_dims // 2))
    rope = np.concatenate([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    table = np.array([[4, 9, 1], [2, 0, 3], [8, 5, 7]])

    def run(parts, take=None):
        """take: run only these rows, as a decode step of that many sequences"""
        rows_of = lens if take is None else [1] * len(take)
        idx = np.arange(n_tok) if take is None else np.array(take)
        seqs = np.repeat(np.arange(3), lens)[idx]
        step = H.make_step(
            np.array(pos)[idx].tolist(), rows_of, table=table if take is None else table[seqs]
        )
        pool = H.aligned((10, per_page), np_kv)
        q = H.aligned((len(idx), heads, dim))
        ins = [np.ascontiguousarray(v[idx]) for v in (x, rope)]
        k.call(
            step,
            [
                ins[0],
                nw,
                nb if kind == "layer" else None,
                packed,
                bias,
                qn if qk else None,
                kn if qk else None,
                ins[1] if rope_dims else None,
                pool,
                q,
                None,
            ],
            parts,
        )
        return q, pool

    q, pool = run(1)
    xn = norm(x, kind, nw, nb)
    qkv = xn @ w.value.astype(np.float64).T + (0 if bias is None else bias)
    heads_of = qkv.reshape(n_tok, -1, dim)
    want = heads_of.copy()
    for h in range(heads + kv_heads):
        if qk:
            want[:, h] = norm(
                want[:, h],
                "rms",
                qn if h < heads else kn,
                eps=1e-6,
                plus=1 if style == "half" else 0,
            )
        if rope_dims:
            for t in range(n_tok):
                want[t, h] = rotated(want[t, h], rope[t].astype(np.float64), rope_dims, style)
    size = 4 * float((np.abs(xn) @ np.abs(w.value).T).max()) / (4 if qk else 1)
    close(q, want[:, :heads], size, loose(dtype))
    seqs = np.repeat(np.arange(3), lens)
    held = np.full((10, 2, kv_heads, dim, H.PAGE), np.nan)
    for t in range(n_tok):
        page = table[seqs[t], pos[t] // 32]
        held[page, 0, :, :, pos[t] % 32] = want[t, heads : heads + kv_heads]
        held[page, 1, :, :, pos[t] % 32] = want[t, heads + kv_heads :]
    half = per_page // 2
    got_k = pool[:, :half].reshape(10, kv_heads, dim, H.PAGE)
    got_v = pool[:, half:].reshape(10, kv_heads, H.PAGE, dim).transpose(0, 1, 3, 2)
    rel = loose(dtype) + (6e-4 if kv == "f16" else 0)
    for got, exp in ((got_k, held[:, 0]), (got_v, held[:, 1])):
        assert (np.isnan(got) == np.isnan(exp)).all(), (
            "wrote places of other positions, or not its own"
        )
        close(np.nan_to_num(got), np.nan_to_num(exp), size, rel)
    bits = np.int16 if kv == "f16" else np.int32
    for parts in (2, 3, 5):
        q2, pool2 = run(parts)
        same(q2, q)
        assert (pool2.view(bits) == pool.view(bits)).all()
    for take in ([3], [0, 40], [2, 40, 45], [39, 40, 41, 129]):
        q1, pool1 = run(2, take)
        same(q1, q[take])
        wrote = ~np.isnan(pool1)
        assert wrote.sum() == len(take) * 2 * kv_heads * dim and (pool1[wrote] == pool[wrote]).all()


@pytest.mark.parametrize(
    "target,wanted",
    [
        ("v3", [("q4_1", 8, r"vpmaddubsw.*ymm"), ("q8_0", 16, r"vpmaddwd.*ymm")]),
        ("v4", [("q4_1", 16, r"vpdpbusd.*zmm"), ("q4_1", 16, r"vpdpwssd.*zmm")]),
        ("vnni", [("q8_0", 8, r"vpdpbusd.*ymm"), ("q8_0", 16, r"vpdpwssd.*ymm")]),
        ("amx", [("q4_1", 16, r"tdpbssd"), ("bf16", 16, r"tdpbf16ps")]),
    ],
)
def test_the_compiled_kernel_has_the_instructions_it_is_for(target, wanted, tmp_path):
    import re

    flags = [f for f in H.ARCH[target] if f.startswith("-m")]
    if subprocess.run(
        [H.CC, *flags, "-x", "c", "-c", "/dev/null", "-o", os.devnull], capture_output=True
    ).returncode:
        pytest.skip(f"{H.CC} does not know {flags}")
    for dtype, bits, pattern in wanted:
        k = H.expand("matmul", target, dict(ROWS=64, COLS=64, W_DTYPE=dtype, ACT_BITS=bits))
        (tmp_path / "k.c").write_text(k["products"][0]["text"])
        subprocess.run(
            [
                H.CC,
                "-std=gnu11",
                "-O1",
                "-S",
                "-ffp-contract=off",
                *H.ARCH[target],
                f"-I{H.TEMPLATES}",
                str(tmp_path / "k.c"),
                "-o",
                str(tmp_path / "k.s"),
            ],
            check=True,
        )
        assert re.search(pattern, (tmp_path / "k.s").read_text())
