"""MoE on the GPU target: routing and experts, against numpy, on the emulator"""

import numpy as np
import pytest

import cuda_harness as H
import cuda_weights as CW
from route_oracle import route

# by seed; newer architectures start before their inputs are written
ARCH = ["sm_75", "sm_90a", "sm_90a"]


ROUTES = {
    "qwen3": dict(n=128, top_k=8, renorm=1),
    "mixtral": dict(n=8, top_k=2, renorm=1),
    "deepseek": dict(
        n=64,
        top_k=6,
        score="sigmoid",
        renorm=1,
        scale=2.5,
        groups=8,
        keep=3,
        group_score="top2",
        bias=True,
    ),
    "max": dict(n=40, top_k=3, groups=5, keep=2, group_score="max", scale=16.0),
    "one": dict(n=5, top_k=5, score="sigmoid", bias=True),
    "lfm2": dict(n=7, top_k=2, score="sigmoid", renorm=1, sum_eps=0.25, bias=True),
    "single": dict(n=12, top_k=2, groups=12, keep=3, group_score="top2"),
    "phimoe": dict(n=5, top_k=2, score="sparsemixer", jitter=0.3),
    "near": dict(n=70, top_k=70, score="sparsemixer", jitter=0.1, scale=1.5),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize("name", ROUTES)
def test_route(name, mode, seed):
    c = dict(ROUTES[name])
    n, top_k, has_bias = c.pop("n"), c.pop("top_k"), c.pop("bias", False)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, n)).astype(np.float32) * 2
    x[1] = 0  # all equal
    x[2] = np.round(x[2])  # many equal
    bias = (np.round(rng.standard_normal(n) * 4) / 8).astype(np.float32) if has_bias else None
    k = H.build(
        "moe_route",
        ARCH[seed],
        dict(
            N_EXPERTS=n,
            TOP_K=top_k,
            SCORE=c.get("score", "softmax"),
            RENORM=c.get("renorm", 0),
            SUM_EPS=c.get("sum_eps", 1e-20),
            SCALE=float(c.get("scale", 1.0)),
            GROUPS=c.get("groups", 1),
            TOP_K_GROUPS=c.get("keep", 1),
            GROUP_SCORE=c.get("group_score", "max"),
            JITTER=c.get("jitter", 0),
            HAS_BIAS=int(has_bias),
        ),
    )
    ids, weights = route(x, top_k, bias, **c)
    step = H.make_step(list(range(9)), [9])
    got_id, got_w = k.run(
        step, [x, bias, H.out((9, top_k), np.int32), H.out((9, top_k))], mode=mode, seed=seed
    )
    assert np.array_equal(got_id, ids)
    assert np.abs(got_w - weights).max() < 1e-6 * max(1, c.get("scale", 1))


def test_route_of_nan_logits():
    """NaN logits give valid experts, each once."""
    x = np.full((3, 40), np.nan, np.float32)
    x[1, 7], x[2] = 3, -np.inf
    k = H.build(
        "moe_route",
        "sm_75",
        dict(
            N_EXPERTS=40,
            TOP_K=4,
            SCORE="sigmoid",
            RENORM=1,
            SUM_EPS=1e-20,
            SCALE=1.0,
            GROUPS=1,
            TOP_K_GROUPS=1,
            GROUP_SCORE="max",
            HAS_BIAS=0,
        ),
    )
    ids, _ = k.run(H.make_step([0, 1, 2], [3]), [x, None, H.out((3, 4), np.int32), H.out((3, 4))])
    assert (
        all(sorted(set(r)) == sorted(r) and 0 <= min(r) and max(r) < 40 for r in ids.tolist())
        and 7 in ids[1]
    )


ACTS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
}


class Ffn:
    """Experts of one layer, the rows that selected them, and the result in float64"""

    def __init__(
        self,
        n,
        top_k,
        hidden,
        width,
        rows,
        dtypes=("f32", "f32", "f32"),
        act="silu",
        seed=0,
        used=None,
        elsewhere=0,
        spread=1,
    ):
        rng = np.random.default_rng(seed)
        self.shape = rows, hidden
        self.gate = CW.Weights(dtypes[0], n * width, hidden, seed + 1, hidden**-0.5)
        self.up = CW.Weights(dtypes[1], n * width, hidden, seed + 2, hidden**-0.5)
        self.down = CW.Weights(dtypes[2], n * hidden, width, seed + 3, width**-0.5)
        self.x = rng.standard_normal((rows, spread * hidden)).astype(np.float32)
        self.id = np.array(
            [rng.permutation(used or n + elsewhere)[:top_k] for _ in range(rows)], np.int32
        )
        if elsewhere:
            self.id[self.id >= n] = -1
            self.id[rows // 2] = -1
        self.weight = rng.random((rows, top_k)).astype(np.float32)
        self.params = dict(
            N_EXPERTS=n,
            N_REMOTE_EXPERTS=elsewhere,
            TOP_K=top_k,
            X_ROWS_PER_TOKEN=spread,
            HIDDEN=hidden,
            WIDTH=width,
            ACT=act,
            GATE_DTYPE=dtypes[0],
            UP_DTYPE=dtypes[1],
            DOWN_DTYPE=dtypes[2],
        )
        g, u, d = (
            w.value.astype(np.float64).reshape(n, -1, w.cols)
            for w in (self.gate, self.up, self.down)
        )
        self.want = np.zeros(self.shape)
        for t in range(rows):
            for k, (e, w) in enumerate(zip(self.id[t], self.weight[t])):
                x = self.x[t].reshape(spread, hidden)[k if spread > 1 else 0]
                self.want[t] += 0 if e < 0 else w * (d[e] @ (ACTS[act](g[e] @ x) * (u[e] @ x)))
        # unselected experts must not be read
        for e in set(range(n)) - set(self.id.reshape(-1).tolist()):
            for m in (self.gate, self.up, self.down):
                m.packed.reshape(n, -1)[e] = 0xFF

    def run(self, kernel, rows=None, **kw):
        rows = list(range(self.shape[0])) if rows is None else rows
        step = H.make_step([5] * len(rows), [1] * len(rows))
        return kernel.run(
            step,
            [
                self.x[rows],
                self.id[rows],
                self.weight[rows],
                self.gate.packed,
                self.up.packed,
                self.down.packed,
                H.out((len(rows), self.shape[1])),
            ],
            **kw,
        )[0]


FFNS = {
    "f32": dict(n=5, top_k=2, hidden=36, width=20, rows=9),
    "bf16": dict(n=16, top_k=4, hidden=64, width=48, rows=3, dtypes=("bf16",) * 3, act="gelu_tanh"),
    "f16": dict(n=4, top_k=1, hidden=40, width=24, rows=20, dtypes=("f16",) * 3, used=2),
    "q4_0": dict(n=6, top_k=3, hidden=96, width=64, rows=5, dtypes=("q4_0",) * 3),
    "mixed": dict(n=8, top_k=2, hidden=256, width=256, rows=2, dtypes=("q4_k", "q5_k", "q6_k")),
    "spread": dict(n=6, top_k=3, hidden=96, width=64, rows=5, dtypes=("u4_32",) * 3, spread=3),
    "codes": dict(
        n=5, top_k=2, hidden=256, width=256, rows=3, dtypes=("iq3_xxs", "iq2_xs", "iq4_nl")
    ),
    "q8_0": dict(n=128, top_k=8, hidden=64, width=32, rows=1, dtypes=("q8_0", "q8_0", "q5_1")),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,mode,seed",
    [
        (n, *r)
        for n in FFNS
        for r in H.RUNS
        if r[1] == 0 or n in ("f32", "bf16") or r[1] == 1 and n == "f16"
    ],
)
def test_ffn(name, mode, seed):
    c = Ffn(**FFNS[name])
    k = H.build("moe_ffn", ARCH[seed], c.params)
    rows = None if mode == "fast" else [0, c.shape[0] - 1][: c.shape[0]]
    got = c.run(k, rows, mode=mode, seed=seed)
    want = c.want if rows is None else c.want[rows]
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()
    if seed == 1:  # a row alone gives the same bits as among others
        assert np.array_equal(c.run(k, [c.shape[0] - 1], bucket=4)[0], got[-1])


def decode_tests():
    for name in FFNS:
        for mode, seed in H.RUNS:
            if seed == 0 or name == "bf16":  # the same code as in test_moe_fused.py
                yield "moe_ffn_decode", "sm_90a" if name == "bf16" else "sm_75", name, mode, seed


@pytest.mark.sample(4)
@pytest.mark.parametrize("template,arch,name,mode,seed", list(decode_tests()))
def test_ffn_decode(template, arch, name, mode, seed):
    c = Ffn(**FFNS[name])
    k = H.build(template, arch, c.params)
    for rows in (
        ([c.shape[0] - 1], [0, c.shape[0] - 1][: c.shape[0]], list(range(c.shape[0])))
        if mode == "fast"
        else (list(range(min(c.shape[0], 5))),)
    ):
        got, want = c.run(k, rows, mode=mode, seed=seed, sms=5 if seed else 2), c.want[rows]
        assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("mode,seed", H.RUNS[1:])
def test_ffn_decode_many(mode, seed):
    """More pairs than a warp has lanes, and an expert selected by more than 32 of them"""
    c = Ffn(n=6, top_k=3, hidden=16, width=8, rows=40 if mode == "fast" else 13, used=4)
    k = H.build("moe_ffn_decode", ARCH[seed], c.params)
    assert np.abs(c.run(k, mode=mode, seed=seed) - c.want).max() < 2e-6 * np.abs(c.want).max()


@pytest.mark.parametrize("template", ["moe_ffn", "moe_ffn_decode"])
# fewer experts on this rank than a row selects
@pytest.mark.parametrize("n,elsewhere", [(5, 7), (2, 6)])
def test_experts_on_other_ranks(template, n, elsewhere):
    """Experts of other ranks are omitted, even if a row selects no other; more pairs than a warp
    has lanes."""
    c = Ffn(n=n, top_k=3, hidden=36, width=20, rows=14, elsewhere=elsewhere)
    k = H.build(template, "sm_75", c.params)
    got = c.run(k, mode="check", seed=2)
    assert np.abs(got - c.want).max() < 2e-6 * np.abs(c.want).max() and not got[7].any()
    for rows in [7], [3, 7, 13]:
        assert np.array_equal(c.run(k, rows, seed=1, bucket=4), got[rows])


@pytest.mark.parametrize("first,count", [(0, 3), (6, 1)])
def test_own_experts(first, count):
    k = H.build("local_experts", "sm_75", dict(N_EXPERTS=7, TOP_K=5, FIRST=first, COUNT=count))
    ids = np.array([np.random.default_rng(t).permutation(7)[:5] for t in range(9)], np.int32)
    want = np.where((ids >= first) & (ids < first + count), ids - first, -1)
    assert np.array_equal(
        k.run(H.make_step([5] * 9, [1] * 9), [ids, H.out((9, 5), np.int32)], mode="check", seed=1)[
            0
        ],
        want,
    )


@pytest.mark.parametrize("dtype", ["bf16", "q4_k"])
def test_nvrtc(dtype):
    p = dict(
        N_EXPERTS=128,
        N_REMOTE_EXPERTS=0,
        TOP_K=8,
        X_ROWS_PER_TOKEN=1,
        HIDDEN=2048,
        WIDTH=768,
        ACT="silu",
        GATE_DTYPE=dtype,
        UP_DTYPE=dtype,
        DOWN_DTYPE="q6_k" if dtype == "q4_k" else dtype,
    )
    for template in ("moe_ffn", "moe_ffn_decode"):
        if H.nvrtc(template, p, ["sm_75", "sm_120a"] if dtype == "bf16" else ["sm_90a"]) is None:
            pytest.skip("no libnvrtc")
