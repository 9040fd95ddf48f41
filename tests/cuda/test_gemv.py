"""Kernels of the decode step (templates/cuda/*_decode.cu.in) against float64, on the emulator and
in the SASS of real NVRTC"""

import numpy as np
import pytest

import cuda_harness as H
import sass
from cuda_weights import Weights
from test_cuda_matmul import act, norm, rows
from test_qkv import Case
from planted import plant

TYPES = [
    "bf16",
    "f16",
    *H.BLOCK,
    *H.FP4,
    *(H.CODE if H.EVERY else H.CODE_SAMPLE),
    "u4_32",
    "u4_128_f32",
    "u8_32_f32",
    "u8_128",
    "f8_32",
    "f8_128",
    "nf4_32",
    "fp4_64",
    "u2_128",
    "u3_32",
    "m4_64",
    "m3_64",
    "m8_32",
]


def tolerance(dtype, n=8):
    """Tolerance relative to |x| |w|. bf16 and f16 weights are exact; x has 16 or 22 bits. Block
    formats are exact for one row, except tables of floats; for more rows the mma reads them rounded
    to 11 bits. Codes lie in the middle of wider numbers, so sums of x are larger than the result.
    """
    if dtype[:3] in ("nf4", "fp4"):
        return 5e-4
    if dtype in H.CODE and n == 1:
        return 1e-5
    if dtype in H.GROUP and dtype[0] == "m" and n > 1:  # scale and minimum are f32, each rounded
        return 1e-3
    return 2e-5 if dtype == "bf16" else 3e-6 if n == 1 or dtype in ("f16", "q4_k", "q5_k") else 5e-4


def close(got, want, size, dtype, n=8):
    err = np.abs(got - want) / (size + 1e-30)
    assert np.isfinite(got).all() and err.max() <= tolerance(dtype, n), f"{err.max():.3g}"


def product(n, n_rows, cols, dtype, seed=1, raw=False):
    rng = np.random.default_rng(seed)
    w, x = Weights(dtype, n_rows, cols, seed=seed, scale=cols**-0.5, raw=raw), rows(rng, n, cols)
    return (
        w,
        x,
        x.astype(np.float64) @ w.value.T.astype(np.float64),
        np.sqrt((x * x) @ (w.value * w.value).T) * 4,
    )


def run(op, arch, p, n, args, bucket=0, sms=4, mode="fast", seed=1, out_row=None):
    k = H.build(f"{op}_decode", arch, p)
    return k.run(
        H.make_step([0] * n, out_row=out_row), args, mode=mode, seed=seed, bucket=bucket, sms=sms
    )[0]


def columns(dtype):
    """More than one unit per warp, and the last unit as short as the type allows"""
    return (
        1280
        if H.super_block(dtype) or "_128" in dtype
        else 1344
        if "_64" in dtype or dtype == "nvfp4"
        else 1312
        if dtype in H.PACKED
        else 712
    )


# every type and every number of rows with its own code path: 1, 3 of 4, 8 (in slices if x is too
# large), 9 (two passes)
@pytest.mark.sample(8)
@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype):
    cols, n_rows = columns(dtype), 43
    w, x, want, size = product(9, n_rows, cols, dtype, raw=True)
    b = np.random.default_rng(3).standard_normal(n_rows).astype(np.float32)
    p = dict(ROWS=n_rows, COLS=cols, W_DTYPE=dtype)
    runs = [
        (1, 0, "check", 1, "sm_90a"),
        (3, 4, "check", 2, "sm_90a"),
        (8, 0, "check", 3, "sm_90a"),
        (9, 16, "check", 4, "sm_90a"),
    ]
    if dtype in ("bf16", "q4_k"):
        runs += [
            (1, 0, "fast", 5, "sm_90a"),
            (9, 16, "fast", 6, "sm_90a"),
            (8, 8, "fast", 7, "sm_86"),
        ]
    for n, bucket, mode, seed, arch in runs:
        y = run(
            "matmul",
            arch,
            p,
            n,
            [x[:n], w.packed, b, H.out((n, n_rows))],
            bucket,
            mode=mode,
            seed=seed,
        )
        close(y, want[:n] + b, size[:n], dtype, n)


# less than a unit, one, and a few: warps without columns, with one row of weights, and with more
# than go in pairs
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "dtype,cols,n_rows",
    [
        ("bf16", 72, 1),
        ("f16", 8, 40),
        ("q8_0", 32, 9),
        ("q8_0", 96, 17),
        ("q4_0", 160, 33),
        ("q5_1", 32, 43),
    ],
)
def test_few_columns(dtype, cols, n_rows):
    w, x, want, size = product(5, n_rows, cols, dtype, raw=True)
    p = dict(ROWS=n_rows, COLS=cols, W_DTYPE=dtype)
    for n, bucket in [(1, 0), (5, 8)]:
        y = run(
            "matmul",
            "sm_90a",
            p,
            n,
            [x[:n], w.packed, None, H.out((n, n_rows))],
            bucket,
            mode="check",
            seed=n,
        )
        close(y, want[:n], size[:n], dtype, n)


# the columns of 8 rows in 8 slices, combined by the last CTA; 5 rows of a bucket of 8; fewer CTAs
# than slices; idle CTAs
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype,cols,n,sms,seeds",
    [("bf16", 4096, 8, 17, (1, 2)), ("q4_1", 4128, 5, 5, (3,)), ("f16", 8192, 8, 2, (4,))],
)
def test_slices(dtype, cols, n, sms, seeds):
    n_rows = 61
    w, x, want, size = product(n, n_rows, cols, dtype)
    rng = np.random.default_rng(2)
    nw, b = (rng.standard_normal(s).astype(np.float32) for s in (cols, n_rows))
    xn = norm(x, "rms", nw)
    wide, size_n = xn @ w.value.T.astype(np.float64), np.sqrt((xn * xn) @ (w.value * w.value).T) * 4
    p = dict(
        ROWS=n_rows,
        COLS=cols,
        W_DTYPE=dtype,
        NORM="rms",
        EPS=1e-5,
        PLUS_ONE=0,
        SCALE=1.0,
        SOFTCAP=0.0,
    )
    for seed in seeds:
        close(
            run(
                "norm_matmul",
                "sm_90a",
                p,
                n,
                [x, nw, None, w.packed, None, H.out((n, n_rows))],
                8,
                sms,
                seed=seed,
            ),
            wide,
            size_n,
            dtype,
        )
    y = run(
        "norm_matmul",
        "sm_90a",
        p,
        n,
        [x, nw, None, w.packed, None, H.out((n, n_rows))],
        8,
        sms,
        mode="check",
    )
    close(y, wide, size_n, dtype)
    if dtype == "bf16":
        close(
            run("matmul", "sm_90a", p, n, [x, w.packed, b, H.out((n, n_rows))], 8, sms),
            want + b,
            size,
            dtype,
        )


def test_more_slices():
    """8 rows with more columns than 8 slices hold"""
    w, x, want, size = product(8, 13, 18944, "bf16")
    p = dict(ROWS=13, COLS=18944, W_DTYPE="bf16")
    for mode, sms in [("check", 33), ("fast", 17)]:
        y = run(
            "matmul", "sm_90a", p, 8, [x, w.packed, None, H.out((8, 13))], 8, sms, mode=mode, seed=1
        )
        close(y, want, size, "bf16")


def test_slices_of_one_row():
    """So few and long rows of W would leave most SMs idle."""
    w, x, want, size = product(1, 13, 16384, "bf16")
    p = dict(ROWS=13, COLS=16384, W_DTYPE="bf16")
    for mode, seed in [("check", 1), ("fast", 2)]:
        y = run(
            "matmul",
            "sm_90a",
            p,
            1,
            [x, w.packed, None, H.out((1, 13))],
            0,
            17,
            mode=mode,
            seed=seed,
        )
        close(y, want, size, "bf16")


# 96, 160 and 192 columns: 3, 5 and 6 units of a type without blocks, fewer than warps
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "kind,plus,dtype,cols",
    [
        ("rms", 0, "bf16", 96),
        ("rms", 0, "q8_0", 96),
        ("rms", 1, "bf16", 160),
        ("rms", 0, "q4_0", 160),
        ("rms", 0, "f16", 192),
        ("rms", 0, "q5_1", 192),
        ("rms", 0, "bf16", 584),
        ("rms", 1, "q8_0", 1568),
        ("layer", 0, "f16", 712),
        ("none", 0, "q4_k", 1024),
    ],
)
def test_ops(kind, plus, dtype, cols):
    n_rows, n = 101, 3
    rng = np.random.default_rng(7)
    x, r = rows(rng, n, cols), rows(rng, n, n_rows)
    nw, nb, b = (rng.standard_normal(s).astype(np.float32) for s in (cols, cols, 2 * n_rows))
    nw, nb = (None, None) if kind == "none" else (nw, nb if kind == "layer" else None)
    w = Weights(dtype, 2 * n_rows, cols, scale=cols**-0.5)
    half = w.packed[:n_rows]
    xn = norm(x, kind, nw, nb, plus=plus)
    v, size = (
        xn @ w.value.T.astype(np.float64),
        np.sqrt((xn * xn) @ (w.value * w.value).T.astype(np.float64)) * 4,
    )
    p = dict(
        ROWS=n_rows,
        COLS=cols,
        W_DTYPE=dtype,
        NORM=kind,
        EPS=1e-5,
        PLUS_ONE=plus,
        SCALE=0.5,
        ACT="gelu_tanh",
        SOFTCAP=3.0,
    )
    for arch, mode, seed in [("sm_90a", "check", 3)] + [
        ("sm_90a", "fast", 1),
        ("sm_90a", "fast", 2),
    ] * (dtype == "bf16"):

        def check(op, args, want, size_, m=n, **kw):
            close(
                run(op, arch, p, n, args + [H.out((m, n_rows))], 4, mode=mode, seed=seed, **kw),
                want,
                size_,
                dtype,
            )

        check(
            "norm_glu",
            [x, nw, nb, w.packed, b],
            act(v[:, :n_rows] + b[:n_rows], "gelu_tanh") * (v[:, n_rows:] + b[n_rows:]),
            (size[:, :n_rows] + 1) * (size[:, n_rows:] + 1),
        )
        if kind != "none":
            check(
                "norm_act",
                [x, nw, nb, half, b[:n_rows]],
                act(v[:, :n_rows] + b[:n_rows], "gelu_tanh"),
                size[:, :n_rows] + 1e-2,
            )
            check(
                "lm_head",
                [x, nw, nb, half],
                3 * np.tanh(0.5 * v[[0, 2], :n_rows] / 3),
                size[[0, 2], :n_rows],
                2,
                out_row=[0, 2],
            )
        if mode == "check":
            add = (
                x.astype(np.float64) @ w.value[:n_rows].T.astype(np.float64) + 0.5 * r + b[:n_rows]
            )
            size_add = np.sqrt((x * x) @ (w.value[:n_rows] * w.value[:n_rows]).T) * 4 + np.abs(r)
            k = H.build("matmul_add_decode", arch, p)
            (y,) = k.run(
                H.make_step([0] * n),
                [x, half, b[:n_rows], H.inout(r), H.alias(3)],
                mode=mode,
                seed=seed,
                bucket=4,
                repeat=1,
            )
            close(y, add, size_add, dtype)


# A scale of another lane's sub-block, x of another lane, a sum that does not include both lanes, a
# quad's fields read before its lanes have synchronised
@pytest.mark.findings
@pytest.mark.parametrize(
    "dtype,was,bug",
    [
        ("q4_k", "at = 0x0400 + t * 0x0101", "at = 0x0400 + (t ^ 1) * 0x0101"),
        ("q4_k", "pair == (t & 2)", "pair == (t | 1)"),
        ("q6_k", "pair == t)", "pair == (t ^ 2))"),
        ("q4_k", "+ other;", "* 2;"),
        (
            "q5_k",
            "	cp_async_wait<RING - 1>();\n	if (S::QUADS)",
            "	cp_async_wait<RING - 1>();\n	if (0)",
        ),
    ],
)
def test_planted_bugs(dtype, was, bug):
    w, x, want, size = product(1, 20, 512, dtype, raw=True)
    k = H.build("matmul_decode", "sm_90a", dict(ROWS=20, COLS=512, W_DTYPE=dtype))
    k.text = plant(k.text, was, bug)
    with pytest.raises(AssertionError):
        (y,) = k.run(H.make_step([0]), [x, w.packed, None, H.out((1, 20))], mode="check", seed=1)
        close(y, want, size, dtype, 1)


def test_fewer_rows_than_the_bucket():
    """A step with fewer rows than its bucket, with none, and logits that are not needed"""
    w, x, want, size = product(4, 40, 512, "bf16")
    p = dict(
        ROWS=40, COLS=512, W_DTYPE="bf16", NORM="none", EPS=0.0, PLUS_ONE=0, SCALE=1.0, SOFTCAP=0.0
    )
    y = run("matmul", "sm_90a", p, 2, [x[:2], w.packed, None, H.out((2, 40))], 8, mode="check")
    close(y, want[:2], size[:2], "bf16")
    k = H.build("lm_head_decode", "sm_90a", p)
    k.run(H.make_step([0]), [x[:1], None, None, w.packed, H.out((0, 40))], mode="check", bucket=1)


QKV = {
    "llama": dict(
        hidden=512,
        heads=4,
        kv_heads=2,
        dim=64,
        rows=[1, 1, 1],
        rope_dims=64,
        dtype="bf16",
        kv="bf16",
    ),
    "one": dict(
        hidden=584,
        heads=2,
        kv_heads=1,
        dim=128,
        rows=[1],
        rope_dims=128,
        dtype="f16",
        kv="f16",
        bias=True,
    ),
    "qwen3": dict(
        hidden=672,
        heads=4,
        kv_heads=2,
        dim=80,
        rows=[1] * 9,
        dtype="q8_0",
        kv="f16",
        qk_norm=True,
        rope_dims=80,
    ),
    "slices": dict(
        hidden=4096,
        heads=2,
        kv_heads=1,
        dim=32,
        rows=[1] * 8,
        dtype="bf16",
        kv="f32",
        qk_norm=True,
        rope_dims=32,
        plus_one=1,
        bias=True,
    ),
    "both": dict(
        hidden=4128, heads=2, kv_heads=1, dim=32, rows=[1] * 7, dtype="q4_0", kv="f16", rope_dims=16
    ),
    "glm": dict(
        hidden=512,
        heads=4,
        kv_heads=2,
        dim=48,
        rows=[1, 1],
        dtype="q4_0",
        style="interleaved",
        rope_dims=24,
        bias=True,
    ),
    "phi": dict(
        hidden=512,
        heads=3,
        kv_heads=3,
        dim=40,
        rows=[1, 1],
        dtype="bf16",
        kv="f32",
        kind="layer",
        nb=True,
        bias=True,
        rope_dims=16,
    ),
    "none": dict(hidden=1024, heads=2, kv_heads=2, dim=16, rows=[1] * 5, dtype="q4_k", kind="none"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", QKV)
def test_qkv(name):
    c = Case(**QKV[name])
    tol = 1e-4 if QKV[name]["dtype"] in ("bf16", "f16") else 2e-3
    for arch, mode, seed in [("sm_90a", "check", 3)] + [
        ("sm_80", "fast", 1),
        ("sm_80", "fast", 2),
    ] * (name in ("one", "slices")):
        c.check(
            H.build("norm_qkv_decode", arch, c.params),
            tol,
            mode=mode,
            seed=seed,
            sms=9 if name == "slices" else 4,
        )


SHAPES = dict(
    ROWS=4096,
    COLS=4096,
    SCALE=1.0,
    NORM="rms",
    EPS=1e-5,
    PLUS_ONE=0,
    ACT="silu",
    SOFTCAP=0.0,
    HIDDEN=4096,
    HEADS=32,
    KV_HEADS=8,
    DIM=128,
    HAS_QN=0,
    HAS_KN=0,
    QK_EPS=1e-6,
    QK_PLUS_ONE=0,
    HAS_ROPE=1,
    ROPE_DIMS=128,
    STYLE="half",
    KV_DTYPE="bf16",
    KV_PAGE_BYTES=131072,
    W_ROWS=6144,
)
SASS = (
    [
        ("norm_qkv", "bf16", "sm_90a", {}),
        ("norm_qkv", "bf16", "sm_90a", dict(HAS_QN=1, HAS_KN=1)),
        ("norm_glu", "bf16", "sm_90a", {}),
        ("lm_head", "f16", "sm_80", {}),
        ("norm_glu", "f16", "sm_120a", {}),
    ]
    + [("matmul_add", d, "sm_90a", {}) for d in ("q8_0", "q4_1", "q4_k", "q6_k")]
    + [
        ("norm_glu", "q5_1", "sm_86", dict(COLS=992)),
        ("norm_qkv", "f16", "sm_90a", dict(HIDDEN=1000, NORM="layer", HAS_QN=1, HAS_KN=1)),
        ("norm_qkv", "q5_k", "sm_86", dict(HAS_QN=1, HAS_KN=1)),
    ]
)


@pytest.mark.sample(3)
@pytest.mark.skipif(sass.disassembler() is None, reason="no nvdisasm")
@pytest.mark.parametrize("op,dtype,arch,more", SASS)
def test_sass(op, dtype, arch, more):
    """Weights are loaded 16 bytes at a time, before the wait if there is one; nothing spills; two
    kernels fit on an SM."""
    found = H.nvrtc(f"{op}_decode", dict(SHAPES, W_DTYPE=dtype, **more), [arch])
    if found is None:
        pytest.skip("no libnvrtc")
    assert len(found) == 1
    for name, s in sass.functions(found[0]["cubin"]).items():
        assert not sass.faults(s), f"{name}: {sass.faults(s)}"
        assert s.where("LDGSTS") and (not arch.startswith(("sm_9", "sm_1")) or s.where("ACQBULK"))
    assert all(k["registers"] <= 128 for k in found[0]["kernels"])


# bytes of a stage, 16 rows per unit; four-bit to six-bit formats that an SM can decode at the rate
# of its loads (docs/kernels/gemv.md)
@pytest.mark.skipif(sass.disassembler() is None, reason="no nvdisasm")
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype,stage,most",
    [
        ("q4_0", 1152, 120),
        ("q4_k", 1152, 140),
        ("q5_k", 1408, 140),
        ("q6_k", 1680, 140),
        ("mxfp4", 1088, 140.5),
        ("nvfp4", 1152, 140),
        ("u4_128", 1072, 140),
    ],
)
def test_instructions_for_a_kilobyte(dtype, stage, most):
    found = H.nvrtc("matmul_add_decode", dict(SHAPES, NORM="none", W_DTYPE=dtype), ["sm_90a"])
    if found is None:
        pytest.skip("no libnvrtc")
    for s in sass.functions(found[0]["cubin"]).values():
        loops = [x for x in s.loops("HMMA", "LDGSTS") if x.count("HMMA") == 8]
        assert len(loops[0]) * 1024 / stage <= most
