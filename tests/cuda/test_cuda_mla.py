"""Latent attention of the GPU target against float64, on the emulator.

It is one file because all ops of a layer are tested on the same cases.
"""

import json
import os
import subprocess

import numpy as np
import pytest

import cuda_harness as H
import cuda_kv as KV
import cuda_weights as CW
import kv_types as K
from test_cuda_attention import angles, rotate
from test_qkv import norm
from planted import plant

# by seed; newer architectures start before their inputs are written
ARCH = ["sm_75", "sm_90a", "sm_90a"]


class Case:
    """Sequences whose latents are in scattered pages. The oracle expands keys and values per head,
    as the model's authors do."""

    def __init__(
        self,
        lens,
        heads=4,
        rank=32,
        nope=16,
        rope=8,
        v_dim=12,
        kv="f16",
        dtypes=("f32", "f32"),
        seed=0,
        spread=1.0,
        low=0.0,
    ):
        rng = np.random.default_rng(seed)
        self.lens, self.heads, self.v_dim = list(lens), heads, v_dim
        self.k_b = CW.Weights(dtypes[0], heads * nope, rank, seed + 1, rank**-0.5)
        self.v_b = CW.Weights(dtypes[1], heads * v_dim, rank, seed + 2, rank**-0.5)
        self.pool = (
            KV.Pool(lens, rank + rope, 0, kv, rng)
            if K.plain(kv)
            else KV.Codes(lens, rank + rope, kv, rng)
        )
        raw = [(rng.standard_normal((n, 1, rank + rope)) * spread).astype(np.float32) for n in lens]
        self.c = [KV.rounded(c, kv) if K.plain(kv) else K.kept(kv, c) for c in raw]
        self.q = [
            (rng.standard_normal((n, heads, nope + rope)) * spread).astype(np.float32) for n in lens
        ]
        for c, q in (
            zip(self.c, self.q) if low else ()
        ):  # offset subtracted from all scores, through the last rotary dimension
            c[:, :, -1], q[:, :, -1] = -16, low * (nope + rope) ** 0.5 / 16
        for i, c in enumerate(self.c if K.plain(kv) else raw):
            self.pool.fill(i, c, c[:, :, :0])
        self.scale, self.rank, self.nope = (nope + rope) ** -0.5, rank, nope
        self.params = dict(
            INDEX_TOP_K=0,
            HAS_SEL=0,
            HEADS=heads,
            KV_RANK=rank,
            NOPE_DIM=nope,
            ROPE_DIM=rope,
            V_DIM=v_dim,
            SCALE=float(self.scale),
            K_B_DTYPE=dtypes[0],
            V_B_DTYPE=dtypes[1],
            KV_DTYPE=kv,
            KV_PAGE_BYTES=self.pool.page_bytes,
        )

    def want(self, seq, pos):
        c = self.c[seq][:, 0].astype(np.float64)
        k = np.einsum(
            "jr,hnr->jhn",
            c[:, : self.rank],
            self.k_b.value.astype(np.float64).reshape(self.heads, -1, self.rank),
        )
        v = np.einsum(
            "jr,hvr->jhv",
            c[:, : self.rank],
            self.v_b.value.astype(np.float64).reshape(self.heads, -1, self.rank),
        )
        out = np.empty((len(pos), self.heads, self.v_dim))
        for i, p in enumerate(pos):
            q = self.q[seq][p].astype(np.float64)
            s = self.scale * (
                np.einsum("hn,jhn->hj", q[:, : self.nope], k[: p + 1])
                + q[:, self.nope :] @ c[: p + 1, self.rank :].T
            )
            e = np.exp(s - s.max(-1, keepdims=True))
            out[i] = np.einsum("hj,jhv->hv", e / e.sum(-1, keepdims=True), v[: p + 1])
        return out

    def run(self, kernel, rows, beyond=0, **kw):
        pages, table = self.pool.beyond(beyond) if beyond else (self.pool.pages, self.pool.table)
        pos = [p for _, ps in rows for p in ps]
        step = H.make_step(
            pos, [len(ps) for _, ps in rows], None, None, table[[i for i, _ in rows]]
        )
        return kernel.run(
            step,
            [
                np.concatenate([self.q[i][ps] for i, ps in rows]),
                self.k_b.packed,
                self.v_b.packed,
                pages,
                None,
                None,
                H.out((len(pos), self.heads, self.v_dim)),
            ],
            **kw,
        )[-1]

    def compare(self, kernel, rows, tol=2e-5, **kw):
        got, want = (
            self.run(kernel, rows, **kw),
            np.concatenate([self.want(i, ps) for i, ps in rows]),
        )
        err = np.abs(got - want) / (1e-3 + np.abs(want).max(-1, keepdims=True))
        assert np.isfinite(got).all() and err.max() < tol, err.max()
        return got


CASES = {
    "small": dict(lens=[1, 31, 33, 300]),
    "deepseek": dict(
        lens=[70, 257],
        heads=3,
        rank=512,
        nope=128,
        rope=64,
        v_dim=128,
        kv="bf16",
        dtypes=("bf16", "bf16"),
    ),
    "q4": dict(
        lens=[5, 129], heads=2, rank=96, nope=24, rope=16, v_dim=20, dtypes=("q4_0", "q8_0")
    ),
    "int8": dict(lens=[5, 129], heads=2, rank=96, nope=24, rope=16, v_dim=20, kv="int8_32"),
    "int4": dict(lens=[40], heads=3, rank=40, nope=7, rope=16, v_dim=9, kv="int4"),
    "odd": dict(
        lens=[40], heads=5, rank=21, nope=7, rope=6, v_dim=9, kv="f32", dtypes=("f16", "f32")
    ),
    "low": dict(lens=[64, 150], low=400.0),
    "k": dict(
        lens=[64], heads=1, rank=256, nope=8, rope=2, v_dim=8, kv="f16", dtypes=("q6_k", "q4_k")
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,mode,seed",
    H.always(
        [(n, *r) for n in CASES for r in H.RUNS if r[1] == 0 or n in ("small", "odd", "deepseek")],
        "low",
    ),
)
def test_portable(name, mode, seed):
    c = Case(**CASES[name])
    k = H.build("mla_attention", ARCH[seed], c.params)
    rows = [
        (i, sorted({0, n // 2, n - 1})) if i % 2 == 0 else (i, [n - 1])
        for i, n in enumerate(c.lens)
    ]
    if mode == "check":
        rows = [(i, ps[-1:]) for i, ps in rows[:2]]
    got = c.compare(k, rows, mode=mode, seed=seed)
    if seed == 1:  # one row alone
        i, ps = rows[-1]
        assert np.array_equal(got[-1:], c.run(k, [(i, ps[-1:])], bucket=2))


def test_a_large_pool_portable():
    c = Case(**STEPS["lite"])
    c.compare(H.build("mla_attention", "sm_75", c.params), [(0, [299]), (1, [69])], beyond=9 << 30)


# ---- in steps: mla_query, mla_attend, mla_value ----


class Steps(Case):
    """The same in three ops. lens: positions that sequences hold after the step; the rows of a step
    are the last positions of each."""

    def __init__(
        self, lens, q_rank=0, stacked=1, style="interleaved", expand=0, q_dtype="bf16", seed=0, **kw
    ):
        super().__init__(lens, seed=seed, **kw)
        rng = np.random.default_rng(seed + 5)
        c, rope = self.params, self.params["ROPE_DIM"]
        self.width, self.q_width, self.rope_dim, self.stacked, self.q_rank, self.expand = (
            self.rank + rope,
            self.nope + rope,
            rope,
            stacked,
            q_rank,
            expand,
        )
        self.part = q_rank or self.heads * self.q_width
        self.q_b = (
            CW.Weights(q_dtype, self.heads * self.q_width, q_rank, seed + 3, q_rank**-0.5)
            if q_rank
            else None
        )
        vec = lambda n: (1 + 0.3 * rng.standard_normal(n)).astype(np.float32)
        self.qn, self.kvn = vec(q_rank) if q_rank else None, vec(self.rank)
        self.params = dict(
            c,
            Q_RANK=q_rank,
            FUSED=stacked,
            EXPAND=expand,
            EPS=1e-5,
            STYLE=style,
            Q_B_DTYPE=q_dtype,
            HAS_C=int(not stacked),
            HAS_ROPE=int(style != "none"),
            HAS_QN=int(q_rank > 0),
            HAS_Q_B=int(q_rank > 0),
            HAS_K_B=int(expand > 0),
            HAS_V_B=int(expand > 0),
        )

    def step(self, rows, table=None):
        self.rows = [
            (i, n - r, r) for i, (n, r) in enumerate(zip(self.lens, rows)) if r
        ]  # sequence, first position, number of rows
        pos = [p for _, first, r in self.rows for p in range(first, first + r)]
        table = self.pool.table if table is None else table
        return H.make_step(
            pos, [r for _, _, r in self.rows], None, None, table[[i for i, _, _ in self.rows]]
        )

    def expanded(self):
        """Per row, as defined in templates/common/llmc_mla.h"""
        return np.repeat(
            [
                self.expand > 0 and r > 1 and r * (2 * before + r) > 2 * self.expand * before
                for _, before, r in self.rows
            ],
            [r for _, _, r in self.rows],
        )

    def heads_of(self, w):
        return w.value.astype(np.float64).reshape(self.heads, -1, self.rank)

    def form(self, q):
        """Queries [rows, heads, nope + rope] as mla_query stores them; NaN: unused"""
        out = np.full((len(q), self.heads, self.width), np.nan)
        for t, whole in enumerate(self.expanded()):
            if whole:
                out[t, :, : self.q_width] = q[t]
            else:
                out[t] = np.concatenate(
                    [
                        np.einsum("hn,hnr->hr", q[t, :, : self.nope], self.heads_of(self.k_b)),
                        q[t, :, self.nope :],
                    ],
                    -1,
                )
        return out

    def query(self, kernel, rows, tol, seed=0, **kw):
        step, rng = self.step(rows), np.random.default_rng(seed + 9)
        n, p = sum(rows), self.params
        a = rng.standard_normal((n, self.part)).astype(np.float32) * 2
        c = rng.standard_normal((n, self.width)).astype(np.float32) * 2
        turned = p["STYLE"] != "none"
        table = angles(rng, n, self.rope_dim) if turned else None
        q = a.astype(np.float64)
        if self.q_rank:
            q = norm(a, "rms", self.qn, None, 1e-5, 0) @ self.q_b.value.astype(np.float64).T
        q = q.reshape(n, self.heads, self.q_width).copy()
        latent, key = (
            norm(c[:, : self.rank], "rms", self.kvn, None, 1e-5, 0),
            c[:, None, self.rank :].astype(np.float64),
        )
        if turned:
            q[..., self.nope :], key = (
                rotate(q[..., self.nope :], table, p["STYLE"]),
                rotate(key, table, p["STYLE"]),
            )
        want = self.form(q)
        x = np.concatenate([a, c], 1) if self.stacked else a
        unused = (
            np.isnan(want).any() and kw.get("mode") == "check"
        )  # memory was written that no kernel may write
        out = (
            H.inout(np.zeros(want.shape, np.float32))
            if unused
            else H.out(want.shape, alloc=want.size)
        )
        pages, got = kernel.run(
            step,
            [
                x,
                None if self.stacked else c,
                self.qn,
                self.q_b.packed if self.q_b else None,
                self.kvn,
                self.k_b.packed,
                table,
                H.inout(self.pool.pages),
                out,
                None,
            ],
            seed=seed,
            **kw,
        )
        used = ~np.isnan(want)
        assert np.abs(got - want)[used].max() < tol * np.abs(want[used]).max()
        kind = type(self.pool)
        mine, was, at = kind.__new__(kind), kind.__new__(kind), 0
        for pool in mine, was:
            pool.__dict__.update(self.pool.__dict__)
        mine.pages, was.pages = pages, self.pool.pages.copy()
        for i, first, r in self.rows if not K.plain(self.pool.dtype) else ():
            was.fill(
                i,
                np.concatenate([latent, key[:, 0]], 1)[at : at + r, None].astype(np.float32),
                None,
                first,
            )
            at += r
        if at:  # a value on a rounding boundary may get either code
            assert (was.pages == pages).mean() > 0.99 and (
                pages[was.pages == 0xFF] == 0xFF
            ).mean() > 0.99
            return
        for i, first, r in self.rows:
            stored = mine.read(i, first, r, (1, self.width), (1, 0))[0][:, 0]
            wanted = np.concatenate([latent, key[:, 0]], 1)[at : at + r]
            assert (
                np.abs(stored - wanted)
                <= {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}[self.pool.dtype]
                * (np.abs(wanted) + 1e-2)
            ).all()
            was.write(i, first, pages, r, 1)
            at += r
        assert np.array_equal(was.pages, pages), "wrote elsewhere"

    def attend(self, kernel, rows, tol, beyond=0, **kw):
        pages, table = self.pool.beyond(beyond) if beyond else (self.pool.pages, self.pool.table)
        step = self.step(rows, table)
        q = np.concatenate([self.q[i][first : first + r] for i, first, r in self.rows])
        asked = self.form(q.astype(np.float64)).astype(np.float32)
        whole, want = self.expanded(), np.full((len(q), self.heads, self.rank), np.nan)
        k, v = self.heads_of(self.k_b), self.heads_of(self.v_b)
        for t, (i, p) in enumerate(
            (i, p) for i, first, r in self.rows for p in range(first, first + r)
        ):
            c = self.c[i][: p + 1, 0].astype(np.float64)
            z = (
                asked[t].astype(np.float64)[:, : self.rank]
                if not whole[t]
                else np.einsum("hn,hnr->hr", asked[t].astype(np.float64)[:, : self.nope], k)
            )
            at = self.nope if whole[t] else self.rank
            s = self.scale * (
                z @ c[:, : self.rank].T
                + asked[t].astype(np.float64)[:, at : at + self.rope_dim] @ c[:, self.rank :].T
            )
            e = np.exp(s - s.max(-1, keepdims=True))
            o = (e / e.sum(-1, keepdims=True)) @ c[:, : self.rank]
            if whole[t]:
                want[t, :, : self.v_dim] = np.einsum("hr,hvr->hv", o, v)
            else:
                want[t] = o
        none = (
            None if not self.expand else self.k_b.packed,
            None if not self.expand else self.v_b.packed,
        )
        unused = (
            dict(repeat=1) if np.isnan(want).any() and kw.get("mode") == "check" else {}
        )  # memory was written that no kernel may write
        out = H.inout(np.zeros(want.shape, np.float32)) if unused else H.out(want.shape)
        if "decode" in kernel.template:  # reads data older than the step before its wait
            own = [
                (3, at, n) for i, first, _ in self.rows for at, n in self.pool.places(i, first, 1)
            ]
            kw = dict(dict(early=[(3, 0, 0)] if beyond else own), **kw)
        got = kernel.run(step, [asked, *none, pages, None, None, out], **kw, **unused)[-1]
        err = np.abs(np.where(np.isnan(want), 0, got - want)) / (
            1e-3 + np.nanmax(np.abs(want), -1, keepdims=True)
        )
        assert err.max() < tol, err.max()

    def values(self, kernel, rows, tol, **kw):
        step = self.step(rows)
        o = (
            np.random.default_rng(3)
            .standard_normal((sum(rows), self.heads, self.rank))
            .astype(np.float32)
        )
        want = np.where(
            self.expanded()[:, None, None],
            o[:, :, : self.v_dim],
            np.einsum("thr,hvr->thv", o.astype(np.float64), self.heads_of(self.v_b)),
        )
        (got,) = kernel.run(step, [o, self.v_b.packed, H.out(want.shape)], **kw)
        assert np.abs(got - want).max() < tol * np.abs(want).max()


STEPS = {
    "lite": dict(
        lens=[300, 70],
        heads=16,
        rank=128,
        nope=32,
        rope=16,
        v_dim=32,
        kv="bf16",
        dtypes=("bf16", "bf16"),
    ),
    "deepseek": dict(
        lens=[129],
        heads=20,
        rank=512,
        nope=128,
        rope=64,
        v_dim=128,
        kv="bf16",
        dtypes=("bf16", "q8_0"),
    ),
    "f16": dict(
        lens=[1, 31, 32, 33, 64, 257],
        heads=5,
        rank=48,
        nope=24,
        rope=16,
        v_dim=20,
        dtypes=("f32", "f16"),
    ),
    "one": dict(
        lens=[97], heads=1, rank=64, nope=32, rope=32, v_dim=48, kv="bf16", dtypes=("bf16", "bf16")
    ),
    "low": dict(
        lens=[40, 300],
        heads=16,
        rank=128,
        nope=32,
        rope=16,
        v_dim=32,
        kv="bf16",
        dtypes=("bf16", "bf16"),
        low=400.0,
    ),
    "q4": dict(
        lens=[90, 5, 40],
        heads=2,
        rank=256,
        nope=16,
        rope=32,
        v_dim=16,
        dtypes=("q4_k", "q4_0"),
        spread=3.0,
    ),
    "odd": dict(
        lens=[40, 33], heads=3, rank=40, nope=7, rope=6, v_dim=9, kv="f32", dtypes=("f16", "f32")
    ),
    "int8": dict(lens=[1, 31, 33, 257], heads=5, rank=48, nope=24, rope=16, v_dim=20, kv="int8_32"),
    "f8": dict(lens=[129], heads=16, rank=512, nope=16, rope=64, v_dim=16, kv="f8_32"),
    "int6": dict(lens=[90, 5, 40], heads=2, rank=256, nope=16, rope=32, v_dim=16, kv="int6"),
    "int4": dict(lens=[300, 70], heads=16, rank=128, nope=32, rope=16, v_dim=32, kv="int4"),
}
ATTEND = {
    "sm_75": "mla_attend",
    "sm_86": "mla_attend_decode_sm80",
    "sm_90a": "mla_attend_decode_sm80",
}


def attend_tests():
    for name in STEPS:
        for mode, seed in H.RUNS:
            if name == "odd" or name == "f16" and seed == 0:
                yield "sm_75", name, mode, seed
            if name != "odd" and (
                mode == "fast"
                and (seed == 0 or K.plain(STEPS[name].get("kv", "f16")))
                or name in ("lite", "f16", "int4")
            ):
                yield (
                    "sm_90a" if name in ("lite", "f16", "one", "int4") else "sm_86",
                    name,
                    mode,
                    seed,
                )


@pytest.mark.sample(5)
@pytest.mark.parametrize("arch,name,mode,seed", H.always(attend_tests(), "low"))
def test_decode_attends(arch, name, mode, seed):
    c = Steps(**STEPS[name])
    k = H.build(ATTEND[arch], arch, c.params)
    tol = (
        3e-4
        if name == "low"
        else 1e-4
        if name == "q4"
        else 1e-3
        if not K.plain(c.pool.dtype)
        else 2e-5
    )  # a score of 400 has a rounding error of 1.5e-5; codes become f16
    rows = [1] * len(c.lens)
    if mode == "check":
        c.attend(k, [0] * (len(rows) - 2) + rows[-2:], tol, mode=mode, seed=seed)
        return
    c.attend(k, rows, tol, seed=seed, sms=3 if seed else 1, bucket=len(rows) + 1)
    c.attend(k, rows, tol, seed=seed, sms=11)


WGMMA = {
    "lite": (dict(STEPS["lite"]), 8e-3),
    "pages": (
        dict(
            lens=[1, 63, 64, 65, 96, 257], heads=16, rank=128, nope=16, rope=16, v_dim=16, kv="f16"
        ),
        1e-3,
    ),
    "wide": (dict(lens=[200], heads=128, rank=512, nope=16, rope=64, v_dim=16, kv="bf16"), 8e-3),
    # 11 tiles, more than stay in one CTA; 4 rounds of sums and a rest
    "parts": (dict(lens=[700], heads=20, rank=256, nope=16, rope=16, v_dim=16, kv="f16"), 2e-3),
    "heads": (dict(lens=[70, 5], heads=70, rank=256, nope=16, rope=32, v_dim=16, kv="f16"), 1e-3),
    "low": (
        dict(STEPS["low"]),
        3e-2,
    ),  # 16-bit queries give scores of 400 a rounding error of 2e-3, which the exponential keeps
}


def rounded_queries(c):
    """Queries in latent space, rounded as for wgmma; the oracle of test_wgmma gets the same."""
    c.form = lambda q, form=c.form: KV.rounded(form(q).astype(np.float32), c.pool.dtype).astype(
        np.float64
    )
    return c


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name,mode,seed",
    H.always(
        [(n, *r) for n in WGMMA for r in H.RUNS if r[1] == 0 or n in ("lite", "pages")],
        "low",
        "pages",
        "parts",
    ),
)
def test_wgmma(name, mode, seed):
    kw, tol = WGMMA[name]
    c = rounded_queries(Steps(**kw))
    k = H.build("mla_attend_decode_sm90", "sm_90a", c.params)
    rows = [1] * len(c.lens)
    if mode == "check":
        c.attend(k, [0] * (len(rows) - 2) + rows[-2:], tol, mode=mode, seed=seed)
        return
    c.attend(k, rows, tol, seed=seed, sms=3, bucket=len(rows) + 1)
    if name != "wide":
        c.attend(k, rows, tol, seed=seed + 1, sms=7)


PLANTED = {  # one barrier, wait, fence or release is missing; the step's own page is read too early
    "the barrier": ("mine[k][2], mine[k][3])); mla90_team::sync();", "mine[k][2], mine[k][3]));"),
    "full": ("mbar_wait(&s.full[ring.at], ring.round);", ""),
    "empty": ("mbar_wait(&s.empty[ring.at], ring.round ^ 1);", ""),
    "queries for wgmma": ("half[3])); } fence_proxy_async(); }", "half[3])); } }"),
    "own page": ("if (!waited && (tile + 1) * 64 > g.pos)", "if (!waited && tile > g.pos)"),
    "weights for copies": ("wgmma_pin(o);\n\t\t\tfence_proxy_async();", "wgmma_pin(o);\n\t\t\t"),
}


def ring():
    """One CTA processes five tiles in a ring of two stages."""
    return rounded_queries(
        Steps(lens=[300], heads=16, rank=128, nope=16, rope=16, v_dim=16, kv="bf16")
    )


def test_wgmma_ring_checked():
    c = ring()
    c.attend(
        H.build("mla_attend_decode_sm90", "sm_90a", c.params),
        [1],
        8e-3,
        mode="check",
        seed=2,
        sms=1,
    )


@pytest.mark.sample(2)
@pytest.mark.findings
@pytest.mark.parametrize("what", PLANTED)
def test_wgmma_planted(what):
    c = ring()
    k = H.build("mla_attend_decode_sm90", "sm_90a", c.params)
    right, wrong = PLANTED[what]
    k.text = plant(k.text, right, wrong)
    with pytest.raises((H.Finding, AssertionError)):
        c.attend(k, [1], 8e-3, mode="check", seed=2, sms=1)


@pytest.mark.parametrize(
    "planted",
    ["", pytest.param("first && (g.tile + 1) * KV_PAGE <= g.pos", marks=pytest.mark.findings)],
)
def test_decode_loads_before_the_wait(planted):
    """Latents older than the step are read before the preceding kernel has ended; the step's own
    position is not."""
    c = Steps(**dict(STEPS["lite"], lens=[70, 40]))
    k = H.build("mla_attend_decode_sm80", "sm_90a", c.params)
    if planted:
        H.only_emulated()
        k.text = plant(k.text, planted, "first")
        with pytest.raises(H.Finding, match="not ordered|race|before"):
            c.attend(k, [1, 1], 2e-5, mode="check", seed=2)
        return
    for mode, seed in H.RUNS:
        c.attend(k, [1, 1], 2e-5, mode=mode, seed=seed)


@pytest.mark.findings
def test_codes_planted():
    """Codes are converted into one stage while the other is read: without the barrier before, a
    race."""
    c = Steps(**dict(STEPS["int4"], lens=[150]))
    k = H.build("mla_attend_decode_sm80", "sm_90a", c.params)
    right = "cp_async_wait_all();\n\t\t\t__syncthreads();"
    k.text = plant(k.text, right, "cp_async_wait_all();")
    with pytest.raises(H.Finding):
        c.attend(k, [1], 1e-3, mode="check", seed=2, sms=1)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_a_large_pool(arch):
    c = Steps(**STEPS["lite"])
    c.attend(H.build(ATTEND[arch], arch, c.params), [1, 1], 2e-5, beyond=9 << 30)


OWN = 1 << 30  # sequences that begin in the step run expanded
MIXED = {
    "lite": (dict(STEPS["lite"], lens=[70, 33, 5, 1], expand=OWN), [70, 20, 1, 1]),
    "deepseek": (
        dict(STEPS["deepseek"], lens=[40, 33], heads=3, dtypes=("bf16", "bf16"), expand=OWN),
        [40, 1],
    ),
    "v_dim": (
        dict(
            STEPS["f16"],
            lens=[33, 150, 2],
            heads=3,
            rank=64,
            nope=16,
            v_dim=48,
            dtypes=("f16", "q4_0"),
            expand=4,
        ),
        [33, 20, 2],
    ),
    "f16": (
        dict(
            STEPS["f16"],
            lens=[20, 70],
            rank=64,
            nope=48,
            v_dim=16,
            dtypes=("q8_0", "f16"),
            expand=OWN,
        ),
        [20, 70],
    ),
    "low": (dict(STEPS["low"], lens=[40, 100], heads=2, expand=OWN), [40, 3]),
    "absorbed": (dict(STEPS["f16"], lens=[64, 33, 7]), [20, 1, 7]),
    # later chunks of prompts, in rounds of 128 slots
    "later": (dict(STEPS["lite"], lens=[90, 200, 300, 1], heads=3, expand=8), [70, 40, 1, 1]),
    "codes": (
        dict(STEPS["int4"], lens=[90, 200, 1], heads=3, dtypes=("f16", "q4_0"), expand=8),
        [70, 40, 1],
    ),
    "codes8": (
        dict(
            STEPS["int8"],
            lens=[40, 70],
            rank=64,
            nope=48,
            v_dim=16,
            dtypes=("f16", "f16"),
            expand=OWN,
        ),
        [40, 3],
    ),
    "odd": (
        dict(
            lens=[150, 20, 131],
            heads=3,
            rank=48,
            nope=16,
            rope=16,
            v_dim=48,
            expand=4,
            dtypes=("f16", "f16"),
        ),
        [30, 20, 131],
    ),
}


def rounds(c, k, rows, places=128):
    """Slots per round, and number of rounds"""
    assert k.text.count("ROUND = 4096") == 1 or not c.expand
    k.text = k.text.replace("ROUND = 4096", f"ROUND = {places}")
    begun = [(n - r, r) for n, r in zip(c.lens, rows) if r]
    return -(
        -sum(
            -(-(before + r) // 128) * 128
            for before, r in begun
            if c.expand and r > 1 and r * (2 * before + r) > 2 * c.expand * before
        )
        // places
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,arch,mode,seed",
    H.always(
        [
            (n, a, *r)
            for n in MIXED
            for a in ("sm_86", "sm_90a")
            for r in H.RUNS
            if r[1] == (H.EVERY and a == "sm_90a")
            or r[1] == 2
            and (n, a) in (("v_dim", "sm_86"), ("later", "sm_90a"))
        ],
        "low",
    ),
)
def test_mixed_attends(name, arch, mode, seed):
    """Expanded prompts, short chunks after many positions and absorbed decode rows in one step"""
    kw, rows = MIXED[name]
    c = Steps(**kw)
    k = H.build("mla_attend_mixed_sm80", arch, c.params)
    # keys, values and weights are rounded once more than for absorbed rows
    tol = (
        (3e-2 if c.pool.dtype == "bf16" else 6e-3 if not K.plain(c.pool.dtype) else 4e-3)
        if c.expand
        else 2e-5
    )
    c.attend(
        k,
        rows,
        tol,
        mode=mode,
        seed=seed,
        rounds=rounds(c, k, rows),
        **({} if mode == "check" else dict(sms=11 if seed else 3, bucket=sum(rows) + 5)),
    )


QUERY = {
    "plain": dict(STEPS["lite"]),
    "latent": dict(STEPS["f16"], q_rank=64, style="half"),
    "apart": dict(STEPS["lite"], stacked=0, q_rank=96, q_dtype="q4_0", style="half"),
    "unturned": dict(STEPS["q4"], style="none"),
    "odd": dict(STEPS["odd"], q_rank=20, q_dtype="f32"),
    "many": dict(STEPS["one"], lens=[200, 3, 1], expand=30, q_rank=48),
    "split": dict(STEPS["lite"], lens=[90, 40, 33], stacked=0, expand=20, style="half"),
    "codes": dict(STEPS["int6"], style="half"),
    "codes8": dict(STEPS["int8"]),
    "codes4": dict(STEPS["int4"], style="none"),
}


def query_tests():
    for name, kw in QUERY.items():
        for mode, seed in H.RUNS:
            if not kw.get("expand") and (seed == 0 or name == "odd"):
                yield "mla_query", "sm_75" if seed == 0 else "sm_90a", name, mode, seed
            if name != "odd":
                yield "mla_query_mixed", "sm_90a" if seed else "sm_86", name, mode, seed
                if mode == "check" or name == "latent":
                    yield "mla_query_decode", "sm_90a", name, mode, seed


@pytest.mark.sample(5)
@pytest.mark.parametrize("template,arch,name,mode,seed", list(query_tests()))
def test_queries(template, arch, name, mode, seed):
    c = Steps(**QUERY[name])
    rows = (
        [1] * len(c.lens)
        if "decode" in template
        else [min(n, r) for n, r in zip(c.lens, [70, 2, 1, 5, 1, 3])]
    )
    early = (
        dict(early=[(7, 0, 0)]) if "mixed" in template else {}
    )  # reads the step's arrays before its wait
    if mode == "check":
        rows[0] = min(rows[0], 5)
    c.query(
        H.build(template, arch, c.params),
        rows,
        1e-2
        if "mixed" in template and c.q_rank
        else 5e-4
        if "decode" in template and c.q_rank
        else 2e-5,
        mode=mode,
        seed=seed,
        **early,
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,arch,mode,seed",
    [
        (n, a, *r)
        for n, a in (
            ("plain", "sm_75"),
            ("latent", "sm_90a"),
            ("odd", "sm_75"),
            ("unturned", "sm_86"),
            ("split", "sm_90a"),
        )
        for r in H.RUNS
    ],
)
def test_values(name, arch, mode, seed):
    c = Steps(**QUERY[name])
    rows = [min(n, r) for n, r in zip(c.lens, [6, 1, 1, 3, 1, 2])]
    c.values(H.build("mla_value", arch, c.params), rows, 1e-5, mode=mode, seed=seed)
    if arch != "sm_75":
        c.values(
            H.build("mla_value_mixed", arch, c.params), rows, 1e-5, mode=mode, seed=seed, early=[]
        )


# tiles of 64 and 32 rows, and one row less or more; odd shapes
TILES = {
    "bf16": dict(heads=2, rank=128, nope=32, rope=16, v_dim=40, kv="bf16", dtypes=("bf16", "bf16")),
    "f32": dict(heads=3, rank=40, nope=24, rope=16, v_dim=12, dtypes=("f32", "f32"), expand=20),
    "f16": dict(heads=2, rank=40, nope=7, rope=6, v_dim=9, kv="f32", dtypes=("f16", "f16")),
    "q4": dict(heads=1, rank=96, nope=40, rope=16, v_dim=33, dtypes=("q8_0", "q4_0"), expand=20),
    "k": dict(heads=1, rank=256, nope=200, rope=16, v_dim=64, dtypes=("q4_k", "q6_k")),
    "deepseek": dict(
        heads=1,
        rank=512,
        nope=128,
        rope=64,
        v_dim=128,
        kv="bf16",
        dtypes=("bf16", "bf16"),
        expand=20,
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "name,n",
    [
        (name, n)
        for name in TILES
        for n in ((9, 16, 33, 64, 65) if name in ("bf16", "f32") else (33, 65))
    ],
)
def test_tiles_of_rows(name, n):
    """Two thirds of n rows belong to one sequence, expanded if requested and whole; the others are
    decode rows, with the same bits as alone."""
    rows = [n * 2 // 3] + [1] * (n - n * 2 // 3)
    c = Steps(lens=[max(rows[0] + 3, 40)] + [1 + 7 * i for i in range(1, len(rows))], **TILES[name])
    query, value = (
        H.build("mla_query_mixed", "sm_90a", c.params),
        H.build("mla_value_mixed", "sm_86", c.params),
    )
    for sms in (2, 70):
        c.query(query, rows, 2e-5, sms=sms, seed=n, early=[(7, 0, 0)])
        c.values(value, rows, 1e-5, sms=sms, seed=n, early=[])


def test_a_row_alone_and_among_others():
    """The bits of a row in tiles are those that it has alone."""
    c = Steps(lens=[5] * 40, **dict(TILES["bf16"]))
    k = H.build("mla_value_mixed", "sm_90a", c.params)
    o = np.random.default_rng(3).standard_normal((40, c.heads, c.rank)).astype(np.float32)
    run = lambda at: k.run(
        H.make_step([4] * len(at), None, None, None, c.pool.table[at]),
        [o[at], c.v_b.packed, H.out((len(at), c.heads, c.v_dim))],
    )[0]
    whole = run(np.arange(40))
    for at in ([0], [39, 3], list(range(20, 37))):
        assert np.array_equal(run(np.array(at)), whole[at])


MADE_PLANTED = {  # data passed between rounds, and latents read before they are written
    "kept": ("sm_86", "if (F::MADE && w.open)\n", "if (0)\n", "fast"),
    "begun": ("sm_86", "w.begun = w.lo < -base;", "w.begun = 0;", "fast"),
    "kept by wgmma": ("sm_90a", "if (F::MADE && w.open && q == 0)", "if (0)", "fast"),
    "open": ("sm_90a", "stop == end && !w.open", "stop == end", "fast"),
    "latents": (
        "sm_86",
        "__syncthreads();\n			quantize_act_row<W, norm_none>",
        "quantize_act_row<W, norm_none>",
        "check",
    ),
}


@pytest.mark.sample(2)
@pytest.mark.findings
@pytest.mark.parametrize("what", MADE_PLANTED)
def test_made_planted(what):
    arch, right, wrong, mode = MADE_PLANTED[what]
    c = Steps(
        lens=[150], heads=1, rank=48, nope=16, rope=16, v_dim=16, expand=4, dtypes=("f16", "f16")
    )
    k = H.build("mla_attend_mixed_sm80", arch, c.params)
    n = rounds(c, k, [40])
    assert n == 2
    k.text = plant(k.text, right, wrong)
    with pytest.raises((H.Finding, AssertionError)):
        c.attend(k, [40], 4e-3, mode=mode, seed=2, rounds=n)


@pytest.mark.findings
@pytest.mark.parametrize(
    "template,right",
    [
        ("mla_query_decode", "continue; __syncthreads();"),
        (
            "mla_attend_mixed_sm80",
            "		cp_async_wait<F::STAGES - 2>();\n		__syncthreads();",
        ),
    ],
)
def test_planted(template, right):
    """A missing barrier is found."""
    c = Steps(**dict(STEPS["lite"], lens=[70, 33], expand=OWN * ("mixed" in template)))
    k = H.build(template, "sm_86" if "mixed" in template else "sm_90a", c.params)
    k.text = plant(k.text, right, right.replace("__syncthreads();", ""))
    with pytest.raises((H.Finding, AssertionError)):
        if "query" in template:
            c.query(k, [1, 1], 2e-5, mode="check", seed=2)
        else:
            c.attend(k, [70, 1], 3e-2, mode="check", seed=2)


ROWS_PLANTED = {
    "halves of a sum": (
        "mla_query_mixed",
        "		__syncthreads();\n		if (half == 0)",
        "		if (half == 0)",
    ),
    "halves before": ("mla_query_mixed", "__syncthreads(); if (half == 1)", "if (half == 1)"),
    "rows' forms": (
        "mla_query_mixed",
        "__syncthreads(); if (threadIdx.x < end - t0)",
        "if (threadIdx.x < end - t0)",
    ),
    "parts of a sum": (
        "mla_value_mixed",
        "		__syncthreads();\n		const int row =",
        "		const int row =",
    ),
    "parts before": (
        "mla_value_mixed",
        "__syncthreads();\n#pragma unroll\n for (int m = 0; m < M; m++)",
        "for (int m = 0; m < M; m++)",
    ),
    "queries too early": (
        "mla_query_mixed",
        "(step, t0 + 8 * r);\n		if (first) {\n			PDL_WAIT();",
        "(step, t0 + 8 * r);\n		if (first) {",
    ),
    "sums too early": (
        "mla_value_mixed",
        "U::OF_PART);\n		if (first) {\n			PDL_WAIT();",
        "U::OF_PART);\n		if (first) {",
    ),
    "expanded rows": (
        "mla_value_mixed",
        "t0 + lane < n && !mla_row_expanded<EXPAND>(step, t0 + lane)",
        "t0 + lane < n",
    ),
    "parts of weights": (
        "mla_query_mixed",
        "b.lo[0]);\n		tf32_split(b1",
        "b.lo[1]);\n		tf32_split(b1",
    ),
}


@pytest.mark.sample(3)
@pytest.mark.findings
@pytest.mark.parametrize("what", ROWS_PLANTED)
def test_rows_planted(what):
    template, right, wrong = ROWS_PLANTED[what]
    c = Steps(lens=[110, 40], **dict(TILES["f32"], heads=2))
    k = H.build(template, "sm_90a", c.params)
    mistaken = plant(k.text, right, wrong)
    for planted in False, True:
        k.text = mistaken if planted else k.text
        run = (
            lambda: c.query(k, [66, 1], 2e-5, mode="check", seed=2, sms=1, early=[(7, 0, 0)])
            if "query" in template
            else c.values(k, [66, 1], 1e-5, mode="check", seed=2, sms=1, early=[])
        )
        if planted:
            with pytest.raises((H.Finding, AssertionError)):
                run()
        else:
            run()


@pytest.mark.parametrize("model,most", [("deepseek-v2-lite", 8), ("deepseek-v3", 9)])
def test_launches_of_a_layer(model, most, tmp_path):
    """A layer of a decode step, including experts"""
    H.only_emulated()
    llmc = os.environ.get("LLMC", str(H.ROOT / "build" / "llmc"))
    subprocess.run(
        [
            llmc,
            "compile",
            str(H.ROOT / "configs" / f"{model}.yaml"),
            "--target",
            "cuda",
            "--arch",
            "sm_90a",
            "--set",
            "n_layers=5",
            "-o",
            str(tmp_path),
            "-q",
        ],
        check=True,
    )
    plan = json.loads((tmp_path / "plan-cuda-sm_90a.json").read_text())
    own = {
        k["id"]: [u for u in k["launch"] if "fn" in u and u["path"] != "library"]
        for k in plan["kernel"]
    }
    step = [s for s in plan["phase"][0]["step"] if s["layer"] == 4]
    assert sum(len(own[s["kernel"]]) for s in step) <= most and all(
        u["pdl"] for s in step for u in own[s["kernel"]]
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["bf16", "q4_k"])
def test_nvrtc(dtype):
    p = Steps(
        lens=[1],
        heads=16,
        rank=512,
        nope=128,
        rope=64,
        v_dim=128,
        kv="bf16",
        dtypes=(dtype, dtype),
        q_rank=1536,
        q_dtype=dtype,
    ).params
    own = dict(p, EXPAND=OWN, HAS_K_B=1, HAS_V_B=1)
    if (
        H.nvrtc(
            "mla_attend_mixed_sm80", own, ["sm_86", "sm_90a"] if dtype == "bf16" else ["sm_120a"]
        )
        is None
    ):
        pytest.skip("no libnvrtc")
    for template in (
        "mla_attention",
        "mla_query",
        "mla_query_decode",
        "mla_query_mixed",
        "mla_attend",
        "mla_attend_decode_sm80",
        "mla_attend_decode_sm90",
        "mla_value",
        "mla_value_mixed",
    ):
        if dtype != "bf16" and "attend" in template and not H.EVERY:  # reads no weights
            continue
        archs = [
            a
            for a in (["sm_75", "sm_86", "sm_90a", "sm_120a"] if dtype == "bf16" else ["sm_90a"])
            if H.accepts(template, a, p)
        ]
        H.nvrtc(template, p, archs if H.EVERY else archs[:1] + archs[1:][-1:])
