"""Rows of large negative values, ties, infinities and NaN, for every softmax, maximum, top-k and
argmax of the GPU kernels.

Values are chosen so that scores are exact. The shapes are those of the cases called low in the
kernels' own tests, whose builds are shared."""

import cuda_harness as H
import numpy as np
import pytest

import cuda_kv as KV
import cuda_weights as CW
import test_cuda_attention as A
import test_cuda_index as I
import test_cuda_mla as M
import test_cuda_sample as S
import test_flash as F
import test_kv_types as KT
from attention_oracle import EXTREMES, extreme, extreme_close, extreme_want
from route_oracle import route
from test_cuda_sample import cpu  # noqa: F401 (a fixture)

LOW = dict(lens=EXTREMES, heads=4, kv_heads=2, dim=64, scale=0.125)


@pytest.mark.parametrize(
    "template,arch,heads,kv",
    [
        ("attention", "sm_75", 4, "f16"),
        ("attention_decode", "sm_75", 8, "bf16"),
        ("attention_decode_sm80", "sm_86", 8, "bf16"),
        ("attention_mixed_sm80", "sm_80", 4, "bf16"),
        ("attention_mixed_sm90", "sm_90a", 4, "bf16"),
    ],
)
def test_attention(template, arch, heads, kv):
    c = extreme((F.case if "mixed" in template else A.Case)(**dict(LOW, heads=heads, kv=kv)))
    k = H.build(template, arch, c.params)
    rows = (
        c.last()
        if "decode" in template
        else [(i, list(range(n - 1 - 20 * (i % 2), n))) for i, n in enumerate(c.lens)]
    )
    extreme_close(
        c.run(k, rows), extreme_want(c, rows), F.TOL[kv] if "mixed" in template else 2e-5, rows
    )


# ---- latent attention -------------------------------------------------------------------------------------------------


def latent(cls=M.Steps, **kw):
    """The sequences of `extreme`: scores depend on the last rotary column alone, values on the
    latents, which remain random."""
    c = cls(**dict(dict(M.STEPS["low"], lens=EXTREMES, low=0.0), **kw))
    for i in range(6):
        c.q[i][:], c.c[i][:, :, c.rank :] = 0, 0
    for i in (0, 2, 4):
        c.q[i][:, :, -1] = 256
    c.c[0][:, :, -1] = -512
    c.c[0][1::3, :, -1] = -1024
    c.c[2][1::2, :, -1] = -np.inf
    c.q[3][-1, 1] = np.nan
    c.c[4][3, :, -1] = np.inf
    c.c[5][3, :, -1] = np.nan
    for i in range(6):
        c.pool.fill(i, c.c[i], c.c[i][:, :, :0])
    return c


def latent_want(c, rows, heads_of):
    with np.errstate(invalid="ignore"):
        return np.concatenate([heads_of(i, ps) for i, ps in rows])


def test_latent_attention_portable():
    c = latent(M.Case, heads=4, rank=32, nope=16, rope=8, v_dim=12, kv="f16", dtypes=("f32", "f32"))
    rows = [(i, [0, n - 2, n - 1]) for i, n in enumerate(EXTREMES)]
    got = c.run(H.build("mla_attention", "sm_75", c.params), rows)
    extreme_close(got, latent_want(c, rows, c.want), 2e-5, rows)


@pytest.mark.parametrize(
    "template,arch,tol",
    [
        ("mla_attend", "sm_75", 2e-5),
        ("mla_attend_decode_sm80", "sm_86", 2e-5),
        ("mla_attend_decode_sm90", "sm_90a", 8e-3),
        ("mla_attend_mixed_sm80", "sm_86", 3e-2),
        ("mla_attend_mixed_sm80", "sm_90a", 3e-2),
    ],
)
def test_latent_attention(template, arch, tol):
    """In the mixed step the odd sequences have chunks of 20 rows, which run expanded: their weights
    are multiplied with values, not latents."""
    mixed = "mixed" in template
    c = latent(heads=2, expand=4) if mixed else latent()
    if "sm90" in template:
        M.rounded_queries(c)
    k = H.build(template, arch, c.params)
    n = [20 if mixed and i % 2 else 1 for i in range(len(EXTREMES))]
    step = c.step(n)
    rows = [(i, list(range(first, first + r))) for i, first, r in c.rows]
    with np.errstate(invalid="ignore"):
        q = np.concatenate([c.q[i][ps] for i, ps in rows]).astype(np.float64)
        nan = np.isnan(q).any(-1)
        asked = c.form(np.nan_to_num(q)).astype(np.float32)
        asked[nan] = np.nan
    whole = c.expanded()
    assert whole.any() == mixed
    if mixed:
        rounds = dict(rounds=M.rounds(c, k, n))
    values = c.heads_of(c.v_b)

    def sums(i, ps):
        p = ps[-1]
        held = c.c[i][: p + 1, 0].astype(np.float64)
        out = []
        for at in ps:
            s = (
                np.einsum(
                    "hr,jr->hj",
                    c.q[i][at][:, c.nope :].astype(np.float64),
                    held[: at + 1, c.rank :],
                )
                * c.scale
            )
            e = np.exp(s - s.max(-1, keepdims=True))
            out.append(e / e.sum(-1, keepdims=True) @ held[: at + 1, : c.rank])
        return np.array(out)

    want = latent_want(c, rows, lambda i, ps: sums(i, ps) if i < 6 else ordinary(c, i, ps))
    made = np.full(want.shape, np.nan)
    made[..., : c.v_dim] = np.einsum("thr,hvr->thv", want, values)
    want = np.where(whole[:, None, None], made, want)
    weights = (c.k_b.packed, c.v_b.packed) if c.expand else (None, None)
    early = dict(early=[(3, 0, 0)]) if "decode" in template else {}
    got = k.run(
        step,
        [asked, *weights, c.pool.pages, None, None, H.out(want.shape)],
        **early,
        **(rounds if mixed else {}),
    )[-1]
    got[np.broadcast_to(whole[:, None, None], got.shape) & (np.arange(c.rank) >= c.v_dim)] = (
        np.nan
    )  # unused columns
    extreme_close(got, want, tol, rows)


def ordinary(c, i, ps):
    k_b = c.heads_of(c.k_b)
    out = []
    for p in ps:
        held, q = c.c[i][: p + 1, 0].astype(np.float64), c.q[i][p].astype(np.float64)
        z = np.einsum("hn,hnr->hr", q[:, : c.nope], k_b)
        s = c.scale * (z @ held[:, : c.rank].T + q[:, c.nope :] @ held[:, c.rank :].T)
        e = np.exp(s - s.max(-1, keepdims=True))
        out.append(e / e.sum(-1, keepdims=True) @ held[:, : c.rank])
    return np.array(out)


# ---- choosing experts -------------------------------------------------------------------------------------------------

ROUTERS = {  # experts, top_k, how
    "softmax": (128, 8, dict(renorm=1)),
    "groups": (
        64,
        6,
        dict(score="sigmoid", renorm=1, scale=2.5, groups=8, keep=3, group_score="top2"),
    ),
    "best": (40, 3, dict(groups=5, keep=2, group_score="max", scale=16.0)),
    "mixer": (5, 2, dict(score="sparsemixer", jitter=0.25)),
}
NAN_ROW, INF_ROW = 6, 7


def logits(n, groups):
    """Rows of logits: very negative and different, very negative and equal, all zero, equal groups,
    two maxima, one expert far above; NaN, infinity"""
    e = np.arange(n)
    x = np.zeros((9, n), np.float32)
    x[0] = -400 - e * 7 % n / 4
    x[1] = -400
    x[3] = -(e % (n // groups))
    x[4, [n // 2, n - 1]] = 3
    x[5] = -400
    x[5, n // 3] = 0
    x[NAN_ROW, n // 2] = np.nan
    x[INF_ROW, [1, n - 2]] = np.inf
    x[8] = np.random.default_rng(n).permutation(n) / 8
    return x


def routed(name, x, run):
    n, top_k, c = ROUTERS[name]
    ids, weights = run(x)
    plain = [t for t in range(len(x)) if t not in (NAN_ROW, INF_ROW)]
    want_id, want = route(x[plain], top_k, **c)
    assert np.array_equal(ids[plain], want_id)
    assert np.abs(weights[plain] - want).max() < 1e-5 * c.get("scale", 1)
    for t in (NAN_ROW, INF_ROW):  # the row must select valid experts, each once
        assert len(set(ids[t])) == top_k and 0 <= ids[t].min() and ids[t].max() < n
    x = x.copy()
    x[[NAN_ROW, INF_ROW]] = 1
    other_id, other = run(x)
    assert np.array_equal(other_id[plain], ids[plain]) and np.array_equal(
        other[plain].view(np.int32), weights[plain].view(np.int32)
    ), "NaN spreads to other rows"


def route_params(name):
    n, top_k, c = ROUTERS[name]
    return dict(
        N_EXPERTS=n,
        TOP_K=top_k,
        SCORE=c.get("score", "softmax"),
        RENORM=c.get("renorm", 0),
        SUM_EPS=1e-20,
        SCALE=float(c.get("scale", 1.0)),
        GROUPS=c.get("groups", 1),
        TOP_K_GROUPS=c.get("keep", 1),
        GROUP_SCORE=c.get("group_score", "max"),
        JITTER=c.get("jitter", 0),
        HAS_BIAS=0,
    )


@pytest.mark.parametrize("name", ROUTERS)
def test_route(name):
    n, top_k, c = ROUTERS[name]
    k = H.build("moe_route", "sm_90a", route_params(name))
    routed(
        name,
        logits(n, c.get("groups", 1)),
        lambda x: k.run(
            H.make_step([5] * len(x)),
            [x, None, H.out((len(x), top_k), np.int32), H.out((len(x), top_k))],
        ),
    )


@pytest.mark.parametrize(
    "template,name,dtype",
    [
        ("norm_route", "groups", "f32"),
        ("norm_route_decode", "best", "bf16"),
        ("norm_route_mixed_sm80", "groups", "bf16"),
        ("norm_route_mixed_sm80", "softmax", "bf16"),
        ("norm_route_mixed", "best", "q8_0"),
    ],
)
def test_fused_route(template, name, dtype):
    """Logits are sums of two columns times a router's rows, all exact in bf16: expert e has -400
    and -(index of e in its group)."""
    n, top_k, c = ROUTERS[name]
    groups, hidden = c.get("groups", 1), 64
    w = np.zeros((n, hidden), np.float32)
    w[:, 0], w[:, 1] = -400, -(np.arange(n) % (n // groups))
    packed = CW.Weights(dtype, n, hidden, values=w)
    x = np.zeros((9, hidden), np.float32)
    x[:6, :2] = [[1, 1], [1, 0], [0, 0], [0, 1], [1, 2], [-1, 1]]
    x[NAN_ROW, 0], x[INF_ROW, 0], x[8, :2] = np.nan, np.inf, [0.5, -2]
    k = H.build(
        template,
        "sm_90a",
        dict(
            route_params(name),
            HIDDEN=hidden,
            SHARED_GATE=0,
            NORM="none",
            EPS=1e-5,
            PLUS_ONE=0,
            W_DTYPE=dtype,
            W_ROWS=n,
            HAS_NW=0,
            HAS_NB=0,
            PHASE="mixed" if "mixed" in template else "decode",
        ),
    )
    plain = [t for t in range(9) if t not in (NAN_ROW, INF_ROW)]
    step = H.make_step([5] * 9)

    def run(x):
        return k.run(
            step,
            [x, None, None, packed.packed, None, H.out((9, top_k), np.int32), H.out((9, top_k))],
        )

    ids, weights = run(x)
    want_id, want = route(
        x[plain].astype(np.float64) @ packed.value.T.astype(np.float64), top_k, **c
    )
    assert np.array_equal(ids[plain], want_id)
    assert np.abs(weights[plain] - want).max() < 1e-5 * c.get("scale", 1)
    for t in (NAN_ROW, INF_ROW):
        assert len(set(ids[t])) == top_k and 0 <= ids[t].min() and ids[t].max() < n
    x[[NAN_ROW, INF_ROW]] = 1
    other_id, other = run(x)
    assert np.array_equal(other_id[plain], ids[plain]) and np.array_equal(
        other[plain].view(np.int32), weights[plain].view(np.int32)
    ), "NaN spreads to other rows"


# ---- choosing positions -----------------------------------------------------------------------------------------------


class Scores(I.Indexer):
    """An indexer with one head. The score of a position is the first element of its key times the
    row's weight, 1 or -1; negative scores become 0"""

    def __init__(self, scores, chosen, kv="f32", extra=()):
        super().__init__([len(scores), *extra], heads=1, dim=8, chosen=chosen, kv=kv)
        self.params["SCALE"] = 1.0
        self.q[0][:], self.k[0][:], self.w[0][:] = 0, 0, 1
        self.q[0][:, 0, 0], self.k[0][:, 0, 0] = 1, scores
        self.pool.fill(
            0,
            KV.rounded(self.k[0], kv) if np.isfinite(scores).all() else self.k[0],
            self.k[0][:, :, :0],
        )

    def best(self, pos):
        s = self.w[0][pos, 0] * np.maximum(self.k[0][: pos + 1, 0, 0].astype(np.float64), 0)
        order = np.argsort(-s, kind="stable")[: self.chosen]
        return np.sort(order)


N = 1500
PATTERNS = {
    "ties": np.full(N, 5.0),
    "ties, then higher": np.where(np.arange(N) % 1300 < 1280, 5.0, 7.0),
    "higher in the last part": np.where(np.arange(N) < N - 20, 5.0, 7.0),
    "steps": np.arange(N) // 100 + 1.0,
    "steps down": 16.0 - np.arange(N) // 100,
    "infinities": np.where(np.arange(N) % 100 == 99, np.inf, np.arange(N) % 50 + 1.0),
    "large": -np.float32(2.0**100) * (np.arange(N) % 7 - 3.0),
}


@pytest.mark.parametrize("chosen", [37, 255, 256, 257])
def test_positions(chosen):
    """Equal scores, and higher ones after them; negative weights, so that scores are large negative
    values. A row in one CTA or in several."""
    k = None
    for name, scores in (
        PATTERNS.items()
        if chosen == 37
        else [(n, PATTERNS[n]) for n in ("ties, then higher", "steps")]
    ):
        c = Scores(scores.astype(np.float32), chosen)
        k = k or H.build("index_select", "sm_90a", c.params)
        for weight in 1, -1:
            c.w[0][:] = weight
            for sms in 1, 8:
                got = c.select(k, [(0, [N - 1])], sms=sms)
                assert np.array_equal(got[0], c.best(N - 1)), (name, weight, sms)


def test_a_block_with_two_rows():
    """A row of low scores after one of high scores in the same CTA: the bar of the first must not
    apply to the second. Also a NaN in either."""
    scores = np.where(np.arange(N) < 600, 9.0, 1.0 + np.arange(N) % 5).astype(np.float32)
    c = Scores(scores, 37)
    c.w[0][N - 3 :] = [[1], [-1], [0.5]]
    rows = [(0, [N - 9, N - 8, N - 3, N - 2, N - 1])]
    k = H.build("index_select", "sm_90a", c.params)
    for sms, mode, seed in (1, "fast", 0), (2, "fast", 1), (1, "check", 2):
        got = c.select(k, rows, sms=sms, mode=mode, seed=seed)
        assert all(np.array_equal(g, c.best(p)) for g, p in zip(got, rows[0][1]))
    c.q[0][N - 3] = np.nan
    other = c.select(k, rows, sms=1)
    assert np.array_equal(np.delete(other, 2, 0), np.delete(got, 2, 0)), "NaN spreads to other rows"
    assert len(set(other[2])) == 37 and 0 <= other[2].min() and other[2].max() < N


# ---- sampling ---------------------------------------------------------------------------------------------------------


def test_top_k_around_256(cpu):
    """256 is the largest k for which the CTAs of a row make shortlists; 257 takes the other path.
    Logits are nearly flat, with ties at the threshold."""
    vocab, ks = 3000, (1, 255, 256, 257, 258, 2999)
    rows = [(k, s) for k in ks for s in range(3)]
    rng = np.random.default_rng(1)
    logits = np.round(rng.standard_normal((1, len(rows), vocab)) * 4).astype(np.float32) / 16
    logits[0, ::3] -= 400
    logits[0, 1::3, 7::11] = -np.inf
    check_samples(cpu, logits, [dict(temperature=1.0, top_k=k) for k, _ in rows])


def test_extreme_logits(cpu):
    """All ways of sampling: very negative rows, ties, an infinity. A row with NaN is reported and
    leaves the others unchanged."""
    vocab, ways = (
        1000,
        (
            dict(),
            dict(temperature=1.0),
            dict(temperature=0.7, top_k=40),
            dict(temperature=1.0, top_p=0.9),
            dict(temperature=1.5, min_p=0.02),
        ),
    )
    rng = np.random.default_rng(2)
    patterns = [
        rng.standard_normal(vocab) - 400,
        -1e30 - 1e28 * rng.standard_normal(vocab),
        np.full(vocab, -400.0),
        np.where(np.arange(vocab) % 3, -np.inf, -400.0),
        np.where(np.arange(vocab) == 531, np.inf, -400.0),
        np.where(np.isin(np.arange(vocab), (3, 700)), np.inf, 0.0),
    ]
    logits = np.array([[p for w in ways for p in patterns]], np.float32)
    cases = [w for w in ways for _ in patterns]
    want = check_samples(cpu, logits, cases)
    broken = logits.copy()
    broken[0, 1 :: len(patterns), 999] = np.nan
    got = check_samples(cpu, broken, cases)
    assert [g for o, g in enumerate(got) if o % len(patterns) != 1] == [
        w for o, w in enumerate(want) if o % len(patterns) != 1
    ]


def check_samples(cpu, logits, cases):
    """Compares ids, and whether a row can be sampled, with the CPU sampler; returns (failed, id)
    per row."""
    rows, vocab = logits.shape[1:]
    slots, want = np.zeros(rows, S.SLOT), []
    for o, case in enumerate(cases):
        slots[o]["repetition_penalty"], slots[o]["seed"] = 1, o
        for name, v in case.items():
            slots[o][name] = v
        sampler = S.Sampler(cpu, vocab, [], seed=o, **case)
        status, id_, _ = sampler.pick(logits[0, o])
        want.append((int(status != 0), 0 if status else id_))
        cpu.llmc_sampler_close(sampler.h)
    (got,) = S.sample(logits, slots, np.zeros((rows, vocab), np.int32), "fast", 0, grid=3)
    picked = got["picked"][6 % S.RING]
    found = [(int(p["status"] != 0), int(p["id"])) for p in picked]
    wrong = [(o, cases[o], f, w) for o, (f, w) in enumerate(zip(found, want)) if f != w]
    assert not wrong, wrong
    for o, case in enumerate(cases):  # greedy sampling by numpy: the lowest id of the largest logit
        if not case and not np.isnan(logits[0, o]).any():
            assert found[o] == (0, int(logits[0, o].argmax()))
    return found


# ---- maxima of rows ---------------------------------------------------------------------------------------------------


def bits(a):
    return np.ascontiguousarray(a).view(np.uint32)


@pytest.mark.parametrize(
    "template,dtype,n",
    [
        ("matmul", "bf16", 5),
        ("matmul_decode", "q4_k", 5),
        ("matmul_decode", "f16", 5),
        ("matmul_mixed", "q4_k", 20),
        ("matmul_mixed", "f16", 70),
        ("matmul_mixed", "q4_k", 70),
    ],
)
def test_rows_of_a_matmul(template, dtype, n):
    """A row of NaN, one of infinity and one of large values; the bits of other rows do not change.
    The kernels scale a row by its largest value."""
    r = np.random.default_rng(n)
    w = CW.Weights(dtype, 100, 256, scale=0.1)
    x = r.standard_normal((n, 256)).astype(np.float32)
    k = H.build(template, "sm_90a", dict(ROWS=100, COLS=256, W_DTYPE=dtype, DETERMINISTIC=0))
    run = lambda x: k.run(
        H.make_step(pos=list(range(n)), rows=[n]), [x, w.packed, None, H.out((n, 100))], seed=1
    )[0]
    want = run(x)
    broken = x.copy()
    broken[1, 3], broken[2, 200], broken[4] = np.nan, np.inf, -1e30
    got = run(broken)
    rest = [t for t in range(n) if t not in (1, 2, 4)]
    assert np.array_equal(bits(got[rest]), bits(want[rest])), "a row spreads"
    assert np.isnan(got[1]).all() and not np.isfinite(got[2]).any()
    size = np.abs(broken[4].astype(np.float64)) @ np.abs(w.value.T.astype(np.float64))
    assert (np.abs(got[4] - broken[4].astype(np.float64) @ w.value.T) < 5e-3 * size).all()


@pytest.mark.parametrize("kv", ["int8", "int4", "int6", "f8_32"])
def test_codes_of_a_cache(kv):
    """Keys and values of a row are scaled by their largest. Rows of ties, large negative values and
    zeros are those of tests/kv_types.py; NaN and infinity affect only their own position."""
    heads, dim, n = 2, 64, 40
    rng = np.random.default_rng(4)
    k, v = (rng.standard_normal((n, heads, dim)).astype(np.float32) for _ in range(2))
    for x in k, v:
        x[3], x[7], x[11] = -3, -60000 + np.arange(dim), 0
    pools = []
    for broken in False, True:
        pool = KT.Pool([n], heads, [(kv, dim), (kv, dim)], np.random.default_rng(1))
        kernel = H.build(
            "kv_append",
            "sm_90a",
            dict(KV_HEADS=heads, DIM=dim, V_DIM=dim, KV_DTYPE=kv, KV_PAGE_BYTES=pool.page_bytes),
        )
        a, b = k.copy(), v.copy()
        if broken:
            a[20, 1, 5], b[20, 0, 9], a[33, 0], b[33, 1, 1] = np.nan, np.nan, np.inf, -np.inf
        (pages,) = kernel.run(
            H.make_step(list(range(n)), [n], table=pool.table),
            [a, b, H.inout(pool.pages.copy()), None],
        )
        pools.append((pool, pages))
    pool, plain = pools[0]
    pool.fill(0, k, v)
    want = pool.pages
    assert (plain == want).mean() > 0.999
    broken = pools[1][1].reshape(-1)
    own = np.zeros(broken.shape, bool)
    for p in 20, 33:
        for at, size in pool.places(0, p):
            own[at : at + size] = True
    assert np.array_equal(broken[~own], plain.reshape(-1)[~own]), "a row spreads"
