"""Sizes that take other code paths than small tests: segments of more than 4,096 positions, a unit
over more CTAs than a warp has lanes, a second band of row tiles, residuals read 16 bytes at a
time, lengths that are multiples of a tile"""

import cuda_harness as H
import numpy as np
import pytest

import gemm_weights as W
import test_cuda_attention as A
import test_cuda_mla as M
from attention_oracle import close
from cuda_weights import Weights
from test_gemm import Case, rounded
from test_moe_fused import Experts


def close_rows(got, want, tol=2e-5):
    err = np.abs(got - want).max() / np.abs(want).max()
    assert np.isfinite(got).all() and err < tol, f"relative error {err:g}"


# ---- decode -----------------------------------------------------------------------------------------------------------

LONG = [
    (1, 4500),
    (132, 17000),
]  # a warp of the only CTA has more than 32 tiles of 16; the 132 SMs of an H100 share one unit


@pytest.mark.parametrize(
    "template,arch", [("attention_decode", "sm_75"), ("attention_decode_sm80", "sm_90a")]
)
def test_long_decode(template, arch):
    c = A.Case([17000], heads=4, kv_heads=1, dim=16, kv="bf16")
    k = H.build(template, arch, c.params)
    for sms, n in LONG:
        rows = [(0, [n - 1])]
        close(
            c.run(k, rows, sms=sms, early=[(1, 0, 0)] if arch == "sm_90a" else None),
            c.want(0, [n - 1]),
        )


@pytest.mark.parametrize(
    "template,arch,tol",
    [
        ("mla_attend", "sm_75", 2e-5),
        ("mla_attend_decode_sm80", "sm_90a", 2e-5),
        ("mla_attend_decode_sm90", "sm_90a", 8e-3),
    ],
)
def test_long_latent_decode(template, arch, tol):
    c = M.Steps(**dict(M.STEPS["lite"], lens=[17000]))
    if "sm90" in template:
        M.rounded_queries(c)
    k = H.build(template, arch, c.params)
    for sms, n in LONG if "decode" in template else LONG[:1]:
        c.lens = [n]
        c.attend(k, [1], tol, sms=sms, **(dict(early=[(3, 0, 0)]) if "decode" in template else {}))


@pytest.mark.parametrize(
    "template,arch,tol",
    [("mla_attend_decode_sm80", "sm_90a", 2e-5), ("mla_attend_decode_sm90", "sm_90a", 8e-3)],
)
def test_latent_lengths_of_whole_tiles(template, arch, tol):
    """Multiples of 64: no partial tile at the end of a sequence"""
    c = M.Steps(**dict(M.STEPS["lite"], lens=[64, 128, 192, 320]))
    if "sm90" in template:
        M.rounded_queries(c)
    k = H.build(template, arch, c.params)
    for sms, mode, seed in (3, "fast", 0), (7, "fast", 1):
        c.attend(k, [1] * 4, tol, sms=sms, mode=mode, seed=seed)


@pytest.mark.parametrize("arch", ["sm_86", "sm_90a"])
def test_latent_prompts_of_whole_tiles(arch):
    kw = dict(M.MIXED["lite"][0], lens=[128, 64, 192])
    c = M.Steps(**kw)
    k = H.build("mla_attend_mixed_sm80", arch, c.params)
    rows = [128, 64, 64]
    c.attend(k, rows, 3e-2, rounds=M.rounds(c, k, rows), sms=3)


# ---- row tiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arch,dtype,n", [("sm_90a", "bf16", 2200), ("sm_90a", "q8_0", 2200), ("sm_80", "bf16", 1100)]
)
def test_more_than_a_band_of_row_tiles(arch, dtype, n):
    """The tile scheduler goes through bands of 8 row tiles, or pairs of tiles."""
    c = Case(3, n, 300, 64, dtype)
    packed, w = c.weights()
    k = H.build("matmul_mixed", arch, c.params(DETERMINISTIC=0))
    (y,) = k.run(c.step, [c.x, packed, None, H.out((n, 300))])
    close_rows(y, rounded(c.x, dtype) @ w.T)


# ---- residuals --------------------------------------------------------------------------------------------------------

ADDS = [
    ("matmul_add", "sm_90a", "f16", 5),
    ("matmul_add_decode", "sm_90a", "bf16", 3),
    ("matmul_add_mixed", "sm_90a", "bf16", 20),
    ("matmul_add_mixed", "sm_90a", "bf16", 140),
    ("matmul_add_mixed", "sm_90a", "q6_k", 140),
    ("matmul_add_mixed", "sm_90a", "q4_k", 40),
    ("matmul_add_mixed", "sm_80", "bf16", 40),
    ("matmul_add_mixed", "sm_80", "bf16", 140),
    ("matmul_add_mixed", "sm_120a", "bf16", 140),
]


@pytest.mark.parametrize("template,arch,dtype,n", ADDS)
def test_residuals_16_bytes_at_a_time(template, arch, dtype, n):
    """A number of columns that is a multiple of 4; every column has its own residual, in place and
    not. 136: the last tile is partial."""
    rows, cols = 136, 256
    c = Case(n, n, rows, cols, dtype)
    if "mixed" in template:
        packed, values = W.make(c.r, rows, cols, dtype)
        x = rounded(c.x, dtype)
    else:
        w = Weights(dtype, rows, cols)
        packed, values, x = w.packed, w.value, c.x.astype(np.float64)
    r, b = (np.arange(n * rows).reshape(n, rows) % 4096).astype(np.float32), c.f(rows)
    want = 0.5 * r + b + x @ values.astype(np.float64).T
    k = H.build(
        template, arch, dict(ROWS=rows, COLS=cols, W_DTYPE=dtype, DETERMINISTIC=0, SCALE=0.5)
    )
    size = np.abs(x) @ np.abs(values.T) + np.abs(want)
    for place in [H.inout(r), H.alias(3)], [r, H.out((n, rows))]:
        (y,) = k.run(c.step, [c.x, packed, b, *place], repeat=1)
        assert (np.abs(y - want) <= 5e-4 * size).all()


@pytest.mark.parametrize(
    "template,arch,rows",
    [
        ("moe_down_add_decode", "sm_90a", 3),
        ("moe_down_add_mixed", "sm_90a", 40),
        ("moe_down_add_mixed", "sm_80", 40),
    ],
)
def test_residuals_of_experts(template, arch, rows):
    c = Experts(5, 2, 136 if "decode" in template else 192, 64, 64, ("bf16",) * 4, 1)
    c.choose(rows)
    c.down_add(H.build(template, arch, dict(c.down_params, HAS_R=1)), rows, "mixed" in template)
