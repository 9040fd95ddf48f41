"""Indexer of the GPU target (index_append, index_select) and latent attention over its selection,
on the emulator. Values of the indexer are small integers, so scores are exact and positions
decide between equal ones."""

import numpy as np
import pytest

import cuda_harness as H
import cuda_kv as KV
import kv_types as K
from test_cuda_mla import Steps
from planted import plant

ARCH = ["sm_75", "sm_90a", "sm_90a"]  # by seed


class Indexer:
    def __init__(self, lens, heads=5, dim=23, chosen=37, kv="f32", seed=0, most=3):
        rng = np.random.default_rng(seed)
        whole = lambda m, *shape: rng.integers(-m, m + 1, shape).astype(np.float32)
        self.lens, self.heads, self.dim, self.chosen = lens, heads, dim, chosen
        self.k, self.q, self.w = (
            [whole(m, n, *shape) for n in lens]
            for m, shape in ((most, (1, dim)), (most, (heads, dim)), (2, (heads,)))
        )
        self.pool = KV.Pool(lens, dim, 0, kv, rng)
        self.empty = self.pool.pages.copy()
        for i, k in enumerate(self.k):
            self.pool.fill(i, KV.rounded(k, kv), KV.rounded(k, kv)[:, :, :0])
        self.params = dict(
            HEADS=heads,
            DIM=dim,
            INDEX_TOP_K=chosen,
            SCALE=0.5,
            KV_DTYPE=kv,
            KV_PAGE_BYTES=self.pool.page_bytes,
        )

    def step(self, rows):
        return H.make_step(
            [p for _, ps in rows for p in ps],
            [len(ps) for _, ps in rows],
            None,
            None,
            self.pool.table[[i for i, _ in rows]],
        )

    def append(self, kernel, **kw):
        rows = [(i, list(range(n))) for i, n in enumerate(self.lens)]
        (got,) = kernel.run(
            self.step(rows),
            [np.concatenate([k[:, 0] for k in self.k]), H.inout(self.empty.copy()), None],
            **kw,
        )
        assert np.array_equal(got, self.pool.pages)

    def select(self, kernel, rows, **kw):
        q, w = (np.concatenate([x[i][ps] for i, ps in rows]) for x in (self.q, self.w))
        return kernel.run(
            self.step(rows),
            [q, w, self.pool.pages, None, H.out((len(q), self.chosen), np.int32)],
            **kw,
        )[-1]

    def want(self, rows):
        out = []
        for i, ps in rows:
            for p in ps:
                dots = np.maximum(
                    0.5
                    * self.q[i][p].astype(np.float64)
                    @ self.k[i][: p + 1, 0].astype(np.float64).T,
                    0,
                )
                best = np.sort(np.argsort(-(self.w[i][p] @ dots), kind="stable")[: self.chosen])
                out.append(np.concatenate([best, np.full(self.chosen - len(best), -1)]))
        return np.array(out, np.int32)


CASES = {
    "odd": dict(lens=[2100, 38, 37, 1]),  # a row in several CTAs
    "split": dict(lens=[1200], heads=1, dim=8),
    "few": dict(lens=[700, 90], heads=3, dim=16, chosen=1, kv="f16"),
    "equal": dict(lens=[400], heads=26, dim=8, chosen=129, most=0, kv="bf16"),
    "large": dict(
        lens=[90], heads=65, dim=128, chosen=40, kv="f16"
    ),  # queries that do not fit in shared memory
}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name,mode,seed", [(n, *r) for n in CASES for r in H.RUNS if r[1] == 0 or n in ("split", "few")]
)
def test_choice(name, mode, seed):
    c = Indexer(**CASES[name])
    k = H.build("index_select", ARCH[seed], c.params)
    last = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    if mode == "check":
        last = [(i, [p[0] if name == "split" else min(p[0], 300)]) for i, p in last[:2]]
    assert np.array_equal(c.select(k, last, mode=mode, seed=seed), c.want(last))
    if mode == "fast":
        c.append(H.build("index_append", ARCH[seed], c.params), seed=seed)
        rows = [
            (i, sorted({*range(max(0, n - 9), n), n // 2, 0})) for i, n in enumerate(c.lens)
        ]  # more rows than CTAs
        assert np.array_equal(c.select(k, rows, seed=seed), c.want(rows))


@pytest.mark.findings
def test_a_mistake_is_found():
    """Without a barrier between writing candidates and counting them, the emulator reports a race."""
    H.only_emulated()
    c = Indexer(**CASES["few"])
    k = H.build("index_select", "sm_90a", c.params)
    right = "	__syncthreads();\n	if (threadIdx.x == 0)\n		s.n = n + all;"
    k.text = plant(k.text, right, "	if (threadIdx.x == 0)\n		s.n = n + all;")
    right = "		s.n = n + all;\n	__syncthreads();"
    k.text = plant(k.text, right, "		s.n = n + all;")
    with pytest.raises(H.Finding):
        c.select(k, [(0, [600])], mode="check", seed=2)


SHAPES = {
    "f32": dict(lens=[70, 1, 33], heads=3, rank=40, nope=7, rope=6, v_dim=9, kv="f32", chosen=19),
    "f16": dict(lens=[300, 64], heads=20, rank=48, nope=24, rope=16, v_dim=20, chosen=65),
    "int4": dict(
        lens=[150, 70], heads=16, rank=128, nope=32, rope=16, v_dim=32, kv="int4", chosen=100
    ),
}
KERNELS = [
    ("f32", "mla_attend", "sm_75"),
    ("f16", "mla_attend", "sm_75"),
    ("f16", "mla_attend_decode_sm80", "sm_90a"),
    ("f16", "mla_attend_mixed_sm80", "sm_86"),
    ("int4", "mla_attend_decode_sm80", "sm_86"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name,template,arch,mode,seed",
    [(*k, *r) for k in KERNELS for r in H.RUNS if r[1] == 0 or k[0] == "f16"],
)
def test_attention_over_selected_positions(name, template, arch, mode, seed):
    kw = dict(SHAPES[name])
    chosen = kw.pop("chosen")
    c = Steps(**kw)
    rng = np.random.default_rng(seed)
    rows = (
        [(i, [n - 1]) for i, n in enumerate(c.lens)]
        if "decode" in template or mode == "check"
        else [
            (i, sorted({*range(max(0, n - 5), n), min(n - 1, chosen - 1)}))
            for i, n in enumerate(c.lens)
        ]
    )
    pos, seq = [p for _, ps in rows for p in ps], [i for i, ps in rows for _ in ps]
    sel = np.full((len(pos), chosen), -1, np.int32)
    for t, p in enumerate(pos):
        some = np.sort(rng.choice(p + 1, min(chosen, p + 1), replace=False))
        sel[t, : len(some)] = some
    q = rng.standard_normal((len(pos), c.heads, c.width)).astype(np.float32)
    want = []
    for t, i in enumerate(seq):
        held = c.c[i][sel[t][sel[t] >= 0], 0].astype(np.float64)
        s = c.scale * q[t].astype(np.float64) @ held.T
        e = np.exp(s - s.max(-1, keepdims=True))
        want.append(e / e.sum(-1, keepdims=True) @ held[:, : c.rank])
    step = H.make_step(
        pos, [len(ps) for _, ps in rows], None, None, c.pool.table[[i for i, _ in rows]]
    )
    kernel = H.build(template, arch, dict(c.params, HAS_SEL=1, INDEX_TOP_K=chosen))
    early = (
        dict(early=[(3, 0, 0)]) if "decode" in template else {}
    )  # it reads only the step's sizes before its wait, although older data exists
    got = kernel.run(
        step,
        [q, None, None, c.pool.pages, None, sel, H.out(np.shape(want))],
        mode=mode,
        seed=seed,
        **early,
    )[-1]
    err = np.abs(got - want) / (1e-3 + np.abs(want).max(-1, keepdims=True))
    assert np.isfinite(got).all() and err.max() < (2e-5 if K.plain(c.pool.dtype) else 1e-3), (
        err.max()
    )
    assert (sel[0] < 0).any() == (pos[0] + 1 < chosen)


def test_nvrtc():
    p = Indexer(lens=[1], heads=64, dim=128, chosen=2048, kv="bf16").params
    if H.nvrtc("index_select", p, ["sm_90a"]) is None:
        pytest.skip("no libnvrtc")
    p = dict(
        Steps(
            lens=[1],
            heads=128,
            rank=512,
            nope=128,
            rope=64,
            v_dim=128,
            kv="bf16",
            dtypes=("bf16", "bf16"),
        ).params,
        HAS_SEL=1,
        INDEX_TOP_K=2048,
    )
    H.nvrtc("mla_attend_decode_sm80", p, ["sm_90a"])
