"""Attention kernels against float64, and against each other bit for bit: phases, parts, batches, prefill chunks."""

import os
import sys

import numpy as np
import pytest

import harness as H
import kv_types as K

sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir, "cuda"))
from attention_oracle import Attention, close


class Case(Attention):
    """Scattered pages; everything except keys and values is NaN. recent, sinks: positions that are read from exact pages, stored below the others,
    backwards; windowed: both have one number"""

    def __init__(self, lens, recent=0, sinks_kept=0, windowed=False, **kw):
        self.recent, self.kept, self.windowed = recent, sinks_kept, windowed
        super().__init__(lens, **kw)
        if recent or sinks_kept:
            self.params |= dict(KV_RECENT=recent, KV_SINKS=sinks_kept, KV_WINDOWED=int(windowed))

    def make_pool(self, rng):
        self.k_bytes, self.v_bytes = (
            H.PAGE * K.row_bytes(t, d) for t, d in ((self.kv, self.dim), (self.kv_v, self.v_dim))
        )
        n_pages = [-(-n // H.PAGE) for n in self.lens]
        self.table = H.page_table(rng, n_pages, 3)
        self.page_bytes = self.kv_heads * (self.k_bytes + self.v_bytes)
        n = sum(n_pages) + 3
        types = (K.exact(self.kv), self.dim), (K.exact(self.kv_v), self.v_dim)
        self.exact_bytes = (
            self.kv_heads * sum(H.PAGE * K.row_bytes(*t) for t in types)
            if self.recent or self.kept
            else 0
        )
        room = H.aligned((n * (self.exact_bytes + self.page_bytes),), np.uint8)
        room[...] = 0xFF  # NaN in every type but the integers
        self.exact, self.pool = (
            room[: n * self.exact_bytes].reshape(n, -1),
            room[n * self.exact_bytes :].reshape(n, -1),
        )
        self.number = self.table
        if self.exact_bytes and not self.windowed:
            self.number = H.page_table(rng, n_pages, 3)
            self.table = np.concatenate([self.table, self.number], 1)

    def rounded(self, kv, x):
        self.rows, self.exact_rows, self.plain = (
            getattr(self, n, []) for n in ("rows", "exact_rows", "plain")
        )
        x = x.astype(np.float32)
        turned = self.rotate and K.turns(kv)
        self.rows.append(K.encode(kv, K.turn(x) if turned else x))
        self.exact_rows.append(K.encode(K.exact(kv), K.turn(x) if turned else x))
        self.plain.append(K.kept_exact(kv, x, self.rotate))
        return K.kept(kv, x, self.rotate)

    def seen(self, seq, p):
        k, v = super().seen(seq, p)
        if not self.exact_bytes:
            return k, v
        at = np.arange(len(k))
        exact = ((at < self.kept) | (p - at < self.recent))[:, None, None]
        return np.where(exact, self.plain[seq], k), np.where(
            exact, self.plain[len(self.lens) + seq], v
        )

    def fill(self, seq):
        self.fill_pages(seq, self.pool, self.table, self.kv, self.kv_v, self.rows)
        if self.exact_bytes:
            self.fill_pages(
                seq,
                self.exact[::-1],
                self.number,
                K.exact(self.kv),
                K.exact(self.kv_v),
                self.exact_rows,
            )

    def fill_pages(self, seq, pool, table, kv, kv_v, rows):
        kk, vv = rows[seq], rows[len(self.lens) + seq]
        keys = self.kv_heads * H.PAGE * K.row_bytes(kv, self.dim)
        for p in range(-(-self.lens[seq] // H.PAGE)):
            page = pool[table[seq, p]]
            part = slice(p * H.PAGE, min(self.lens[seq], (p + 1) * H.PAGE))
            n = part.stop - part.start

            def whole(a):
                # beyond the end: NaN, or any code
                return (
                    a
                    if a is None
                    else np.concatenate(
                        [
                            a[part],
                            np.full(
                                (H.PAGE - n, *a.shape[1:]),
                                np.nan
                                if a.dtype.kind == "f"
                                else 15
                                if a.dtype == np.uint8
                                else 0xFFFF,
                                a.dtype,
                            ),
                        ]
                    )
                )

            if K.by_channel(kv):
                code = whole(kk.code)
                page[:keys] = K.plane_by_channel(code, kk.scale[p], kk.zero[p]).reshape(-1)
            else:
                page[:keys] = K.plane(kv, K.Rows(*map(whole, kk)), self.dim, True).reshape(-1)
            page[keys:] = K.plane(kv_v, K.Rows(*map(whole, vv)), self.v_dim, False).reshape(-1)

    def run(self, kernel, rows, n_parts=1, **kw):
        """rows: list of (sequence, [positions]); returns the outputs stacked, [rows, heads, v_dim]"""
        pos = [p for _, ps in rows for p in ps]
        q = np.concatenate([self.q[i][ps] for i, ps in rows])
        step = H.make_step(
            pos,
            [len(ps) for _, ps in rows],
            [self.lens[i] for i, _ in rows] if self.mask != "causal" else None,
            [self.prefix[i] for i, _ in rows],
            self.table[[i for i, _ in rows]],
        )
        y = H.aligned((len(pos), self.heads, self.v_dim))
        qa = H.aligned(q.shape)
        qa[...] = q
        kernel.call(step, [qa, self.pool, None, self.sink, y], n_parts, **kw)
        return y


LENS = [1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 700]
CASES = {
    "gqa": dict(lens=LENS),
    "mqa": dict(lens=[33, 129, 300], heads=8, kv_heads=1, dim=80, kv="f32"),
    "mha24": dict(lens=[5, 257, 400], heads=1, kv_heads=1, dim=24, window=40),
    "d128": dict(lens=[31, 260], heads=14, kv_heads=2, dim=128, v_dim=64, cap=30.0, spread=2.0),
    "odd": dict(lens=[7, 130, 290], heads=5, kv_heads=1, dim=20, v_dim=12, window=129),
    "chunks": dict(lens=[5, 40, 300], heads=6, kv_heads=2, dim=24, window=33, chunk=1),
    "alibi": dict(lens=[64, 300], heads=6, kv_heads=6, dim=32, alibi=8.0),
    "none": dict(lens=[1, 33, 300], heads=9, kv_heads=9, dim=24, mask="none"),
    "around": dict(lens=[5, 40, 400], heads=4, kv_heads=2, dim=32, mask="none", window=37),
    "prefix": dict(lens=[40, 300], heads=4, kv_heads=2, dim=32, mask="prefix", prefix=[17, 200]),
    "falcon": dict(lens=[9, 140], heads=71, kv_heads=1, dim=64),
    "sinks": dict(lens=[5, 40, 300], heads=8, kv_heads=1, dim=24, window=20, sinks=True),
    "sinkfar": dict(lens=[33, 400], heads=6, kv_heads=2, dim=64, sinks=True),
    "capwin": dict(
        lens=[513], heads=4, kv_heads=1, dim=256, cap=50.0, window=300, scale=0.1, kv="f32"
    ),
}
# KV types, head dimensions that are not a multiple of a group, and rotation
CASES |= {
    "int8": dict(lens=LENS, kv="int8"),
    "int8r": dict(lens=[33, 129, 300], heads=8, kv_heads=1, dim=80, kv="int8", rotate=True),
    "f8": dict(lens=[33, 300], heads=6, kv_heads=2, dim=24, kv="f8", window=100),
    "int6": dict(
        lens=[31, 260], heads=14, kv_heads=2, dim=128, v_dim=64, cap=30.0, spread=2.0, kv="int6"
    ),
    "int6r": dict(
        lens=[7, 130, 290], heads=5, kv_heads=1, dim=20, v_dim=12, kv="int6", rotate=True
    ),
    "int4": dict(lens=LENS, kv="int4", rotate=True),
    "int4odd": dict(lens=[7, 130, 290], heads=5, kv_heads=1, dim=80, v_dim=12, kv="int4"),
    "k6v4": dict(
        lens=[40, 300],
        heads=4,
        kv_heads=2,
        dim=64,
        mask="prefix",
        prefix=[17, 200],
        kv="int6",
        kv_v="int4",
        rotate=True,
    ),
    "k16v4": dict(
        lens=[64, 300], heads=6, kv_heads=6, dim=32, alibi=8.0, part=(5, 12), kv="f16", kv_v="int4"
    ),
    "int8x32": dict(lens=[33, 300], heads=6, kv_heads=2, dim=80, v_dim=12, kv="int8_32"),
    "int8odd": dict(lens=[33, 150], heads=7, kv_heads=1, dim=40, v_dim=24, kv="int8"),
    "f8x32": dict(lens=[40, 200], heads=3, kv_heads=1, dim=20, v_dim=64, kv="f8_32", rotate=True),
    "bf16": dict(lens=[64, 300], heads=6, kv_heads=2, dim=20, kv="bf16"),
}
# recent and first positions from exact pages: fewer and more than a chunk, boundaries within pages,
# combined with a window, more than the sequence has, only one kind
CASES |= {
    "near8": dict(lens=LENS, kv="int8", recent=40, sinks_kept=4),
    "near4r": dict(
        lens=[7, 33, 130, 290],
        heads=5,
        kv_heads=1,
        dim=20,
        v_dim=12,
        kv="int4",
        rotate=True,
        recent=129,
        sinks_kept=35,
    ),
    "near64": dict(
        lens=[64, 300], heads=6, kv_heads=6, dim=32, alibi=8.0, kv="int6", kv_v="int4", recent=1
    ),
    "nearwin": dict(
        lens=[9, 40, 300],
        heads=8,
        kv_heads=2,
        dim=24,
        window=100,
        sinks=True,
        kv="int4",
        rotate=True,
        recent=33,
        sinks_kept=64,
        windowed=True,
    ),
    "first": dict(
        lens=[31, 260, 1200],
        heads=14,
        kv_heads=2,
        dim=128,
        v_dim=64,
        cap=30.0,
        spread=2.0,
        kv="f16",
        kv_v="int8",
        sinks_kept=130,
    ),
    "chan": dict(lens=LENS, kv="int4c", kv_v="int4", rotate=True, recent=32),
    "chanodd": dict(
        lens=[7, 33, 130, 290],
        heads=10,
        kv_heads=2,
        dim=20,
        v_dim=12,
        kv="int4c",
        kv_v="int8",
        recent=100,
        sinks_kept=40,
    ),
    "chanwin": dict(
        lens=[9, 40, 300],
        heads=4,
        kv_heads=1,
        dim=80,
        window=150,
        kv="int4c",
        kv_v="f16",
        recent=33,
        windowed=True,
        alibi=8.0,
    ),
    "allnear": dict(
        lens=[33, 300], heads=6, kv_heads=2, dim=24, kv="f8", recent=1000, sinks_kept=1000
    ),
}
# f16 or bf16 with at least four query heads per kv head: dimensions that do not fill a tile,
# windows, caps, alibi, a prefix, sinks, partial blocks
CASES |= {
    "gqa4": dict(lens=LENS, heads=8, kv_heads=2),
    "odd5": dict(lens=[7, 130, 290, 520], heads=10, kv_heads=2, dim=20, v_dim=12, window=129),
    "chunks4": dict(lens=[7, 130, 520], heads=8, kv_heads=2, dim=48, window=129, chunk=1),
    "alibi4": dict(lens=[64, 300], heads=8, kv_heads=2, dim=48, alibi=8.0),
    "prefix4": dict(
        lens=[40, 300], heads=4, kv_heads=1, dim=32, mask="prefix", prefix=[17, 200], kv="bf16"
    ),
    "sink8": dict(lens=[5, 40, 300], heads=8, kv_heads=1, dim=80, window=20, sinks=True),
    "capwin4": dict(lens=[513], heads=4, kv_heads=1, dim=256, cap=50.0, window=300, scale=0.1),
    "rest4": dict(lens=[31, 200], heads=8, kv_heads=2, dim=72, v_dim=104),
}
TILES = (
    "rest4",
    "gqa4",
    "d128",
    "odd",
    "odd5",
    "chunks4",
    "alibi4",
    "prefix4",
    "falcon",
    "sinks",
    "sink8",
    "capwin4",
)
WORDS = {
    "int8",
    "int8_32",
    "int6",
    "int4",
}  # types with integer arithmetic on v3 and Arm: cpu/attention/attention_int16.h
ARM = [t for t in ("neon", "i8mm") if t in H.MORE]
QUICK = ("gqa", "odd", "prefix", "int8r", "k6v4", "near4r", "chanodd")


def variants():
    """On AMX only the cases in TILES have AMX kernels; the others use v4's."""
    for name in CASES:
        if H.RUNS["amx"] and name in TILES:
            yield name, "amx"
        for target in H.TARGETS:
            if target == ("v3" if H.RUNS["v3"] else "generic") or name in QUICK:
                yield name, target
        words = {CASES[name].get("kv", "f16"), CASES[name].get("kv_v")} & WORDS
        for target in ARM if words or name == "gqa" else ():
            yield name, target


@pytest.mark.sample(6)
@pytest.mark.parametrize("name,target", list(variants()))
def test_attention(name, target):
    c = Case(**CASES[name])
    # AMX: queries and weights in two parts, 2^-17 per element; words: int16, 2^-16 of the largest
    # of a group
    words = target in ("v3", *ARM) and {c.kv, c.kv_v} & WORDS
    tol = 6e-5 if target == "amx" else 3e-4 if words else 2e-5
    dec, mix = (H.build(f"attention_{phase}", target, c.params) for phase in ("decode", "mixed"))
    last = c.last()
    want = np.concatenate([c.want(i, ps) for i, ps in last])
    one = c.run(dec, last)
    close(one, want, tol)
    for n in (2, 3, 5):
        assert np.array_equal(one, c.run(dec, last, n)), f"{n} parts"
    assert np.array_equal(one, c.run(dec, last, 4, order=[3, 1, 0, 2]))
    for i in {0, len(c.lens) - 1}:  # alone
        assert np.array_equal(one[i : i + 1], c.run(dec, [last[i]], 2))
    assert np.array_equal(one, c.run(mix, last, 2)), "mixed step of single rows"

    # all rows of all sequences in one mixed step, against float64 and row by row decode
    rows = [(i, list(range(n))) for i, n in enumerate(c.lens)]
    full = c.run(mix, rows, 3)
    at = 0
    for i, ps in rows:
        pick = sorted(
            {0, 1, 30, 31, 32, 63, 127, 128, 129, 255, 256, 257, len(ps) // 2, len(ps) - 1}
            & set(ps)
        )
        close(full[at : at + len(ps)][pick], c.want(i, pick), tol)
        single = np.concatenate([c.run(dec, [(i, [p])], 1 + p % 3) for p in pick])
        assert np.array_equal(full[at : at + len(ps)][pick], single), "decode and mixed differ"
        at += len(ps)
    assert np.array_equal(full, c.run(mix, rows, 1))
    # the longest prompt in other chunks
    i = int(np.argmax(c.lens))
    n, at = c.lens[i], sum(c.lens[:i])
    cuts = [0, n // 7, n // 3, n // 3 + 1, n]
    for a, b in zip(cuts, cuts[1:]):
        assert np.array_equal(full[at + a : at + b], c.run(mix, [(i, list(range(a, b)))], 2)), (
            f"chunk {a}..{b}"
        )


@pytest.mark.skipif(not H.RUNS["v4"], reason="no AVX-512")
@pytest.mark.parametrize("name", ["gqa", "odd"])
def test_portable_v4_is_v4(name):
    c = Case(**CASES[name])
    rows = [(i, list(range(max(0, n - 20), n))) for i, n in enumerate(c.lens)]
    for phase in ("decode", "mixed"):
        if phase == "decode":
            rows = [(i, ps[-1:]) for i, ps in rows]
        a, b = (c.run(H.build(f"attention_{phase}", t, c.params), rows, 2) for t in ("v4", "v4p"))
        assert np.array_equal(a, b)


def test_threads_and_tickets():
    """Parts as threads, many times with the same scratch: tickets return to zero, results stay equal."""
    c = Case([700, 300, 9], seed=3)
    k = H.build("attention_decode", H.TARGETS[-1], c.params)
    rows = c.last()
    want = c.run(k, rows)
    step = H.make_step([0, 0, 0], None, None, None, c.table)
    scratch = k.scratch(step, 4)
    for _ in range(25):
        assert np.array_equal(want, c.run(k, rows, 4, threads=True, scratch=scratch))
        assert not scratch[-1].any()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_far_position(kv):
    """Position 131071 through a table with repeated pages: spans of several chunks, and both phases agree."""
    n, heads, dim = 131072, 2, 16
    c = Case([64], heads=heads, kv_heads=1, dim=dim, kv=kv, seed=5)
    k = np.tile(c.k[0].astype(np.float64)[:, 0], (n // 64, 1))
    v = np.tile(c.v[0].astype(np.float64)[:, 0], (n // 64, 1))
    table = np.tile(c.table[0, :2], n // 64)[None, :]
    t = "v3" if H.RUNS["v3"] else "generic"
    dec, mix = (H.build(f"attention_{p}", t, c.params) for p in ("decode", "mixed"))
    for pos in ([n - 3, n - 2, n - 1], [128 * 64 - 2, 128 * 64 - 1, 128 * 64, 128 * 64 + 1]):
        q = H.aligned((len(pos), heads, dim))
        q[...] = np.random.default_rng(1).standard_normal(q.shape)
        ys = []
        y = H.aligned((len(pos), heads, dim))
        mix.call(H.make_step(pos, [len(pos)], None, None, table), [q, c.pool, None, y], 2)
        for r, p in enumerate(pos):
            s = (q[r].astype(np.float64) @ k[: p + 1].T) * dim**-0.5
            e = np.exp(s - s.max(-1, keepdims=True))
            close(y[r], e @ v[: p + 1] / e.sum(-1, keepdims=True))
            for parts in (1, 3):
                one, qr = H.aligned((1, heads, dim)), H.aligned((1, heads, dim))
                qr[0] = q[r]
                dec.call(H.make_step([p], [1], None, None, table), [qr, c.pool, None, one], parts)
                assert np.array_equal(one[0], y[r])
                ys.append(one)


def test_large_scores():
    """Scores of hundreds do not overflow; equal scores give the mean."""
    c = Case([300], heads=2, kv_heads=1, dim=16, spread=20.0)
    for t in H.TARGETS:
        k = H.build("attention_decode", t, c.params)
        close(c.run(k, [(0, [299])], 2), c.want(0, [299]), 1e-3)
    c.q[0][:] = 0
    close(c.run(k, [(0, [299])]), c.want(0, [299]))
