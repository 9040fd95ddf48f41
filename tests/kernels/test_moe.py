"""MoE kernels against float64, and against each other bit for bit: a single row and a batch, any number of parts, any number of
rows per expert. Experts that no row selects hold NaN."""

import os

import numpy as np
import pytest

import harness as H
from route_oracle import route
from test_matmul import lib  # noqa: F401
from test_matmul import (
    DTYPES,
    FAST,
    SMALL,
    TARGETS,
    Weights,
    activation,
    close,
    loose,
    norm,
    same,
    seen,
    vectors,
)

EVERY = os.environ.get("LLMC_CHECK_ALL")  # make check-all


ROUTES = {
    "qwen3": dict(n=128, top_k=8, hidden=96, dtype="f32", renorm=1),
    "mixtral": dict(n=5, top_k=2, hidden=67, dtype="bf16", renorm=1, kind="none"),
    "deepseek": dict(
        n=64,
        top_k=6,
        hidden=64,
        dtype="f32",
        score="sigmoid",
        renorm=1,
        scale=2.5,
        groups=8,
        keep=3,
        group_score="top2",
        bias=True,
    ),
    "all": dict(n=7, top_k=7, hidden=64, dtype="q8_0", mix=1, kind="layer"),
    "gpt-oss": dict(n=32, top_k=4, hidden=72, dtype="bf16", renorm=1, logit_bias=True),
    "lfm2": dict(
        n=7, top_k=2, hidden=40, dtype="f32", score="sigmoid", renorm=1, sum_eps=0.25, bias=True
    ),
    "max": dict(
        n=40,
        top_k=3,
        hidden=33,
        dtype="f32",
        groups=5,
        keep=2,
        group_score="max",
        scale=16.0,
        mix=1,
    ),
    "phimoe": dict(
        n=5, top_k=2, hidden=67, dtype="f32", score="sparsemixer", jitter=0.3, kind="layer"
    ),
    "near": dict(
        n=33, top_k=4, hidden=40, dtype="f32", score="sparsemixer", jitter=0.1, scale=1.5, mix=1
    ),
}


@pytest.mark.parametrize(
    "target,name",
    [(t, r) for t in TARGETS for r in ROUTES if EVERY or t == TARGETS[-1] or r == "deepseek"],
)
def test_route(lib, target, name):
    c = (
        dict(
            kind="rms",
            mix=0,
            bias=False,
            logit_bias=False,
            renorm=0,
            scale=1.0,
            groups=1,
            keep=1,
            score="softmax",
            group_score="max",
            sum_eps=1e-20,
            jitter=0.0,
        )
        | ROUTES[name]
    )
    n, top_k, hidden, mix, kind = c["n"], c["top_k"], c["hidden"], c["mix"], c["kind"]
    k = H.build(
        "norm_route",
        target,
        dict(
            N_EXPERTS=n,
            TOP_K=top_k,
            HIDDEN=hidden,
            SHARED_GATE=mix,
            SCORE=c["score"],
            RENORM=c["renorm"],
            SUM_EPS=c["sum_eps"],
            SCALE=c["scale"],
            GROUPS=c["groups"],
            TOP_K_GROUPS=c["keep"],
            GROUP_SCORE=c["group_score"],
            NORM=kind,
            EPS=1e-5,
            PLUS_ONE=0,
            HAS_BIAS=c["bias"],
            HAS_LOGIT_B=c["logit_bias"],
            W_DTYPE=c["dtype"],
            JITTER=c["jitter"],
            ACT_BITS=16,
        ),
        FAST,
    )
    w = Weights(lib, c["dtype"], n + mix, hidden)
    w.file[3] = w.file[2]  # two experts that always tie: the first wins
    lib.dequant_row(DTYPES.index(c["dtype"]), w.file[3].ctypes.data, w.value[3].ctypes.data, hidden)
    nw, nb = (v * np.float32(0.2) for v in vectors(hidden))
    x = np.random.default_rng(31).standard_normal((150, hidden)).astype(np.float32) * np.float32(
        0.3
    )
    bias = (
        (np.round(np.random.default_rng(2).standard_normal(n) * 4) / 8).astype(np.float32)
        if c["bias"]
        else None
    )
    logit_b = (
        np.random.default_rng(4).standard_normal(n).astype(np.float32) if c["logit_bias"] else None
    )
    packed = w.packed(target)

    def run(rows, parts, order=None):
        ids, weight = (
            H.aligned((len(rows) + 1, top_k), np.int32, 99),
            H.aligned((len(rows) + 1, top_k + mix)),
        )
        step, xs = H.make_step([0] * len(rows)), np.ascontiguousarray(x[rows])
        scratch = k.scratch(step, parts)
        for _ in range(2):  # its counters are back at their initial values
            k.call(
                step,
                [xs, nw, nb, packed, logit_b, bias, ids, weight],
                parts,
                order=order,
                scratch=scratch,
            )
        assert (ids[-1] == 99).all() and np.isnan(weight[-1]).all(), "wrote outside of its rows"
        return ids[:-1], weight[:-1]

    ids, weight = run(range(150), 1)
    logits = norm(x, kind, nw, nb) @ w.value.astype(np.float64).T + (
        0 if logit_b is None else logit_b
    )
    want_ids, want = route(
        logits[:, :n],
        top_k,
        bias,
        *(
            c[v]
            for v in (
                "score",
                "renorm",
                "scale",
                "groups",
                "keep",
                "group_score",
                "sum_eps",
                "jitter",
            )
        ),
    )
    exact = c["dtype"] not in SMALL
    assert (ids == want_ids).all() if exact else (ids == want_ids).mean() > 0.95
    hit = (ids == want_ids).all(1)
    assert np.abs(weight[hit, :top_k] - want[hit]).max() < (1e-5 if exact else 1e-3) * c["scale"]
    if mix:
        assert np.abs(weight[:, top_k] - 1 / (1 + np.exp(-logits[:, n]))).max() < (
            1e-6 if exact else 1e-3
        )
    for rows, parts in (
        ([7], 1),
        ([7], 3),
        ([3, 7], 2),
        (range(9), 5),
        (range(40), 2),
        (range(150), 2),
        (range(150), 3),
    ):
        for order in (None, range(parts - 1, -1, -1)):
            i, v = run(list(rows), parts, order)
            assert (i == ids[list(rows)]).all()
            same(v, weight[list(rows)])


def test_route_of_nan_logits(lib):
    """NaN logits select valid experts, each once."""
    target = TARGETS[-1]
    k = H.build(
        "norm_route",
        target,
        dict(
            N_EXPERTS=40,
            TOP_K=4,
            HIDDEN=8,
            SHARED_GATE=0,
            SCORE="sigmoid",
            RENORM=1,
            SUM_EPS=1e-20,
            SCALE=1.0,
            GROUPS=8,
            TOP_K_GROUPS=1,
            GROUP_SCORE="top2",
            NORM="none",
            EPS=0.0,
            PLUS_ONE=0,
            HAS_BIAS=0,
            W_DTYPE="f32",
            ACT_BITS=16,
        ),
        FAST,
    )
    x = np.full((3, 8), np.nan, np.float32)
    x[1], x[2] = np.inf, -1e38
    ids, weight = H.aligned((3, 4), np.int32), H.aligned((3, 4))
    k.call(
        H.make_step([0] * 3),
        [x, None, None, Weights(lib, "f32", 40, 8).packed(target), None, ids, weight],
        2,
    )
    assert all(len(set(r)) == 4 and 0 <= min(r) and max(r) < 40 for r in ids.tolist())


@pytest.mark.parametrize("first,count", [(0, 3), (3, 3), (6, 1)])
def test_own_experts(first, count):
    """Experts divided over ranks: maps this rank's experts to local indices."""
    k = H.build(
        "local_experts", TARGETS[-1], dict(N_EXPERTS=7, TOP_K=5, FIRST=first, COUNT=count), FAST
    )
    ids = np.array([np.random.default_rng(t).permutation(7)[:5] for t in range(9)], np.int32)
    for parts in (1, 2, 4):
        own = H.aligned((9, 5), np.int32, 99)
        k.call(H.make_step([0] * 9), [ids, own], parts)
        assert (own == np.where((ids >= first) & (ids < first + count), ids - first, -1)).all()


def gated(act, g, u, limit):
    if act == "silu_limit":
        return np.minimum(activation("silu", g), limit) * np.clip(u, -limit, limit)
    if limit:
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    return g / (1 + np.exp(-1.702 * g)) * (u + 1) if act == "swiglu_oai" else activation(act, g) * u


class Mixture:
    """One layer's experts, rows with their selections, and the expected output of both kernels in float64."""

    def __init__(
        self,
        lib,
        target,
        n,
        top_k,
        hidden,
        width,
        types,
        shared=0,
        s_types=(),
        mix=0,
        kind="rms",
        act="silu",
        bits=16,
        rows=120,
        to=None,
        limit=0.0,
        biased=False,
        spread=1,
        adapted=False,
    ):
        rng = np.random.default_rng(5)
        self.n, self.top_k, self.hidden, self.width, self.shared, self.mix, self.bits = (
            n,
            top_k,
            hidden,
            width,
            shared,
            mix,
            bits,
        )
        self.kind, self.act, self.types, self.s_types, self.target, self.rows = (
            kind,
            act,
            types,
            s_types,
            target,
            rows,
        )
        self.spread = spread  # rows of x per token
        self.x = rng.standard_normal((rows, spread * hidden)).astype(np.float32)
        chosen = to or list(range(n - (n > top_k)))  # no row selects the last expert
        self.id = np.array([rng.permutation(chosen)[:top_k] for _ in range(rows)], np.int32)
        self.weight = rng.random((rows, top_k + mix)).astype(np.float32)
        self.r = rng.standard_normal((rows, hidden)).astype(np.float32)
        self.nw, self.nb = vectors(hidden)
        self.adapter = (
            np.arange(rows) % 3 - 1 if adapted else None
        )  # every third row has no adapter, and its content is not read
        self.add = (
            rng.standard_normal((rows, top_k, 2, width)).astype(np.float32) if adapted else None
        )
        if adapted:
            self.add[self.adapter < 0] = np.nan
        self.limit, self.biases = (
            limit,
            [rng.standard_normal((n, m)).astype(np.float32) for m in (width, width, hidden)]
            if biased
            else [None] * 3,
        )
        shapes = [(width, hidden)] * 2 + [(hidden, width)]
        self.w = [
            Weights(lib, t, n * s[0], s[1], 10 + i) for i, (t, s) in enumerate(zip(types, shapes))
        ]
        for e in set(range(n)) - set(self.id.reshape(-1).tolist()):
            for w, s in zip(self.w, shapes):
                w.file[e * s[0] : (e + 1) * s[0]] = 0xFF
        s_shapes = [(shared, hidden)] * 2 + [(hidden, shared)]
        self.s = [Weights(lib, t, *s, 20 + i) for i, (t, s) in enumerate(zip(s_types, s_shapes))]
        self.packed = [w.packed(target) for w in self.w]
        self.s_packed = [w.packed(target) for w in self.s] or [None] * 3

    def sizes(self):
        return dict(
            N_EXPERTS=self.n,
            N_REMOTE_EXPERTS=0,
            TOP_K=self.top_k,
            HIDDEN=self.hidden,
            WIDTH=self.width,
            SHARED=self.shared,
            ACT_BITS=self.bits,
        )

    def glu_kernel(self):
        names = dict(zip(("GATE_DTYPE", "UP_DTYPE"), self.types)) | dict(
            zip(("S_GATE_DTYPE", "S_UP_DTYPE"), self.s_types)
        )
        return H.build(
            "norm_moe_glu",
            self.target,
            self.sizes()
            | names
            | dict(
                X_ROWS_PER_TOKEN=self.spread,
                ACT=self.act,
                LIMIT=self.limit,
                NORM=self.kind,
                EPS=1e-5,
                PLUS_ONE=0,
                HAS_GATE_B=int(self.biases[0] is not None),
                HAS_UP_B=int(self.biases[0] is not None),
                HAS_S_GATE=int(self.shared > 0),
                HAS_S_UP=int(self.shared > 0),
                HAS_ADD=int(self.add is not None),
            ),
            FAST,
        )

    def glu(self, k, rows, parts, order=None):
        cols = self.top_k * self.width + self.shared
        h = H.aligned((len(rows) + 1, cols))
        with_adapters = self.add is not None
        k.call(
            H.make_step([0] * len(rows), adapter=self.adapter[rows] if with_adapters else None),
            [
                np.ascontiguousarray(self.x[rows]),
                self.nw,
                self.nb,
                np.ascontiguousarray(self.id[rows]),
                *self.packed[:2],
                *self.biases[:2],
                *self.s_packed[:2],
                np.ascontiguousarray(self.add[rows]) if with_adapters else None,
                h,
            ],
            parts,
            order=order,
        )
        assert np.isnan(h[-1]).all(), "wrote outside of its rows"
        return h[:-1]

    def glu_want(self):
        """Return (values, a bound of their errors, to be multiplied by the tolerance)."""
        xn = norm(self.x, self.kind, self.nw, self.nb)
        own = lambda t, k: xn[t].reshape(self.spread, -1)[k if self.spread > 1 else 0]  # noqa: E731
        g, u = (w.value.astype(np.float64).reshape(self.n, self.width, -1) for w in self.w[:2])
        out, size = np.zeros((self.rows, self.top_k * self.width + self.shared)), None
        size = np.zeros_like(out)
        for t in range(self.rows):
            d = (
                np.zeros((self.top_k, 2, self.width))
                if self.add is None or self.adapter[t] < 0
                else self.add[t].astype(np.float64)
            )
            pairs = [
                (
                    g[e],
                    u[e],
                    *((0 if b is None else b[e]) + d[k, i] for i, b in enumerate(self.biases[:2])),
                )
                for k, e in enumerate(self.id[t])
            ]
            pairs += [(*(w.value.astype(np.float64) for w in self.s[:2]), 0, 0)] * (self.shared > 0)
            out[t] = np.concatenate(
                [
                    gated(self.act, a @ own(t, k) + ab, b @ own(t, k) + bb, self.limit)
                    for k, (a, b, ab, bb) in enumerate(pairs)
                ]
            )
            size[t] = np.concatenate(
                [
                    (4 * np.abs(a) @ np.abs(own(t, k)) + 1)
                    * (4 * np.abs(b) @ np.abs(own(t, k)) + 1)
                    for k, (a, b, _, _) in enumerate(pairs)
                ]
            )
        return out, size

    def down_kernel(self, has_r=True):
        names = dict(DOWN_DTYPE=self.types[2]) | (
            dict(S_DOWN_DTYPE=self.s_types[2]) if self.shared else {}
        )
        return H.build(
            "moe_down_add",
            self.target,
            self.sizes()
            | names
            | dict(
                SHARED_GATE=self.mix,
                SCALE=0.75,
                HAS_S_DOWN=int(self.shared > 0),
                HAS_R=int(has_r),
                HAS_DOWN_B=int(self.biases[2] is not None),
            ),
            FAST,
        )

    def down(self, k, h, rows, parts, order=None, has_r=True, in_place=True):
        res, y = self.r[rows].copy(), H.aligned((len(rows), self.hidden))
        k.call(
            H.make_step([0] * len(rows)),
            [
                np.ascontiguousarray(h[rows]),
                np.ascontiguousarray(self.id[rows]),
                np.ascontiguousarray(self.weight[rows]),
                self.packed[2],
                self.biases[2],
                self.s_packed[2],
                res if has_r else None,
                res if in_place and has_r else y,
            ],
            parts,
            order=order,
        )
        return res if in_place and has_r else y

    def down_want(self, h, has_r=True):
        d = self.w[2].value.astype(np.float64).reshape(self.n, self.hidden, self.width)
        y = 0.75 * self.r.astype(np.float64) if has_r else np.zeros((self.rows, self.hidden))
        size = np.ones_like(y)
        for t in range(self.rows):
            for k, e in enumerate(self.id[t]):
                part = h[t, k * self.width : (k + 1) * self.width]
                y[t] += self.weight[t, k] * (
                    d[e] @ seen(part, self.types[2], self.bits)
                    + (0 if self.biases[2] is None else self.biases[2][e])
                )
                size[t] += 4 * np.abs(d[e]) @ np.abs(part)
            if self.shared:
                part, sd = h[t, self.top_k * self.width :], self.s[2].value.astype(np.float64)
                y[t] += (self.weight[t, -1] if self.mix else 1) * (
                    sd @ seen(part, self.s_types[2], self.bits)
                )
                size[t] += 4 * np.abs(sd) @ np.abs(part)
        return y, size


Q4, F16 = ("q4_0",) * 3, ("f16",) * 3
MIXTURES = {
    "odd": dict(n=5, top_k=2, hidden=96, width=64, types=Q4),
    "no-group": dict(n=7, top_k=3, hidden=53, width=43, types=("bf16", "bf16", "f16"), act="gelu"),
    "all": dict(
        n=7,
        top_k=7,
        hidden=64,
        width=32,
        types=F16,
        shared=44,
        s_types=("f16", "bf16", "f32"),
        mix=1,
        act="gelu_tanh",
        rows=40,
    ),
    "k": dict(
        n=5,
        top_k=2,
        hidden=256,
        width=256,
        types=("q4_k", "q4_k", "q6_k"),
        shared=256,
        s_types=("q5_k", "q4_k", "q4_k"),
        kind="none",
        rows=30,
    ),
    "to-one": dict(
        n=5,
        top_k=1,
        hidden=64,
        width=96,
        types=("q8_0", "q5_1", "q4_1"),
        to=[3],
        kind="layer",
        rows=203,
    ),
    "biased": dict(
        n=5,
        top_k=2,
        hidden=96,
        width=43,
        types=("mxfp4", "mxfp4", "bf16"),
        act="swiglu_oai",
        limit=1.0,
        biased=True,
        rows=60,
    ),
    "adapted": dict(
        n=5,
        top_k=2,
        hidden=53,
        width=43,
        types=("bf16", "bf16", "f16"),
        kind="none",
        adapted=True,
        rows=60,
    ),
    "limited": dict(
        n=3,
        top_k=2,
        hidden=64,
        width=43,
        types=F16,
        shared=28,
        s_types=("f16", "bf16", "f32"),
        act="silu_limit",
        limit=0.5,
        rows=30,
    ),
    "spread": dict(
        n=5, top_k=3, hidden=96, width=64, types=("u4_32",) * 3, kind="none", rows=110, spread=3
    ),
    "i8": dict(n=3, top_k=2, hidden=64, width=64, types=Q4, shared=64, s_types=Q4, bits=8),
}
# compilation dominates the run time: all cases on the last target, on the others those that depend
# on the vector width
RUNS = (
    [
        (t, m)
        for t in TARGETS
        for m in MIXTURES
        if EVERY or t == TARGETS[-1] or m in ("no-group", "adapted") or (m == "k" and t == "v4")
    ]
    + [("amx", "odd") for t in H.MORE if t == "amx"]
    + [(TARGETS[-1], d) for d in DTYPES if EVERY]
)


@pytest.mark.parametrize("target,name", RUNS)
def test_moe_layer(lib, target, name):
    m = Mixture(
        lib,
        target,
        **MIXTURES.get(name)
        or dict(n=5, top_k=2, hidden=256, width=256, types=(name,) * 3, rows=40),
    )
    everyone = list(range(m.rows))
    k = m.glu_kernel()
    h = m.glu(k, everyone, 1)
    want, size = m.glu_want()
    close(
        h, want, size, max(loose(t) for t in m.types + tuple(m.s_types)) if m.bits == 16 else 2e-2
    )
    some = [
        ([7], 1),
        ([7], 3),
        ([3, 7], 2),
        ([0, 5, 9], 5),
        (list(range(4, 15)), 4),
        (everyone, 2),
        (everyone, 7),
    ]
    for rows, parts in some:
        same(m.glu(k, rows, parts), h[rows])
        same(m.glu(k, rows, parts, order=range(parts - 1, -1, -1)), h[rows])

    for has_r in (True, False) if name in ("odd", "all") else (True,):
        k = m.down_kernel(has_r)
        y = m.down(k, h, everyone, 1, has_r=has_r)
        want, size = m.down_want(h, has_r)
        close(y, want, size, 3e-6)
        for rows, parts in some:
            same(m.down(k, h, rows, parts, has_r=has_r, in_place=False), y[rows])
            same(m.down(k, h, rows, parts, has_r=has_r, order=range(parts - 1, -1, -1)), y[rows])


def test_parts_in_threads(lib):
    m = Mixture(lib, TARGETS[-1], **MIXTURES["odd"])
    k = m.glu_kernel()
    h = H.aligned((m.rows, m.top_k * m.width))
    k.call(
        H.make_step([0] * m.rows),
        [m.x, m.nw, m.nb, m.id, *m.packed[:2], None, None, None, None, None, h],
        4,
        threads=True,
    )
    same(h, m.glu(k, list(range(m.rows)), 1))


DEAL = r"""
#define LLMC_TARGET_generic 1
#include "cpu/moe/moe.h"
/* from, to [n_parts][n] of n experts that count rows chose, each of units[e]; cost [n_parts] */
void
deal(const int32_t *count, const int32_t *units, int n, int n_parts, int32_t *from, int32_t *to, int32_t *cost)
{
	int64_t all = 0;

	for (int e = 0; e < n; e++)
		all += moe_cost(count[e], units[e]);
	for (int p = 0; p < n_parts; p++) {
		moe_schedule d = moe_schedule_begin(all, p, n_parts);
		for (int e = 0; e < n; e++) {
			Share s = moe_schedule_next(&d, count[e], units[e]);
			from[p * n + e] = (int32_t)s.from, to[p * n + e] = (int32_t)s.to;
			cost[p] += (int32_t)moe_cost(count[e], (int)(s.to - s.from));
		}
	}
}
/* the choices of e, `most` at a time */
int
take(const int32_t *id, int all, int e, int n, int most, int32_t *choice)
{
	int at = 0;

	for (int done = 0, k; done < n; done += k) {
		k = n - done < most ? n - done : most;
		moe_gather_row(id, all, e, k, &at, choice + done);
	}
	return at;
}
"""


def test_units_are_divided_into_equal_shares():
    """Each unit of each selected expert is assigned to one part. No part exceeds its share by more than a unit's cost; rows are in step order."""
    lib_ = H.compiled("moe_schedule", "generic", DEAL, (*FAST, "-fno-ipa-cp"))
    rng = np.random.default_rng(3)
    for n, n_parts in ((1, 1), (1, 7), (5, 2), (7, 3), (129, 2), (129, 16), (9, 64)):
        for spread in (1, 3, 200):
            count = rng.integers(0, spread + 1, n).astype(np.int32) * rng.integers(0, 2, n).astype(
                np.int32
            )
            units = rng.integers(0, 30, n).astype(np.int32)
            share = [np.zeros((n_parts, n), np.int32) for _ in range(2)]
            cost = np.zeros(n_parts, np.int32)
            lib_.deal(
                *(a.ctypes.data_as(H.C.c_void_p) for a in (count, units)),
                n,
                n_parts,
                *(a.ctypes.data_as(H.C.c_void_p) for a in (*share, cost)),
            )
            ranges = [(int(a), int(b)) for a, b in zip(*(s.T.reshape(-1) for s in share))]
            for e in range(n):
                got = [u for a, b in ranges[e * n_parts : (e + 1) * n_parts] for u in range(a, b)]
                assert got == list(range(units[e] if count[e] else 0))
            each = max([4 + int(c) for c, u in zip(count, units) if c and u], default=0)
            assert cost.max() <= cost.sum() / n_parts + each
    for all_, n_experts in ((1, 1), (16, 2), (17, 3), (100, 5), (999, 128)):
        ids = rng.integers(0, n_experts, all_).astype(np.int32)
        for e in range(min(n_experts, 9)):
            want = np.flatnonzero(ids == e)
            got = np.full(len(want) + 1, -1, np.int32)
            lib_.take(
                ids.ctypes.data_as(H.C.c_void_p),
                all_,
                e,
                len(want),
                5,
                got.ctypes.data_as(H.C.c_void_p),
            )
            assert got[:-1].tolist() == want.tolist() and got[-1] == -1
