"""Kernels of an indexer (index_append, index_select), and latent attention over its selection, against numpy. Values are small integers, so scores are exact and
positions break ties. Parts, batches and prefill chunks select the same positions."""

import os

import numpy as np
import pytest

import harness as H
import kv_types as K
from test_matmul import TARGETS as DENSE, close, lib, same  # noqa: F401 (lib is a fixture)
from test_mla import Case

TARGETS = DENSE + [t for t in H.MORE if t == "amx"]
ALL = os.environ.get("LLMC_CHECK_ALL")
QUICK = {("odd", DENSE[0]), ("equal", DENSE[len(DENSE) // 2]), ("wide", TARGETS[-1])}


class Indexer:
    def __init__(self, lens, heads=5, dim=23, chosen=37, kv="f32", seed=0, most=3):
        rng = np.random.default_rng(seed)
        self.lens, self.heads, self.dim, self.chosen, self.kv = lens, heads, dim, chosen, kv
        n, whole = max(lens), lambda m, *shape: rng.integers(-m, m + 1, shape).astype(np.float32)
        self.k, self.q, self.w = (
            whole(most, len(lens), n, dim),
            whole(most, len(lens), n, heads, dim),
            whole(2, len(lens), n, heads),
        )
        pages = [-(-m // H.PAGE) for m in lens]
        self.table = H.page_table(rng, pages, 2)
        self.n_pages = sum(pages) + 2
        self.params = dict(
            HEADS=heads,
            DIM=dim,
            INDEX_TOP_K=chosen,
            SCALE=0.5,
            KV_DTYPE=kv,
            KV_PAGE_BYTES=H.PAGE * K.row_bytes(kv, dim),
        )

    def step(self, rows):
        pos = [p for _, ps in rows for p in ps]
        return (
            pos,
            [i for i, ps in rows for _ in ps],
            H.make_step(pos, [len(ps) for _, ps in rows], table=self.table[[i for i, _ in rows]]),
        )

    def fill(self, kernel, parts):
        """Fill the pool with the kernel, positions in any order."""
        pool = H.aligned((self.n_pages, H.PAGE * K.row_bytes(self.kv, self.dim)), np.uint8)
        pool[...] = 0xFF
        pos, seq, step = self.step([(i, list(range(n))) for i, n in enumerate(self.lens)])
        kernel.call(step, [np.ascontiguousarray(self.k[seq, pos]), pool, None], parts)
        rows = pool.view(np.uint16 if self.kv == "bf16" else K.PLAIN[self.kv]).reshape(
            self.n_pages, H.PAGE, self.dim
        )
        if self.kv == "bf16":
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        for i, n in enumerate(self.lens):
            for p in range(len(self.table[i]) * H.PAGE):
                if self.table[i, p // H.PAGE] < 1 << 29:
                    got = rows[self.table[i, p // H.PAGE], p % H.PAGE].astype(np.float32)
                    assert np.array_equal(got, self.k[i, p]) if p < n else np.isnan(got).all()
        return pool

    def run(self, kernel, pool, rows, parts=1, scratch=None):
        pos, seq, step = self.step(rows)
        sel = H.aligned((len(pos), self.chosen), np.int32)
        kernel.call(
            step,
            [
                np.ascontiguousarray(self.q[seq, pos]),
                np.ascontiguousarray(self.w[seq, pos]),
                pool,
                None,
                sel,
            ],
            parts,
            scratch=scratch,
        )
        return sel

    def want(self, rows):
        out = []
        for i, ps in rows:
            for p in ps:
                dots = np.maximum(
                    0.5 * self.q[i, p].astype(np.float64) @ self.k[i, : p + 1].astype(np.float64).T,
                    0,
                )
                best = np.sort(np.argsort(-(self.w[i, p] @ dots), kind="stable")[: self.chosen])
                out.append(np.concatenate([best, np.full(self.chosen - len(best), -1)]))
        return np.array(out, np.int32)


CASES = {
    "odd": dict(lens=[300, 38, 37, 1]),
    "few": dict(lens=[700, 90], heads=3, dim=16, chosen=1, kv="f16"),
    "equal": dict(lens=[400], heads=26, dim=8, chosen=129, most=0),
    "wide": dict(lens=[900], heads=64, dim=128, chosen=256, kv="bf16"),
}


@pytest.mark.parametrize(
    "name,target", [(n, t) for n in CASES for t in TARGETS if ALL or (n, t) in QUICK]
)
def test_choice(name, target):
    c = Indexer(**CASES[name])
    pool = c.fill(H.build("index_append", target, c.params), 3)
    kernel = H.build("index_select", target, c.params)
    full = [
        (i, sorted({*range(0, n, 7), max(0, n - 40), n - 1, *range(min(n, c.chosen + 3))})[-90:])
        for i, n in enumerate(c.lens)
    ]
    last = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    want, want_last = c.want(full), c.want(last)
    assert np.array_equal(c.run(kernel, pool, full), want)
    # lower positions win
    assert name != "equal" or np.array_equal(want_last[0], np.arange(c.chosen))
    for parts in (2, 3, 8):
        assert np.array_equal(c.run(kernel, pool, full, parts), want)
        assert np.array_equal(c.run(kernel, pool, last, parts), want_last)
    # tickets are back at zero, so the same scratch can be used again
    _, _, step = c.step(last)
    scratch = kernel.scratch(step, 5)
    for _ in range(2):
        assert np.array_equal(c.run(kernel, pool, last, 5, scratch), want_last)


def test_nan_scores():
    """The selected positions are distinct for any scores."""
    c = Indexer(lens=[300])
    target = TARGETS[-1]
    c.q[0, 299] = np.nan
    c.q[0, 298] = np.inf
    pool = c.fill(H.build("index_append", target, c.params), 1)
    got = c.run(H.build("index_select", target, c.params), pool, [(0, [298, 299])], 3)
    for row in got:
        assert (
            len(set(row)) == c.chosen
            and row.min() >= 0
            and row.max() < 300
            and (np.diff(row) > 0).all()
        )


ATTEND = {
    "odd": dict(lens=(70, 1, 33), chosen=19),
    "wide": dict(heads=40, rank=32, nope=16, rope=8, v_dim=16, lens=(200,), chosen=129),
    "int4": dict(
        heads=4, rank=96, nope=32, rope=16, v_dim=40, lens=(200, 64), kv="int4", chosen=65
    ),
}


@pytest.mark.parametrize(
    "name,target",
    [
        (n, t)
        for n in ATTEND
        for t in TARGETS
        if ALL or (n, t) in QUICK or n == "int4" and t == DENSE[-1]
    ],
)
def test_attention_over_selected_positions(lib, name, target):  # noqa: F811
    kw = dict(ATTEND[name])
    chosen = kw.pop("chosen")
    c = Case(lib, **kw)
    rng = np.random.default_rng(3)
    p = dict(c.params(0), HAS_K_B=0, HAS_V_B=0, HAS_SEL=1, INDEX_TOP_K=chosen)
    mixed, decode = H.build("mla_attend", target, p), H.build("mla_attend_decode", target, p)
    held, pool = K.kept(c.kv, c.held), c.pages(c.held)
    picks = {}
    for i, n in enumerate(c.lens):
        for at in range(n):
            some = np.sort(rng.choice(at + 1, min(chosen, at + 1), replace=False))
            picks[i, at] = np.concatenate([some, np.full(chosen - len(some), -1)]).astype(np.int32)
    asked = rng.standard_normal((len(c.lens), max(c.lens), c.heads, c.latent)).astype(np.float32)

    def run(kernel, rows, parts):
        pos, seq = [x for _, ps in rows for x in ps], [i for i, ps in rows for _ in ps]
        step = H.make_step(pos, [len(ps) for _, ps in rows], table=c.table[[i for i, _ in rows]])
        o = H.aligned((len(pos), c.heads, c.rank))
        kernel.call(
            step,
            [
                np.ascontiguousarray(asked[seq, pos]),
                None,
                None,
                pool,
                None,
                np.array([picks[i, x] for i, x in zip(seq, pos)]),
                o,
            ],
            parts,
        )
        return o

    full = [(i, list(range(n))) for i, n in enumerate(c.lens)]
    want = []
    for i, n in enumerate(c.lens):
        for at in range(n):
            rows = held[i, picks[i, at][picks[i, at] >= 0]].astype(np.float64)
            s = asked[i, at].astype(np.float64) @ rows.T * c.scale
            w = np.exp(s - s.max(-1, keepdims=True))
            want.append(w / w.sum(-1, keepdims=True) @ rows[:, : c.rank])
    got = run(mixed, full, 1)
    close(got, np.array(want), 1, 2e-2 if c.kv == "int4" else 1e-3)
    for parts in (2, 5):
        same(run(mixed, full, parts), got)
    at = 0
    for i, n in enumerate(c.lens):
        same(run(decode, [(i, [n - 1])], 3), got[at + n - 1 : at + n])
        same(run(mixed, [(i, list(range(n // 3, n)))], 2), got[at + n // 3 : at + n])
        at += n
    same(run(decode, [(i, [n - 1]) for i, n in enumerate(c.lens)], 4), got[np.cumsum(c.lens) - 1])
