"""Portable matmul kernels: every storage type and ragged shapes against float64, bit-identical for
any other rows in the step"""

import numpy as np
import pytest

import cuda_harness as H
from cuda_weights import Weights


def columns(dtype):
    return 1280 if H.super_block(dtype) or "_128" in dtype else 1088 if dtype in H.PACKED else 203


def norm(x, kind, w=None, b=None, eps=1e-5, plus=0):
    x = x.astype(np.float64)
    if kind == "none":
        return x
    if kind == "layer":
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        plus = 0
    else:
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    if w is not None:
        x = x * (w.astype(np.float64) + plus)
    return x if b is None or kind != "layer" else x + b


def act(x, name):
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu":
        from math import erf

        return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def close(got, want, scale=None, rel=2e-6):
    err = np.abs(got - want)
    scale = np.abs(want) if scale is None else scale
    assert (err <= rel * scale + 1e-6).all(), f"{(err / (scale + 1e-6)).max():.3g}"


def rows(rng, n, cols):
    return rng.standard_normal((n, cols)).astype(np.float32) * np.exp(
        rng.standard_normal((n, 1))
    ).astype(np.float32)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "dtype",
    [
        "f32",
        "f16",
        "bf16",
        *H.BLOCK,
        *H.FP4,
        *(H.CODE if H.EVERY else ("q2_k", "iq3_s")),
        "u4_128_f32",
        "u8_32",
        "f8_32",
        "nf4_64",
        "u3_128",
        "m4_64",
    ],
)
def test_matmul(dtype):
    cols, n_rows, n = columns(dtype), 37, 11
    rng = np.random.default_rng(5)
    w, x, b = (
        Weights(dtype, n_rows, cols, raw=True),
        rows(rng, n, cols),
        rng.standard_normal(n_rows).astype(np.float32),
    )
    want = x.astype(np.float64) @ w.value.T.astype(np.float64)
    size = np.abs(x) @ np.abs(w.value.T)
    for arch in ("sm_75", "sm_90a") if dtype in ("bf16", "q5_k") else ("sm_90a",):
        k = H.build("matmul", arch, ROWS=n_rows, COLS=cols, W_DTYPE=dtype)
        (all_rows,) = k.run(H.make_step([0] * n), [x, w.packed, None, H.out((n, n_rows))], seed=1)
        close(all_rows, want, size)
        (y,) = k.run(
            H.make_step([0] * n), [x, w.packed, b, H.out((n, n_rows))], mode="check", bucket=30
        )
        close(y, want + b, size)
        for t in (0, 9):
            (alone,) = k.run(
                H.make_step([0]),
                [x[t : t + 1], w.packed, None, H.out((1, n_rows))],
                seed=2,
                bucket=16,
            )
            assert (alone[0] == all_rows[t]).all()


# ragged ROWS and COLS; exact multiples of a CTA's rows and columns
@pytest.mark.parametrize(
    "n_rows,cols,n,dtype",
    [
        (1, 1, 1, "f32"),
        (17, 67, 9, "f16"),
        (16, 2048, 8, "bf16"),
        (33, 1025, 3, "f32"),
        (5, 32, 17, "q8_0"),
    ],
)
def test_odd_shapes(n_rows, cols, n, dtype):
    rng = np.random.default_rng(1)
    w, x = Weights(dtype, n_rows, cols), rows(rng, n, cols)
    k = H.build("matmul", "sm_80", ROWS=n_rows, COLS=cols, W_DTYPE=dtype)
    for mode, seed in H.RUNS[1:]:
        (y,) = k.run(
            H.make_step([0] * n), [x, w.packed, None, H.out((n, n_rows))], mode=mode, seed=seed
        )
        close(y, x.astype(np.float64) @ w.value.T, np.abs(x) @ np.abs(w.value.T))


@pytest.mark.parametrize(
    "kind,dtype,plus",
    [("rms", "bf16", 0), ("rms", "q4_0", 1), ("layer", "f32", 0), ("none", "q6_k", 0)],
)
def test_fused(kind, dtype, plus):
    everything = dtype == "bf16"
    cols, n_rows, n = columns(dtype), 19, 10
    rng = np.random.default_rng(7)
    x, r = rows(rng, n, cols), rows(rng, n, n_rows)
    nw, nb, b = (rng.standard_normal(s).astype(np.float32) for s in (cols, cols, 2 * n_rows))
    nw, nb = (None, None) if kind == "none" else (nw, nb if kind == "layer" else None)
    w = Weights(dtype, 2 * n_rows, cols, scale=cols**-0.5)
    xn = norm(x, kind, nw, nb, plus=plus)
    v = xn @ w.value.T.astype(np.float64)
    size = np.abs(xn) @ np.abs(w.value.T)
    p = dict(
        ROWS=n_rows,
        COLS=cols,
        W_DTYPE=dtype,
        NORM=kind,
        EPS=1e-5,
        PLUS_ONE=plus,
        SCALE=0.5,
        ACT="silu",
        SOFTCAP=3.0,
    )
    half, bytes_ = n_rows, w.packed
    step = H.make_step([0] * n, out_row=[1, 4, 5, 6, 9])
    for mode, seed in H.RUNS[1:] if everything else H.RUNS[-1:]:

        def run(op, args, rows_out=n):
            return H.build(op, "sm_90a", p).run(
                step, args + [H.out((rows_out, n_rows))], mode=mode, seed=seed
            )[0]

        close(
            run("norm_glu", [x, nw, nb, bytes_, b]),
            act(v[:, :half] + b[:half], "silu") * (v[:, half:] + b[half:]),
            (size[:, :half] + 1) * (size[:, half:] + 1),
        )
        if not everything:
            continue
        close(
            run("norm_matmul", [x, nw, nb, bytes_[:half], b[:half]]),
            v[:, :half] + b[:half],
            size[:, :half],
        )
        close(
            run("norm_act", [x, nw, nb, bytes_[:half], b[:half]]),
            act(v[:, :half] + b[:half], "silu"),
            size[:, :half],
        )
        close(
            run("norm_glu", [x, nw, nb, bytes_, None]),
            act(v[:, :half], "silu") * v[:, half:],
            (size[:, :half] + 1) * (size[:, half:] + 1),
        )
        close(
            run("lm_head", [x, nw, nb, bytes_[:half]], 5),
            3 * np.tanh(0.5 * v[[1, 4, 5, 6, 9], :half] / 3),
            size[[1, 4, 5, 6, 9], :half],
        )
        add = x.astype(np.float64) @ w.value[:half].T.astype(np.float64) + 0.5 * r
        k, size_add = (
            H.build("matmul_add", "sm_90a", p),
            np.abs(x) @ np.abs(w.value[:half].T) + np.abs(r),
        )
        close(
            k.run(step, [x, bytes_[:half], None, r, H.out((n, n_rows))], mode=mode, seed=seed)[0],
            add,
            size_add,
        )
        (y,) = k.run(
            step, [x, bytes_[:half], b[:half], H.inout(r), H.alias(3)], mode=mode, seed=seed
        )
        close(y, add + b[:half], size_add)
        (y,) = H.build("matmul", "sm_90a", p, ROWS_OF="n_out").run(
            step, [x[:5], bytes_[:half], b[:half], H.out((5, n_rows))], mode=mode, seed=seed
        )
        close(y, x[:5].astype(np.float64) @ w.value[:half].T + b[:half], size_add[:5])


def test_activations():
    rng = np.random.default_rng(3)
    x, w = rows(rng, 3, 64), Weights("f32", 6, 64, scale=0.2)
    for name in ("gelu", "gelu_tanh"):
        p = dict(ROWS=6, COLS=64, W_DTYPE="f32", NORM="none", EPS=0.0, PLUS_ONE=0, ACT=name)
        (y,) = H.build("norm_act", "sm_75", p).run(
            H.make_step([0] * 3), [x, None, None, w.packed, None, H.out((3, 6))]
        )
        close(y, act(x.astype(np.float64) @ w.value.T, name), np.abs(x) @ np.abs(w.value.T))


SHAPES = dict(
    ROWS=4096, COLS=4096, NORM="rms", EPS=1e-5, PLUS_ONE=0, SCALE=1.0, ACT="silu", SOFTCAP=0.0
)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q4_0", "q5_k"])
def test_real_compiler(dtype):
    archs = H.ARCHS if dtype == "bf16" else ["sm_75", "sm_90a"]
    for op in ["matmul", "norm_glu"] + (
        ["norm_matmul", "norm_act", "matmul_add", "lm_head"] if dtype == "bf16" else []
    ):
        if H.nvrtc(op, dict(SHAPES, W_DTYPE=dtype), archs) is None:
            pytest.skip("no libnvrtc")
