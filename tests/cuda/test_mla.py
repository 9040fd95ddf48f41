"""Latent attention of the GPU target against float64, on the emulator."""
import numpy as np
import pytest

import cuda_harness as H
import cuda_kv as KV
import cuda_weights as CW

ARCH = ["sm_75", "sm_90a", "sm_90a"]  # by seed; the newer ones start before what they read is there


class Case:
    """Sequences whose latents lie in scattered pages. The oracle expands keys and values for each head, as the model's authors do."""

    def __init__(self, lens, heads=4, rank=32, nope=16, rope=8, v_dim=12, kv="f16", dtypes=("f32", "f32"), seed=0, spread=1.0, low=0.0):
        rng = np.random.default_rng(seed)
        self.lens, self.heads, self.v_dim = list(lens), heads, v_dim
        self.k_b = CW.Weights(dtypes[0], heads * nope, rank, seed + 1, rank ** -0.5)
        self.v_b = CW.Weights(dtypes[1], heads * v_dim, rank, seed + 2, rank ** -0.5)
        self.pool = KV.Pool(lens, rank + rope, 0, kv, rng)
        self.c = [KV.rounded(rng.standard_normal((n, 1, rank + rope)) * spread, kv) for n in lens]
        self.q = [(rng.standard_normal((n, heads, nope + rope)) * spread).astype(np.float32) for n in lens]
        for c, q in zip(self.c, self.q) if low else (): # all scores lower by this much, through the last dimension of the rotary part
            c[:, :, -1], q[:, :, -1] = -16, low * (nope + rope) ** 0.5 / 16
        for i, c in enumerate(self.c):
            self.pool.fill(i, c, c[:, :, :0])
        self.scale, self.rank, self.nope = (nope + rope) ** -0.5, rank, nope
        self.params = dict(HEADS=heads, KV_RANK=rank, NOPE_DIM=nope, ROPE_DIM=rope, V_DIM=v_dim, SCALE=float(self.scale), K_B_DTYPE=dtypes[0],
                           V_B_DTYPE=dtypes[1], KV_DTYPE=kv, KV_PAGE_BYTES=self.pool.page_bytes)

    def want(self, seq, pos):
        c = self.c[seq][:, 0].astype(np.float64)
        k = np.einsum("jr,hnr->jhn", c[:, :self.rank], self.k_b.value.astype(np.float64).reshape(self.heads, -1, self.rank))
        v = np.einsum("jr,hvr->jhv", c[:, :self.rank], self.v_b.value.astype(np.float64).reshape(self.heads, -1, self.rank))
        out = np.empty((len(pos), self.heads, self.v_dim))
        for i, p in enumerate(pos):
            q = self.q[seq][p].astype(np.float64)
            s = self.scale * (np.einsum("hn,jhn->hj", q[:, :self.nope], k[:p + 1]) + q[:, self.nope:] @ c[:p + 1, self.rank:].T)
            e = np.exp(s - s.max(-1, keepdims=True))
            out[i] = np.einsum("hj,jhv->hv", e / e.sum(-1, keepdims=True), v[:p + 1])
        return out

    def run(self, kernel, rows, beyond=0, **kw):
        pages, table = self.pool.beyond(beyond) if beyond else (self.pool.pages, self.pool.table)
        pos = [p for _, ps in rows for p in ps]
        step = H.make_step(pos, [len(ps) for _, ps in rows], None, None, table[[i for i, _ in rows]])
        return kernel.run(step, [np.concatenate([self.q[i][ps] for i, ps in rows]), self.k_b.packed, self.v_b.packed, pages, None,
                                 H.out((len(pos), self.heads, self.v_dim))], **kw)[-1]

    def compare(self, kernel, rows, tol=2e-5, **kw):
        got, want = self.run(kernel, rows, **kw), np.concatenate([self.want(i, ps) for i, ps in rows])
        err = np.abs(got - want) / (1e-3 + np.abs(want).max(-1, keepdims=True))
        assert np.isfinite(got).all() and err.max() < tol, err.max()
        return got


CASES = {
    "small":    dict(lens=[1, 31, 33, 300]),
    "deepseek": dict(lens=[70, 257], heads=3, rank=512, nope=128, rope=64, v_dim=128, kv="bf16", dtypes=("bf16", "bf16")),
    "q4":       dict(lens=[5, 129], heads=2, rank=96, nope=24, rope=16, v_dim=20, dtypes=("q4_0", "q8_0")),
    "odd":      dict(lens=[40], heads=5, rank=21, nope=7, rope=6, v_dim=9, kv="f32", dtypes=("f16", "f32")),
    "low":      dict(lens=[64, 150], low=400.0),
    "k":        dict(lens=[64], heads=1, rank=256, nope=8, rope=2, v_dim=8, kv="f16", dtypes=("q6_k", "q4_k")),
}


@pytest.mark.parametrize("name,mode,seed", [(n, *r) for n in CASES for r in H.RUNS if r[1] == 0 or n in ("small", "odd", "deepseek")])
def test_portable(name, mode, seed):
    c = Case(**CASES[name])
    k = H.build("mla_attention", ARCH[seed], c.params)
    rows = [(i, sorted({0, n // 2, n - 1})) if i % 2 == 0 else (i, [n - 1]) for i, n in enumerate(c.lens)]
    if mode == "check":
        rows = [(i, ps[-1:]) for i, ps in rows[:2]]
    got = c.compare(k, rows, mode=mode, seed=seed)
    if seed == 1: # a row alone
        i, ps = rows[-1]
        assert np.array_equal(got[-1:], c.run(k, [(i, ps[-1:])], bucket=2))


@pytest.mark.parametrize("template,arch", [("mla_attention", "sm_75"), ("mla_attention_decode_sm80", "sm_90a")])
def test_a_large_pool(template, arch):
    c = Case(**DECODE["lite"])
    c.compare(H.build(template, arch, c.params), [(0, [299]), (1, [69])], beyond=9 << 30)


DECODE = {
    "lite":     dict(lens=[300, 70], heads=16, rank=128, nope=32, rope=16, v_dim=32, kv="bf16", dtypes=("bf16", "bf16")),
    "deepseek": dict(lens=[129], heads=20, rank=512, nope=128, rope=64, v_dim=128, kv="bf16", dtypes=("bf16", "q8_0")),
    "f16":      dict(lens=[1, 31, 32, 33, 64, 257], heads=5, rank=48, nope=24, rope=16, v_dim=20, dtypes=("f32", "f16")),
    "low":      dict(lens=[40, 300], heads=16, rank=128, nope=32, rope=16, v_dim=32, kv="bf16", dtypes=("bf16", "bf16"), low=400.0),
    "q4":       dict(lens=[90, 5, 40], heads=2, rank=256, nope=16, rope=32, v_dim=16, dtypes=("q4_k", "q4_0"), spread=3.0),
}


def decode_tests():
    for name in DECODE:
        for mode, seed in H.RUNS:
            if mode == "fast" or name in ("lite", "f16"):
                yield "mla_attention_decode_sm80", "sm_86", name, mode, seed
                if name in ("lite", "f16"):
                    yield "mla_attention_decode_sm80", "sm_90a", name, mode, seed


@pytest.mark.parametrize("template,arch,name,mode,seed", list(decode_tests()))
def test_decode(template, arch, name, mode, seed):
    c = Case(**DECODE[name])
    k = H.build(template, arch, c.params)
    rows = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    tol = 3e-4 if name == "low" else 1e-4 if name == "q4" else 2e-5 # a score of 400 has 1.5e-5 of rounding
    if mode == "check":
        c.compare(k, rows[-2:], tol, mode=mode, seed=seed)
        return
    c.compare(k, rows, tol, seed=seed, sms=3 if seed else 1, bucket=len(rows) + 1)
    c.compare(k, rows, tol, seed=seed, sms=11)


@pytest.mark.parametrize("dtype", ["bf16", "q4_k"])
def test_nvrtc(dtype):
    p = dict(HEADS=16, KV_RANK=512, NOPE_DIM=128, ROPE_DIM=64, V_DIM=128, SCALE=0.1, K_B_DTYPE=dtype, V_B_DTYPE=dtype, KV_DTYPE="bf16",
             KV_PAGE_BYTES=36864)
    for template in ("mla_attention", "mla_attention_decode_sm80"):
        if H.nvrtc(template, p, ["sm_75", "sm_86", "sm_90a", "sm_120a"] if dtype == "bf16" else ["sm_90a"]) is None:
            pytest.skip("no libnvrtc")
