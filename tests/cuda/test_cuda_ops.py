"""Portable kernels without a matrix product: against numpy, ragged sizes, in place, grids for more rows than there are."""
import numpy as np
import pytest

import cuda_harness as H
from cuda_weights import Weights
from test_cuda_matmul import act, close, norm

N = 7
ARCHS = {"fast": "sm_75", "check": "sm_90a"}


def each(op, params, step, args, check, **more):
    """Two schedules on one architecture, the checking mode on another."""
    for mode, seed in H.RUNS:
        check(H.build(op, ARCHS[mode], params).run(step, args, mode=mode, seed=seed, **more))


@pytest.fixture
def x():
    return np.random.default_rng(4).standard_normal((N, 70)).astype(np.float32) * 3


STEP = H.make_step([5, 0, 2, 9, 3, 4, 11], tok=[3, 0, 11, -1, 12, 5, 5], out_row=[1, 2, 6])


@pytest.mark.parametrize("op,args,want", [
    ("add", 2, lambda x, r: 0.5 * x + r),
    ("act", 1, lambda x: act(x, "gelu")),
    ("glu", 2, lambda g, u: act(g, "silu") * u),
    ("gate_mul", 2, lambda x, s: x / (1 + np.exp(-s))),
])
def test_elementwise(x, op, args, want):
    p = dict(WIDTH=70, SCALE=0.5, ACT="gelu" if op == "act" else "silu")
    other = x[::-1].copy() if op != "gate_mul" else x[:, :1].copy()
    given = [x, other][:args]
    w = want(*[g.astype(np.float64) for g in given])
    each(op, p, STEP, given + [H.out((N, 70))], lambda got: close(got[0], w, rel=1e-5), bucket=20)
    each(op, p, STEP, [H.inout(x)] + given[1:] + [H.alias(0)], lambda got: close(got[0], w, rel=1e-5))
    if op in ("add", "glu"):
        each(op, p, STEP, [x, H.inout(other), H.alias(1)], lambda got: close(got[0], w, rel=1e-5))


def test_cap_slice_pick(x):
    x3 = x[:3]
    each("cap", dict(WIDTH=70, CAP=2.5), STEP, [x3, H.out((3, 70))], lambda got: close(got[0], 2.5 * np.tanh(x3 / 2.5), rel=1e-5), bucket=9)
    each("slice", dict(WIDTH=70, FIRST=3, COUNT=21), STEP, [x, H.out((N, 21))], lambda got: np.testing.assert_array_equal(got[0], x[:, 3:24]), bucket=9)
    each("pick", dict(WIDTH=70), STEP, [x, H.out((3, 70))], lambda got: np.testing.assert_array_equal(got[0], x[[1, 2, 6]]))
    each("pick", dict(WIDTH=70), STEP, [H.inout(x), H.alias(0)], lambda got: np.testing.assert_array_equal(got[0][:3], x[[1, 2, 6]]))


@pytest.mark.parametrize("dim,groups,plus", [(70, 1, 0), (14, 5, 1), (1025, 1, 0)])
def test_rmsnorm(dim, groups, plus):
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((N, groups * dim)).astype(np.float32), rng.standard_normal(dim).astype(np.float32)
    want = norm(x.reshape(N, groups, dim), "rms", w, eps=1e-6, plus=plus).reshape(N, -1)
    p = dict(DIM=dim, GROUPS=groups, EPS=1e-6, PLUS_ONE=plus)
    each("rmsnorm", p, STEP, [x, w, H.out(x.shape)], lambda got: close(got[0], want, rel=1e-5), bucket=9)
    if groups == 1:
        each("rmsnorm_out", p, STEP, [x[:3], w, H.out((3, dim))], lambda got: close(got[0], want[:3], rel=1e-5), bucket=9)
    else:
        each("rmsnorm", p, STEP, [H.inout(x), w, H.alias(0)], lambda got: close(got[0], want, rel=1e-5))


@pytest.mark.parametrize("bias", [0, 1])
def test_layernorm(x, bias):
    rng = np.random.default_rng(8)
    x = x + 20
    w, b = rng.standard_normal(70).astype(np.float32), rng.standard_normal(70).astype(np.float32) if bias else None
    want = norm(x, "layer", w, b)
    each("layernorm", dict(DIM=70, EPS=1e-5), STEP, [x, w, b, H.out(x.shape)], lambda got: close(got[0], want, rel=2e-5), bucket=9)
    each("layernorm_out", dict(DIM=70, EPS=1e-5), STEP, [x[:3], w, b, H.out((3, 70))], lambda got: close(got[0], want[:3], rel=2e-5))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k"])
def test_embed(dtype):
    cols = 256 if dtype in H.BLOCK else 75
    w = Weights(dtype, 12, cols)
    table = np.vstack([w.value, np.zeros((2, cols), np.float32)])
    p = dict(W_DTYPE=dtype, W_ROWS=12, HIDDEN=cols, SCALE=1.5, OFFSET=2)
    want = 1.5 * table[[3, 0, 11, 12, 12, 5, 5]]
    each("embed", p, STEP, [w.packed, H.out((N, cols))], lambda got: close(got[0], want, rel=1e-6), bucket=9)
    x = np.ones((N, cols), np.float32)
    want2 = 1 + table[[7, 2, 4, 11, 5, 6, 12]]
    if dtype in ("bf16", "q4_1"):
        each("embed_pos", p, STEP, [x, w.packed, H.out((N, cols))], lambda got: close(got[0], want2, rel=1e-6))


def test_real_compiler():
    p = dict(WIDTH=4096, SCALE=1.0, ACT="gelu", CAP=30.0, FIRST=1, COUNT=77, DIM=4096, GROUPS=1, EPS=1e-5, PLUS_ONE=0, W_DTYPE="q5_k",
             W_ROWS=32000, HIDDEN=4096, OFFSET=0)
    for op in "add act glu gate_mul cap slice pick rmsnorm layernorm embed embed_pos".split():
        if H.nvrtc(op, p, ["sm_75", "sm_90a"] if op != "act" else H.ARCHS) is None:
            pytest.skip("no libnvrtc")
