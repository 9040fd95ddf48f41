"""Attention of mixed steps on tensor cores (attention_mixed_sm80, attention_mixed_sm90) against
float64, on the emulator.

Queries are rounded to the pool's type before the reference, weights are not: the remaining error is
the rounding of weights to 16 bits."""

import numpy as np
import pytest

import cuda_harness as H
import cuda_kv as KV
import sass
from test_cuda_attention import FAR, Case
from planted import plant

TOL = {"bf16": 8e-3, "f16": 1e-3}

CASES = {
    "gqa": dict(lens=[1, 31, 32, 33, 64, 100], heads=9, kv_heads=3, dim=64),
    "llama": dict(lens=[150], heads=4, kv_heads=1, dim=128, kv="bf16"),
    "d80": dict(lens=[40, 70], heads=2, kv_heads=2, dim=80, kv="bf16"),
    "d96": dict(lens=[70], heads=2, kv_heads=1, dim=96, window=40),
    "d256": dict(
        lens=[20, 90], heads=4, kv_heads=1, dim=256, cap=30.0, window=50, kv="bf16", scale=0.08
    ),
    "chunks": dict(lens=[40, 130], heads=4, kv_heads=2, dim=64, window=70, chunk=1),
    "v_dim": dict(lens=[70], heads=3, kv_heads=1, dim=96, v_dim=64),
    "mqa": dict(lens=[5, 40], heads=71, kv_heads=1, dim=64, kv="bf16"),
    "alibi": dict(lens=[64, 90], heads=6, kv_heads=6, dim=32, alibi=8.0, part=(1, 9)),
    "low": dict(lens=[40, 130], heads=4, kv_heads=2, dim=64, low=400.0, kv="bf16"),
    "sinks": dict(lens=[7, 130], heads=8, kv_heads=1, dim=64, window=40, sinks=True),
    "none": dict(lens=[1, 40, 150], heads=3, kv_heads=3, dim=64, mask="none"),
    "around": dict(lens=[40, 200], heads=4, kv_heads=2, dim=32, mask="none", window=37),
    "prefix": dict(lens=[40, 120], heads=4, kv_heads=2, dim=32, mask="prefix", prefix=[17, 90]),
}
# wgmma: chunks of 128 positions (64 for wide heads), tiles of 128 pairs; a warpgroup without work;
# rings that wrap around
SM90 = {
    **{
        k: CASES[k]
        for k in (
            "gqa",
            "llama",
            "d80",
            "d96",
            "d256",
            "mqa",
            "alibi",
            "low",
            "prefix",
            "none",
            "around",
            "sinks",
            "chunks",
        )
    },
    "alone": dict(lens=[128, 130, 257], heads=2, kv_heads=2, dim=128),
    "eight": dict(lens=[7, 40], heads=16, kv_heads=2, dim=48, scale=0.2),
    "d192": dict(lens=[20, 200], heads=4, kv_heads=1, dim=192, cap=20.0),
    "window": dict(lens=[300, 129], heads=4, kv_heads=2, dim=64, window=70),
    "ring": dict(lens=[640], heads=1, kv_heads=1, dim=64, kv="bf16"),
}


def case(**kw):
    c = Case(**kw)
    c.kv = kw.get("kv", "f16")
    c.q = [KV.rounded(q, c.kv).astype(np.float32) for q in c.q]
    return c


def kernel(c, arch="sm_80", **more):
    return H.build(
        f"attention_mixed_{'sm90' if arch == 'sm_90a' else 'sm80'}", arch, c.params, **more
    )


def close(got, want, tol):
    err = np.abs(got - want).max(-1) / (1e-3 + np.abs(want).max(-1))
    assert np.isfinite(got).all() and err.max() < tol, err.max()


def check(c, rows, arch="sm_80", **kw):
    got = c.run(kernel(c, arch), rows, **kw)
    close(got, np.concatenate([c.want(i, ps) for i, ps in rows]), TOL[c.kv])
    return got


BOTH = [("sm_80", n) for n in CASES] + [("sm_90a", n) for n in SM90]


@pytest.mark.sample(4)
@pytest.mark.parametrize("arch,name", H.always(BOTH, "low", "around"))
def test_whole_prompts(arch, name):
    c = case(**(SM90 if arch == "sm_90a" else CASES)[name])
    rows = [(i, list(range(n))) for i, n in enumerate(c.lens)]
    for seed in 0, 1:
        check(c, rows, arch, seed=seed, bucket=200 * seed)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_large_pool(arch):
    check(
        case(lens=[40, 70], heads=4, kv_heads=2, dim=64),
        [(0, list(range(40))), (1, [68, 69])],
        arch,
        beyond=FAR,
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "arch,name",
    [x for x in BOTH if x[1] in ("gqa", "d80", "d256", "mqa", "prefix", "alone", "window")],
)
def test_chunks_checked(arch, name):
    """Decode rows, then chunks of prompts, in checking mode"""
    c = case(**(SM90 if arch == "sm_90a" else CASES)[name])
    rows = [
        (i, [n - 1]) if i % 2 == 0 and len(c.lens) > 1 else (i, list(range(max(0, n - 20), n)))
        for i, n in enumerate(c.lens)
    ]
    check(c, rows[-3:], mode="check", seed=2, arch="sm_86" if arch == "sm_80" else arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_pages_before_the_window(arch):
    """Pages before the window have no number, and their content may be freed."""
    c = case(lens=[300], heads=2, kv_heads=1, dim=64, window=70)
    rows = [(0, list(range(290, 300)))]
    pages, table = c.pool.pages, c.pool.table
    first = table[0, 0].copy()  # becomes page 0, so that reading page 0 instead is detected
    pages[[0, first]] = pages[[first, 0]]
    table[:] = np.where(table == 0, first, np.where(table == first, 0, table))
    gone = (291 - 70) // 32
    pages[table[0, :gone]] = 0xFF
    table[0, :gone] = 1 << 29
    check(c, rows, arch)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "arch,more",
    [("sm_80", {}), ("sm_90a", dict(DETERMINISTIC=0)), ("sm_90a", dict(DETERMINISTIC=1))],
)
def test_segments(arch, more):
    """Longer than a segment (512 positions; 1024): chunks go through y, single rows are split over
    CTAs."""
    far = 512 if arch == "sm_90a" else 0
    c = case(
        lens=[1100 + far, 600 + far, 513 + far], heads=4, kv_heads=2, dim=32, kv="f16", sinks=True
    )
    rows = [(0, [1099 + far]), (1, [598 + far, 599 + far]), (2, list(range(470 + far, 513 + far)))]
    k, want = kernel(c, arch, **more), np.concatenate([c.want(i, ps) for i, ps in rows])
    close(c.run(k, rows), want, TOL["f16"])
    close(c.run(k, rows, mode="check", seed=3, sms=2), want, TOL["f16"])
    for sms in (3, 4, 6):  # parts of a tile in several CTAs, and CTAs with parts of several tiles
        close(c.run(k, rows, seed=sms, sms=sms), want, TOL["f16"])
    close(c.run(k, rows, mode="check", seed=5, sms=6), want, TOL["f16"])
    w = case(lens=[1100, 1300], heads=2, kv_heads=2, dim=16, window=600, kv="bf16")
    rows = [(0, list(range(1000, 1100))), (1, [1299])]
    close(
        w.run(kernel(w, arch, **more), rows, seed=1),
        np.concatenate([w.want(i, ps) for i, ps in rows]),
        TOL["bf16"],
    )


PLANTED = {  # sink of another head, in every part of a row, in none
    "another head": ("sink + w.kv_head * F::G + at % F::G", "sink + w.kv_head * F::G"),
    "every segment": ("last ? 1.0f / (sum + att_sink(", "true ? 1.0f / (sum + att_sink("),
    "parts without": ("(l + att_sink(flash_sink<F>(sink, w, pair), m))", "l"),
}


@pytest.mark.findings
@pytest.mark.parametrize("what", PLANTED)
def test_sinks_planted(what):
    right, wrong = PLANTED[what]
    c = case(lens=[1100, 600], heads=4, kv_heads=2, dim=32, kv="f16", sinks=True)
    rows = (
        [(0, [1099]), (1, [598, 599])]
        if what != "every segment"
        else [(0, list(range(1090, 1100)))]
    )
    k = kernel(c)
    k.text = plant(k.text, right, wrong)
    with pytest.raises(AssertionError):
        close(
            c.run(k, rows, mode="check", seed=3, sms=2),
            np.concatenate([c.want(i, ps) for i, ps in rows]),
            TOL["f16"],
        )


def bits(a):
    return a.view(np.uint32)


@pytest.mark.sample(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kw", [dict(), dict(window=700, alibi=8.0), dict(cap=20.0, kv="bf16")])
def test_rows_do_not_depend_on_other_rows(kw, arch):
    """The same bits alone (split into parts), in a chunk, in a longer chunk, and with other
    sequences"""
    c = case(**dict(dict(lens=[1200, 70], heads=4, kv_heads=2, dim=32), **kw))
    k = kernel(c, arch, DETERMINISTIC=1)
    whole = c.run(k, [(1, list(range(70))), (0, list(range(1040, 1200)))])[70:]
    for first, last in (1199, 1200), (1100, 1101), (1040, 1041), (1150, 1152), (1090, 1187):
        rows = list(range(first, last))
        alone = c.run(k, [(0, rows)], seed=1)
        assert np.array_equal(bits(alone), bits(whole[first - 1040 : last - 1040]))
        both = c.run(k, [(0, rows), (1, [69])], sms=1)
        assert np.array_equal(bits(both[:-1]), bits(alone))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_many_sequences(arch):
    """More than 32, so that the search for work takes several rounds, and more parts than there is
    scratch for"""
    lens = [(2060 if arch == "sm_90a" else 1030) if i % 3 == 0 else 5 + i % 7 for i in range(70)]
    c = case(lens=lens, heads=16, kv_heads=16, dim=16)
    rows = [(i, [n - 1]) for i, n in enumerate(lens)]
    check(c, rows, arch)


def test_nvrtc():
    """Real NVRTC: no spill, no warning; tensor cores, ldmatrix, and asynchronous copies"""
    p = case(lens=[1], heads=32, kv_heads=8, dim=128, kv="bf16").params
    for arch in "sm_86", "sm_100a":
        done = H.nvrtc("attention_mixed_sm80", p, [arch])
        if done is None:
            pytest.skip("no NVRTC here")
        f = sass.functions(done[0]["cubin"])
        if f:
            (s,) = f.values()
            assert (
                s.count("HMMA") > 90
                and s.count("LDSM") >= 24
                and s.count("LDGSTS") >= 16
                and not s.count("LDL", "STL")
            )


@pytest.mark.parametrize(
    "kw",
    [
        dict(heads=32, kv_heads=8, dim=128),
        dict(heads=9, kv_heads=3, dim=64, kv="bf16", det=1),
        dict(heads=8, kv_heads=4, dim=256, cap=50.0, window=4096, det=1),
    ],
)
def test_nvrtc_wgmma(kw):
    """Real NVRTC for sm_90a: no spill, no serialised wgmma. The exponentials of a chunk overlap P V
    of the previous chunk: they are between the wait for Q K^T and the one for P V."""
    kw = dict(kw)
    det, dim = kw.pop("det", 0), kw["dim"]
    done = H.nvrtc(
        "attention_mixed_sm90", dict(case(lens=[1], **kw).params, DETERMINISTIC=det), ["sm_90a"]
    )
    if done is None:
        pytest.skip("no NVRTC here")
    f = sass.functions(done[0]["cubin"])
    if not f:
        return
    (s,) = f.values()
    n = 128 if dim <= 128 else 64
    assert s.count("HGMMA") == 2 * (dim // 16 + n // 16) and not s.count(
        "LDL", "STL"
    )  # the first chunk, the loop, the last chunk
    assert s.count("UTMALDG") == 2 * n // 32 * (dim // 64)
    loop = s.where("HGMMA")[2 * (dim // 16) + n // 16 - 1]  # the last one in the loop
    waits = [i for i in s.where("WARPGROUP") if "DEPBAR" in s[i] and i > loop]
    assert sum(waits[0] < i < waits[1] for i in s.where("MUFU")) >= n // 2


def test_refuses():
    p = case(lens=[4]).params
    assert H.accepts("attention_mixed_sm90", "sm_90a", p) and not H.accepts(
        "attention_mixed_sm90", "sm_100a", p
    )
    for bad in (
        dict(KV_DTYPE="f32"),
        dict(DIM=24),
        dict(V_DIM=48),
        dict(SOFTCAP=30.0),
        dict(DIM=320, V_DIM=320),
        dict(KV_PAGE_BYTES=p["KV_PAGE_BYTES"] + 256),
    ):
        assert not H.accepts("attention_mixed_sm90", "sm_90a", dict(p, **bad))
    assert H.accepts("attention_mixed_sm80", "sm_80", p)
    for bad in dict(KV_DTYPE="f32"), dict(DIM=24), dict(V_DIM=20), dict(DIM=320):
        assert not H.accepts("attention_mixed_sm80", "sm_80", dict(p, **bad))
    assert not H.accepts("attention_mixed_sm80", "sm_75", p)
