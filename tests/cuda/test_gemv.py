"""Kernels of the decode step (templates/cuda/*_decode_sm80, _sm90) against float64, on the emulator and in real NVRTC's SASS."""
import numpy as np
import pytest

import cuda_harness as H
from cuda_weights import Weights
from test_cuda_matmul import act, norm, rows
from test_qkv import Case

TYPES = ["bf16", "f16", *H.BLOCK]


def tolerance(dtype):
    """Of |x| |w|: bf16 and f16 are exact, x has 16 or 22 bits; of block formats the mma sees weights rounded to 11 bits."""
    return 2e-5 if dtype == "bf16" else 3e-6 if dtype == "f16" else 5e-4


def template(op, arch):
    return f"{op}_decode_sm{90 if int(arch[3:].rstrip('a')) >= 90 else 80}"


def close(got, want, size, dtype):
    err = np.abs(got - want) / (size + 1e-30)
    assert np.isfinite(got).all() and err.max() <= tolerance(dtype), f"{err.max():.3g}"


def product(n, n_rows, cols, dtype, seed=1, raw=False):
    rng = np.random.default_rng(seed)
    w, x = Weights(dtype, n_rows, cols, seed=seed, scale=cols ** -0.5, raw=raw), rows(rng, n, cols)
    return w, x, x.astype(np.float64) @ w.value.T.astype(np.float64), np.sqrt((x * x) @ (w.value * w.value).T) * 4


def run(op, arch, p, n, args, bucket=0, sms=4, mode="fast", seed=1, out_row=None):
    k = H.build(template(op, arch), arch, p)
    return k.run(H.make_step([0] * n, out_row=out_row), args, mode=mode, seed=seed, bucket=bucket, sms=sms)[0]


# every type, each number of rows that is a case of its own: 1, 3 of 4, 8 (in slices where x is too much), 9 (two turns)
@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype):
    cols, n_rows = 1280 if dtype in H.BLOCK else 608, 43
    w, x, want, size = product(9, n_rows, cols, dtype, raw=True)
    b = np.random.default_rng(3).standard_normal(n_rows).astype(np.float32)
    p = dict(ROWS=n_rows, COLS=cols, W_DTYPE=dtype)
    for n, bucket, mode, seed, arch in [(1, 0, "fast", 1, "sm_90a"), (3, 4, "fast", 2, "sm_80"), (8, 0, "check", 3, "sm_90a"), (9, 16, "fast", 4, "sm_90a")]:
        y = run("matmul", arch, p, n, [x[:n], w.packed, b, H.out((n, n_rows))], bucket, mode=mode, seed=seed)
        close(y, want[:n] + b, size[:n], dtype)
