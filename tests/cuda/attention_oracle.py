"""Oracle of attention in float64, row by row, for the kernels of CPUs and GPUs."""

import math

import numpy as np


class Attention:
    """Sequences of given lengths with random K, V and queries. A subclass per target defines the
    pages: make_pool, rounded, fill, page_bytes."""

    def __init__(
        self,
        lens,
        heads=9,
        kv_heads=3,
        dim=64,
        v_dim=None,
        scale=None,
        cap=0.0,
        window=0,
        chunk=0,
        mask="causal",
        alibi=0.0,
        kv="f16",
        prefix=None,
        seed=0,
        spread=1.0,
        low=0.0,
        kv_v=None,
        rotate=False,
        sinks=False,
        part=None,
    ):
        """part: (first, number of all heads), if these are the heads of a rank; ALiBi slopes depend
        on the index among all heads"""
        v_dim = dim if v_dim is None else v_dim
        self.heads, self.kv_heads, self.dim, self.v_dim, self.kv = heads, kv_heads, dim, v_dim, kv
        self.kv_v, self.rotate = kv_v or kv, rotate
        self.chunk = chunk
        self.lens, self.window, self.cap, self.alibi, self.mask = (
            list(lens),
            window,
            cap,
            alibi,
            mask,
        )
        self.scale = dim**-0.5 if scale is None else scale
        self.prefix = list(prefix) if prefix is not None else [0] * len(lens)
        rng = np.random.default_rng(seed)
        self.make_pool(rng)
        self.k = [
            self.rounded(self.kv, rng.standard_normal((n, kv_heads, dim)) * spread) for n in lens
        ]
        self.v = [self.rounded(self.kv_v, rng.standard_normal((n, kv_heads, v_dim))) for n in lens]
        self.q = [(rng.standard_normal((n, heads, dim)) * spread).astype(np.float32) for n in lens]
        for k, q in zip(self.k, self.q) if low else ():
            k[:, :, 0], q[:, :, 0] = -16, low / self.scale / 16
        self.sink = (
            (3 * np.random.default_rng(77).standard_normal(heads) + low).astype(np.float32)
            if sinks
            else None
        )
        for i in range(len(lens)):
            self.fill(i)
        self.first, self.of = part or (0, heads)
        self.params = dict(
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=dim,
            V_DIM=v_dim,
            SCALE=float(self.scale),
            SOFTCAP=float(cap),
            WINDOW=window,
            CHUNK=chunk,
            ALIBI_FIRST=self.first,
            ALIBI_HEADS=self.of if part else 0,
            MASK=mask,
            ALIBI=float(alibi),
            KV_DTYPE=kv,
            KV_PAGE_BYTES=self.page_bytes,
            HAS_SINK=int(sinks),
        )
        if (kv_v or kv) != kv or rotate:
            self.params |= dict(KV_K=kv, KV_V=self.kv_v, KV_ROTATE=int(rotate))

    def seen(self, seq, p):
        """Return the keys and values that the row at position p reads"""
        return self.k[seq].astype(np.float64), self.v[seq].astype(np.float64)

    def slopes(self):
        # rule published by BLOOM's authors, for any number of heads
        n = self.of
        c = 2 ** math.floor(math.log2(n))
        base = 2.0 ** -(2.0 ** -(math.log2(c) - math.log2(self.alibi)))
        out = [base**i for i in range(1, c + 1)]
        if c != n:
            extra = 2.0 ** -(2.0 ** -(math.log2(2 * c) - math.log2(self.alibi)))
            out += [extra**i for i in range(1, 2 * (n - c) + 1, 2)]
        return np.array(out)[self.first : self.first + self.heads]

    def want(self, seq, pos):
        """Return the result in float64, row by row: [rows, heads, v_dim]"""
        out = np.empty((len(pos), self.heads, self.v_dim))
        g = self.heads // self.kv_heads
        for r, p in enumerate(pos):
            k, v = self.seen(seq, p)
            hi = max(p + 1, min(self.prefix[seq], self.lens[seq]) if self.mask == "prefix" else 0)
            if self.mask == "none":
                hi = min(self.lens[seq], p + self.window if self.window else self.lens[seq])
            lo = (
                p - p % self.window
                if self.chunk
                else max(0, p + 1 - self.window)
                if self.window
                else 0
            )
            q = self.q[seq][p].astype(np.float64).reshape(self.kv_heads, g, self.dim)
            s = self.scale * np.einsum("kgd,jkd->kgj", q, k[lo:hi])
            if self.cap:
                s = self.cap * np.tanh(s / self.cap)
            if self.alibi:
                s = s + (self.slopes().reshape(self.kv_heads, g, 1) * (np.arange(lo, hi) - p))
            if self.sink is not None:
                s = np.concatenate(
                    [s, self.sink.astype(np.float64).reshape(self.kv_heads, g, 1)], -1
                )
            e = np.exp(s - s.max(-1, keepdims=True))
            e = (e / e.sum(-1, keepdims=True))[..., : hi - lo]
            out[r] = np.einsum("kgj,jkd->kgd", e, v[lo:hi]).reshape(self.heads, self.v_dim)
        return out

    def last(self):
        return [(i, [n - 1]) for i, n in enumerate(self.lens)]


def close(got, want, tol=2e-5):
    err = np.abs(got - want) / (1e-3 + np.abs(want).max(-1, keepdims=True))
    assert np.isfinite(got).all() and err.max() < tol, err.max()


EXTREMES = [40, 70, 129, 33, 40, 65, 40]  # lengths of the sequences of `extreme`


def extreme(c):
    """Overwrites the sequences of a case of EXTREMES: low scores of two values, ties, keys of minus
    infinity, a NaN query in one head of the last row, a key of infinity, a NaN key. The last
    sequence is unchanged. All scores are exact, so rounding does not matter."""
    for i in range(6):
        c.q[i][:], c.k[i][:] = 0, 0
    for i in (0, 2, 4):
        c.q[i][:, :, 0] = 256
    c.k[0][:, :, 0] = -512  # scores of -512 * 256 * scale and of -1024 * 256 * scale
    c.k[0][1::3, :, 0] = -1024
    c.k[2][1::2, :, 0] = -np.inf  # position 0 is finite: each row sees one finite score
    c.q[3][-1, 1] = np.nan
    c.k[4][3, :, 0] = np.inf
    c.k[5][3, 0] = np.nan
    for i in range(6):
        c.fill(i)
    return c


def extreme_want(c, rows):
    """Return the result in float64. A row with an infinity or a NaN is NaN, which is numpy's
    result."""
    with np.errstate(invalid="ignore"):
        return np.concatenate([c.want(i, ps) for i, ps in rows])


def extreme_close(got, want, tol, rows):
    """Checks that the expected heads and rows are NaN, no others, and that values elsewhere are
    finite. A key of minus infinity may also make its row NaN: kernels that multiply by a query
    in two parts, one of which is 0, cannot avoid that."""
    assert np.isnan(want).any() and not np.isnan(want).all()
    infinite = np.repeat([i == 2 for i, _ in rows], [len(ps) for _, ps in rows])[:, None, None]
    want = np.where(infinite & np.isnan(got), np.nan, want)
    wrong = np.argwhere(np.isnan(got) != np.isnan(want))
    assert not len(wrong), f"NaN in (row, head, column) {wrong[:4].tolist()} of one side"
    close(np.nan_to_num(got), np.nan_to_num(want), tol)
