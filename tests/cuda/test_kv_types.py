"""Quantised keys and values on GPUs, on the emulator: rows equal those of tests/kv_types.py to the
byte; attention reads the same numbers."""

import numpy as np
import pytest

import cuda_harness as H
import cuda_kv as KV
import kv_types as K
import test_qkv as Q
from attention_oracle import Attention, close
from planted import plant

ARCH = ["sm_75", "sm_90a", "sm_90a"]


class Pool:
    """Pages of bytes in a scattered order. planes: (type, dim) of keys and of values"""

    def __init__(self, lens, heads, planes, rng):
        self.heads, self.planes = heads, planes
        self.bytes = [heads * H.PAGE * K.row_bytes(t, d) for t, d in planes]
        n = [-(-x // H.PAGE) for x in lens]
        order = rng.permutation(sum(n) + 2)
        self.table = np.full((len(lens), max(n)), 0, np.int64)
        at = 0
        for i, x in enumerate(n):
            self.table[i, :x] = order[at : at + x]
            at += x
        self.page_bytes = sum(self.bytes)
        self.pages = np.full((sum(n) + 2, self.page_bytes), 0xFF, np.uint8)

    def places(self, seq, pos):
        """(first byte, bytes) of the data of position pos in the pages"""
        at = int(self.table[seq, pos // H.PAGE]) * self.page_bytes
        for (t, d), size in zip(self.planes, self.bytes):
            for h in range(self.heads):
                n = K.row_bytes(t, d)
                for first, bytes_ in (
                    [(pos % H.PAGE * n, n)] if K.plain(t) else K.spans(t, d, pos % H.PAGE)
                ):
                    yield at + h * H.PAGE * n + first, bytes_
            at += size

    def fill(self, seq, k, v, first=0):
        """float rows [n, heads, dim] at positions first ..; other positions of their pages become
        0xff"""
        rows = [K.encode(t, x) for (t, _), x in zip(self.planes, (k, v))]
        n = len(k)
        for p in range(first // H.PAGE, -(-(first + n) // H.PAGE)):
            lo, hi = max(first, p * H.PAGE), min(first + n, (p + 1) * H.PAGE)
            at = 0
            for (t, d), r, size in zip(self.planes, rows, self.bytes):
                part = []
                for a in r:
                    if a is not None:
                        whole = (
                            np.frombuffer(b"\xff" * (H.PAGE * a[0].nbytes), a.dtype)
                            .reshape(H.PAGE, *a.shape[1:])
                            .copy()
                        )
                        if a is r.code and t in ("int6", "int4"):
                            whole[...] = 63 if t == "int6" else 15
                        whole[lo - p * H.PAGE : hi - p * H.PAGE] = a[lo - first : hi - first]
                        a = whole
                    part.append(a)
                self.pages[self.table[seq, p], at : at + size] = K.plane(
                    t, K.Rows(*part), d, False
                ).reshape(-1)
                at += size


class Case(Attention):
    def make_pool(self, rng):
        self.store = Pool(
            self.lens, self.kv_heads, [(self.kv, self.dim), (self.kv_v, self.v_dim)], rng
        )
        self.page_bytes = self.store.page_bytes
        self.plain = []

    def rounded(self, kv, x):
        x = x.astype(np.float32)
        self.plain.append(K.turn(x) if self.rotate and not K.plain(kv) else x)
        return K.kept(kv, x, self.rotate)

    def fill(self, seq):
        self.store.fill(seq, self.plain[seq], self.plain[len(self.lens) + seq])

    def run(self, kernel, rows, **kw):
        q = np.concatenate([self.q[i][ps] for i, ps in rows])
        step = H.make_step(
            [p for _, ps in rows for p in ps],
            [len(ps) for _, ps in rows],
            [self.lens[i] for i, _ in rows] if self.mask != "causal" else None,
            [self.prefix[i] for i, _ in rows],
            self.store.table[[i for i, _ in rows]],
        )
        if (
            kernel.template == "attention_decode_sm80"
        ):  # before its wait it may read only data from before the previous step
            own = [(1, at, n) for i, ps in rows for at, n in self.store.places(i, ps[0])]
            kw = dict(dict(early=own if len(own) < 40 else [(1, 0, 0)]), **kw)
        return kernel.run(
            step,
            [q, self.store.pages, None, self.sink, H.out((len(q), self.heads, self.v_dim))],
            **kw,
        )[-1]


class Near(Attention):
    """Rows that read the last `recent` and the first `kept` positions from exact pages, which have
    their own numbers, here negative: they are stored before the other pages."""

    def __init__(self, lens, recent=0, kept=0, **kw):
        self.recent, self.kept = recent, kept
        super().__init__(lens, **kw)
        self.params |= dict(KV_RECENT=recent, KV_SINKS=kept, KV_WINDOWED=0)

    def make_pool(self, rng):
        types = (self.kv, self.dim), (self.kv_v, self.v_dim)
        exact = [(K.exact(t), d) for t, d in types]
        self.page_bytes, self.exact_bytes = (
            sum(self.kv_heads * H.PAGE * K.row_bytes(t, d) for t, d in p) for p in (types, exact)
        )
        pages = [-(-n // H.PAGE) for n in self.lens]
        n, most = sum(pages) + 2, max(pages)
        behind = -(-n * self.page_bytes // self.exact_bytes)
        self.pages = np.full((behind + n) * self.exact_bytes, 0xFF, np.uint8)
        self.table = np.full((len(pages), 2 * most), 1 << 20, np.int64)
        far, near = rng.permutation(n), rng.permutation(n)
        for i, p in enumerate(pages):
            at = sum(pages[:i])
            self.table[i, :p], self.table[i, most : most + p] = (
                far[at : at + p],
                -1 - behind - near[at : at + p],
            )
        self.rows, self.near, self.raw = [], [], []

    def rounded(self, kv, x):
        x = x.astype(np.float32)
        y = K.turn(x) if self.rotate and K.turns(kv) else x
        self.raw.append(x)
        self.rows.append((kv, x.shape[-1], y))
        self.near.append(K.kept_exact(kv, x, self.rotate))
        return K.kept(kv, x, self.rotate)

    def seen(self, seq, p):
        k, v = super().seen(seq, p)
        at = np.arange(len(k))
        near = ((at < self.kept) | (p - at < self.recent))[:, None, None]
        return np.where(near, self.near[seq], k), np.where(near, self.near[len(self.lens) + seq], v)

    def fill(self, seq):
        n, most = self.lens[seq], self.table.shape[1] // 2
        for p in range(-(-n // H.PAGE)):
            rows = slice(p * H.PAGE, min(n, (p + 1) * H.PAGE))
            for exact in (False, True):
                number = int(self.table[seq, most * exact + p])
                at = -(number + 1) * self.exact_bytes if exact else number * self.page_bytes
                for kv, dim, y in (self.rows[seq], self.rows[len(self.lens) + seq]):
                    kv = K.exact(kv) if exact else kv
                    size = self.kv_heads * H.PAGE * K.row_bytes(kv, dim)
                    here = np.full(
                        (H.PAGE, self.kv_heads, dim), np.nan if K.plain(kv) else 0, np.float32
                    )
                    here[: rows.stop - rows.start] = y[rows]
                    r = K.encode(kv, here)
                    if not K.by_channel(kv):
                        self.pages[at : at + size] = K.plane(kv, r, dim, False).reshape(-1)
                    elif rows.stop - rows.start == H.PAGE:
                        self.pages[at : at + size] = K.plane_by_channel(
                            r.code, r.scale[0], r.zero[0], gpu=True
                        ).reshape(-1)
                    at += size

    def run(self, kernel, rows, **kw):
        q = np.concatenate([self.q[i][ps] for i, ps in rows])
        step = H.make_step(
            [p for _, ps in rows for p in ps],
            [len(ps) for _, ps in rows],
            None,
            None,
            self.table[[i for i, _ in rows]],
        )
        return kernel.run(
            step, [q, self.pages, None, self.sink, H.out((len(q), self.heads, self.v_dim))], **kw
        )[-1]


CASES = {
    "int8": dict(lens=[1, 33, 130], heads=9, kv_heads=3, dim=64, kv="int8"),
    "f8": dict(lens=[40, 70], heads=2, kv_heads=2, dim=80, kv="f8", window=40),
    "int6": dict(lens=[31, 70], heads=8, kv_heads=1, dim=128, v_dim=64, kv="int6"),
    "int4": dict(
        lens=[5, 100],
        heads=4,
        kv_heads=2,
        dim=80,
        v_dim=48,
        kv="int4",
        mask="prefix",
        prefix=[3, 60],
    ),
    "k6v4": dict(lens=[70], heads=6, kv_heads=2, dim=96, kv="int6", kv_v="int4"),
    "k16v8": dict(lens=[40], heads=3, kv_heads=1, dim=64, kv="f16", kv_v="int8"),
    "turned": dict(
        lens=[33, 130], heads=9, kv_heads=3, dim=128, v_dim=64, kv="int8", kv_v="int4", rotate=True
    ),
    "turned16": dict(
        lens=[70], heads=4, kv_heads=2, dim=48, v_dim=80, kv="int6", rotate=True, window=50
    ),
    "int8x32": dict(lens=[70], heads=6, kv_heads=2, dim=80, v_dim=48, kv="int8_32", kv_v="f8_32"),
    "turnedv": dict(lens=[40], heads=3, kv_heads=1, dim=64, kv="f16", kv_v="int8", rotate=True),
}
ODD = {
    "odd8": dict(lens=[7, 70], heads=5, kv_heads=1, dim=20, v_dim=12, kv="int8"),
    "odd6": dict(lens=[40], heads=2, kv_heads=2, dim=13, v_dim=7, kv="int6"),
    "odd4": dict(lens=[40], heads=3, kv_heads=1, dim=20, v_dim=36, kv="int4"),
    "turned4": dict(lens=[40, 70], heads=5, kv_heads=1, dim=20, v_dim=12, kv="int4", rotate=True),
    "k32v4": dict(lens=[40], heads=3, kv_heads=1, dim=32, kv="f32", kv_v="int4"),
}


def some(c, mode):
    rows = [
        (i, sorted({0, 1, 31, 32, n // 2, n - 2, n - 1} & set(range(n)))) if i % 2 else (i, [n - 1])
        for i, n in enumerate(c.lens)
    ]
    return [(i, ps[-2:]) for i, ps in rows[-2:]] if mode == "check" else rows


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,mode,seed", [(n, *r) for n in {**CASES, **ODD} for r in H.RUNS if r[1] == 0]
)
def test_portable(name, mode, seed):
    c = Case(**(CASES | ODD)[name])
    rows = some(c, mode)
    close(
        c.run(H.build("attention", ARCH[seed], c.params), rows, mode=mode, seed=seed),
        np.concatenate([c.want(i, ps) for i, ps in rows]),
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,mode,seed",
    [(n, *r) for n in {**CASES, **ODD} for r in H.RUNS if r[1] == 0 or n == "int8"],
)
def test_decode(name, mode, seed):
    c = Case(**(CASES | ODD)[name])
    rows = c.last()
    close(
        c.run(H.build("attention_decode", ARCH[seed], c.params), rows, mode=mode, seed=seed),
        np.concatenate([c.want(i, ps) for i, ps in rows]),
    )


NEAR = {
    "int4c": dict(
        lens=[1, 33, 130],
        heads=9,
        kv_heads=3,
        dim=64,
        kv="int4c",
        kv_v="int4",
        rotate=True,
        recent=32,
    ),
    "sinks": dict(
        lens=[40, 200],
        heads=4,
        kv_heads=2,
        dim=80,
        v_dim=48,
        kv="int4c",
        kv_v="f16",
        recent=40,
        kept=5,
        sinks=True,
    ),
    "int4": dict(
        lens=[70, 131],
        heads=5,
        kv_heads=1,
        dim=128,
        v_dim=64,
        kv="int4",
        rotate=True,
        recent=16,
        kept=3,
    ),
    "kept": dict(lens=[100], heads=4, kv_heads=4, dim=32, kv="int8", kept=33, window=90),
    "odd": dict(
        lens=[7, 70], heads=5, kv_heads=1, dim=20, v_dim=12, kv="int4c", kv_v="int6", recent=33
    ),
    "k32v4": dict(
        lens=[70], heads=3, kv_heads=1, dim=32, kv="f32", kv_v="int4", rotate=True, recent=7, kept=1
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "template,name,mode,seed",
    [
        (t, n, *r)
        for n in NEAR
        for t in ("attention", "attention_decode")
        for r in H.RUNS
        if r[1] == 0 or n == "int4c"
    ],
)
def test_exact_pages(template, name, mode, seed):
    """Positions near a row, and the first ones, are read unquantised; no tensor core kernel accepts
    such pages."""
    c = Near(**NEAR[name])
    rows = some(c, mode) if template == "attention" else c.last()
    close(
        c.run(H.build(template, ARCH[seed], c.params), rows, mode=mode, seed=seed),
        np.concatenate([c.want(i, ps) for i, ps in rows]),
    )
    for other in "attention_decode_sm80", "attention_mixed_sm80":
        assert not H.expand(other, "sm_80", c.params)


def test_exact_pages_by_nvrtc():
    """No spill, no warning, with dimensions of real models"""
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
        KV_K="int4c",
        KV_V="int4",
        KV_ROTATE=1,
        KV_RECENT=128,
        KV_SINKS=32,
        KV_WINDOWED=0,
        KV_PAGE_BYTES=8 * H.PAGE * 2 * K.row_bytes("int4", 128),
    )
    for template, arch in (
        ("attention", "sm_80"),
        ("attention_decode", "sm_90a"),
        ("kv_append", "sm_75"),
        ("kv_quantize_page", "sm_120a"),
    ):
        if H.nvrtc(template, p, [arch]) is None:
            pytest.skip("no libnvrtc")


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize(
    "kv,kv_v,dim,v_dim,rotate,recent",
    [
        ("int4c", "int4", 80, 64, 1, 32),
        ("int8", "f32", 20, 36, 1, 8),
        ("f16", "int6", 36, 20, 0, 1),
    ],
)
def test_append_and_close(kv, kv_v, dim, v_dim, rotate, recent, mode, seed):
    """Rows are stored in exact pages as well, rotated if their type is; a page of per-channel keys
    is quantised from them when its last row is stored."""
    c = Near(
        [33, 64, 5],
        recent,
        heads=3,
        kv_heads=3,
        dim=dim,
        v_dim=v_dim,
        kv=kv,
        kv_v=kv_v,
        rotate=bool(rotate),
    )
    want, p = c.pages, c.params | dict(KV_K=kv, KV_V=kv_v, KV_ROTATE=rotate)
    k, v = c.raw[:3], c.raw[3:]
    step = H.make_step([i for n in c.lens for i in range(n)], c.lens, None, None, c.table)
    (pages,) = H.build("kv_append", ARCH[seed], p).run(
        step,
        [np.concatenate(k), np.concatenate(v), H.inout(np.full_like(want, 0xFF)), None],
        mode=mode,
        seed=seed,
    )
    if kv == "int4c":
        (pages,) = H.build("kv_quantize_page", ARCH[seed], p).run(
            step, [H.inout(pages), None, None], mode=mode, seed=seed
        )
    for seq, n in enumerate(c.lens):
        for i in range(-(-n // H.PAGE)):
            full = n >= (i + 1) * H.PAGE
            for exact in (False, True):
                number = int(c.table[seq, c.table.shape[1] // 2 * exact + i])
                at = -(number + 1) * c.exact_bytes if exact else number * c.page_bytes
                size = c.exact_bytes if exact else c.page_bytes
                if full:  # in partial pages, bytes after the last position differ
                    assert np.array_equal(pages[at : at + size], want[at : at + size]), (
                        seq,
                        i,
                        exact,
                    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name,mode,seed", [(n, *r) for n in CASES for r in H.RUNS if r[1] == 0 or n == "int8"]
)
def test_flash(name, mode, seed):
    """Dequantised values are rounded to f16 for the tensor cores, like queries and weights."""
    c = Case(**CASES[name])
    c.q = [KV.rounded(q, "f16").astype(np.float32) for q in c.q]
    rows = (
        [(i, list(range(n))) for i, n in enumerate(c.lens)]
        if mode != "check"
        else [(len(c.lens) - 1, list(range(c.lens[-1]))[-20:])]
    )
    got = c.run(H.build("attention_mixed_sm80", "sm_80", c.params), rows, mode=mode, seed=seed)
    close(got, np.concatenate([c.want(i, ps) for i, ps in rows]), 2e-3)


MMA = {
    "int8": dict(lens=[1, 33, 130], heads=9, kv_heads=3, dim=64, kv="int8"),
    "int6": dict(lens=[31, 70], heads=8, kv_heads=1, dim=128, v_dim=64, kv="int6", window=50),
    "int4": dict(
        lens=[5, 100],
        heads=12,
        kv_heads=2,
        dim=80,
        v_dim=48,
        kv="int4",
        mask="prefix",
        prefix=[3, 60],
    ),
    "turned": dict(
        lens=[33, 130], heads=9, kv_heads=3, dim=128, v_dim=192, kv="int8", kv_v="int4", rotate=True
    ),
    "k16v8": dict(lens=[40], heads=3, kv_heads=1, dim=64, kv="f16", kv_v="f8", rotate=True),
    "k8v16": dict(
        lens=[70], heads=4, kv_heads=1, dim=72, kv="int8_32", kv_v="f16", rotate=True, cap=20.0
    ),
}


@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize(
    "kv,kv_v,rotate", [("int8", "int8", False), ("int8", "int4", True), ("f16", "f8", True)]
)
def test_short_sequences_by_tensor_cores(kv, kv_v, rotate, mode, seed):
    """More units than CTAs: several per CTA concurrently, or one after another if the CTA rotates
    rows"""
    c = Case(
        lens=[(11 * i) % 50 + 1 for i in range(9)],
        heads=9,
        kv_heads=3,
        dim=64,
        kv=kv,
        kv_v=kv_v,
        rotate=rotate,
    )
    rows = c.last()
    got = c.run(
        H.build("attention_decode_sm80", "sm_90a", c.params), rows, mode=mode, seed=seed, sms=9
    )
    close(got, np.concatenate([c.want(i, ps) for i, ps in rows]), 1e-3)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,mode,seed", [(n, *r) for n in MMA for r in H.RUNS if r[1] == 0 or n in ("turned", "int4")]
)
def test_decode_by_tensor_cores(name, mode, seed):
    """If several heads share a read: codes become f16, which is the only difference."""
    c = Case(**MMA[name])
    rows = c.last()
    close(
        c.run(
            H.build("attention_decode_sm80", "sm_90a" if seed else "sm_86", c.params),
            rows,
            mode=mode,
            seed=seed,
        ),
        np.concatenate([c.want(i, ps) for i, ps in rows]),
        1e-3,
    )


def test_which_kernels_read_quantised_rows():
    """wgmma reads plain types only; tensor cores in decode steps read types that convert to f16,
    for groups of heads."""
    c = Case(**CASES["int8"])
    assert not H.expand("attention_mixed_sm90", "sm_90a", c.params)
    for other in dict(HEADS=6), dict(KV_K="bf16"):
        assert not H.expand("attention_decode_sm80", "sm_80", c.params | other)


PLANTED = {  # a missing barrier, or rows rotated by one warp while others read them
    "kv_rotate_rows<D>(s.q[0], HB, D, warp, S::WARPS);\n\t\t\t__syncthreads();": "kv_rotate_rows<D>(s.q[0], HB, D, warp, S::WARPS);",
    "\t\tTEAM::sync();\n\t\tkv_rotate_rows": "\t\tkv_rotate_rows",
    # queries are turned into fragments before they are rotated
    "kv_rotate_rows<S::D>(s.rotated[0], g.n_head, S::D, warp_id(), S::WARPS);\n\t\t__syncthreads();": "kv_rotate_rows<S::D>(s.rotated[0], g.n_head, S::D, warp_id(), S::WARPS);",
}


@pytest.mark.parametrize("right", PLANTED)
@pytest.mark.findings
def test_planted(right):
    c = Case(lens=[100], heads=4, kv_heads=1, dim=64, kv="int8", rotate=True)
    k = H.build(
        "attention_decode_sm80" if "s.rotated" in right else "attention_decode", "sm_90a", c.params
    )
    k.text = plant(k.text, right, PLANTED[right])
    with pytest.raises(H.Finding):
        c.run(k, c.last(), mode="check")


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize(
    "kv,kv_v,dim,v_dim,rotate",
    [
        ("int8", "int8", 64, 20, 0),
        ("f8", "int6", 20, 72, 0),
        ("int4", "int4", 36, 64, 0),
        ("int8", "int4", 128, 48, 1),
        ("f8", "f16", 36, 64, 1),
        ("int8_32", "f8_32", 36, 72, 0),
        ("int6", "int8", 20, 192, 1),
    ],
)
def test_append(kv, kv_v, dim, v_dim, rotate, mode, seed):
    rng = np.random.default_rng(1)
    heads, lens = 3, [1, 32, 40]
    pool = Pool(lens, heads, [(kv, dim), (kv_v, v_dim)], rng)
    k, v = (rng.standard_normal((sum(lens), heads, d)).astype(np.float32) * 3 for d in (dim, v_dim))
    k[3, 1, 2], k[4, 0], v[5, 1] = 7e7, 0, 1e-9
    kernel = H.build(
        "kv_append",
        ARCH[seed],
        dict(
            KV_HEADS=heads,
            DIM=dim,
            V_DIM=v_dim,
            KV_K=kv,
            KV_V=kv_v,
            KV_ROTATE=rotate,
            KV_PAGE_BYTES=pool.page_bytes,
        ),
    )
    step = H.make_step([p for n in lens for p in range(n)], lens, table=pool.table)
    (got,) = kernel.run(step, [k, v, H.inout(pool.pages), None], mode=mode, seed=seed)
    k, v = (K.turn(x) if rotate and not K.plain(t) else x for t, x in ((kv, k), (kv_v, v)))
    at = 0
    for i, n in enumerate(lens):
        pool.fill(i, k[at : at + n], v[at : at + n])
        at += n
    assert np.array_equal(got, pool.pages)


QKV = {
    "half": dict(hidden=64, dtype="bf16", heads=4, kv_heads=2, dim=16, rows=[1, 3], rope_dims=16),
    "part": dict(
        hidden=64,
        dtype="bf16",
        heads=4,
        kv_heads=2,
        dim=80,
        rows=[1, 3],
        rope_dims=40,
        qk_norm=True,
    ),
    "inter": dict(
        hidden=64,
        dtype="q4_0",
        heads=3,
        kv_heads=1,
        dim=24,
        rows=[1, 1],
        style="interleaved",
        rope_dims=12,
        bias=True,
    ),
    "none": dict(hidden=64, dtype="q8_0", heads=2, kv_heads=2, dim=13, rows=[5]),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name,kv,template",
    [
        (n, t, f)
        for n in QKV
        for t in ("int8", "int4")
        for f in ("norm_qkv", "norm_qkv_decode", "norm_qkv_mixed")
    ],
)
def test_qkv(name, kv, template):
    """The rows stored in a page are the keys and values of float64, to half a quantisation step."""
    c = Q.Case(**(QKV[name] | (dict(rows=[1, 1, 1]) if template == "norm_qkv_decode" else {})))
    kv_heads, dim = c.k.shape[1:]
    pool = Pool(
        [
            p + 1
            for p in np.maximum.accumulate(
                [c.pos[sum(c.rows[: i + 1]) - 1] for i in range(len(c.rows))]
            )
        ],
        kv_heads,
        [(kv, dim)] * 2,
        np.random.default_rng(2),
    )
    arch = "sm_75" if template == "norm_qkv" else "sm_80"
    rotate = int(kv == "int4" and dim % 4 == 0)
    params = {n: v for n, v in c.params.items() if n != "KV_DTYPE"} | dict(
        KV_K=kv, KV_V=kv, KV_ROTATE=rotate, KV_PAGE_BYTES=pool.page_bytes
    )
    if not H.expand(template, arch, params):
        pytest.skip("not taken")
    before = pool.pages.copy()
    pages, q = H.build(template, arch, params).run(
        H.make_step(c.pos, c.rows, table=pool.table),
        [
            c.x,
            c.nw,
            c.nb,
            c.w.packed,
            c.b,
            c.qn,
            c.kn,
            c.rope,
            H.inout(pool.pages),
            H.out(c.q.shape),
            None,
        ],
    )
    assert np.abs(q - c.q).max() < 2e-2 * np.abs(c.q).max()
    # attention with one-hot scores would read the rows; here they are compared after appending the
    # float64 rows
    at = 0
    for i, r in enumerate(c.rows):
        rows = [x[at : at + r].astype(np.float32) for x in (c.k, c.v)]
        pool.fill(i, *(K.turn(x) if rotate else x for x in rows), c.pos[at])
        at += r
    same = (pages == pool.pages).mean()
    assert same > 0.9, same  # codes at a tie depend on rounding
    assert (
        np.array_equal(pages == before, pool.pages == before)
        or np.abs((pages == before).sum() - (pool.pages == before).sum()) < 0.02 * before.size
    )
