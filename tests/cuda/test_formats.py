"""Every storage type once per purpose on the emulated GPU: a decode step, a small-M GEMM (9 to 64 rows), a prefill GEMM, a step's experts.

These cases are small and always run. tests/repo/test_sample.py fails if a type of formats/dtype.h lacks one. Shapes, modes and GPUs are swept by
test_gemv.py, test_gemm_swap_ab.py, test_gemm.py and test_moe_fused.py."""

import cuda_harness as H
import numpy as np
import pytest

import gemm_weights as W
import test_gemv as V
from cuda_weights import Weights
from test_cuda_matmul import rows as random_rows
from test_gemm import Case, rounded
from test_moe_fused import Experts
from test_gemm_swap_ab import close, few

ARCH = "sm_90a"
# experts of these types also run in a mixed step; the others share their decoding with one of them
MIXED = ("bf16", "f16", *H.BLOCK, *H.FP4)


def covering(purpose, dtypes=H.DTYPES):
    return pytest.mark.parametrize(
        "dtype", [pytest.param(d, marks=pytest.mark.covers(d, purpose)) for d in dtypes]
    )


def portable(n):
    """f32 weights have no tensor core kernel: the portable one accepts any number of rows."""
    n_rows, cols = 21, 67
    rng = np.random.default_rng(n)
    w, x = Weights("f32", n_rows, cols), random_rows(rng, n, cols)
    (y,) = H.build("matmul", ARCH, ROWS=n_rows, COLS=cols, W_DTYPE="f32").run(
        H.make_step([0] * n), [x, w.packed, None, H.out((n, n_rows))]
    )
    close(y, x.astype(np.float64) @ w.value.T, np.abs(x) @ np.abs(w.value.T), 2e-6)


@covering("decode")
def test_decode(dtype):
    if dtype == "f32":
        return portable(1)
    cols = V.columns(dtype)
    w, x, want, size = V.product(3, 20, cols, dtype, raw=True)
    for n in 1, 3:  # one row keeps 22 bits of x, more rows go through mma
        y = V.run(
            "matmul",
            ARCH,
            dict(ROWS=20, COLS=cols, W_DTYPE=dtype),
            n,
            [x[:n], w.packed, None, H.out((n, 20))],
        )
        V.close(y, want[:n], size[:n], dtype, n)


def gemm(dtype, ns):
    """A kernel has both tiles, so the small and the prefill case of a type are compiled once."""
    c = Case(7, max(ns), 100, 256, dtype)
    packed, values = W.make(c.r, c.rows, c.cols, dtype)
    k = H.build("matmul_mixed", ARCH, c.params(DETERMINISTIC=0))
    x, w = rounded(c.x, dtype), values.astype(np.float64)
    for n in ns:
        (y,) = k.run(
            H.make_step(pos=list(range(n)), rows=[n]),
            [c.x[:n], packed, None, H.out((n, c.rows))],
            seed=1,
        )
        close(
            y, x[:n] @ w.T, np.abs(x[:n]) @ np.abs(w).T, 2e-6 if dtype in ("bf16", "f16") else 5e-4
        )
    return few(k)[0]["most"]


@covering("small")
def test_small_m(dtype):
    if dtype == "f32":
        return portable(20)
    assert gemm(dtype, [10, 40]) == 64  # mma, and wgmma if the type has it


@covering("prefill")
def test_prefill(dtype):
    if dtype == "f32":
        return portable(70)
    assert gemm(dtype, [70]) == 64


def experts(dtype, phase, rows):
    hidden = 256 if H.super_block(dtype) or "_128" in dtype else 128
    c = Experts(4, 2, hidden, hidden, 0, (dtype,) * 4)
    c.choose(rows)
    mixed = phase == "mixed"
    c.glu(H.build(f"norm_moe_glu_{phase}", ARCH, c.glu_params), rows, mixed, seed=1)
    c.down_add(
        H.build(f"moe_down_add_{phase}", ARCH, dict(c.down_params, HAS_R=1)), rows, mixed, seed=1
    )


@covering("experts")
def test_experts(dtype):
    experts(dtype, "decode", 3)


@covering("experts", MIXED)
def test_experts_of_a_mixed_step(dtype):
    experts(dtype, "mixed", 20)
