"""GEMMs of mixed steps on tensor cores (templates/cuda/*_mixed.cu.in) against numpy in double
precision.

The tolerance is that of activations and weights rounded to 16 bits before exact multiplications,
summed in float. Expected values are rounded too, so the remaining error is the order of sums."""

import cuda_harness as H
import numpy as np
import pytest

import gemm_weights as W
import sass

EPS = 1e-5


def to_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(h):
    return (h.astype(np.uint32) << 16).view(np.float32)


def rounded(x, dtype):
    """Activations as the GEMM reads them"""
    x = x.astype(np.float32)
    if dtype == "bf16":
        return from_bf16(to_bf16(x)).astype(np.float64)
    top = np.abs(x).max(axis=-1, keepdims=True)
    s = 2.0 ** (13 - np.floor(np.log2(np.where(top > 0, top, 1))))
    return (x * s).astype(np.float16).astype(np.float64) / s


def norm(x, kind, w, b, plus_one=0):
    x = x.astype(np.float64)
    if kind == "none":
        return x
    if kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    y = y * ((1.0 if w is None else w.astype(np.float64)) + plus_one)
    return y if b is None else y + b


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def close(got, want, tol=2e-5):
    """Relative to the size of the row: the error of a sum depends on its terms."""
    assert np.isfinite(got).all()
    err = np.abs(got - want).max() / max(1e-30, np.abs(want).max())
    assert err < tol, f"relative error {err:g}"


class Case:
    def __init__(self, seed, n, rows, cols, dtype):
        self.r = np.random.default_rng(seed)
        self.n, self.rows, self.cols, self.dtype = n, rows, cols, dtype
        self.x = self.f(n, cols)
        self.step = H.make_step(pos=list(range(n)), rows=[n])

    def f(self, *shape):
        return self.r.standard_normal(shape).astype(np.float32)

    def weights(self, rows=None):
        packed, values = W.make(self.r, rows or self.rows, self.cols, self.dtype)
        if self.dtype not in ("bf16", "f16"):
            values = values.astype(np.float32).astype(np.float16)  # rounded as for the tensor cores
        return packed, values.astype(np.float64)

    def params(self, **more):
        """Deterministic: includes the small-M tiles, which a kernel for any number of rows would
        not use otherwise (test_gemm_swap_ab.py)."""
        return dict(
            dict(ROWS=self.rows, COLS=self.cols, W_DTYPE=self.dtype, DETERMINISTIC=1), **more
        )


def matmul(arch, runs, rows, cols, dtype, bias=True):
    """runs: (rows of activations, mode, seed); one build"""
    c = Case(rows + cols, max(n for n, _, _ in runs), rows, cols, dtype)
    packed, w = c.weights()
    b = c.f(rows) if bias else None
    k = H.build("matmul_mixed", arch, c.params())
    want = rounded(c.x, dtype) @ w.T + (0 if b is None else b)
    for n, mode, seed in runs:
        (y,) = k.run(
            H.make_step(pos=list(range(n)), rows=[n]),
            [c.x[:n], packed, b, H.out((n, rows))],
            mode=mode,
            seed=seed,
            bucket=n + seed,
        )
        close(y, want[:n])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "arch, rows, cols, ns, dtype",
    [
        ("sm_80", 97, 72, (1, 16, 17, 65), "bf16"),
        ("sm_80", 300, 160, (3, 130, 257), "bf16"),
        ("sm_80", 1030, 64, (40, 129), "f16"),
        ("sm_100a", 300, 168, (1, 17, 130, 257), "bf16"),
        ("sm_120a", 1030, 232, (5, 65, 129), "f16"),
    ],
)
def test_matmul(arch, rows, cols, ns, dtype):
    matmul(arch, [(n, "fast", i) for i, n in enumerate(ns)], rows, cols, dtype)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "arch, dtype", [("sm_86", "bf16"), ("sm_100a", "f16"), ("sm_120a", "bf16")]
)
def test_matmul_checked(arch, dtype):
    matmul(arch, [(n, "check", 2) for n in (3, 33, 130)], 520, 72, dtype, False)


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "dtype",
    [
        *H.BLOCK,
        *H.FP4,
        *(H.CODE if H.EVERY else ("q2_k", "iq4_nl", "iq3_s")),
        "u4_32_f32",
        "u4_128",
        "u8_128_f32",
        "f8_32",
        "nf4_64",
        "fp4_32",
        "u2_32",
        "u3_128",
        "m4_64",
    ],
)
def test_matmul_of_blocks(dtype):
    cols = (
        512
        if H.super_block(dtype)
        else 256
        if "_128" in dtype
        else 192
        if "_64" in dtype or dtype == "nvfp4"
        else 224
    )
    matmul(
        "sm_80",
        [(5, "fast", 0), (20, "fast", 1), (130, "fast", 0)],
        1030 if H.super_block(dtype) else 520,
        cols,
        dtype,
    )


def test_blocks_checked():
    matmul("sm_89", [(5, "check", 1), (20, "check", 2), (129, "check", 1)], 520, 96, "q5_1")
    matmul("sm_89", [(5, "check", 1), (129, "check", 1)], 1030, 256, "q6_k")


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype, arch", [("bf16", "sm_80"), ("q8_0", "sm_80"), ("f16", "sm_120a")])
def test_add_in_place(dtype, arch):
    n, rows, cols = 19, 70, 96
    c = Case(3, n, rows, cols, dtype)
    packed, w = c.weights()
    r = c.f(n, rows)
    k = H.build("matmul_add_mixed", arch, c.params(SCALE=0.5))
    for mode, seed in H.RUNS if dtype == "bf16" else H.FAST:
        (y,) = k.run(c.step, [c.x, packed, None, H.inout(r), H.alias(3)], mode=mode, seed=seed)
        close(y, 0.5 * r.astype(np.float64) + rounded(c.x, dtype) @ w.T)


@pytest.mark.parametrize(
    "kind, plus_one, dtype, arch",
    [("rms", 1, "f16", "sm_100a"), ("layer", 0, "bf16", "sm_80"), ("none", 0, "q4_0", "sm_80")],
)
def test_norm_matmul(kind, plus_one, dtype, arch):
    c = Case(4, 7, 50, 96, dtype)
    packed, w = c.weights()
    nw, nb, b = (
        (c.f(96) if kind != "none" else None),
        (c.f(96) if kind == "layer" else None),
        c.f(50),
    )
    k = H.build("norm_matmul_mixed", arch, c.params(NORM=kind, EPS=EPS, PLUS_ONE=plus_one))
    for mode, seed in H.RUNS if kind == "layer" else H.FAST:
        (y,) = k.run(c.step, [c.x, nw, nb, packed, b, H.out((7, 50))], mode=mode, seed=seed)
        close(y, rounded(norm(c.x, kind, nw, nb, plus_one), dtype) @ w.T + b, 2e-3)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "dtype, rows, ns, arch",
    [
        ("bf16", 263, (6, 50, 130), "sm_80"),
        ("q4_k", 520, (6, 40, 130), "sm_80"),
        ("bf16", 263, (6, 50, 130), "sm_100a"),
        ("f16", 263, (6, 50, 130), "sm_120a"),
    ],
)
def test_glu(dtype, rows, ns, arch):
    cols = 256 if dtype == "q4_k" else 96
    c = Case(rows, max(ns), rows, cols, dtype)
    nw, b = c.f(cols), c.f(2 * rows)
    packed, w = c.weights(2 * rows)
    z = rounded(norm(c.x, "rms", nw, None), dtype) @ w.T + b
    k = H.build("norm_glu_mixed", arch, c.params(NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu"))
    for n in ns:
        for mode, seed in H.RUNS if n == 6 and dtype == "bf16" else H.RUNS[:1]:
            (y,) = k.run(
                H.make_step(pos=list(range(n)), rows=[n]),
                [c.x[:n], nw, None, packed, b, H.out((n, rows))],
                mode=mode,
                seed=seed,
            )
            close(y, silu(z[:n, :rows]) * z[:n, rows:], 5e-3)


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_act(arch):
    c = Case(5, 20, 72, 64, "bf16")
    nw, nb, b = c.f(64), c.f(64), c.f(72)
    packed, w = c.weights()
    k = H.build(
        "norm_act_mixed", arch, c.params(NORM="layer", EPS=EPS, PLUS_ONE=0, ACT="gelu_tanh")
    )
    (y,) = k.run(c.step, [c.x, nw, nb, packed, b, H.out((20, 72))])
    close(y, gelu_tanh(rounded(norm(c.x, "layer", nw, nb), "bf16") @ w.T + b), 5e-3)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "n_out, cap, arch",
    [
        (0, 0.0, "sm_80"),
        (3, 0.0, "sm_80"),
        (20, 30.0, "sm_80"),
        (3, 0.0, "sm_120a"),
        (0, 0.0, "sm_120a"),
    ],
)
def test_head(n_out, cap, arch):
    rows, cols, n = 211, 64, 24
    c = Case(9, n, rows, cols, "bf16")
    packed, w = c.weights()
    nw = c.f(cols)
    out_row = np.sort(np.random.default_rng(n_out).permutation(n)[:n_out])
    step = H.make_step(pos=list(range(n)), rows=[n], out_row=out_row)
    k = H.build(
        "lm_head_mixed", arch, c.params(NORM="rms", EPS=EPS, PLUS_ONE=0, SCALE=1.25, SOFTCAP=cap)
    )
    for mode, seed in H.RUNS if n_out == 3 else H.FAST:
        (y,) = k.run(step, [c.x, nw, None, packed, H.out((n_out, rows))], mode=mode, seed=seed)
        if n_out:
            want = rounded(norm(c.x, "rms", nw, None), "bf16")[out_row] @ w.T
            close(y, cap * np.tanh(1.25 * want / cap) if cap else 1.25 * want, 2e-3)


@pytest.mark.parametrize(
    "style, qn, kv_dtype",
    [("half", True, "bf16"), ("interleaved", False, "f16"), ("none", False, "f32")],
)
def test_qkv(style, qn, kv_dtype):
    arch = "sm_100a" if style == "interleaved" else "sm_90a"
    heads, kv, d, cols, n = 4, 2, 16, 96, 9
    r = 12
    rows = (heads + 2 * kv) * d
    c = Case(11, n, rows, cols, "bf16")
    packed, w = c.weights()
    nw, b = c.f(cols), c.f(rows)
    qw, kw = (c.f(d), c.f(d)) if qn else (None, None)
    angle = c.f(n, r // 2)
    rope = (
        None
        if style == "none"
        else np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    )
    item = 4 if kv_dtype == "f32" else 2
    page = kv * H.PAGE * d * 2
    pool = np.zeros((3, page), {"f32": np.float32}.get(kv_dtype, np.uint16))
    pos = [30, 31, 32, 33, 0, 1, 2, 3, 4]
    step = H.make_step(pos=pos, rows=[4, 5], table=[[2, 0], [1, 1]])
    k = H.build(
        "norm_qkv_mixed",
        arch,
        dict(
            DETERMINISTIC=1,
            HIDDEN=cols,
            HEADS=heads,
            KV_HEADS=kv,
            DIM=d,
            HAS_QN=int(qn),
            HAS_KN=int(qn),
            QK_EPS=1e-6,
            QK_PLUS_ONE=0,
            HAS_ROPE=int(rope is not None),
            ROPE_DIMS=r if rope is not None else 0,
            STYLE="half" if style == "none" else style,
            KV_DTYPE=kv_dtype,
            KV_PAGE_BYTES=page * item,
            W_DTYPE="bf16",
            W_ROWS=rows,
            NORM="rms",
            EPS=EPS,
            PLUS_ONE=0,
        ),
    )
    raw = (rounded(norm(c.x, "rms", nw, None), "bf16") @ w.T + b).reshape(n, heads + 2 * kv, d)
    for i in range(heads + kv):
        if qn:
            raw[:, i] = (
                raw[:, i]
                / np.sqrt((raw[:, i] ** 2).mean(-1, keepdims=True) + 1e-6)
                * (qw if i < heads else kw)
            )
        if rope is not None:
            first, second = (
                (slice(0, r // 2), slice(r // 2, r))
                if style == "half"
                else (slice(0, r, 2), slice(1, r, 2))
            )
            x, y = raw[:, i, first].copy(), raw[:, i, second].copy()
            raw[:, i, first], raw[:, i, second] = (
                x * np.cos(angle) - y * np.sin(angle),
                y * np.cos(angle) + x * np.sin(angle),
            )
    for mode, seed in H.RUNS if qn else H.RUNS[:1]:
        got = k.run(
            step,
            [c.x, nw, None, packed, b, qw, kw, rope, H.inout(pool), H.out((n, heads, d)), None],
            mode=mode,
            seed=seed,
        )
        got_pool, q = got
        close(q, raw[:, :heads], 3e-3)
        values = {"f32": lambda a: a, "f16": lambda a: a.view(np.float16), "bf16": from_bf16}[
            kv_dtype
        ](got_pool).reshape(3, 2, kv, H.PAGE, d)
        for t in range(n):
            p = step.arrays["block_table"][step.arrays["seq_of"][t], pos[t] // H.PAGE]
            for part in range(2):
                close(
                    values[p, part, :, pos[t] % H.PAGE].astype(np.float64),
                    raw[t, heads + part * kv : heads + (part + 1) * kv],
                    1e-2,
                )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype, rows, cols, arch",
    [
        ("bf16", 300, 160, "sm_80"),
        ("q5_0", 520, 224, "sm_80"),
        ("q6_k", 1030, 512, "sm_80"),
        ("bf16", 300, 168, "sm_100a"),
    ],
)  # also built by other tests
def test_rows_do_not_depend_on_other_rows(dtype, rows, cols, arch):
    """The same bits alone, and among 20, 70 and 140 rows: all tiles add in one order."""
    n = 140
    c = Case(21, n, rows, cols, dtype)
    packed, _ = c.weights()
    k = H.build("matmul_mixed", arch, c.params())
    (all_rows,) = k.run(c.step, [c.x, packed, None, H.out((n, rows))])
    for pick in [137], list(range(100, 120)), list(range(3, 63)), list(range(2, 140)):
        step = H.make_step(pos=list(range(len(pick))), rows=[len(pick)])
        (y,) = k.run(step, [c.x[pick], packed, None, H.out((len(pick), rows))], seed=1)
        assert (y.view(np.uint32) == all_rows[pick].view(np.uint32)).all()


def test_large_activations_do_not_overflow():
    c = Case(22, 5, 40, 64, "f16")
    packed, w = c.weights()
    c.x *= np.array([1e6, 1e-6, 3e30, 0, 1], np.float32)[:, None]
    k = H.build("matmul_mixed", "sm_80", c.params())
    (y,) = k.run(c.step, [c.x, packed, None, H.out((5, 40))])
    for t in range(5):
        if t == 3:
            assert (y[t] == 0).all()
        else:
            close(y[t], (rounded(c.x, "f16") @ w.T)[t])


def test_nvrtc():
    """Real NVRTC on formats that no committed description uses: no spill and no warning."""
    p = dict(ROWS=14336, COLS=4096, NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu")
    for dtype, arch in [("bf16", "sm_86"), ("q4_k", "sm_100a"), ("f16", "sm_120a")] + [
        ("q6_k", "sm_80"),
        ("q5_1", "sm_120a"),
        ("bf16", "sm_100a"),
    ] * H.EVERY:
        done = H.nvrtc("norm_glu_mixed", dict(p, W_DTYPE=dtype), [arch])
        if done is None:
            pytest.skip("no NVRTC here")
        f = sass.functions(done[0]["cubin"])
        if f:
            s = f[done[0]["symbol"]]
            # the largest of the three tiles has 16 mma per 6 ldmatrix
            assert s.count("HMMA") >= 40 and s.count("LDSM") >= 20 and not s.count("LDL", "STL")
            if dtype in ("bf16", "f16") and arch in (
                "sm_100a",
                "sm_120a",
            ):  # by TMA alone, without calling the driver
                assert (
                    s.count("UTMALDG") >= 20
                    and not s.count("LDGSTS")
                    and not any("CALL.ABS" in i for i in s)
                )
            else:
                assert s.count("LDGSTS") >= 8 and not s.count("UTMALDG")


def test_refuses():
    """Cases left to the portable kernels"""
    p = dict(ROWS=64, COLS=64, W_DTYPE="bf16")
    assert H.accepts("matmul_mixed", "sm_80", p)
    assert not H.accepts("matmul_mixed", "sm_75", p)
    assert not H.accepts("matmul_mixed", "sm_80", dict(p, W_DTYPE="f32"))
    assert not H.accepts("matmul_mixed", "sm_80", dict(p, COLS=60))
