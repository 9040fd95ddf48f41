"""GEMMs of bytes (templates/cuda/gemm/gemm_int8.h; `activations: i8`) against numpy in double
precision: activations quantised in blocks of 32 by the definition of templates/cpu/gemm/quantize_act.h,
exact weights. What remains is the rounding of the chain of sums, far below a step of any integer."""

import cuda_harness as H
import numpy as np
import pytest

import gemm_weights as W
import sass
from planted import plant
from test_gemm import EPS, Case, norm, silu

K = ("q4_k", "q5_k", "q6_k", "q2_k", "q3_k")
GRIDS = (
    "iq4_xs",
    "iq3_s",
    "iq3_xxs",
    "iq2_s",
    "iq2_xs",
    "iq2_xxs",
    "iq1_s",
    "iq1_m",
    "tq1_0",
    "tq2_0",
)
GROUPS = ("u8_128_f32", "u8_32_f32", "u4_128", "u4_32_f32", "u3_32", "u2_128", "m4_64", "m8_32")
BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")


def quantised(x):
    """Integers and scales of blocks of 32"""
    b = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    peak = np.abs(b).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        q = np.rint(b * (np.float32(127) / peak)).astype(np.float64)
        d = peak * (np.float32(1) / np.float32(127))
    return np.where(peak < 1e-30, 0, q), np.where(peak < 1e-30, 0, d).astype(np.float64)


def rounded(x):
    q, d = quantised(x)
    return (q * d).reshape(x.shape)


def close(got, x, w, more=0, tol=4e-7):
    """Compare relative to the sum of magnitudes of the terms."""
    assert np.isfinite(got).all()
    err = np.abs(got - (x @ w.T + more)) / (np.abs(x) @ np.abs(w).T + np.abs(more) + 1e-30)
    assert err.max() < tol, f"{err.max():g} of the terms"


def weights(c, rows=None):
    packed, values = W.make(c.r, rows or c.rows, c.cols, c.dtype)
    return packed, values.astype(np.float64)


def params(c, **more):
    return c.params(ACT_BITS=8, **more)


def matmul(arch, runs, rows, cols, dtype, bias=True):
    c = Case(rows + cols, max(n for n, _, _ in runs), rows, cols, dtype)
    packed, w = weights(c)
    b = c.f(rows) if bias else None
    k = H.build("matmul_mixed", arch, params(c))
    for n, mode, seed in runs:
        (y,) = k.run(
            H.make_step(pos=list(range(n)), rows=[n]),
            [c.x[:n], packed, b, H.out((n, rows))],
            mode=mode,
            seed=seed,
            bucket=n + seed,
        )
        close(y, rounded(c.x[:n]), w, b if bias else 0)


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    "dtype, rows, cols, arch",
    [
        ("q8_0", 131, 96, "sm_80"),
        ("q4_k", 1031, 256, "sm_89"),
        ("q6_k", 131, 768, "sm_120a"),
        ("q5_k", 263, 256, "sm_86"),
        ("q4_0", 131, 224, "sm_89"),
        ("q4_1", 131, 32, "sm_80"),
        ("q5_0", 1031, 160, "sm_120a"),
        ("q5_1", 97, 352, "sm_86"),
        ("iq4_nl", 97, 96, "sm_80"),
        ("q2_k", 97, 256, "sm_89"),
        ("q3_k", 97, 512, "sm_80"),
        *[(d, 67, 256, "sm_80") for d in GRIDS],
        *[(d, 67, 384, "sm_89") for d in GROUPS],
    ],
)
def test_matmul(dtype, rows, cols, arch):
    """Rows of both tiles, columns that fill no stage, odd numbers of results"""
    matmul(arch, [(n, "fast", i) for i, n in enumerate((9, 17, 64, 129))], rows, cols, dtype)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["q8_0", "q4_k", "q6_k", "q2_k", "q5_1", "u8_32_f32"])
def test_matmul_checked(dtype):
    cols = 256 if dtype in K else 160
    matmul("sm_86", [(9, "check", 1), (129, "check", 2)], 1031, cols, dtype, False)


def test_extreme_integers():
    """Blocks of -128 times 127 throughout, zeros, tiny and not finite activations"""
    rows, cols, n = 33, 96, 12
    c = Case(2, n, rows, cols, "q8_0")
    q = np.full((rows, cols), -128, np.int8)
    d = np.full((rows, cols // 32), 0.5, np.float16)
    packed, w = np.concatenate([W.plane(q, rows), W.plane(d, rows)], 1), q * 0.5
    c.x[:] = 3.0
    c.x[1] = 0
    c.x[2, :32], c.x[2, 32:] = 1e-31, 1e-29
    c.x[3, 40] = np.inf
    c.x[4, 5] = np.nan
    c.x[5] = -3e38
    k = H.build("matmul_mixed", "sm_80", params(c))
    (y,) = k.run(c.step, [c.x, packed, None, H.out((n, rows))])
    assert np.isnan(y[3:5]).all() and (y[1] == 0).all()
    fine = [0, 1, 2, *range(6, n)]
    close(y[fine], rounded(c.x[fine]), w)
    assert (y[5] == np.inf).all()  # -128 times -3e38, 96 times


@pytest.mark.parametrize("dtype, cols", [("q8_0", 160), ("q6_k", 512), ("iq4_nl", 96)])
def test_the_bits_are_those_of_cpus(dtype, cols):
    """fma(i d_w, d_x, sum) block by block, as templates/cpu/gemm/gemm_tile.h adds. q6_k has two
    halves per block. Long doubles hold each step before its rounding."""
    rows, n = 19, 21
    c = Case(5, n, rows, cols, dtype)
    packed, w = weights(c)
    per = 16 if dtype == "q6_k" else 32
    v = w.reshape(rows, -1, per)
    # an integer and a scale with few bits per block: what the weights were made from
    unit = np.array([[scale_of(b) for b in r] for r in v])
    qw = np.rint(v / unit[..., None])
    assert np.abs(qw * unit[..., None] - v).max() == 0 and np.abs(qw).max() <= 128
    q, d = quantised(c.x)
    q = q.reshape(n, -1, per)
    want = np.zeros((n, rows), np.float32)
    for b in range(cols // per):
        i = q[:, b] @ qw[:, b].T
        term = (i * unit[:, b]).astype(np.float32)
        chain = term.astype(np.longdouble) * d[:, b * per // 32].astype(np.longdouble) + want
        want = chain.astype(np.float32)
    k = H.build("matmul_mixed", "sm_80", params(c))
    (y,) = k.run(c.step, [c.x, packed, None, H.out((n, rows))])
    assert (y.view(np.uint32) == want.view(np.uint32)).all()


def scale_of(values):
    """The largest scale that makes the values integers: their greatest common divisor"""
    m = [abs(float(x)) for x in values if x]
    scale = 2.0**-40
    ints = [round(x / scale) for x in m]
    assert all(i * scale == x for i, x in zip(ints, m))
    return scale * int(np.gcd.reduce(np.array(ints, dtype=object))) if m else 1.0


def test_rows_do_not_depend_on_other_rows():
    n, rows, cols = 140, 300, 160
    c = Case(21, n, rows, cols, "q5_1")
    packed, _ = weights(c)
    k = H.build("matmul_mixed", "sm_80", params(c))
    (every,) = k.run(c.step, [c.x, packed, None, H.out((n, rows))])
    for pick in [137], list(range(3, 63)), list(range(2, 140)):
        step = H.make_step(pos=list(range(len(pick))), rows=[len(pick)])
        (y,) = k.run(step, [c.x[pick], packed, None, H.out((len(pick), rows))], seed=1)
        assert (y.view(np.uint32) == every[pick].view(np.uint32)).all()


def test_small_steps_keep_16_bits():
    """Unless results may not depend on the number of rows, steps of up to 64 rows are bound by
    memory and run the small-M GEMM."""
    rows, cols, n = 70, 96, 65
    c = Case(7, n, rows, cols, "q8_0")
    packed, w = weights(c)
    k = H.build("matmul_mixed", "sm_80", params(c, DETERMINISTIC=0))
    for m in (64, 65):
        (y,) = k.run(
            H.make_step(pos=list(range(m)), rows=[m]), [c.x[:m], packed, None, H.out((m, rows))]
        )
        few = np.abs(y - c.x[:m] @ w.T).max() < 2e-3 * np.abs(y).max()
        assert few == (m == 64)
        if m == 65:
            close(y, rounded(c.x[:m]), w)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype, rows, n", [("q4_k", 521, 130), ("q8_0", 263, 17), ("q6_k", 67, 65)]
)
def test_glu(dtype, rows, n):
    cols = 256 if dtype in K else 96
    c = Case(rows, n, rows, cols, dtype)
    nw, b = c.f(cols), c.f(2 * rows)
    packed, w = weights(c, 2 * rows)
    k = H.build("norm_glu_mixed", "sm_89", params(c, NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu"))
    z = rounded(norm(c.x, "rms", nw, None)) @ w.T + b
    (y,) = k.run(c.step, [c.x, nw, None, packed, b, H.out((n, rows))])
    # the norm is rounded otherwise, so single integers may differ by one
    err = np.abs(y - silu(z[:, :rows]) * z[:, rows:])
    assert np.sqrt((err**2).mean()) < 2e-3 * np.sqrt((y**2).mean()), err.max()


def test_add_in_place():
    n, rows, cols = 66, 70, 96
    c = Case(3, n, rows, cols, "q4_0")
    packed, w = weights(c)
    r = c.f(n, rows)
    k = H.build("matmul_add_mixed", "sm_80", params(c, SCALE=0.5))
    for mode, seed in H.RUNS:
        (y,) = k.run(c.step, [c.x, packed, None, H.inout(r), H.alias(3)], mode=mode, seed=seed)
        close(y, rounded(c.x), w, 0.5 * r.astype(np.float64))


def test_head():
    rows, cols, n = 211, 64, 24
    c = Case(9, n, rows, cols, "q8_0")
    packed, w = weights(c)
    out_row = np.array([0, 7, 8, 23])
    step = H.make_step(pos=list(range(n)), rows=[n], out_row=out_row)
    k = H.build(
        "lm_head_mixed", "sm_120a", params(c, NORM="none", EPS=EPS, PLUS_ONE=0, SCALE=1, SOFTCAP=0)
    )
    (y,) = k.run(step, [c.x, None, None, packed, H.out((4, rows))])
    close(y, rounded(c.x)[out_row], w)


def test_where_it_runs():
    """GPUs on which mma.sync of bytes gains over the 16-bit GEMM; other GPUs and types keep 16 bits."""
    p = dict(ROWS=64, COLS=256, DETERMINISTIC=1)

    def bytes_of(arch, dtype, bits=8):
        k = H.expand("matmul_mixed", arch, dict(p, W_DTYPE=dtype, ACT_BITS=bits))
        return "gemm_int8_config" in k["text"]

    for dtype in (*BLOCKS, *K, *GRIDS, *GROUPS):
        assert bytes_of("sm_89", dtype) and not bytes_of("sm_89", dtype, 16)
    assert bytes_of("sm_80", "q8_0") and bytes_of("sm_86", "q8_0") and bytes_of("sm_120a", "q8_0")
    assert not bytes_of("sm_90a", "q8_0") and not bytes_of("sm_100a", "q8_0")
    assert not bytes_of("sm_80", "bf16") and not bytes_of("sm_80", "f8_32")


PLANTED = {
    "a stage is read before it has come": (
        "q5_1",
        "cp_async_wait<T::STAGES - 2>();\n\t\t\t__syncthreads();\n\t\t\tunsigned char *stage = smem + into * T::STAGE_BYTES;\n\t\t\tconst int next",
        "cp_async_wait<T::STAGES - 1>();\n\t\t\t__syncthreads();\n\t\t\tunsigned char *stage = smem + into * T::STAGE_BYTES;\n\t\t\tconst int next",
    ),
    "a stage is filled while it is read": (
        "q5_1",
        "__syncthreads();\n\t\t\tunsigned char *stage = smem + into * T::STAGE_BYTES;\n\t\t\tconst int next",
        "unsigned char *stage = smem + into * T::STAGE_BYTES;\n\t\t\tconst int next",
    ),
    "scales of another stage": ("q5_1", "scales(at), wm, wn, acc)", "scales(into), wm, wn, acc)"),
    "no zeros next to an odd block": (
        "q5_1",
        "if (k < R::PADDED && threadIdx.x % 8 == 0)\n\t\t\t\tst_v2",
        "if (k < R::COLS && threadIdx.x % 8 == 0)\n\t\t\t\tst_v2",
    ),
    "scales of the neighbouring block": ("q5_1", "+ (lane >> 2), b,\n", "+ (lane >> 2), b ^ 1,\n"),
    "sums of half a block": ("q5_1", "(float)int8_sum<8>(sum)", "(float)int8_sum<4>(sum)"),
    "minima of the other block": (
        "q5_1",
        "of_columns(at, b * F::HALVES + h,",
        "of_columns(at, b * F::HALVES + h ^ 1,",
    ),
    "sums of the activations forgotten": (
        "q5_1",
        "add_min(acc[i][j], m[0][j], sum[0]);",
        "add_min(acc[i][j], m[0][j], x);",
    ),
    "both sub-blocks of nibbles have the first one's scale": (
        "q4_k",
        "h == (F::SPAN == 32 ? u : 0)",
        "h == 0",
    ),
    "a zero point of 16 instead of 32": ("q6_k", "(128 - F::ZERO)", "(144 - F::ZERO)"),
    "halves of a block exchanged": ("q6_k", "wh[1] = { w[j][h] };", "wh[1] = { w[j][1 - h] };"),
    "sums start elsewhere": ("q6_k", "START = 12582912.0f", "START = 12582913.0f"),
}


@pytest.mark.findings
@pytest.mark.parametrize("bug", PLANTED if H.EVERY else list(PLANTED)[::4])
def test_planted_bugs_are_found(bug):
    dtype, before, after = PLANTED[bug]
    n, rows, cols = 20, 97, 1280 if dtype in K else 288
    c = Case(6, n, rows, cols, dtype)
    packed, w = weights(c)
    k = H.build("matmul_mixed", "sm_86", params(c))
    k.text = plant(H.inline(k.text, k.name, set()), before, after)
    with pytest.raises(AssertionError):
        (y,) = k.run(c.step, [c.x, packed, None, H.out((n, rows))], mode="check", seed=2)
        close(y, rounded(c.x), w)


def test_nvrtc():
    """Real NVRTC: no spills, and integer mma without conversions of their sums"""
    for dtype, arch in [("q4_k", "sm_89"), ("q6_k", "sm_120a"), ("u8_128_f32", "sm_80")] + [
        (d, a)
        for d in ("q8_0", "q4_k", "q2_k", "q3_k", "q5_1", "iq2_s", "iq3_s", "iq1_m", *GROUPS)
        for a in ("sm_80", "sm_86", "sm_120a")
    ] * H.EVERY:
        done = H.nvrtc(
            "norm_glu_mixed",
            dict(
                ROWS=14336,
                COLS=4096,
                NORM="rms",
                EPS=EPS,
                PLUS_ONE=0,
                ACT="silu",
                W_DTYPE=dtype,
                ACT_BITS=8,
                DETERMINISTIC=1,
            ),
            [arch],
        )
        if done is None:
            pytest.skip("no NVRTC here")
        f = sass.functions(done[0]["cubin"])
        if f:
            s = f[done[0]["symbol"]]
            assert s.count("IMMA") >= 16 and s.count("LDSM") >= 6 and not s.count("LDL", "STL")
            assert s.count("I2F") < 60  # weights' scales and indices, not 64 sums and more
