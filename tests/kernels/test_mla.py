"""Kernels of latent attention (mla_query, mla_attend, mla_value) against float64 by the unabsorbed equations, and against each other bit for
bit: phases, parts, batches, prefill chunks. templates/common/llmc_mla.h decides the form of each row."""

import os

import numpy as np
import pytest

import harness as H
import kv_types as K
from test_matmul import FAST, TARGETS as DENSE, Weights, close, lib, norm, rotated, same  # noqa: F401 (lib is a fixture)

TARGETS = DENSE + [t for t in H.MORE if t == "amx"]


class Case:
    """Attention of a model: weights, queries and latents of several sequences, pages in random order, NaN in unused memory."""

    def __init__(
        self,
        lib,
        heads=3,
        rank=40,
        nope=24,
        rope=16,
        v_dim=20,
        q_rank=0,
        dtype="f16",
        q_dtype=None,
        kv="f16",
        lens=(70, 1, 33),
        seed=1,
        style="interleaved",
        stacked=1,
        bits=16,
    ):
        self.heads, self.rank, self.nope, self.rope_dim, self.v_dim, self.q_rank, self.style = (
            heads,
            rank,
            nope,
            rope,
            v_dim,
            q_rank,
            style,
        )
        self.lens, self.kv, self.stacked, self.dtype, self.bits = lens, kv, stacked, dtype, bits
        self.dim, self.latent = nope + rope, rank + rope
        self.part = q_rank or heads * self.dim
        rng = np.random.default_rng(seed)
        self.k_b, self.v_b = (
            Weights(lib, dtype, heads * nope, rank, seed),
            Weights(lib, dtype, heads * v_dim, rank, seed + 1),
        )
        self.q_b = (
            Weights(lib, q_dtype or dtype, heads * self.dim, q_rank, seed + 2) if q_rank else None
        )
        self.qn, self.kvn = (rng.uniform(0.5, 1.5, n).astype(np.float32) for n in (self.part, rank))
        n = max(lens)
        self.low = rng.standard_normal((len(lens), n, self.part)).astype(np.float32)
        self.c = rng.standard_normal((len(lens), n, self.latent)).astype(np.float32)
        angle = rng.uniform(-3, 3, (n, rope // 2))
        self.rope = np.concatenate([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
        self.scale = 0.7 / self.dim**0.5
        # queries and cache content in float64; the cache rounds
        low = (
            norm(self.low, "rms", self.qn, eps=1e-6) @ self.q_b.value.T.astype(np.float64)
            if q_rank
            else self.low.astype(np.float64)
        )
        self.q = low.reshape(len(lens), n, heads, self.dim).copy()
        key = self.c[..., None, rank:].astype(np.float64)
        for p in range(n):
            a = self.rope[p].astype(np.float64)
            self.q[:, p, :, nope:] = rotated(self.q[:, p, :, nope:], a, rope, style)
            key[:, p] = rotated(key[:, p], a, rope, style)
        self.held = np.concatenate(
            [norm(self.c[..., :rank], "rms", self.kvn, eps=1e-6), key[:, :, 0]], -1
        )
        pages = [-(-m // H.PAGE) for m in lens]
        self.table = H.page_table(rng, pages, 2)
        self.n_pages = sum(pages) + 2

    def params(self, expand):
        return dict(
            HEADS=self.heads,
            Q_RANK=self.q_rank,
            KV_RANK=self.rank,
            NOPE_DIM=self.nope,
            ROPE_DIM=self.rope_dim,
            V_DIM=self.v_dim,
            FUSED=self.stacked,
            EXPAND=expand,
            INDEX_TOP_K=0,
            HAS_SEL=0,
            EPS=1e-6,
            STYLE=self.style,
            SCALE=self.scale,
            KV_DTYPE=self.kv,
            ACT_BITS=self.bits,
            KV_PAGE_BYTES=H.PAGE * K.row_bytes(self.kv, self.latent),
            K_B_DTYPE=self.dtype,
            V_B_DTYPE=self.dtype,
            Q_B_DTYPE=self.q_b.dtype if self.q_b else "f32",
            HAS_Q_B=int(self.q_rank > 0),
            HAS_QN=int(self.q_rank > 0),
            HAS_C=1 - self.stacked,
            HAS_K_B=1,
            HAS_V_B=1,
        )

    def build(self, target, expand):
        p = self.params(expand)
        self.pack = {
            n: w.packed(target) if w else None
            for n, w in (("k_b", self.k_b), ("v_b", self.v_b), ("q_b", self.q_b))
        }
        self.query, self.value = (H.build(n, target, p, FAST) for n in ("mla_query", "mla_value"))
        att = dict(p, HAS_K_B=int(expand > 0), HAS_V_B=int(expand > 0))
        self.attend = {"mixed": H.build("mla_attend", target, att, FAST)}
        self.attend["decode"] = (
            H.build("mla_attend_decode", target, att, FAST) if expand != 1 else self.attend["mixed"]
        )
        self.expand = expand

    def pages(self, held=None):
        pool = H.aligned((self.n_pages, H.PAGE * K.row_bytes(self.kv, self.latent)), np.uint8)
        pool[...] = 0xFF
        for i, n in enumerate(self.lens if held is not None else []):
            for at in range(0, n, H.PAGE):
                rows = K.encode(self.kv, held[i, at : min(n, at + H.PAGE), None])
                whole = []
                for a in rows:  # all bits are set after the end, as before the run
                    if a is not None:
                        left = np.frombuffer(
                            b"\xff" * (H.PAGE - len(a)) * a[:1].nbytes, a.dtype
                        ).reshape(-1, *a.shape[1:])
                        a = np.concatenate(
                            [
                                a,
                                left & {"int4": 15, "int6": 63}.get(self.kv, 255)
                                if a.dtype == np.uint8
                                else left,
                            ]
                        )
                    whole.append(a)
                pool[self.table[i, at // H.PAGE]] = K.plane(
                    self.kv, K.Rows(*whole), self.latent, False
                )[0]
        return pool

    def holds(self, pool):
        """Check that the pool has the rows of all positions, and that nothing else was written."""
        want = self.pages(self.held)
        if self.kv in ("f16", "f32"):
            got, want = (a.view(K.PLAIN[self.kv]).astype(np.float64) for a in (pool, want))
            assert np.array_equal(np.isnan(got), np.isnan(want))
            close(np.nan_to_num(got), np.nan_to_num(want), 4, 6e-4 if self.kv == "f16" else 1e-6)
        else:  # ties may round either way
            assert (pool == want).mean() > 0.98
            assert (pool == want)[self.pages() == want].mean() > 0.98

    def run(self, rows, phase="mixed", parts=1, pool=None):
        """rows: (sequence, positions) each; the pool holds all positions of the sequences. Returns (q, o, y, pool)."""
        pos = [p for _, ps in rows for p in ps]
        seq = [i for i, ps in rows for _ in ps]
        step = H.make_step(pos, [len(ps) for _, ps in rows], table=self.table[[i for i, _ in rows]])
        pool = self.pages(self.held) if pool is None else pool
        low, c = self.low[seq, pos], self.c[seq, pos]
        a = np.ascontiguousarray(np.concatenate([low, c], -1) if self.stacked else low)
        q, o, y = (
            H.aligned((len(pos), self.heads, n)) for n in (self.latent, self.rank, self.v_dim)
        )
        decode = phase == "decode"
        self.query.call(
            step,
            [
                a,
                None if self.stacked else np.ascontiguousarray(c),
                self.qn if self.q_rank else None,
                self.pack["q_b"],
                self.kvn,
                self.pack["k_b"],
                np.ascontiguousarray(self.rope[pos]),
                pool,
                q,
                None,
            ],
            parts,
        )
        weights = [
            None if not self.expand or (decode and self.expand != 1) else self.pack[n]
            for n in ("k_b", "v_b")
        ]
        self.attend[phase].call(step, [q, *weights, pool, None, None, o], parts)
        self.value.call(step, [o, self.pack["v_b"], y], parts)
        return q, o, y, pool

    def want(self, rows):
        """The unabsorbed equations on the content of the cache."""
        k_b, v_b = (
            w.value.astype(np.float64).reshape(self.heads, -1, self.rank)
            for w in (self.k_b, self.v_b)
        )
        held, out = K.kept(self.kv, self.held), []
        for i, ps in rows:
            for p in ps:
                c, r = held[i, : p + 1, : self.rank], held[i, : p + 1, self.rank :]
                k = np.einsum("hnr,jr->hjn", k_b, c)
                s = (
                    np.einsum("hn,hjn->hj", self.q[i, p, :, : self.nope], k)
                    + self.q[i, p, :, self.nope :] @ r.T
                ) * self.scale
                w = np.exp(s - s.max(-1, keepdims=True))
                w /= w.sum(-1, keepdims=True)
                out.append(np.einsum("hj,hvr,jr->hv", w, v_b, c))
        return np.array(out)

    def size(self):
        return float(
            np.abs(
                np.einsum(
                    "hvr,r->hv",
                    np.abs(self.v_b.value).reshape(self.heads, -1, self.rank),
                    np.abs(self.held[..., : self.rank]).mean((0, 1)),
                )
            ).max()
        )


CASES = {
    "odd": dict(),
    "one": dict(
        heads=1,
        rank=64,
        nope=16,
        rope=8,
        v_dim=48,
        q_rank=32,
        dtype="q8_0",
        q_dtype="q4_0",
        kv="f32",
        style="half",
        lens=(65, 129),
    ),
    "lite": dict(
        heads=4, rank=96, nope=32, rope=16, v_dim=40, dtype="q4_0", lens=(200, 64), stacked=0
    ),
    "wide": dict(
        heads=40,
        rank=32,
        nope=16,
        rope=8,
        v_dim=16,
        dtype="q5_1",
        q_rank=32,
        q_dtype="bf16",
        lens=(70,),
    ),
    "super": dict(heads=2, rank=256, nope=40, rope=16, v_dim=24, dtype="q6_k", lens=(40, 5)),
    "super4": dict(heads=3, rank=256, nope=24, rope=16, v_dim=24, dtype="q4_k", lens=(34,)),
    "f32": dict(heads=3, rank=24, nope=8, rope=4, v_dim=12, dtype="f32", kv="f32", lens=(33, 32)),
    "int4": dict(
        heads=4, rank=96, nope=32, rope=16, v_dim=40, dtype="q8_0", lens=(200, 64), kv="int4"
    ),
    "int6": dict(heads=3, rank=40, nope=24, rope=12, v_dim=20, lens=(70, 1, 33), kv="int6"),
    "int8": dict(heads=3, rank=40, nope=24, rope=12, v_dim=20, lens=(70, 1, 33), kv="int8_32"),
    "f8": dict(
        heads=4, rank=96, nope=32, rope=16, v_dim=40, dtype="q8_0", lens=(200, 64), kv="f8_32"
    ),
    "bf16": dict(lens=(40,), kv="bf16"),
    "bytes": dict(heads=2, rank=64, nope=32, rope=8, v_dim=32, dtype="q8_0", bits=8, lens=(40,)),
}
EXPAND = 5


def tolerance(c):
    # a code that the kernel and float64 round differently is a whole step apart, in few elements
    return (
        3e-2
        if c.bits == 8 or c.kv in ("int8_32", "f8_32", "int6", "int4", "bf16")
        else 1e-3
        if c.kv == "f16" or c.dtype[0] == "q"
        else 3e-4
    )


QUICK = {
    ("odd", TARGETS[-1]),
    ("one", DENSE[len(DENSE) // 2]),
    ("int4", TARGETS[-1]),
    ("int6", DENSE[0]),
    ("f8", DENSE[-1]),
}  # each target and each form once
ALL = os.environ.get("LLMC_CHECK_ALL")


@pytest.mark.parametrize(
    "name,target", [(n, t) for n in CASES for t in TARGETS if ALL or (n, t) in QUICK]
)
def test_latent_attention(lib, name, target):
    c = Case(lib, **CASES[name])
    full = [(i, list(range(n))) for i, n in enumerate(c.lens)]
    last = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    want, want_last = c.want(full), c.want(last)
    for expand in (0, EXPAND, *([1] if name == "odd" and target == TARGETS[-1] else [])):
        c.build(target, expand)
        # the kernel fills the cache, with the expected content
        q, o, y, pool = c.run(full, pool=c.pages())
        c.holds(pool)
        close(y, want, c.size(), tolerance(c))
        for parts in (2, 3, 5):
            q2, o2, y2, pool2 = c.run(full, parts=parts, pool=c.pages())
            same(y2, y)
            assert (pool2.view(np.uint8) == pool.view(np.uint8)).all()
        # decode rows: each phase, alone and batched
        one = c.run(last, "decode", pool=pool.copy())[2]
        close(one, want_last, c.size(), tolerance(c))
        for parts in (2, 3, 5):
            same(c.run(last, "decode", parts, pool.copy())[2], one)
        same(c.run(last, "mixed", 2, pool.copy())[2], one)
        same(c.run(last[-1:], "decode", 2, pool.copy())[2], one[-1:])
        # the longest prompt in other chunks
        i = int(np.argmax(c.lens))
        n, at = c.lens[i], sum(c.lens[:i])
        for a, b in ((n // 2, n), (0, n // 3 + 1), (n - 3, n)):
            got = c.run([(i, list(range(a, b)))], "mixed", 2, pool.copy())[2]
            if expand < 2 or (b - a) * (2 * a + b - a) > 2 * expand * a:
                same(got, y[at + a : at + b])
            close(got, want[at + a : at + b], c.size(), tolerance(c))
        if expand == 0:
            absorbed = y
        if expand < 2:
            same(c.run([(i, [n - 1])], "decode", 1, pool.copy())[2][0], y[at + n - 1])
        elif max(c.lens) > 1:
            close(absorbed, y.astype(np.float64), c.size(), tolerance(c))
            assert not np.array_equal(absorbed, y), "both forms are one"


def test_far_position(lib):
    """A row after spans of several chunks, through a table with repeated pages: decode and mixed agree for any number of parts."""
    c = Case(lib, heads=2, rank=16, nope=8, rope=4, v_dim=8, dtype="f32", kv="f32", lens=(64,))
    c.build(TARGETS[-1], 0)
    n = 20000
    c.table = np.tile(c.table, (1, n // 64 + 1))[:, : -(-n // H.PAGE)]
    c.low, c.c, c.rope = (
        np.resize(x, (*x.shape[:-2], n, x.shape[-1])) for x in (c.low, c.c, c.rope)
    )
    c.lens = (64,)
    pool = c.pages(c.held)
    one = c.run([(0, [n - 1])], "decode", 1, pool.copy())[2]
    for parts in (2, 7, 40):
        same(c.run([(0, [n - 1])], "decode", parts, pool.copy())[2], one)
    same(c.run([(0, [n - 1])], "mixed", 2, pool.copy())[2], one)
    same(c.run([(0, list(range(n - 5, n)))], "mixed", 2, pool.copy())[2][-1:], one)


def test_tickets_come_back(lib):
    """Parts as threads, many times with the same scratch."""
    c = Case(lib, lens=(300, 90, 9))
    c.build(TARGETS[-1], 0)
    rows = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    q, o, y, pool = c.run(rows, "decode")
    step = H.make_step([n - 1 for n in c.lens], table=c.table)
    k = c.attend["decode"]
    scratch = k.scratch(step, 4)
    for _ in range(20):
        got = H.aligned(o.shape)
        k.call(step, [q, None, None, pool, None, None, got], 4, threads=True, scratch=scratch)
        same(got, o)
        assert not scratch[-1].any()
