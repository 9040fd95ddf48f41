"""Every wrapper against what PTX says it does: conversions, accesses, order, fragments of ldmatrix and mma, asynchronous copies, clusters.
The expectations are numpy's and the PTX manual's fragment tables, not the emulator's. With LLMC_TEST_GPU=1 the PTX itself runs."""
import re

import numpy as np
import pytest

import cuda_harness as H

SOURCE = H.ROOT / "tests" / "cuda" / "conformance.cu"
RNG = np.random.default_rng(12)
LANE = np.arange(32)
G, T = LANE // 4, LANE % 4


MMA = {"mma_f16_m16n8k8": (75, "float", 2, 1, 4), "mma_s8_m8n8k16": (75, "int", 1, 1, 2), "mma_bf16_m16n8k16": (80, "float", 4, 2, 4),
       "mma_f16_m16n8k16": (80, "float", 4, 2, 4), "mma_tf32_m16n8k8": (80, "float", 4, 2, 4), "mma_bf16_m16n8k8": (80, "float", 2, 1, 4),
       "mma_s8_m16n8k32": (80, "int", 4, 2, 4), "mma_s8_m16n8k16": (80, "int", 2, 1, 4)}


def source(arch):
    arch = int(re.match(r"sm_(\d+)", arch)[1])
    text = SOURCE.read_text()
    for least in (90, 80):
        if arch < least:
            text = text[:text.index(f"/* from sm_{least} on */")]
    a, b = text.index("/* x: registers of a"), text.index("}\n\n", text.index("k_MMA(")) + 2
    kernels = ""
    for name, (least, kind, na, nb, nc) in MMA.items():
        if arch >= least:
            one = text[a:b].replace("TYPE", kind).replace("NA", str(na)).replace("NB", str(nb)).replace("NC", str(nc))
            kernels += one.replace("k_MMA(", f"k_{name}(").replace("MMA(", name + "(")
    text = text[:a] + kernels + text[b:]
    return H.inline('#line 1 "conformance.cu"\n' + text, "conformance.cu", set())


def launch(fn, x, n_out, grid=1, block=32, shared=0, cluster=1, arch="sm_90a", n=0, fill=0, runs=None):
    """y after the kernel, in every mode; the runs must agree."""
    src = source(arch)
    x = np.ascontiguousarray(x).view(np.uint32).ravel()
    got = None
    for mode, seed in runs or H.RUNS[1:]:
        job = dict(arrays=dict(x=x, y=np.full(n_out, fill, np.uint32)), pack="@QQi", fields=["x", "y", n], cluster=cluster,
                   launches=[(src, "conformance.cu", fn, (grid,), block, shared, {})], fetch=["y"])
        y = H.submit(arch, mode, seed, 4, job)[0]["y"]
        assert got is None or (y == got).all()
        got = y
    return got


def halves(v):
    return np.stack([v & 0xffff, v >> 16], -1)


def test_conversions():
    special = [0, 1 << 31, 0x7f800000, 0xff800000, 0x7fc00001, 0x477fefff, 0x477ff000, 0x38800000, 0x387fffff, 0x33000000, 0x33000001, 0x00000001,
               0x3f808000, 0x3f818000, 0x7f7fffff, 0x477fe000]
    bits = np.concatenate([special, RNG.integers(0, 1 << 32, 8192 - 16), RNG.integers(0x30000000, 0x48000000, 1 << 16 >> 1),
                           RNG.integers(0xb0000000, 0xc8000000, (1 << 15) - 8192)]).astype(np.uint32)[:1 << 16]
    bits = np.concatenate([bits, np.zeros((1 << 16) - len(bits), np.uint32)])
    f = bits.view(np.float32)
    for arch in ("sm_75", "sm_90a"):
        y = launch("convert", bits, 6 * 65536, grid=4, block=256, arch=arch, n=65536, runs=H.RUNS[:1]).reshape(-1, 6)
        with np.errstate(all="ignore"):
            f16 = f.astype(np.float16).view(np.uint16)
            bf16 = ((bits.astype(np.uint64) + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        nan = np.isnan(f)
        f16[nan] = bf16[nan] = 0x7fff
        assert (y[:, 0] == f16).all() and (y[:, 1] == bf16).all()
        assert (y[:, 4] == f16 | np.uint32(0x4100) << 16).all() and (y[:, 5] == bf16 | np.uint32(0x4020) << 16).all()
        all16 = np.arange(65536, dtype=np.uint16)
        want = all16.view(np.float16).astype(np.float32)
        ok = ~np.isnan(want)
        assert (y[ok, 2] == want.view(np.uint32)[ok]).all() and np.isnan(y[~ok, 2].copy().view(np.float32)).all()
        assert (y[:, 3] == all16.astype(np.uint32) << 16).all()


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_accesses(arch):
    x = RNG.standard_normal(128).astype(np.float32).view(np.uint32)
    y = launch("access", x, 32 * 24, shared=4096, arch=arch).reshape(32, 24)
    quads, pairs = x.reshape(32, 4), x[:64].reshape(32, 2)
    assert (y[:, 0:4] == quads).all() and (y[:, 4:8] == quads).all() and (y[:, 8:12] == quads).all()
    assert (y[:, 12:14] == pairs).all() and (y[:, 14] == x[:32]).all()
    assert (y[:, 15] == quads[::-1, 1]).all() and (y[:, 16] == pairs[::-1, 1]).all() and (y[:, 17] == x[:32]).all()
    assert (y[:, 18] == LANE).all()
    f = x[:32].view(np.float32)
    s = f.copy()
    for d in (16, 8, 4, 2, 1):
        s = s + s[LANE ^ d]
    assert (y[:, 19] == s.view(np.uint32)).all()
    assert (y[:, 20].copy().view(np.float32) == f.max()).all() and (y[:, 21].copy().view(np.float32) == f.min()).all()


def test_named_barriers():
    x = RNG.integers(0, 1000, 64).astype(np.uint32)
    assert (launch("named", x, 64, block=128, arch="sm_75") == x + 1).all()


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_orders_and_scopes(arch):
    n = 9
    y = launch("orders", np.zeros(4, np.uint32), 64 + n, grid=n, block=64, arch=arch)
    assert y[0] == 3 * n and y[1] == n and y[2] == 7 and y[4:5].view(np.float32)[0] == 0.5 * n
    assert y[8:10].view(np.uint64)[0] == n << 33 and y[12] == n * (n + 1) // 2 + 7 and y[13] == 3 * n + 7


def fragment(m, trans):
    """ldmatrix of an 8 x 8 matrix of 16-bit elements: lane -> two elements"""
    if trans:
        return m[2 * T, G].astype(np.uint32) | m[2 * T + 1, G].astype(np.uint32) << 16
    return m[G, 2 * T].astype(np.uint32) | m[G, 2 * T + 1].astype(np.uint32) << 16


def test_ldmatrix_and_stmatrix():
    m = RNG.integers(0, 65536, (4, 8, 8)).astype(np.uint16)
    for arch in ("sm_75", "sm_80"):
        y = launch("matrices", m, 32 * 14, arch=arch).reshape(32, 14)
        for t, at in ((False, 0), (True, 7)):
            f = [fragment(m[i], t) for i in range(4)]
            want = np.stack([f[0], f[0], f[1], *f], 1)
            assert (y[:, at:at + 7] == want).all()
    regs = np.stack([fragment(m[i], False) for i in range(4)], 1).astype(np.uint32)
    y = launch("stmatrices", regs, 128)
    assert (y.view(np.uint16).reshape(4, 8, 8) == m).all()


# Where register r and part e of a lane lie in A (row, k), B (k, column), C (row, column)
def layout(m, k, bits):
    e = np.arange(32 // bits)
    if bits == 32:
        A = [(G + 8 * (r % 2), T + 4 * (r // 2)) for r in range(4)]
        B = [(T + 4 * r, G) for r in range(2)]
        A, B = [(a[:, None], b[:, None]) for a, b in A], [(a[:, None], b[:, None]) for a, b in B]
    else:
        per, half = len(e), k // 2 if m == 16 and k * bits == 256 else 0
        n_a = (2 if m == 16 else 1) * (2 if half else 1)
        A = [(np.repeat((G + 8 * (r % 2))[:, None], per, 1), (per * T)[:, None] + e + half * (r // 2)) for r in range(n_a)]
        B = [((per * T)[:, None] + e + half * r, np.repeat(G[:, None], per, 1)) for r in range(2 if half else 1)]
    C = [(G + 8 * (i // 2), 2 * T + i % 2) for i in range(4 if m == 16 else 2)]
    return A, B, C


@pytest.mark.parametrize("name", MMA)
def test_mma(name):
    kind, m, k = re.fullmatch(r"mma_(\w+)_m(\d+)n8k(\d+)", name).groups()
    m, k, bits = int(m), int(k), {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8}[kind]
    high = 127 if kind == "s8" else 15
    a, b, c = RNG.integers(-high - 1, high + 1, (m, k)), RNG.integers(-high - 1, high + 1, (k, 8)), RNG.integers(-99, 99, (m, 8))

    def bits_of(v):
        if kind == "s8":
            return v.astype(np.int8).view(np.uint8).astype(np.uint32)
        if kind == "f16":
            return v.astype(np.float16).view(np.uint16).astype(np.uint32)
        f = v.astype(np.float32).view(np.uint32)
        return f >> 16 if kind == "bf16" else f

    A, B, C = layout(m, k, bits)
    shifts = np.arange(32 // bits, dtype=np.uint32) * bits

    def regs(v, places):
        return [np.bitwise_or.reduce(bits_of(v[i, j]) << shifts, 1) for i, j in places]
    c_type = np.int32 if kind == "s8" else np.float32
    x = np.stack(regs(a, A) + regs(b, B) + [c[i, j].astype(c_type).view(np.uint32) for i, j in C], 1).astype(np.uint32)
    y = launch("k_" + name, x, 32 * len(C), arch=f"sm_{MMA[name][0]}").view(c_type).reshape(32, -1)
    want = a @ b + c
    for r, (i, j) in enumerate(C):
        assert (y[:, r] == want[i, j]).all()


def test_cp_async():
    x = RNG.integers(0, 1 << 32, 128, dtype=np.uint64).astype(np.uint32)
    for arch in ("sm_80", "sm_90a"):
        y = launch("copies", x, 384, arch=arch)
        filled = x.reshape(32, 4).copy().view(np.uint8)
        for t in range(32):
            filled[t, t & 15:] = 0
        s = np.concatenate([x[:32], x[:64], x[:128], filled.view(np.uint32).ravel()])
        want = s.reshape(-1, 32)[:, ::-1]
        assert (y[:352].reshape(-1, 32) == want).all()
        assert (y[352:] == x[64 + (LANE ^ 1)]).all()


def test_mbarriers_and_bulk_copies():
    x = RNG.integers(0, 1 << 32, 128, dtype=np.uint64).astype(np.uint32)
    at = np.arange(64) ^ 33
    for arch in ("sm_80", "sm_90a"):
        y = launch("barriers", x, 128, block=64, arch=arch)
        assert (y[:64] == x[:64][at]).all() and (y[64:] == x[64:][at]).all()
    y = launch("bulk", x, 144, block=64)
    assert (y[:128] == x).all() and (y[128:] == x[4:20]).all()


def test_clusters():
    x = RNG.integers(0, 1000, 128).astype(np.uint32)
    y = launch("clusters", x, 128, grid=4, cluster=2)
    want = x.reshape(4, 32)[[1, 0, 3, 2]][:, LANE ^ 1].ravel() + 2000
    assert (y == want).all()
