"""Small-M GEMMs, M = 9 .. 64 (templates/cuda/gemm/gemm_swap_ab.h, launched by the *_mixed
templates) against numpy in double precision.

Activations are rounded as prep rounds them. Weights of block formats are rounded to 11 bits more
than once, so the bound is relative to |x| |w|. LLMC_CHECK_ALL=1: every type on every generation,
all planted bugs, and both modes of each: a kernel is compiled for either."""

import os

import cuda_harness as H
import numpy as np
import pytest

import gemm_weights as W
import sass
from test_gemm import EPS, Case, norm, rounded, silu
from planted import plant

EVERY = bool(os.environ.get("LLMC_CHECK_ALL"))


def close(got, want, size, tol=5e-4):
    assert np.isfinite(got).all()
    err = (np.abs(got - want) / size).max()
    assert err < tol, f"error {err:g} of |x| |w|"


def matmul(arch, rows, cols, dtype, runs):
    """runs: (rows of activations, mode, seed, bucket)"""
    c = Case(rows + cols, max(n for n, *_ in runs), rows, cols, dtype)
    packed, values = W.make(c.r, rows, cols, dtype)
    w = values.astype(np.float64)
    b = c.f(rows)
    k = H.build("matmul_mixed", arch, c.params(DETERMINISTIC=0))
    x = rounded(c.x, dtype)
    want, size = x @ w.T + b, np.abs(x) @ np.abs(w).T
    for n, mode, seed, bucket in runs:
        (y,) = k.run(
            H.make_step(pos=list(range(n)), rows=[n]),
            [c.x[:n], packed, b, H.out((n, rows))],
            mode=mode,
            seed=seed,
            bucket=bucket,
            sms=3 + seed,
        )
        close(y, want[:n], size[:n], 2e-6 if dtype in ("bf16", "f16") else 5e-4)
    return k


def few(k):
    return [x for x in k.launches if x.get("fn", "").endswith("_small_m")]


# Rows of each tile (16, 32, 64), full and partial; columns of W that are not a multiple of a tile,
# columns of x that are not a multiple of a k-step; one CTA with all, more CTAs than k-steps.
@pytest.mark.parametrize(
    "arch, rows, cols, dtype",
    [
        ("sm_80", 97, 72, "f16"),
        ("sm_90a", 530, 576, "bf16"),
        *[
            ("sm_80", 100, 96, "bf16"),
            ("sm_86", 97, 72, "f16"),
            ("sm_100a", 263, 200, "bf16"),
            ("sm_120a", 530, 320, "f16"),
        ]
        * EVERY,
    ],
)
def test_elements(arch, rows, cols, dtype):
    runs = [
        (9, "check", 1, 16),
        (16, "fast", 0, 16),
        (17, "check", 2, 32),
        (33, "check", 1, 64),
        (64, "fast", 4, 64),
    ]
    if not EVERY:
        runs = (
            [r for r in runs if r[1] == "check"]
            if arch == "sm_80"
            else [(n, "fast", *r) for n, _, *r in runs]
        )
    k = matmul(arch, rows, cols, dtype, runs)
    (x,) = few(k)
    assert (
        x["rows"] == "n_tok"
        and x["most"] == 64
        and sum(y.get("least") == 65 for y in k.launches) >= 1
    )


@pytest.mark.parametrize(
    "dtype, arch",
    [("q4_k", "sm_80"), ("nvfp4", "sm_80")]
    if not EVERY
    else [
        (d, a)
        for d in (*H.BLOCK, *H.FP4, *H.GROUP)
        for a in ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
    ],
)
def test_blocks(dtype, arch):
    cols = (
        512
        if H.super_block(dtype)
        else 384
        if "_128" in dtype or "_64" in dtype or dtype == "nvfp4"
        else 352
    )
    matmul(
        arch,
        300,
        cols,
        dtype,
        [(9, "check", 1, 16), (17, "fast", 2, 32), (33, "check", 1, 64)]
        if EVERY
        else [(9, "fast", 1, 16), (17, "fast", 2, 32), (33, "fast", 1, 64)],
    )


# By wgmma: half a unit at the end of a row, one unit too few for both warpgroups, one tile and
# partial tiles, all rows of a tile and few of them.
@pytest.mark.parametrize(
    "dtype, rows, cols",
    [
        ("q4_0", 300, 576),
        ("q4_k", 530, 768),
        *[("q8_0", 97, 576)] * EVERY,
        *[(d, 263, 768) for d in (*H.BLOCK, *H.FP4, *H.CODE, *H.GROUP)] * EVERY,
    ],
)
def test_blocks_by_wgmma(dtype, rows, cols):
    runs = [
        (9, "fast", 1, 16),
        (17, "check", 2, 32),
        (32, "fast", 4, 32),
        (33, "fast", 1, 64),
        (63, "check", 1, 64),
    ]
    if not EVERY:
        runs = (
            [r for r in runs if r[1] == "check"]
            if dtype == "q4_0"
            else [r for r in runs if r[1] == "fast"]
        )
    k = matmul("sm_90a", rows, cols, dtype, runs)
    assert "wgmma_f16_m64n64k16_ra" in k.text


def test_gate_and_up_by_wgmma():
    """gate and up of block formats"""
    c = Case(7, 45, 263, 576, "q4_1")
    nw = c.f(576)
    packed, values = W.make(c.r, 2 * 263, 576, "q4_1")
    x = rounded(norm(c.x, "rms", nw, None), "q4_1")
    z = x @ values.astype(np.float64).T
    k = H.build(
        "norm_glu_mixed",
        "sm_90a",
        c.params(NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu", DETERMINISTIC=0),
    )
    for n, mode in (20, "check"), (45, "fast"):
        (y,) = k.run(
            H.make_step(pos=list(range(n)), rows=[n]),
            [c.x[:n], nw, None, packed, None, H.out((n, 263))],
            mode=mode,
            seed=1,
        )
        want = silu(z[:n, :263]) * z[:n, 263:]
        close(y, want, np.abs(want).max(), 5e-3)


def test_gate_and_up_of_a_matrix():
    """gate and up are in one lane; an odd number of columns"""
    c = Case(5, 40, 263, 96, "bf16")
    nw, b = c.f(96), c.f(2 * 263)
    packed, w = c.weights(2 * 263)
    z = rounded(norm(c.x, "rms", nw, None), "bf16") @ w.T + b
    k = H.build(
        "norm_glu_mixed",
        "sm_80",
        c.params(NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu", DETERMINISTIC=0),
    )
    for n, mode in (10, "check"), (40, "fast"):
        (y,) = k.run(
            H.make_step(pos=list(range(n)), rows=[n]),
            [c.x[:n], nw, None, packed, b, H.out((n, 263))],
            mode=mode,
            seed=1,
        )
        want = silu(z[:n, :263]) * z[:n, 263:]
        close(y, want, np.abs(want).max(), 5e-3)


def test_add_in_place():
    n, rows, cols = 19, 70, 96
    c = Case(3, n, rows, cols, "bf16")
    packed, w = c.weights()
    r = c.f(n, rows)
    k = H.build("matmul_add_mixed", "sm_90a", c.params(SCALE=0.5, DETERMINISTIC=0))
    for mode, seed in H.RUNS:
        (y,) = k.run(c.step, [c.x, packed, None, H.inout(r), H.alias(3)], mode=mode, seed=seed)
        x = rounded(c.x, "bf16")
        close(y, 0.5 * r.astype(np.float64) + x @ w.T, np.abs(x) @ np.abs(w).T, 2e-6)


@pytest.mark.parametrize("n, n_out, bucket", [(24, 10, 0), (100, 10, 0), (24, 0, 32)])
def test_needed_logit_rows(n, n_out, bucket):
    """The number of logit rows decides, whatever the number of rows of the step."""
    rows, cols = 211, 64
    c = Case(9, n, rows, cols, "bf16")
    packed, w = c.weights()
    nw = c.f(cols)
    out_row = np.sort(np.random.default_rng(n_out).permutation(n)[:n_out])
    k = H.build(
        "lm_head_mixed",
        "sm_90a",
        c.params(NORM="rms", EPS=EPS, PLUS_ONE=0, SOFTCAP=0.0, SCALE=1.0, DETERMINISTIC=0),
    )
    assert few(k)[0]["rows"] == "n_out"
    step = H.make_step(pos=list(range(n)), rows=[n], out_row=out_row)
    (y,) = k.run(
        step, [c.x, nw, None, packed, H.out((n_out, rows))], mode="check", seed=1, bucket=bucket
    )
    if n_out:
        x = rounded(norm(c.x, "rms", nw, None), "bf16")[out_row]
        close(y, x @ w.T, np.abs(x) @ np.abs(w).T, 1e-3)


def test_same_bits_in_each_run():
    """Split-K partial sums are added in the order of CTAs, whichever arrives last."""
    rows, cols, n = 100, 640, 20
    c = Case(4, n, rows, cols, "bf16")
    packed, _ = c.weights()
    k = H.build("matmul_mixed", "sm_80", c.params(DETERMINISTIC=0))
    runs = [
        k.run(c.step, [c.x, packed, None, H.out((n, rows))], seed=seed, sms=7)[0].view(np.uint32)
        for seed in range(5)
    ]
    assert all((r == runs[0]).all() for r in runs)


def test_deterministic_models_have_no_such_kernel():
    for arch in H.ARCHS[1:]:
        k = H.expand("matmul_mixed", arch, dict(ROWS=64, COLS=64, W_DTYPE="bf16", DETERMINISTIC=1))
        assert (
            not any(x.get("fn", "").endswith("_small_m") for x in k["launch"])
            and "swap_ab_run" not in k["text"].split("extern", 1)[1]
        )


PLANTED = {
    "activations are asked for before the wait": (
        "\tPDL_WAIT();\n\tPDL_LAUNCH();\n\tconst int n = min(*count",
        "\tconst int n = min(*count",
    ),
    "a stage is filled while it is read": (
        "mainloop.share();\n\t\t__syncthreads();\n",
        "mainloop.share();\n",
    ),
    "a stage is read before it has come": (
        "cp_async_wait<T::AHEAD - 1>();",
        "cp_async_wait<T::AHEAD>();",
    ),
    "sums are written over what warps still read": (
        "for (int i = 0; i < 2; i++) {\n\t\t__syncthreads();\n\t\tif (wk > 0)",
        "for (int i = 0; i < 2; i++) {\n\t\tif (wk > 0)",
    ),
    "a block counts itself before its sums are there": (
        "atom_add_acq_rel_gpu(count, 1) == others",
        "atom_add_relaxed_gpu(count, 1) == others",
    ),
    "the count stays": ("st_relaxed_gpu(count, 0);\n\treturn last", "return last"),
}


@pytest.mark.findings
@pytest.mark.parametrize("bug", PLANTED if EVERY else list(PLANTED)[::3])
def test_planted_bugs_are_found(bug):
    c = Case(6, 20, 100, 640, "bf16")
    packed, values = W.make(c.r, 100, 640, "bf16")
    k = H.build("matmul_mixed", "sm_90a", c.params(DETERMINISTIC=0))
    before, after = PLANTED[bug]
    text = H.inline(k.text, k.name, set())
    k.text = plant(text, before, after)
    x = rounded(c.x, "bf16")
    with pytest.raises(AssertionError):
        (y,) = k.run(c.step, [c.x, packed, None, H.out((20, 100))], mode="check", seed=2, sms=7)
        close(y, x @ values.T, np.abs(x) @ np.abs(values).T, 2e-6)


PLANTED_WGMMA = {
    "one set of A": ("= a[c % SETS];", "= a[0];"),
    "a stage is filled while the tensor cores read it": (
        "AHEAD = STAGES - 1 - WGMMA, ",
        "AHEAD = STAGES - 1, ",
    ),
    "what copies brought is not shown to the tensor cores": (
        "#ifdef LLMC_EMU\n\t\tfence_proxy_async();",
        "#ifdef LLMC_EMU",
    ),
    "sums are taken before they are there": (
        "finish(float (&acc)[2][T::NT][4]) const\n\t{\n\t\twgmma_wait<0>();",
        "finish(float (&acc)[2][T::NT][4]) const\n\t{",
    ),
    "A is written while it is read": (
        "* ROWS));\n\t\t\twgmma_commit();\n\t\t\twgmma_wait<LEFT>();",
        "* ROWS));\n\t\t\twgmma_commit();\n\t\t\twgmma_wait<SETS>();",
    ),
    "no zeros behind a row's last column": (", swap_ab_sm90_act<W>::COLS);", ");"),
    "activations of another tile's order": (
        "swap_ab_sm90_act<W>(ARG_act, (int)t, N_ROW(p), p.s.rows)",
        "swap_ab_sm90_act<W>(ARG_act, (int)t, N_ROW(p), 16)",
    ),
    "eights in the other order": (
        "(chunk * 4 + p.half * 2) * group_stride",
        "(chunk * 4 + p.half) * group_stride",
    ),
}


@pytest.mark.findings
@pytest.mark.parametrize("bug", PLANTED_WGMMA if EVERY else list(PLANTED_WGMMA)[::4])
def test_planted_bugs_are_found_by_wgmma(bug):
    c = Case(6, 20, 100, 1216, "q4_0")  # ten k-steps of one CTA: more than the ring has stages
    packed, values = W.make(c.r, 100, 1216, "q4_0")
    k = H.build("matmul_mixed", "sm_90a", c.params(DETERMINISTIC=0))
    before, after = PLANTED_WGMMA[bug]
    text = H.inline(k.text, k.name, set())
    k.text = plant(text, before, after)
    x = rounded(c.x, "q4_0")
    with pytest.raises(AssertionError):
        (y,) = k.run(
            c.step, [c.x, packed, None, H.out((20, 100))], mode="check", seed=2, sms=1, bucket=32
        )
        close(y, x @ values.T, np.abs(x) @ np.abs(values).T)


@pytest.mark.parametrize(
    "dtype, arch",
    [("bf16", "sm_90a"), ("q4_k", "sm_80"), ("q4_k", "sm_90a")]
    if not EVERY
    else [(d, a) for d in H.DTYPES[1:] for a in H.ARCHS[1:]],
)
def test_nvrtc(dtype, arch):
    """Real NVRTC: no spill, no warning; loads of weights are issued before the wait; 16-bit kernels
    leave resources for a CTA of the next kernel."""
    for op, p in (
        (
            "norm_glu_mixed",
            dict(ROWS=14336, COLS=4096, NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu"),
        ),
        ("matmul_add_mixed", dict(ROWS=4096, COLS=4096, SCALE=1.0)),
    ):
        done = H.nvrtc(op, dict(p, W_DTYPE=dtype, DETERMINISTIC=0), [arch])
        if done is None:
            pytest.skip("no NVRTC here")
        (made,) = [x for x in done[0]["kernels"] if x["name"].endswith("_small_m")]
        assert made["registers"] <= (
            128 if dtype in ("bf16", "f16") and arch in ("sm_90a", "sm_100a") else 255
        )
        f = sass.functions(done[0]["cubin"])
        if f:
            s = f[made["name"]]
            assert sass.faults(s) == []
            assert not s.count("LDSM")
            if arch == "sm_90a" and dtype not in (
                "bf16",
                "f16",
            ):  # 16 rows by mma, 32 and 64 by wgmma
                assert s.count("HMMA") in (16, 32) and s.count("HGMMA") == s.count("HMMA")
                if (
                    op == "matmul_add_mixed" and dtype == "q4_k"
                ):  # docs/kernels/gemm.md: a k-step of 2.25 KB
                    assert max(s.ways("HGMMA", "LDGSTS")) <= 530
            else:  # 64 rows and 16-bit weights: 32 mma per 8 loads of activations and 4 of weights
                assert s.count("HMMA") >= 56
