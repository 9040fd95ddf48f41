"""Two formats and sizes in one kernel, and two matrices in one loop over tiles
(tests/cuda/two_weight_types.cu), against float64"""

import numpy as np
import pytest

import cuda_harness as H
from cuda_weights import Weights
from test_cuda_matmul import act, rows
from test_gemm import close, rounded, to_bf16

ROWS = 43
SOURCE = H.ROOT / "tests" / "cuda" / "two_weight_types.cu"


def run(fn, arch, arrays, n, bucket, shared, mode, seed, sms=5):
    text = H.inline(
        '#line 1 "two_weight_types.cu"\n#include "cuda/runtime/step.h"\n' + SOURCE.read_text(),
        "two_weight_types.cu",
        set(),
    )
    empty = np.zeros(4, np.uint32)
    arrays = dict(
        dict(
            n=np.array([n, 0, n, n], np.int32),
            c=empty,
            scale=empty,
            act_a=empty,
            act_b=empty,
            x=empty,
            part=np.zeros(64 * 48, np.float32),
            squares=np.zeros(8 * sms, np.float32),
            count=np.zeros(1024, np.int32),
        ),
        **arrays,
    )
    for y in ("y0", "y1", "y2"):
        arrays[y] = np.full((n, ROWS), np.nan, np.float32)
    fields = [
        "n",
        bucket,
        0,
        "a",
        "b",
        "c",
        "x",
        "scale",
        "act_a",
        "act_b",
        "y0",
        "y1",
        "y2",
        "part",
        "squares",
        "count",
    ]
    job = dict(
        arrays=arrays,
        pack="@Qii13Q",
        fields=fields,
        launches=[(text, "two_weight_types.cu", fn, (sms,), 256, shared, {})],
        fetch=["y0", "y1", "y2"],
    )
    got = H.submit(arch, mode, seed, sms, job)[0]
    return [got[y] for y in ("y0", "y1", "y2")]


@pytest.mark.sample(2)
@pytest.mark.parametrize("n, bucket", [(1, 1), (3, 4), (8, 8)])
def test_gemv_of_two_formats(n, bucket):
    a, b = Weights("q4_k", ROWS, 512, seed=1), Weights("bf16", ROWS, 328, seed=2)
    x = rows(np.random.default_rng(3), n, 512).astype(np.float32)
    narrow = np.ascontiguousarray(
        x.reshape(-1)[: n * 328].reshape(n, 328)
    )  # rows of the second GEMM, in the same memory
    want_a, want_b = x.astype(np.float64) @ a.value.T, narrow.astype(np.float64) @ b.value.T
    for mode, seed in H.RUNS:
        y = run(
            "gemvs",
            "sm_90a",
            dict(a=a.packed, b=b.packed, x=x),
            n,
            bucket,
            8848 + 8 * 5120 + 65536,
            mode,
            seed,
        )
        for got, want in zip(y, (want_a, want_b, act(want_b, "gelu"))):
            close(got, want, 2e-4)


def test_gemv_of_rows_far_away():
    """The offset of a row exceeds 31 bits of bytes."""
    b, x = (
        Weights("bf16", ROWS, 328, seed=2),
        rows(np.random.default_rng(3), 3, 328).astype(np.float32),
    )
    for mode, seed in H.RUNS[1:]:
        y = run(
            "gemv_far",
            "sm_90a",
            dict(a=b.packed, b=b.packed, x=x),
            3,
            4,
            8848 + 8 * 5120 + 65536,
            mode,
            seed,
        )
        close(y[0], x.astype(np.float64) @ b.value.T, 2e-4)


@pytest.mark.sample(2)
@pytest.mark.parametrize("n", [5, 70, 150])
def test_gemm_of_two_matrices_and_formats(n):
    a, c, b = (
        Weights("q6_k", ROWS, 256, seed=1),
        Weights("q6_k", ROWS, 256, seed=2),
        Weights("bf16", ROWS, 328, seed=3),
    )
    rng = np.random.default_rng(4)
    x, z = rows(rng, n, 256).astype(np.float16), rows(rng, n, 328).astype(np.float32)
    scale = (2.0 ** rng.integers(-3, 4, n)).astype(np.float32)
    arrays = dict(
        a=a.packed, b=b.packed, c=c.packed, act_a=x.view(np.uint16), act_b=to_bf16(z), scale=scale
    )
    want = [
        x.astype(np.float64) * scale[:, None] @ m.value.astype(np.float64).T for m in (a, c)
    ] + [rounded(z, "bf16") @ b.value.astype(np.float64).T]
    for mode, seed in H.RUNS:
        for got, w in zip(run("gemms", "sm_80", arrays, n, n, 98304, mode, seed), want):
            close(got, w, 2e-3)
