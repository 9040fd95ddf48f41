"""norm_qkv of the GPU target (norm, GEMM, norm of heads, RoPE, append) against float64, on the
emulator"""

import numpy as np
import pytest

import cuda_harness as H
import cuda_kv as KV
import cuda_weights as CW
from test_cuda_attention import angles, rotate

# by seed; newer architectures start before their inputs are written
ARCH = ["sm_75", "sm_90a", "sm_90a"]


def norm(x, kind, w, b, eps, plus_one):
    x = x.astype(np.float64)
    if kind == "none":
        return x
    if kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    if w is not None:
        x = x * (w + (plus_one if kind == "rms" else 0))
    return x + b if b is not None else x


class Case:
    """Rows of several sequences: decode rows and chunks of prompts"""

    def __init__(
        self,
        hidden,
        heads,
        kv_heads,
        dim,
        rows,
        dtype="f32",
        kv="f32",
        kind="rms",
        plus_one=0,
        bias=False,
        qk_norm=False,
        rope_dims=0,
        style="half",
        seed=0,
        nb=False,
    ):
        rng = np.random.default_rng(seed)
        self.rows, self.n = rows, sum(rows)
        first = [int(rng.integers(0, 40)) for _ in rows]
        lens = [f + r for f, r in zip(first, rows)]
        self.pos = [f + i for f, r in zip(first, rows) for i in range(r)]
        self.w = CW.Weights(dtype, (heads + 2 * kv_heads) * dim, hidden, seed + 1, hidden**-0.5)
        vec = lambda n: (1 + 0.3 * rng.standard_normal(n)).astype(np.float32)
        self.x = (rng.standard_normal((self.n, hidden)) * 2).astype(np.float32)
        self.nw, self.nb = vec(hidden) if kind != "none" else None, vec(hidden) if nb else None
        self.b = vec(self.w.rows) if bias else None
        self.qn, self.kn = (vec(dim), vec(dim)) if qk_norm else (None, None)
        self.rope = angles(rng, self.n, rope_dims) if rope_dims else None
        self.pool = KV.Pool(lens, kv_heads * dim, kv_heads * dim, kv, rng)
        self.params = dict(
            W_DTYPE=dtype,
            HIDDEN=hidden,
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=dim,
            HAS_NW=int(kind != "none"),
            HAS_NB=int(nb),
            HAS_B=int(bias),
            HAS_QN=int(qk_norm),
            HAS_KN=int(qk_norm),
            QK_EPS=1e-6,
            QK_PLUS_ONE=plus_one,
            HAS_ROPE=int(rope_dims > 0),
            ROPE_DIMS=rope_dims,
            STYLE=style,
            KV_DTYPE=kv,
            KV_PAGE_BYTES=self.pool.page_bytes,
            NORM=kind,
            EPS=1e-5,
            PLUS_ONE=plus_one,
            W_ROWS=self.w.rows,
        )
        y = norm(self.x, kind, self.nw, self.nb, 1e-5, plus_one) @ self.w.value.astype(np.float64).T
        y = (y + self.b if bias else y).reshape(self.n, -1, dim)
        q, k, v = y[:, :heads], y[:, heads : heads + kv_heads], y[:, heads + kv_heads :]
        if qk_norm:
            q, k = (
                norm(q, "rms", self.qn, None, 1e-6, plus_one),
                norm(k, "rms", self.kn, None, 1e-6, plus_one),
            )
        if rope_dims:
            q, k = q.copy(), k.copy()
            for z in (q, k):
                z[..., :rope_dims] = rotate(z[..., :rope_dims], self.rope, style)
        self.q, self.k, self.v = q, k, v

    def check(self, kernel, tol, **kw):
        step = H.make_step(self.pos, self.rows, table=self.pool.table)
        pages, q = kernel.run(
            step,
            [
                self.x,
                self.nw,
                self.nb,
                self.w.packed,
                self.b,
                self.qn,
                self.kn,
                self.rope,
                H.inout(self.pool.pages),
                H.out(self.q.shape),
                None,
            ],
            **kw,
        )
        assert np.abs(q - self.q).max() < tol * np.abs(self.q).max()
        # in pages: the earlier content, and the new rows, rounded
        got, want = KV.Pool.__new__(KV.Pool), KV.Pool.__new__(KV.Pool)
        for pool in (got, want):
            pool.__dict__.update(self.pool.__dict__)
        got.pages, want.pages = pages, self.pool.pages.copy()
        rounding = {"f32": 0, "f16": 2**-11, "bf16": 2**-8}[self.pool.dtype]
        at = 0
        for i, r in enumerate(self.rows):
            k, v = got.read(i, self.pos[at], r, self.k.shape[1:], self.v.shape[1:])
            for a, b in ((k, self.k[at : at + r]), (v, self.v[at : at + r])):
                assert (np.abs(a - b) <= tol * np.abs(b).max() + rounding * np.abs(b)).all()
            want.write(i, self.pos[at], pages, r, self.k.shape[1])
            at += r
        assert np.array_equal(want.pages, pages), "wrote elsewhere"
        return q, pages


CASES = {
    "llama": dict(hidden=64, heads=4, kv_heads=2, dim=16, rows=[1, 1, 1], rope_dims=16),
    "prompt": dict(
        hidden=96,
        heads=9,
        kv_heads=3,
        dim=64,
        rows=[1, 1, 9, 4],
        dtype="bf16",
        kv="f16",
        rope_dims=64,
    ),
    "qwen2": dict(
        hidden=64, heads=4, kv_heads=1, dim=32, rows=[2, 1], kv="bf16", bias=True, rope_dims=32
    ),
    "qwen3": dict(
        hidden=64,
        heads=4,
        kv_heads=2,
        dim=80,
        rows=[1, 3],
        dtype="q8_0",
        kv="f16",
        qk_norm=True,
        rope_dims=80,
    ),
    "gemma": dict(
        hidden=48,
        heads=2,
        kv_heads=1,
        dim=256,
        rows=[1],
        kv="f16",
        plus_one=1,
        qk_norm=True,
        rope_dims=256,
    ),
    "phi": dict(
        hidden=36,
        heads=3,
        kv_heads=3,
        dim=20,
        rows=[1, 2],
        kv="f32",
        kind="layer",
        nb=True,
        bias=True,
        rope_dims=8,
    ),
    "glm": dict(
        hidden=64,
        heads=4,
        kv_heads=2,
        dim=24,
        rows=[1, 1],
        dtype="q4_0",
        style="interleaved",
        rope_dims=12,
        bias=True,
    ),
    "none": dict(hidden=256, heads=2, kv_heads=2, dim=13, rows=[5], dtype="q4_k", kind="none"),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "name,mode,seed",
    [
        (n, *r)
        for n in CASES
        for r in H.RUNS
        if r[1] == 0 or n in ("llama", "prompt", "phi", "qwen3")
    ],
)
def test_portable(name, mode, seed):
    c = Case(**CASES[name])
    c.check(H.build("norm_qkv", ARCH[seed], c.params), 3e-6, mode=mode, seed=seed)
