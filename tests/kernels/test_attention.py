"""Attention kernels against float64, and against each other bit for bit: phases, parts, batches, chunks of the prompt."""
import math

import numpy as np
import pytest

import harness as H


class Case:
    """Sequences of given lengths in scattered pages; whatever is not a key or value is NaN."""

    def __init__(self, lens, heads=9, kv_heads=3, dim=64, v_dim=None, scale=None, cap=0.0, window=0, mask="causal",
                 alibi=0.0, kv="f16", prefix=None, seed=0, spread=1.0):
        v_dim = dim if v_dim is None else v_dim
        self.heads, self.kv_heads, self.dim, self.v_dim = heads, kv_heads, dim, v_dim
        self.lens, self.window, self.cap, self.alibi, self.mask = list(lens), window, cap, alibi, mask
        self.scale = dim ** -0.5 if scale is None else scale
        self.prefix = list(prefix) if prefix is not None else [0] * len(lens)
        rng = np.random.default_rng(seed)
        self.dtype = np.float16 if kv == "f16" else np.float32
        per_page = kv_heads * (dim + v_dim) * H.PAGE
        n_pages = [-(-n // H.PAGE) for n in lens]
        total, stride = sum(n_pages), max(n_pages)
        order = rng.permutation(total + 3)[:total]
        self.table = np.full((len(lens), stride), 1 << 29, np.int64)
        self.pool = H.aligned((total + 3, per_page), self.dtype)
        self.k, self.v, self.q = [], [], []
        at = 0
        for i, n in enumerate(lens):
            k = (rng.standard_normal((n, kv_heads, dim)) * spread).astype(self.dtype)
            v = rng.standard_normal((n, kv_heads, v_dim)).astype(self.dtype)
            self.k.append(k), self.v.append(v)
            self.q.append((rng.standard_normal((n, heads, dim)) * spread).astype(np.float32))
            for p in range(n_pages[i]):
                page = int(order[at])
                at += 1
                self.table[i, p] = page
                kk = self.pool[page, :kv_heads * dim * H.PAGE].reshape(kv_heads, dim, H.PAGE)
                vv = self.pool[page, kv_heads * dim * H.PAGE:].reshape(kv_heads, H.PAGE, v_dim)
                part = slice(p * H.PAGE, min(n, (p + 1) * H.PAGE))
                kk[:, :, :part.stop - part.start] = k[part].transpose(1, 2, 0)
                vv[:, :part.stop - part.start] = v[part].transpose(1, 0, 2)
        self.params = dict(HEADS=heads, KV_HEADS=kv_heads, DIM=dim, V_DIM=v_dim, SCALE=float(self.scale), CAP=float(cap),
                           WINDOW=window, MASK=mask, ALIBI=float(alibi), KV_DTYPE=kv,
                           KV_PAGE_BYTES=per_page * self.dtype().itemsize)

    def slopes(self):
        # the rule that BLOOM's authors published, for any number of heads
        n, out = self.heads, []
        c = 2 ** math.floor(math.log2(n))
        base = 2.0 ** -(2.0 ** -(math.log2(c) - math.log2(self.alibi)))
        out = [base ** i for i in range(1, c + 1)]
        if c != n:
            extra = 2.0 ** -(2.0 ** -(math.log2(2 * c) - math.log2(self.alibi)))
            out += [extra ** i for i in range(1, 2 * (n - c) + 1, 2)]
        return np.array(out)

    def want(self, seq, pos):
        """float64, row by row: [rows, heads, v_dim]"""
        out = np.empty((len(pos), self.heads, self.v_dim))
        g = self.heads // self.kv_heads
        k, v = self.k[seq].astype(np.float64), self.v[seq].astype(np.float64)
        for r, p in enumerate(pos):
            hi = max(p + 1, min(self.prefix[seq], self.lens[seq]) if self.mask == "prefix" else 0)
            lo = max(0, p + 1 - self.window) if self.window else 0
            q = self.q[seq][p].astype(np.float64).reshape(self.kv_heads, g, self.dim)
            s = self.scale * np.einsum("kgd,jkd->kgj", q, k[lo:hi])
            if self.cap:
                s = self.cap * np.tanh(s / self.cap)
            if self.alibi:
                s = s + (self.slopes().reshape(self.kv_heads, g, 1) * (np.arange(lo, hi) - p))
            e = np.exp(s - s.max(-1, keepdims=True))
            e /= e.sum(-1, keepdims=True)
            out[r] = np.einsum("kgj,jkd->kgd", e, v[lo:hi]).reshape(self.heads, self.v_dim)
        return out

    def run(self, kernel, rows, n_parts=1, **kw):
        """rows: list of (sequence, [positions]); returns the outputs stacked, [rows, heads, v_dim]"""
        pos = [p for _, ps in rows for p in ps]
        q = np.concatenate([self.q[i][ps] for i, ps in rows])
        step = H.make_step(pos, [len(ps) for _, ps in rows], [self.lens[i] for i, _ in rows] if self.mask == "prefix" else None,
                           [self.prefix[i] for i, _ in rows], self.table[[i for i, _ in rows]])
        y = H.aligned((len(pos), self.heads, self.v_dim))
        qa = H.aligned(q.shape)
        qa[...] = q
        kernel.call(step, [qa, self.pool, None, y], n_parts, **kw)
        return y


LENS = [1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 700]
CASES = {
    "gqa":     dict(lens=LENS),
    "mqa":     dict(lens=[33, 129, 300], heads=8, kv_heads=1, dim=80, kv="f32"),
    "mha24":   dict(lens=[5, 257, 400], heads=1, kv_heads=1, dim=24, window=40),
    "d128":    dict(lens=[31, 260], heads=14, kv_heads=2, dim=128, v_dim=64, cap=30.0, spread=2.0),
    "odd":     dict(lens=[7, 130, 290], heads=5, kv_heads=1, dim=20, v_dim=12, window=129),
    "alibi":   dict(lens=[64, 300], heads=6, kv_heads=6, dim=32, alibi=8.0),
    "prefix":  dict(lens=[40, 300], heads=4, kv_heads=2, dim=32, mask="prefix", prefix=[17, 200]),
    "falcon":  dict(lens=[9, 140], heads=71, kv_heads=1, dim=64),
    "capwin":  dict(lens=[513], heads=4, kv_heads=1, dim=256, cap=50.0, window=300, scale=0.1, kv="f32"),
}
QUICK = ("gqa", "odd", "prefix")


def variants():
    for name in CASES:
        for target in H.TARGETS:
            if target == ("v3" if H.V3 else "generic") or name in QUICK:
                yield name, target


def close(got, want, tol=2e-5):
    err = np.abs(got - want) / (1e-3 + np.abs(want).max(-1, keepdims=True))
    assert np.isfinite(got).all() and err.max() < tol, err.max()


@pytest.mark.parametrize("name,target", list(variants()))
def test_attention(name, target):
    c = Case(**CASES[name])
    dec, mix = (H.build(f"attention_{phase}", target, c.params) for phase in ("decode", "mixed"))
    last = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    want = np.concatenate([c.want(i, ps) for i, ps in last])
    one = c.run(dec, last)
    close(one, want)
    for n in (2, 3, 5):
        assert np.array_equal(one, c.run(dec, last, n)), f"{n} parts"
    assert np.array_equal(one, c.run(dec, last, 4, order=[3, 1, 0, 2]))
    for i in {0, len(c.lens) - 1}: # alone
        assert np.array_equal(one[i:i + 1], c.run(dec, [last[i]], 2))
    assert np.array_equal(one, c.run(mix, last, 2)), "mixed step of single rows"

    # all rows of all sequences in one mixed step, against float64 and row by row decode
    rows = [(i, list(range(n))) for i, n in enumerate(c.lens)]
    full = c.run(mix, rows, 3)
    at = 0
    for i, ps in rows:
        pick = sorted({0, 1, 30, 31, 32, 63, 127, 128, 129, 255, 256, 257, len(ps) // 2, len(ps) - 1} & set(ps))
        close(full[at:at + len(ps)][pick], c.want(i, pick))
        single = np.concatenate([c.run(dec, [(i, [p])], 1 + p % 3) for p in pick])
        assert np.array_equal(full[at:at + len(ps)][pick], single), "decode and mixed differ"
        at += len(ps)
    assert np.array_equal(full, c.run(mix, rows, 1))
    # another cut of the longest prompt into chunks
    i = int(np.argmax(c.lens))
    n, at = c.lens[i], sum(c.lens[:i])
    cuts = [0, n // 7, n // 3, n // 3 + 1, n]
    for a, b in zip(cuts, cuts[1:]):
        assert np.array_equal(full[at + a:at + b], c.run(mix, [(i, list(range(a, b)))], 2)), f"chunk {a}..{b}"


@pytest.mark.skipif(not H.V4, reason="no AVX-512")
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
    """Parts as threads, many times over the same scratch: tickets come back to zero, results stay."""
    c = Case([700, 300, 9], seed=3)
    k = H.build("attention_decode", H.TARGETS[-1], c.params)
    rows = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    want = c.run(k, rows)
    step = H.make_step([0, 0, 0], None, None, None, c.table)
    scratch = k.scratch(step, 4)
    for _ in range(25):
        assert np.array_equal(want, c.run(k, rows, 4, threads=True, scratch=scratch))
        assert not scratch[-1].any()


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_far_position(kv):
    """Position 131071 through a table whose pages repeat: spans of several chunks, and both phases again agree."""
    n, heads, dim = 131072, 2, 16
    c = Case([64], heads=heads, kv_heads=1, dim=dim, kv=kv, seed=5)
    k = np.tile(c.k[0].astype(np.float64)[:, 0], (n // 64, 1))
    v = np.tile(c.v[0].astype(np.float64)[:, 0], (n // 64, 1))
    table = np.tile(c.table[0, :2], n // 64)[None, :]
    t = "v3" if H.V3 else "generic"
    dec, mix = (H.build(f"attention_{p}", t, c.params) for p in ("decode", "mixed"))
    for pos in ([n - 3, n - 2, n - 1], [128 * 64 - 2, 128 * 64 - 1, 128 * 64, 128 * 64 + 1]):
        q = H.aligned((len(pos), heads, dim))
        q[...] = np.random.default_rng(1).standard_normal(q.shape)
        ys = []
        y = H.aligned((len(pos), heads, dim))
        mix.call(H.make_step(pos, [len(pos)], None, None, table), [q, c.pool, None, y], 2)
        for r, p in enumerate(pos):
            s = (q[r].astype(np.float64) @ k[:p + 1].T) * dim ** -0.5
            e = np.exp(s - s.max(-1, keepdims=True))
            close(y[r], e @ v[:p + 1] / e.sum(-1, keepdims=True))
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
