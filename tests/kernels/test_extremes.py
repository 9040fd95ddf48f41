"""Rows of large negative values, of ties, of infinities and of NaN for every softmax, maximum and top k of the CPU kernels, on each instruction set
that runs here. Scores are exact. Matmul rows: test_matmul.py, test_infinity_and_nan_stay_in_their_row."""

import numpy as np
import pytest

import harness as H
import kv_types as K
import test_attention as A
import test_index as I
import test_mla as M
from attention_oracle import EXTREMES, extreme, extreme_close, extreme_want
from route_oracle import route
from test_matmul import DTYPES, FAST, TARGETS, Weights, lib, same  # noqa: F401 (lib is a fixture)

ALL = TARGETS + [t for t in H.MORE if t == "amx"]


class Case(A.Case):
    """fill writes the keys unchanged, including infinities if the type has them."""

    def fill(self, seq):
        if len(self.rows) == 2 * len(self.lens) and K.plain(self.kv) and self.kv != "bf16":
            self.rows[seq] = K.Rows(np.ascontiguousarray(self.k[seq], K.PLAIN[self.kv]))
        else:
            self.rows[seq] = K.encode(self.kv, np.ascontiguousarray(self.k[seq], np.float32))
        if not K.plain(self.kv):  # values that the codes can hold
            self.k[seq] = K.kept(self.kv, self.k[seq])
        super().fill(seq)


@pytest.mark.parametrize(
    "target,kv",
    [(t, "f16") for t in ALL]
    + [(t, "int8") for t in ALL[-1:] + [x for x in ALL if x == "v3"]]
    + [("amx", "bf16") for t in ALL if t == "amx"],
)
def test_attention(target, kv):
    c = Case(lens=EXTREMES, heads=8, kv_heads=2, dim=64, kv=kv)
    if K.plain(kv):
        extreme(c)
    else:
        finite(c)
    rows = [(i, list(range(n - 1 - 20 * (i % 2), n))) for i, n in enumerate(c.lens)]
    for phase, some in ("decode", c.last()), ("mixed", rows):
        k = H.build(f"attention_{phase}", target, c.params)
        extreme_close(
            c.run(k, some, 3),
            extreme_want(c, some),
            6e-5 if target == "amx" else 3e-4 if not K.plain(kv) else 2e-5,
            some,
        )


def finite(c):
    """Cases of `extreme` that codes can represent: low scores of two values, ties, a NaN query."""
    for i in (0, 1, 3):
        c.q[i][:], c.k[i][:] = 0, 0
    c.q[0][:, :, 0] = 256
    c.k[0][:, :, 0] = -508  # 127 times 4: the scale is exact
    c.k[0][1::3, :, 0] = -1016
    c.q[3][-1, 1] = np.nan
    for i in (0, 1, 3):
        c.fill(i)


@pytest.mark.parametrize(
    "target,expand",
    [(t, e) for t in ALL for e in (0, 4) if e == 0 or t == ALL[-1] or t == TARGETS[0]],
)
def test_latent_attention(lib, target, expand):  # noqa: F811
    """Scores come only from the last column of the rotary part. expand: prefill rows multiply values, not latents."""
    c = M.Case(
        lib,
        heads=4,
        rank=32,
        nope=16,
        rope=8,
        v_dim=16,
        dtype="f32",
        kv="bf16",
        lens=tuple(EXTREMES),
    )
    rng = np.random.default_rng(2)
    held = rng.standard_normal((len(EXTREMES), max(EXTREMES), c.latent))
    q = np.zeros((len(EXTREMES), max(EXTREMES), c.heads, c.rope_dim))
    held[:6, :, c.rank :] = 0
    q[[0, 2, 4], :, :, -1] = 256
    q[6] = rng.standard_normal(q[6].shape)
    held[0, :, -1] = -512
    held[0, 1::3, -1] = -1024
    held[2, 1::2, -1] = -np.inf
    held[4, 3, -1] = np.inf
    held[5, 3, -1] = np.nan
    q[3, EXTREMES[3] - 1, 1] = np.nan
    q = q.astype(np.float32)
    pool, kept = c.pages(held), K.kept("bf16", held)
    p = dict(c.params(expand), HAS_K_B=int(expand > 0), HAS_V_B=int(expand > 0))
    k_b, v_b = (w.packed(target) if expand else None for w in (c.k_b, c.v_b))
    value = c.v_b.value.astype(np.float64).reshape(c.heads, -1, c.rank)
    last = [(i, [n - 1]) for i, n in enumerate(EXTREMES)]
    pieces = [(i, list(range(n - 1 - 20 * (i % 2), n))) for i, n in enumerate(EXTREMES)]
    for template, rows in [("mla_attend", pieces)] + [("mla_attend_decode", last)] * (not expand):
        pos, seq = [x for _, ps in rows for x in ps], [i for i, ps in rows for _ in ps]
        step = H.make_step(pos, [len(ps) for _, ps in rows], table=c.table[[i for i, _ in rows]])
        asked, want = (
            H.aligned((len(pos), c.heads, c.latent)),
            np.full((len(pos), c.heads, c.rank), np.nan),
        )
        whole = [
            bool(expand) and len(ps) > 1 and len(ps) * (2 * ps[0] + len(ps)) > 2 * expand * ps[0]
            for _, ps in rows
            for _ in ps
        ]
        assert any(whole) == bool(expand)
        asked[...] = 0
        for t, (i, at) in enumerate(zip(seq, pos)):
            base = c.nope if whole[t] else c.rank
            asked[t, :, base : base + c.rope_dim] = q[i, at]
            with np.errstate(invalid="ignore"):
                s = q[i, at].astype(np.float64) @ kept[i, : at + 1, c.rank :].T * c.scale
                e = np.exp(s - s.max(-1, keepdims=True))
                o = e / e.sum(-1, keepdims=True) @ kept[i, : at + 1, : c.rank]
            want[t, :, : c.v_dim if whole[t] else c.rank] = (
                np.einsum("hr,hvr->hv", o, value) if whole[t] else o
            )
        o = H.aligned(want.shape)
        H.build(template, target, p, FAST).call(step, [asked, k_b, v_b, pool, None, None, o], 3)
        o[np.array(whole), :, c.v_dim :] = np.nan  # unused
        extreme_close(o, want, 3e-4, rows)


ROUTERS = {
    "softmax": (128, 8, dict(renorm=1)),
    "groups": (
        64,
        6,
        dict(score="sigmoid", renorm=1, scale=2.5, groups=8, keep=3, group_score="top2"),
    ),
    "best": (40, 3, dict(groups=5, keep=2, group_score="max", scale=16.0)),
    "mixer": (5, 2, dict(score="sparsemixer", jitter=0.25)),
}


@pytest.mark.parametrize(
    "target,name",
    [(t, n) for t in TARGETS for n in ROUTERS if t == TARGETS[-1] or n in ("softmax", "groups")],
)
def test_route(lib, target, name):  # noqa: F811
    """Logits of -400 that are equal or not, equal groups, and rows of NaN and infinity, which do not affect the others."""
    n, top_k, c = ROUTERS[name]
    groups, hidden = c.get("groups", 1), 32
    w = Weights(lib, "f32", n, hidden)
    w.value[:] = 0
    w.value[:, 0], w.value[:, 1] = -400, -(np.arange(n) % (n // groups))
    w.file[:] = w.value.view(np.uint8)
    packed = w.packed(target)
    x = np.zeros((9, hidden), np.float32)
    x[:6, :2] = [[1, 1], [1, 0], [0, 0], [0, 1], [1, 2], [-1, 1]]
    x[6, 0], x[7, 0], x[8, :2] = np.nan, np.inf, [0.5, -2]
    k = H.build(
        "norm_route",
        target,
        dict(
            N_EXPERTS=n,
            TOP_K=top_k,
            HIDDEN=hidden,
            SHARED_GATE=0,
            SCORE=c.get("score", "softmax"),
            RENORM=c.get("renorm", 0),
            SUM_EPS=1e-20,
            SCALE=float(c.get("scale", 1.0)),
            GROUPS=groups,
            TOP_K_GROUPS=c.get("keep", 1),
            GROUP_SCORE=c.get("group_score", "max"),
            NORM="none",
            EPS=0.0,
            PLUS_ONE=0,
            HAS_BIAS=0,
            HAS_LOGIT_B=0,
            JITTER=c.get("jitter", 0),
            W_DTYPE="f32",
            ACT_BITS=16,
        ),
        FAST,
    )

    def run(x):
        ids, weights = H.aligned((9, top_k), np.int32), H.aligned((9, top_k))
        k.call(H.make_step([5] * 9), [x, None, None, packed, None, None, ids, weights], 3)
        return ids, weights

    plain = [0, 1, 2, 3, 4, 5, 8]
    ids, weights = run(x)
    want_id, want = route(x[plain].astype(np.float64) @ w.value.T.astype(np.float64), top_k, **c)
    assert np.array_equal(ids[plain], want_id)
    assert np.abs(weights[plain] - want).max() < 1e-5 * c.get("scale", 1)
    for t in (6, 7):
        assert len(set(ids[t])) == top_k and 0 <= ids[t].min() and ids[t].max() < n
    x[[6, 7]] = 1
    other_id, other = run(x)
    assert np.array_equal(other_id[plain], ids[plain])
    same(other[plain], weights[plain])


class Scores(I.Indexer):
    """One head: a position's score is the first element of its key, if positive, times the row's weight."""

    def __init__(self, scores, chosen):
        super().__init__([len(scores)], heads=1, dim=8, chosen=chosen)
        self.params["SCALE"] = 1.0
        self.q[:], self.k[:], self.w[:] = 0, 0, 1
        self.q[..., 0], self.k[..., 0] = 1, scores

    def best(self, pos):
        s = self.w[0, pos, 0] * np.maximum(self.k[0, : pos + 1, 0].astype(np.float64), 0)
        return np.sort(np.argsort(-s, kind="stable")[: self.chosen])


N = 1500
PATTERNS = {
    "ties": np.full(N, 5.0),
    "ties, then higher": np.where(np.arange(N) % 1300 < 1280, 5.0, 7.0),
    "steps": np.arange(N) // 100 + 1.0,
    "steps down": 16.0 - np.arange(N) // 100,
    "infinities": np.where(np.arange(N) % 100 == 99, np.inf, np.arange(N) % 50 + 1.0),
    "large": -np.float32(2.0**100) * (np.arange(N) % 7 - 3.0),
}


@pytest.mark.parametrize("target", ALL)
def test_positions(target):
    """Equal scores, and higher ones after them; weights below zero; a row of NaN next to others."""
    kernels = None
    for name, scores in PATTERNS.items():
        c = Scores(scores.astype(np.float32), 37)
        kernels = kernels or [
            H.build(t, target, c.params) for t in ("index_append", "index_select")
        ]
        pool = c.fill(kernels[0], 2)
        c.w[:, 1::2] = -1
        rows = [(0, [N - 9, N - 2, N - 1])]
        for parts in 1, 3:
            got = c.run(kernels[1], pool, rows, parts)
            assert all(np.array_equal(g, c.best(p)) for g, p in zip(got, rows[0][1])), (name, parts)
        c.q[0, N - 2] = np.nan
        other = c.run(kernels[1], pool, rows, 3)
        assert np.array_equal(other[[0, 2]], got[[0, 2]]), "NaN spreads to other rows"
        assert len(set(other[1])) == 37 and 0 <= other[1].min() and other[1].max() < N
