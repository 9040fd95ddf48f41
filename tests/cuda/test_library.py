"""GEMMs of mixed steps by cuBLASLt (templates/cuda/*_mixed.cu.in, path library): the same values as
in test_gemm.py"""

import cuda_harness as H
import numpy as np
import pytest

from test_gemm import EPS, Case, close, gelu_tanh, norm, rounded, silu, to_bf16, from_bf16

ARCH = {"sm80": "sm_80", "sm90": "sm_90a"}
NORM = dict(EPS=EPS, PLUS_ONE=0)


def build(op, gen, c, **more):
    return H.build(f"{op}_mixed", ARCH[gen], c.params(DETERMINISTIC=0, **more))


def runs(k, step, args):
    """The library's path with two schedules and in checking mode"""
    for mode, seed in H.RUNS:
        yield k.run(step, args, mode=mode, seed=seed, path="library", repeat=1)


def through_bf16(x):
    """Sums that the library stores in 16 bits"""
    return from_bf16(to_bf16(x)).astype(np.float64)


@pytest.mark.sample(2)
@pytest.mark.parametrize("gen", ARCH)
@pytest.mark.parametrize(
    "dtype, bias, n, rows, cols", [("bf16", 1, 5, 2080, 64), ("f16", 0, 130, 97, 192)]
)
def test_matmul(gen, dtype, bias, n, rows, cols):
    c = Case(n + rows, n, rows, cols, dtype)
    packed, w = c.weights()
    b = c.f(rows) if bias else None
    for (y,) in runs(
        build("matmul", gen, c, HAS_B=bias), c.step, [c.x, packed, b, H.out((n, rows))]
    ):
        close(y, rounded(c.x, dtype) @ w.T + (b if bias else 0))


@pytest.mark.sample(1)
@pytest.mark.parametrize("gen", ARCH)
@pytest.mark.parametrize("dtype, bias", [("bf16", 0), ("f16", 1)])
def test_add(gen, dtype, bias):
    """In place and not"""
    n, rows, cols = 67, 71, 64
    c = Case(3, n, rows, cols, dtype)
    packed, w = c.weights()
    r, b = c.f(n, rows), c.f(rows) if bias else None
    want = 0.5 * r.astype(np.float64) + rounded(c.x, dtype) @ w.T + (b if bias else 0)
    k = build("matmul_add", gen, c, SCALE=0.5, HAS_B=bias)
    for (y,) in runs(k, c.step, [c.x, packed, b, H.inout(r), H.alias(3)]):
        close(y, want)
    (y,) = k.run(c.step, [c.x, packed, b, r, H.out((n, rows))], path="library", repeat=1)
    close(y, want)


@pytest.mark.sample(1)
@pytest.mark.parametrize("gen", ARCH)
def test_norm_matmul(gen):
    c = Case(4, 66, 50, 64, "bf16")
    packed, w = c.weights()
    nw, nb = c.f(64), c.f(64)
    for (y,) in runs(
        build("norm_matmul", gen, c, NORM="layer", HAS_B=0, **NORM),
        c.step,
        [c.x, nw, nb, packed, None, H.out((66, 50))],
    ):
        close(y, rounded(norm(c.x, "layer", nw, nb), "bf16") @ w.T, 2e-3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("gen", ARCH)
def test_glu(gen):
    rows = 33
    c = Case(rows, 68, rows, 64, "bf16")
    packed, w = c.weights(2 * rows)
    nw, b = c.f(64), c.f(2 * rows)
    z = through_bf16(rounded(norm(c.x, "rms", nw, None), "bf16") @ w.T) + b
    for (y,) in runs(
        build("norm_glu", gen, c, NORM="rms", ACT="silu", **NORM),
        c.step,
        [c.x, nw, None, packed, b, H.out((68, rows))],
    ):
        close(y, silu(z[:, :rows]) * z[:, rows:], 1e-2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("gen", ARCH)
def test_act(gen):
    c = Case(5, 68, 2056, 64, "bf16")
    packed, w = c.weights()
    nw, nb, b = c.f(64), c.f(64), c.f(2056)
    z = through_bf16(rounded(norm(c.x, "layer", nw, nb), "bf16") @ w.T) + b
    for (y,) in runs(
        build("norm_act", gen, c, NORM="layer", ACT="gelu_tanh", **NORM),
        c.step,
        [c.x, nw, nb, packed, b, H.out((68, 2056))],
    ):
        close(y, gelu_tanh(z), 1e-2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("gen", ARCH)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_qkv(gen, dtype):
    """Scale and bias come after the GEMM on both paths."""
    heads, kv, d, cols, n = 2, 1, 16, 64, 66
    rows = (heads + 2 * kv) * d
    c = Case(11, n, rows, cols, dtype)
    packed, w = c.weights()
    nw, b = c.f(cols), c.f(rows)
    page = kv * H.PAGE * d * 2
    step = H.make_step(pos=list(range(n)), rows=[n], table=[[2, 0, 1]])
    k = H.build(
        "norm_qkv_mixed",
        ARCH[gen],
        dict(
            HIDDEN=cols,
            HEADS=heads,
            KV_HEADS=kv,
            DIM=d,
            HAS_QN=0,
            HAS_KN=0,
            QK_EPS=1e-6,
            QK_PLUS_ONE=0,
            HAS_ROPE=0,
            ROPE_DIMS=0,
            STYLE="half",
            KV_DTYPE="f32",
            KV_PAGE_BYTES=4 * page,
            W_DTYPE=dtype,
            W_ROWS=rows,
            NORM="rms",
            **NORM,
        ),
    )
    want = (rounded(norm(c.x, "rms", nw, None), dtype) @ w.T + b).reshape(n, heads + 2 * kv, d)
    args = [
        c.x,
        nw,
        None,
        packed,
        b,
        None,
        None,
        None,
        H.inout(np.zeros((3, page), np.float32)),
        H.out((n, heads, d)),
        None,
    ]
    for pool, q in [k.run(step, args), *runs(k, step, args)]:
        close(q, want[:, :heads], 3e-3)
        held = pool.reshape(3, 2, kv, H.PAGE, d)
        for t in range(n):
            close(held[[2, 0, 1][t // H.PAGE], :, 0, t % H.PAGE], want[t, heads:], 1e-2)


def test_library_only_where_possible():
    """Deterministic mode, or weights that the library cannot read: one path, and no scratch for the
    other"""
    p = dict(ROWS=64, COLS=64)
    for op, more in (
        ("matmul", {}),
        ("matmul_add", dict(SCALE=1.0)),
        ("norm_glu", dict(NORM="rms", ACT="silu", **NORM)),
    ):
        for w in dict(W_DTYPE="q8_0"), dict(W_DTYPE="bf16", DETERMINISTIC=1):
            k = H.build(f"{op}_mixed", "sm_80", p | more | w)
            assert {x["path"] for x in k.launches} == {"any"}
            assert not [a for a in k.scratch if a["name"] == "raw"]
