"""Attention, appends and RoPE of the GPU target against float64, on the emulator"""

import numpy as np
import pytest

import cuda_harness as H
import cuda_kv as KV
import sass
from attention_oracle import Attention, close
from planted import plant

# by seed; newer architectures start before their inputs are written
ARCH = ["sm_75", "sm_90a", "sm_90a"]


class Case(Attention):
    """Scattered pages; NaN wherever there is no key or value."""

    def make_pool(self, rng):
        self.pool = KV.Pool(
            self.lens, self.kv_heads * self.dim, self.kv_heads * self.v_dim, self.kv, rng
        )
        self.page_bytes = self.pool.page_bytes

    def rounded(self, kv, x):
        return KV.rounded(x, kv)

    def fill(self, seq):
        self.pool.fill(seq, self.k[seq], self.v[seq])

    def run(self, kernel, rows, beyond=0, **kw):
        """rows: list of (sequence, [positions]). Returns the outputs stacked, [rows, heads, v_dim].
        beyond: bytes before the first page."""
        pages, table = self.pool.beyond(beyond) if beyond else (self.pool.pages, self.pool.table)
        pos = [p for _, ps in rows for p in ps]
        q = np.concatenate([self.q[i][ps] for i, ps in rows])
        step = H.make_step(
            pos,
            [len(ps) for _, ps in rows],
            [self.lens[i] for i, _ in rows] if self.mask != "causal" else None,
            [self.prefix[i] for i, _ in rows],
            table[[i for i, _ in rows]],
        )
        if (
            kernel.template == "attention_decode_sm80"
        ):  # reads data older than the step before its wait
            own = [
                (1, at, n) for i, ps in rows for at, n in self.pool.places(i, ps[0], self.kv_heads)
            ]
            kw = dict(dict(early=own if len(own) < 40 and not beyond else [(1, 0, 0)]), **kw)
        return kernel.run(
            step, [q, pages, None, self.sink, H.out((len(pos), self.heads, self.v_dim))], **kw
        )[-1]


LENS = [1, 31, 32, 33, 64, 255, 256, 257]
CASES = {
    "gqa": dict(lens=LENS),
    "bf16": dict(lens=[5, 300], heads=8, kv_heads=2, dim=128, kv="bf16"),
    "mqa": dict(lens=[33, 129], heads=8, kv_heads=1, dim=80, kv="f32"),
    "mha24": dict(lens=[5, 257], heads=1, kv_heads=1, dim=24, window=40),
    "d128": dict(lens=[31, 260], heads=14, kv_heads=2, dim=128, v_dim=64, cap=30.0, spread=2.0),
    "odd": dict(lens=[7, 130], heads=5, kv_heads=1, dim=20, v_dim=12, window=129),
    "none8": dict(lens=[40], heads=2, kv_heads=2, dim=13, v_dim=7, kv="bf16"),
    "alibi": dict(lens=[64, 300], heads=6, kv_heads=6, dim=32, alibi=8.0, part=(5, 12)),
    "chunks": dict(lens=[5, 130], heads=6, kv_heads=2, dim=20, window=33, chunk=1),
    "none": dict(lens=[1, 40, 300], heads=9, kv_heads=9, dim=8, mask="none"),
    "around": dict(lens=[5, 130], heads=4, kv_heads=2, dim=20, mask="none", window=33),
    "prefix": dict(lens=[40, 300], heads=4, kv_heads=2, dim=32, mask="prefix", prefix=[17, 200]),
    "falcon": dict(lens=[9, 140], heads=71, kv_heads=1, dim=64),
    "low": dict(lens=[40, 257], heads=4, kv_heads=2, dim=64, low=400.0),
    "sinks": dict(lens=[40, 130], heads=8, kv_heads=2, dim=20, window=33, sinks=True),
    "capwin": dict(
        lens=[400], heads=4, kv_heads=1, dim=256, cap=50.0, window=300, scale=0.1, kv="f32"
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,mode,seed",
    H.always(
        [
            (n, *r)
            for n in CASES
            for r in H.RUNS
            if r[1] == 0 or n in ("gqa", "odd", "prefix", "bf16")
        ],
        "low",
    ),
)
def test_portable(name, mode, seed):
    """Decode and prefill rows in one step"""
    c = Case(**CASES[name])
    k = H.build("attention", ARCH[seed], c.params)
    tol = (
        3e-4 if name == "low" else 2e-5
    )  # a score of 400 has a rounding error of 1.5e-5, which becomes a relative error of the exponential
    rows = [
        (i, sorted({0, 1, 30, 31, 32, n // 2, n - 2, n - 1} & set(range(n))))
        if i % 2
        else (i, [n - 1])
        for i, n in enumerate(c.lens)
    ]
    if mode == "check":
        rows = [(i, ps[-2:]) for i, ps in rows[-2:]]
    want = np.concatenate([c.want(i, ps) for i, ps in rows])
    got = c.run(k, rows, mode=mode, seed=seed)
    close(got, want, tol)
    if seed == 1:  # one row alone
        i, ps = rows[-1]
        assert np.array_equal(got[-1:], c.run(k, [(i, ps[-1:])], bucket=3))


DECODE = {
    "gqa": dict(lens=LENS),
    "llama": dict(lens=[600], heads=8, kv_heads=2, dim=128, kv="bf16"),
    "d80": dict(lens=[1, 129, 40], heads=4, kv_heads=2, dim=80, v_dim=72, kv="f16"),
    "d256": dict(
        lens=[300], heads=4, kv_heads=1, dim=256, cap=50.0, window=200, scale=0.1, kv="bf16"
    ),
    "falcon": dict(lens=[9, 140], heads=71, kv_heads=1, dim=64, kv="bf16"),
    "alibi": dict(lens=[64, 300], heads=6, kv_heads=6, dim=32, alibi=8.0),
    "chunks": dict(lens=[5, 257, 200, 600], heads=6, kv_heads=2, dim=64, window=100, chunk=1),
    "window": dict(lens=[5, 257, 31, 600], heads=6, kv_heads=2, dim=64, window=40),
    "prefix": dict(
        lens=[40, 300], heads=4, kv_heads=2, dim=32, mask="prefix", prefix=[17, 200], kv="bf16"
    ),
    "v_dim": dict(lens=[31, 260], heads=14, kv_heads=2, dim=128, v_dim=64, cap=30.0, spread=2.0),
    "wide": dict(lens=[70], heads=16, kv_heads=1, dim=192, v_dim=128, kv="f16"),
    "low": dict(lens=[40, 600], heads=8, kv_heads=2, dim=64, low=400.0, kv="bf16"),
    "sinks": dict(lens=[5, 600, 300], heads=16, kv_heads=2, dim=64, kv="bf16", sinks=True),
    "many": dict(
        lens=[(7 * i) % 90 + 1 for i in range(40)], heads=4, kv_heads=2, dim=16, kv="bf16"
    ),
}


def decode_tests():
    """All cases in fast mode on one of the variants; cases with different control flow in checking
    mode too"""
    for name in DECODE:
        for template, arch in (
            ("attention_decode", "sm_75"),
            ("attention_decode_sm80", "sm_86"),
            ("attention_decode_sm80", "sm_90a"),
        ):
            if arch == "sm_90a" and name not in ("gqa", "window"):
                continue
            for mode, seed in H.RUNS:
                if (
                    seed == 0
                    or name in ("d80", "window", "prefix")
                    or template.endswith("80")
                    and name in ("gqa", "d256", "many")
                ):
                    yield template, arch, name, mode, seed


@pytest.mark.sample(8)
@pytest.mark.parametrize("template,arch,name,mode,seed", H.always(decode_tests(), "low", "many"))
def test_decode(template, arch, name, mode, seed):
    """Each sequence has one row; the grids divide the positions differently"""
    c = Case(**DECODE[name])
    k = H.build(template, arch, c.params)
    tol = 3e-4 if name == "low" else 2e-5
    rows = c.last() if mode == "fast" else c.last()[-3:]
    want = np.concatenate([c.want(i, ps) for i, ps in rows])
    got = c.run(k, rows, mode=mode, seed=seed)
    close(got, want, tol)
    if mode == "fast":
        sms = 23 if seed else 1
        other = c.run(k, rows, seed=seed, sms=sms, bucket=len(rows) + 2)
        close(other, want, tol)
        if name == "gqa":
            assert np.array_equal(other, c.run(k, rows, seed=seed + 2, sms=sms))


@pytest.mark.parametrize(
    "template,arch", [("attention_decode", "sm_75"), ("attention_decode_sm80", "sm_86")]
)
def test_decode_large(template, arch):
    """Neither scores of hundreds nor large queries overflow; equal scores give the mean."""
    c = Case([300, 40], heads=2, kv_heads=1, dim=16, spread=20.0)
    k = H.build(template, arch, c.params)
    close(c.run(k, c.last()), np.concatenate([c.want(i, ps) for i, ps in c.last()]), 1e-3)
    c.q[0][:] = 0
    c.q[1][:] = 9e4
    c.k[1][:] = c.k[1][:1]
    c.pool.fill(1, c.k[1], c.v[1])
    close(c.run(k, c.last()), np.concatenate([c.want(i, ps) for i, ps in c.last()]), 1e-4)


def dealt(c, sms):
    """Return the schedule of attention_decode_sm80 (att_schedule): CTAs per unit (0: a CTA gets a
    run of the unit list), and warps per team"""
    lo = [max(n - c.window, 0) if c.window else 0 for n in c.lens]
    tiles = [(n - 1) // 16 - a // 16 + 1 for n, a in zip(c.lens, lo)]
    each = c.kv_heads * -(-(c.heads // c.kv_heads) // 8)
    units, most, most_teams = (
        len(tiles) * each,
        max(tiles),
        1 if c.rotate else 4 if c.dim <= 128 else 2,
    )
    warps = (
        8 if units <= sms or most_teams == 1 else 4 if units <= 2 * sms or most_teams == 2 else 2
    )
    parts = min(sms // units, -(-most // 8)) if units <= sms and most > 24 else 1
    turns = -(-units // (sms * (8 // warps))) * (
        (most + parts * warps - 1) // (parts * warps) + 2
    ) + 2 * (parts > 1)
    even = sum(tiles) * each // (8 * sms)
    return (0, 8) if turns > even + even // 8 + 2 * (units // sms + 1) + 4 else (parts, warps)


DEALT = {
    "one": (4, (1, 8), dict(lens=[40])),
    "two": (4, (1, 4), dict(lens=[33, 7], dim=128)),
    "nine": (9, (1, 2), dict(lens=[(11 * i) % 50 + 1 for i in range(9)], dim=80)),
    "wide": (
        23,
        (1, 4),
        dict(lens=[(7 * i) % 60 + 1 for i in range(33)], heads=2, kv_heads=1, dim=256, kv="bf16"),
    ),
    "turns": (23, (1, 2), dict(lens=[(5 * i) % 50 + 1 for i in range(64)], window=40, sinks=True)),
    "turn": (19, (1, 8), dict(lens=[300, 20, 370], heads=18, kv_heads=2, v_dim=192)),
    "parts": (8, (4, 8), dict(lens=[700], heads=16, kv_heads=2, kv="bf16")),
    "unlike": (
        26,
        (4, 8),
        dict(lens=[700, 100, 450], heads=9, kv_heads=1, dim=32, cap=30.0),
    ),  # 9 heads are two units
    "runs": (3, (0, 8), dict(lens=[700, 1, 20, 33, 60, 17], heads=4, kv_heads=2, dim=32)),
}


@pytest.mark.parametrize("name,mode,seed", [(n, *r) for n in DEALT for r in H.RUNS])
def test_decode_schedules(name, mode, seed):
    """Covers all schedules: several units per CTA, in sequence or concurrently; one unit per CTA;
    units split over CTAs; runs of the unit list"""
    sms, how, case = DEALT[name]
    c = Case(**case)
    assert dealt(c, sms) == how
    k = H.build("attention_decode_sm80", "sm_90a", c.params)
    rows = c.last()
    want = np.concatenate([c.want(i, ps) for i, ps in rows])
    got = c.run(k, rows, mode=mode, seed=seed, sms=sms)
    close(got, want)
    if mode == "fast":  # bit-identical with a grid for more rows
        assert np.array_equal(got, c.run(k, rows, seed=seed + 2, sms=sms, bucket=len(rows) + 2))


@pytest.mark.findings
@pytest.mark.parametrize(
    "name,barrier,after",
    [
        ("turns", "team.sync();", "att_begin<S>(g, team, s, from);"),
        ("nine", "__syncwarp();", "att_merge<S>(args, s, team, o, m, l);"),
        (
            "parts",
            "team.sync();",
            "att_combine<S>(g, out, s.top, s.sum, &s.last, (float *)s.warp);",
        ),
        ("two", "team.sync();", "att_decode_segment<S>(step, a, g, s, team, from);"),
    ],
)
def test_decode_barriers(name, barrier, after):
    """The check finds each barrier that is removed."""
    H.only_emulated()
    sms, _, case = DEALT[name]
    c = Case(**case)
    k = H.build("attention_decode_sm80", "sm_90a", c.params)
    k.text = plant(k.text, barrier + after, after)
    with pytest.raises(H.Finding, match="not ordered|race|unwritten"):
        c.run(k, c.last(), mode="check", seed=2, sms=sms)


EARLY = "(g.tile + team.member + 1) * S::TILE <= g.pos"


@pytest.mark.parametrize("planted", [False, pytest.param(True, marks=pytest.mark.findings)])
@pytest.mark.parametrize("lens", [[300, 65], [33]])
def test_decode_loads_before_the_wait(lens, planted):
    """K and V older than the step are read before the preceding kernel has ended; the step's own
    position is not."""
    c = Case(lens, heads=4, kv_heads=2, dim=64)
    k = H.build("attention_decode_sm80", "sm_90a", c.params)
    wrong = plant(k.text, EARLY, "true")
    if planted:
        H.only_emulated()
        k.text = wrong
        with pytest.raises(H.Finding, match="not ordered|race|before"):
            c.run(k, c.last(), mode="check", seed=2)
        return
    want = np.concatenate([c.want(i, ps) for i, ps in c.last()])
    for mode, seed in H.RUNS:
        close(c.run(k, c.last(), mode=mode, seed=seed), want, 2e-5)


# bytes before the pages of a pool, so that offsets in elements exceed 31 bits and offsets in bytes
# 32 bits
FAR = 9 << 30


@pytest.mark.parametrize(
    "template,arch,kv",
    [
        ("attention", "sm_75", "f16"),
        ("attention_decode", "sm_75", "bf16"),
        ("attention_decode_sm80", "sm_90a", "bf16"),
    ],
)
def test_a_large_pool(template, arch, kv):
    c = Case([40, 70], heads=4, kv_heads=2, dim=64, kv=kv)
    want = np.concatenate([c.want(i, ps) for i, ps in c.last()])
    close(c.run(H.build(template, arch, c.params), c.last(), FAR), want)


def test_appends_to_a_large_pool():
    rng = np.random.default_rng(1)
    pool = KV.Pool([40], 3 * 64, 3 * 64, "f16", rng)
    k, v = (rng.standard_normal((40, 3, 64)).astype(np.float32) for _ in range(2))
    pages, table = pool.beyond(FAR)
    kernel = H.build(
        "kv_append",
        "sm_75",
        dict(KV_HEADS=3, DIM=64, V_DIM=64, KV_DTYPE="f16", KV_PAGE_BYTES=pool.page_bytes),
    )
    (got,) = kernel.run(H.make_step(list(range(40)), [40], table=table), [k, v, pages, None])
    pool.fill(0, KV.rounded(k, "f16"), KV.rounded(v, "f16"))
    assert np.array_equal(got, pool.pages)
    pool = KV.Pool([40], 32, 0, "f16", rng)
    c, r = (rng.standard_normal((40, d)).astype(np.float32) for d in (24, 8))
    pages, table = pool.beyond(FAR)
    kernel = H.build(
        "mla_append",
        "sm_75",
        dict(KV_RANK=24, ROPE_DIM=8, KV_DTYPE="f16", KV_PAGE_BYTES=pool.page_bytes),
    )
    (got,) = kernel.run(H.make_step(list(range(40)), [40], table=table), [c, r, pages, None])
    row = KV.rounded(np.concatenate([c, r], 1), "f16")[:, None]
    pool.fill(0, row, row[:, :, :0])
    assert np.array_equal(got, pool.pages)


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize("kv,dim,v_dim", [("f16", 64, 64), ("bf16", 20, 12), ("f32", 7, 9)])
def test_kv_append(kv, dim, v_dim, mode, seed):
    rng = np.random.default_rng(1)
    heads, lens = 3, [1, 32, 40]
    pool = KV.Pool(lens, heads * dim, heads * v_dim, kv, rng)
    k, v = (rng.standard_normal((sum(lens), heads, d)).astype(np.float32) * 3 for d in (dim, v_dim))
    k[3, 1, 2] = 7e4  # above the largest half
    kernel = H.build(
        "kv_append",
        ARCH[seed],
        dict(KV_HEADS=heads, DIM=dim, V_DIM=v_dim, KV_DTYPE=kv, KV_PAGE_BYTES=pool.page_bytes),
    )
    step = H.make_step([p for n in lens for p in range(n)], lens, table=pool.table)
    (got,) = kernel.run(step, [k, v, H.inout(pool.pages), None], mode=mode, seed=seed)
    at = 0
    for i, n in enumerate(lens):
        pool.fill(i, KV.rounded(k[at : at + n], kv), KV.rounded(v[at : at + n], kv))
        at += n
    assert np.array_equal(got.view(np.uint8), pool.pages.view(np.uint8))


@pytest.mark.sample(3)
@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize("kv", ["f16", "bf16"])
def test_mla_append(kv, mode, seed):
    rng = np.random.default_rng(1)
    rank, rope, lens = 24, 8, [3, 33]
    pool = KV.Pool(lens, rank + rope, 0, kv, rng)
    c, r = (rng.standard_normal((sum(lens), d)).astype(np.float32) for d in (rank, rope))
    kernel = H.build(
        "mla_append",
        ARCH[seed],
        dict(KV_RANK=rank, ROPE_DIM=rope, KV_DTYPE=kv, KV_PAGE_BYTES=pool.page_bytes),
    )
    step = H.make_step([p for n in lens for p in range(n)], lens, table=pool.table)
    (got,) = kernel.run(step, [c, r, H.inout(pool.pages), None], mode=mode, seed=seed)
    row = KV.rounded(np.concatenate([c, r], 1), kv)[:, None]
    pool.fill(0, row[:3], row[:3, :, :0])
    pool.fill(1, row[3:], row[3:, :, :0])
    assert np.array_equal(got.view(np.uint8), pool.pages.view(np.uint8))


def rotate(x, table, style):
    """Rotate x [rows, heads, R] by table [rows, R]: complex multiplication of the pairs"""
    r = x.shape[-1]
    angle = (table[:, : r // 2] + 1j * table[:, r // 2 :]).astype(np.complex128)[:, None]
    z = (
        x[..., 0::2] + 1j * x[..., 1::2]
        if style == "interleaved"
        else x[..., : r // 2] + 1j * x[..., r // 2 :]
    )
    z = z * angle
    out = np.empty(x.shape)
    if style == "interleaved":
        out[..., 0::2], out[..., 1::2] = z.real, z.imag
    else:
        out[..., : r // 2], out[..., r // 2 :] = z.real, z.imag
    return out


def angles(rng, n, dims):
    a = rng.standard_normal((n, dims // 2)) * 10
    return np.concatenate([np.cos(a), np.sin(a)], 1).astype(np.float32)


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(
    "heads,dim,first,dims", [(3, 64, 0, 64), (2, 80, 0, 32), (5, 24, 16, 8), (1, 7, 2, 4)]
)
def test_rope(heads, dim, first, dims, style, mode, seed):
    rng = np.random.default_rng(0)
    x, table = rng.standard_normal((7, heads, dim)).astype(np.float32), angles(rng, 7, dims)
    k = H.build(
        "rope", ARCH[seed], dict(HEADS=heads, DIM=dim, FIRST=first, ROPE_DIMS=dims, STYLE=style)
    )
    want = x.astype(np.float64)
    want[..., first : first + dims] = rotate(want[..., first : first + dims], table, style)
    step = H.make_step(list(range(7)), [7])
    for args in ([x, table, H.out(x.shape)], [H.inout(x), table, H.alias(0)]):
        (got,) = k.run(step, args, mode=mode, seed=seed)
        assert np.abs(got - want).max() < 1e-6


@pytest.mark.sample(3)
@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("heads,dim,dims", [(3, 64, 32), (2, 20, 6)])
def test_rope_2d(heads, dim, dims, style, mode, seed):
    rng = np.random.default_rng(0)
    x, a, b = (
        rng.standard_normal((5, heads, dim)).astype(np.float32),
        angles(rng, 5, dims),
        angles(rng, 5, dims),
    )
    k = H.build("rope_2d", ARCH[seed], dict(HEADS=heads, DIM=dim, ROPE_DIMS=dims, STYLE=style))
    want = x.astype(np.float64)
    want[..., :dims] = rotate(want[..., :dims], a, style)
    want[..., dim // 2 : dim // 2 + dims] = rotate(want[..., dim // 2 : dim // 2 + dims], b, style)
    step = H.make_step(list(range(5)), [5])
    for args in ([x, a, b, H.out(x.shape)], [H.inout(x), a, b, H.alias(0)]):
        (got,) = k.run(step, args, mode=mode, seed=seed)
        assert np.abs(got - want).max() < 1e-6


def test_nvrtc():
    """Kernels with the parameters of real models compile without spills and warnings."""
    for template, heads, kv_heads, dim, kv, archs in (
        ("attention_decode_sm80", 32, 8, 128, "bf16", ["sm_90a", "sm_100a"]),
        ("attention_decode_sm80", 32, 8, 128, "f16", ["sm_80"]),
        ("attention_decode_sm80", 8, 4, 256, "bf16", ["sm_86"]),
        ("attention_decode", 32, 8, 128, "bf16", ["sm_75"]),
        ("attention_decode", 8, 1, 256, "f32", ["sm_120a"]),
        ("attention", 32, 8, 128, "f32", ["sm_80"]),
    ):
        p = dict(
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=dim,
            V_DIM=dim,
            SCALE=0.1,
            SOFTCAP=50.0 * (dim == 256),
            WINDOW=0,
            MASK="causal",
            ALIBI=0.0,
            KV_DTYPE=kv,
            KV_PAGE_BYTES=64 * dim * kv_heads * (4 if kv == "f32" else 2),
        )
        if H.nvrtc(template, p, archs) is None:
            pytest.skip("no libnvrtc")


def test_sass():
    """Loads of K and V of a tile are issued before any mma; loads of tiles older than the step are
    issued before the PDL wait."""
    p = dict(
        HEADS=32,
        KV_HEADS=8,
        DIM=128,
        V_DIM=128,
        SCALE=0.1,
        SOFTCAP=0.0,
        WINDOW=0,
        MASK="causal",
        ALIBI=0.0,
        KV_DTYPE="bf16",
        KV_PAGE_BYTES=131072,
    )
    made = H.nvrtc("attention_decode_sm80", p, ["sm_90a"])
    found = sass.functions(made[0]["cubin"]) if made else None
    if found is None:
        pytest.skip("no libnvrtc or no disassembler")
    (s,) = found.values()
    first = s.first("HMMA")
    asked, wait = (
        s.where("LDGSTS"),
        s.where("ACQBULK")[-1],
    )  # the first exit is for CTAs without work
    assert len([i for i in asked if i < first]) == 32 and s.count("LDL", "STL") == 0
    # half of the loads are for tiles older than the step; queries and the step's own rows come
    # after the wait
    assert (
        wait < s.first("PREEXIT")
        and len([i for i in asked if i < wait]) == 16
        and wait < s.first("STG")
    )
