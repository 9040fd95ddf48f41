"""Every wrapper against its PTX definition: conversions, accesses, order, fragments of ldmatrix and
mma, asynchronous copies, clusters.

Expected values come from numpy and the fragment tables of the PTX manual, not from the emulator.
With LLMC_TEST_GPU=1 the PTX itself runs."""

import re
import subprocess

import numpy as np
import pytest

import cuda_harness as H
import sass
from kv_types import E4M3, to_e4m3

SOURCE = H.ROOT / "tests" / "cuda" / "conformance.cu"
RNG = np.random.default_rng(12)
LANE = np.arange(32)
G, T = LANE // 4, LANE % 4


MMA = {
    "mma_f16_m16n8k8": (75, "float", 2, 1, 4),
    "mma_s8_m8n8k16": (75, "int", 1, 1, 2),
    "mma_bf16_m16n8k16": (80, "float", 4, 2, 4),
    "mma_f16_m16n8k16": (80, "float", 4, 2, 4),
    "mma_tf32_m16n8k8": (80, "float", 4, 2, 4),
    "mma_bf16_m16n8k8": (80, "float", 2, 1, 4),
    "mma_s8_m16n8k32": (80, "int", 4, 2, 4),
    "mma_s8_m16n8k16": (80, "int", 2, 1, 4),
    "mma_e4m3_m16n8k32": (89, "float", 4, 2, 4),
}


def source(arch):
    arch = int(re.match(r"sm_(\d+)", arch)[1])
    text = SOURCE.read_text()
    for least in (90, 80):
        if arch < least:
            text = text[: text.index(f"/* from sm_{least} on */")]
    a, b = text.index("/* x: registers of a"), text.index("}\n\n", text.index("k_MMA(")) + 2
    kernels = ""
    for name, (least, kind, na, nb, nc) in MMA.items():
        if arch >= least:
            one = (
                text[a:b]
                .replace("TYPE", kind)
                .replace("NA", str(na))
                .replace("NB", str(nb))
                .replace("NC", str(nc))
            )
            kernels += one.replace("k_MMA(", f"k_{name}(").replace("MMA(", name + "(")
    text = text[:a] + kernels + text[b:]
    return H.inline('#line 1 "conformance.cu"\n' + text, "conformance.cu", set())


def launch(
    fn,
    x,
    n_out,
    grid=1,
    block=32,
    shared=0,
    cluster=1,
    arch="sm_90a",
    n=0,
    fill=0,
    runs=None,
    text=None,
    **more,
):
    """Returns y after the kernel, in every mode; the runs must agree."""
    src = text or source(arch)
    x = np.ascontiguousarray(x).view(np.uint32).ravel()
    got = None
    for mode, seed in runs or H.RUNS[1:]:
        job = dict(
            dict(
                arrays=dict(x=x, y=np.full(n_out, fill, np.uint32)),
                pack="@QQi",
                fields=["x", "y", n],
                cluster=cluster,
                launches=[(src, "conformance.cu", fn, (grid,), block, shared, {})],
                fetch=["y"],
            ),
            **more,
        )
        y = H.submit(arch, mode, seed, 4, job)[0]["y"]
        assert got is None or (y == got).all()
        got = y
    return got


def test_conversions():
    special = [
        0,
        1 << 31,
        0x7F800000,
        0xFF800000,
        0x7FC00001,
        0x477FEFFF,
        0x477FF000,
        0x38800000,
        0x387FFFFF,
        0x33000000,
        0x33000001,
        0x00000001,
        0x3F808000,
        0x3F818000,
        0x7F7FFFFF,
        0x477FE000,
    ]
    bits = np.concatenate(
        [
            special,
            RNG.integers(0, 1 << 32, 8192 - 16),
            RNG.integers(0x30000000, 0x48000000, 1 << 16 >> 1),
            RNG.integers(0xB0000000, 0xC8000000, (1 << 15) - 8192),
        ]
    ).astype(np.uint32)[: 1 << 16]
    bits = np.concatenate([bits, np.zeros((1 << 16) - len(bits), np.uint32)])
    f = bits.view(np.float32)
    for arch in ("sm_75", "sm_90a"):
        y = launch(
            "convert", bits, 6 * 65536, grid=4, block=256, arch=arch, n=65536, runs=H.RUNS[:1]
        ).reshape(-1, 6)
        with np.errstate(all="ignore"):
            f16 = f.astype(np.float16).view(np.uint16)
            bf16 = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        nan = np.isnan(f)
        f16[nan] = bf16[nan] = 0x7FFF
        assert (y[:, 0] == f16).all() and (y[:, 1] == bf16).all()
        assert (y[:, 4] == f16 | np.uint32(0x4100) << 16).all() and (
            y[:, 5] == bf16 | np.uint32(0x4020) << 16
        ).all()
        all16 = np.arange(65536, dtype=np.uint16)
        want = all16.view(np.float16).astype(np.float32)
        ok = ~np.isnan(want)
        assert (y[ok, 2] == want.view(np.uint32)[ok]).all() and np.isnan(
            y[~ok, 2].copy().view(np.float32)
        ).all()
        assert (y[:, 3] == all16.astype(np.uint32) << 16).all()


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_accesses(arch):
    x = RNG.standard_normal(128).astype(np.float32).view(np.uint32)
    y = launch("access", x, 32 * 24, shared=4096, arch=arch).reshape(32, 24)
    quads, pairs = x.reshape(32, 4), x[:64].reshape(32, 2)
    assert (y[:, 0:4] == quads).all() and (y[:, 4:8] == quads).all() and (y[:, 8:12] == quads).all()
    assert (y[:, 12:14] == pairs).all() and (y[:, 14] == x[:32]).all()
    assert (
        (y[:, 15] == quads[::-1, 1]).all()
        and (y[:, 16] == pairs[::-1, 1]).all()
        and (y[:, 17] == x[:32]).all()
    )
    assert (y[:, 18] == LANE).all()
    f = x[:32].view(np.float32)
    s = f.copy()
    for d in (16, 8, 4, 2, 1):
        s = s + s[LANE ^ d]
    assert (y[:, 19] == s.view(np.uint32)).all()
    assert (y[:, 20].copy().view(np.float32) == f.max()).all() and (
        y[:, 21].copy().view(np.float32) == f.min()
    ).all()


def test_grid_workspace():
    """The address for grid_sync has envreg1 in its upper half and envreg2 in its lower half, as in
    driver_abi.h of cooperative groups. The other order would fail only on a GPU."""
    tool = H.nvrtc_tool()
    if tool is None or sass.disassembler() is None:
        pytest.skip("no libnvrtc or no nvdisasm")

    def compiled(body):
        text = '#include "cuda/ptx/ptx.h"\nextern "C" __global__ void k(unsigned *y) { %s }' % body
        return sass.functions(
            tool[1].compile_one(tool[0], "k.cu", text, "sm_80", [str(H.TEMPLATES)])["cubin"]
        )["k"]

    def constants(lines):
        return set(re.findall(r"c\[0x0\]\[(0x\w+)\]", "\n".join(lines)))

    one, two = (
        constants(compiled('asm("mov.u32 %%0, %%%%envreg%d;" : "=r"(*y));' % i)) for i in (1, 2)
    )
    code = compiled("grid_sync();")
    at = code.where("ATOM", "ATOMG")[0]
    low = int(re.search(r"\[R(\d+)[.\w]*\+0x4\]", code[at])[1])
    written = [
        constants([next(i for i in reversed(code[:at]) if re.match(rf"(@\S+ )?\S+ R{r},", i))])
        for r in (low, low + 1)
    ]
    assert written == [two - one, one - two]


def test_named_barriers():
    x = RNG.integers(0, 1000, 64).astype(np.uint32)
    assert (launch("named", x, 64, block=128, arch="sm_75") == x + 1).all()


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_orders_and_scopes(arch):
    n = 9
    y = launch("orders", np.zeros(4, np.uint32), 64 + n, grid=n, block=64, arch=arch)
    assert y[0] == 3 * n and y[1] == n and y[2] == 7 and y[4:5].view(np.float32)[0] == 0.5 * n
    assert (
        y[8:10].view(np.uint64)[0] == n << 33
        and y[12] == n * (n + 1) // 2 + 7
        and y[13] == 3 * n + 7
    )


def fragment(m, trans):
    """Return the two elements that each lane gets from ldmatrix of an 8 x 8 matrix of 16-bit
    elements"""
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
            assert (y[:, at : at + 7] == want).all()
    regs = np.stack([fragment(m[i], False) for i in range(4)], 1).astype(np.uint32)
    y = launch("stmatrices", regs, 128)
    assert (y.view(np.uint16).reshape(4, 8, 8) == m).all()


# Positions of register r, part e of a lane in A (row, k), B (k, column), C (row, column)
def layout(m, k, bits):
    e = np.arange(32 // bits)
    if bits == 32:
        A = [(G + 8 * (r % 2), T + 4 * (r // 2)) for r in range(4)]
        B = [(T + 4 * r, G) for r in range(2)]
        A, B = [(a[:, None], b[:, None]) for a, b in A], [(a[:, None], b[:, None]) for a, b in B]
    else:
        per, half = len(e), k // 2 if m == 16 and k * bits == 256 else 0
        n_a = (2 if m == 16 else 1) * (2 if half else 1)
        A = [
            (
                np.repeat((G + 8 * (r % 2))[:, None], per, 1),
                (per * T)[:, None] + e + half * (r // 2),
            )
            for r in range(n_a)
        ]
        B = [
            ((per * T)[:, None] + e + half * r, np.repeat(G[:, None], per, 1))
            for r in range(2 if half else 1)
        ]
    C = [(G + 8 * (i // 2), 2 * T + i % 2) for i in range(4 if m == 16 else 2)]
    return A, B, C


@pytest.mark.parametrize("name", MMA)
def test_mma(name):
    kind, m, k = re.fullmatch(r"mma_(\w+)_m(\d+)n8k(\d+)", name).groups()
    m, k, bits = int(m), int(k), {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "e4m3": 8}[kind]
    high = 127 if kind == "s8" else 15
    a, b, c = (
        RNG.integers(-high - 1, high + 1, (m, k)),
        RNG.integers(-high - 1, high + 1, (k, 8)),
        RNG.integers(-99, 99, (m, 8)),
    )

    def bits_of(v):
        if kind == "s8":
            return v.astype(np.int8).view(np.uint8).astype(np.uint32)
        if kind == "e4m3":  # integers up to 16; multiplied by 2^-9 they include subnormals
            codes = to_e4m3(v)
            assert (E4M3[codes] == v).all()
            return codes.astype(np.uint32)
        if kind == "f16":
            return v.astype(np.float16).view(np.uint16).astype(np.uint32)
        f = v.astype(np.float32).view(np.uint32)
        return f >> 16 if kind == "bf16" else f

    A, B, C = layout(m, k, bits)
    shifts = np.arange(32 // bits, dtype=np.uint32) * bits

    def regs(v, places):
        return [np.bitwise_or.reduce(bits_of(v[i, j]) << shifts, 1) for i, j in places]

    c_type = np.int32 if kind == "s8" else np.float32
    for scale in (
        (1, 2.0**-24) if kind == "f16" else (1, 2.0**-9) if kind == "e4m3" else (1,)
    ):  # f16: also subnormal halves, which are not flushed to zero
        x = np.stack(
            regs(a * scale, A)
            + regs(b, B)
            + [(c[i, j] * scale).astype(c_type).view(np.uint32) for i, j in C],
            1,
        ).astype(np.uint32)
        y = (
            launch("k_" + name, x, 32 * len(C), arch=f"sm_{MMA[name][0]}")
            .view(c_type)
            .reshape(32, -1)
        )
        want = (a @ b + c) * scale
        for r, (i, j) in enumerate(C):
            assert (y[:, r] == want[i, j]).all()


def test_cp_async():
    x = RNG.integers(0, 1 << 32, 128, dtype=np.uint64).astype(np.uint32)
    for arch in ("sm_80", "sm_90a"):
        y = launch("copies", x, 384, arch=arch)
        filled = x.reshape(32, 4).copy().view(np.uint8)
        for t in range(32):
            filled[t, t & 15 :] = 0
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


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_scopes(arch):
    """Test each type: old value, stores, and consecutive sums"""
    types = [np.int32, np.uint32, np.float32, np.uint64]
    n = 16 if arch == "sm_90a" else 12
    x = np.zeros((n, 8), np.uint8)
    for k in range(n):
        x[k].view(types[k % 4])[0] = 3
    y = launch("scopes", x, 12 * n, arch=arch).reshape(n, 12)
    for k in range(n):
        assert y[k].view(types[k % 4])[:6].tolist() == [3, 5, 7, 8, 10, 13]


def test_grid_barrier():
    x = RNG.integers(0, 1000, 256).astype(np.uint32)
    for arch in ("sm_75", "sm_90a"):
        y = launch("grids", x, 256, grid=4, block=64, arch=arch, cooperative=True)
        assert (
            y.reshape(4, 64) == np.roll(x.reshape(4, 64), -1, 0)[:, np.arange(64) ^ 1] + 2
        ).all()


def test_pairs_of_halves():
    """Add, mul and fma are rounded once; the expected values are numpy's in double, which holds the
    results exactly. The emulator computes in fp32, so the inputs are such that fp32 is exact before
    the one rounding, as in kernels."""
    n = 4096
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 1 << 16, (2, n, 2)).astype(np.uint16)
    a, b = a & 0xBFFF, b & 0xBFFF  # below 2: no NaN, no overflow in sums
    c = (rng.integers(-2047, 2048, (n, 2)) / 1024).astype(np.float16).view(np.uint16)
    a[: n // 2], b[: n // 2] = (
        (rng.integers(-63, 64, (2, n // 2, 2)) / 32).astype(np.float16).view(np.uint16)
    )
    f = [v.view(np.float16).astype(np.float64) for v in (a, b, c)]
    a[n - 8 :], b[n - 8 :] = (
        np.array([0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x0400, 0x3C00, 0x7C00, 0xFC00], np.uint16)[
            :, None
        ],
        np.uint16(0x3C01),
    )
    f = [v.view(np.float16).astype(np.float64) for v in (a, b, c)]
    with np.errstate(all="ignore"):
        add, mul, fma = (
            v.astype(np.float16).view(np.uint16)
            for v in (f[0] + f[1], f[0] * f[1], f[0] * f[1] + f[2])
        )
    words = [np.ascontiguousarray(v).view(np.uint32).ravel() for v in (a, b, c)]
    y = launch("halves", np.stack(words, 1), 7 * n, grid=2, block=256, arch="sm_75", n=n).reshape(
        n, 7
    )
    got = np.ascontiguousarray(y).view(np.uint16).reshape(n, 7, 2)
    big = np.abs(f[0]) + np.abs(f[1]) < 2**12 * np.minimum(
        np.where(f[0] == 0, 9, np.abs(f[0])), np.where(f[1] == 0, 9, np.abs(f[1]))
    )
    finite = np.isfinite(f[0])
    assert (got[:, 0] == add)[big & finite].all() and (big & finite).mean() > 0.7
    assert (got[:, 1] == mul).all() and (got[: n // 2, 2] == fma[: n // 2]).all()
    assert (y[:, 3] == (words[0] & words[1] | words[2])).all()
    assert (y[:, 4] == (words[0] & 0xFFFF) * 0x10001).all() and (
        y[:, 5] == (words[0] >> 16) * 0x10001
    ).all()
    eight, chosen = (
        np.stack([words[i // 4] >> i % 4 * 8 & 255 for i in range(8)], 1),
        np.zeros(n, np.uint32),
    )
    for i in range(4):
        name = words[2] >> 4 * i & 15
        byte = eight[np.arange(n), name & 7]
        chosen |= np.where(name & 8, (byte >> 7) * 255, byte) << 8 * i
    assert (y[:, 6] == chosen).all()


def approximations():
    """Extract the approximations from a header that can otherwise be included by a template only"""
    header = (H.TEMPLATES / "cuda/attention/flash_tile.h").read_text()
    fn = "".join(
        re.search(rf"DEV float\n{f}\(.*?\n}}\n", header, re.S)[0]
        for f in ("flash_exp2", "flash_reciprocal")
    )
    return H.inline(
        '#include "cuda/ptx/ptx.h"\n'
        + fn
        + """struct args { unsigned *x, *y; int n; };
extern "C" __global__ void __launch_bounds__(256) approximate(const args p)
{
	for (int i = threadIdx.x; i < p.n; i += 256) {
		p.y[2 * i] = __float_as_uint(flash_exp2(__uint_as_float(p.x[i])));
		p.y[2 * i + 1] = __float_as_uint(flash_reciprocal(__uint_as_float(p.x[i])));
	}
}
""",
        "approximate.cu",
        set(),
    )


def test_approximations():
    """ex2.approx: 2 ulp, rcp.approx: 1 ulp; both flush subnormals."""
    x = np.concatenate([RNG.uniform(-126, 20, 4000), [0, -1, 5, -126, -200, -np.inf]]).astype(
        np.float32
    )
    y = (
        launch("approximate", x, 2 * len(x), block=256, n=len(x), text=approximations())
        .view(np.float32)
        .reshape(-1, 2)
    )
    want = np.exp2(x.astype(np.float64))
    assert (
        (np.abs(y[:, 0] - want) <= 2**-21.5 * want + 2e-38).all()
        and (y[x == -np.inf, 0] == 0).all()
        and y[4000, 0] == 1
    )
    with np.errstate(divide="ignore"):
        want = 1 / x.astype(np.float64)
    some = x != 0
    assert (np.abs(y[some, 1] - want[some]) <= 2**-22.5 * np.abs(want[some])).all() and (
        y[~some, 1] == np.inf
    ).all()


def test_landing_copies_arrive():
    x = RNG.integers(0, 1 << 32, 256, dtype=np.uint64).astype(np.uint32)
    for arch in ("sm_80", "sm_90a"):
        assert (launch("landings", x, 256, block=64, arch=arch) == x[::-1]).all()


# ---- sm_90 ----------------------------------------------------------------------------------------------------------

# Requirements of an H100 that the manual does not mention. Innermost coordinates are multiples of
# 16 bytes, and a store has no negative ones: both end the kernel with an illegal instruction. Rows
# of a tensor are multiples of 16 bytes, since a store writes up to the next multiple.
DIMS, BOX, AT, PUT = (8, 5, 4, 3, 2), (8, 2, 2, 2, 1), (4, 4, 3, -1, 1), (4, 4, 1, 2, 0)
WGMMA = [
    (t, n, form)
    for n in (32, 64, 96, 128, 192, 256)
    for t in ("bf16", "f16")
    for form in ("", "_bt", "_ra", "_ra_bt")
] + [("e4m3", 128, "")]


def wgmma_name(t, n, form):
    return f"wgmma_{t}_m64n{n}k{32 if t == 'e4m3' else 16}{form}"


def source90(wgmma=(), arch="sm_90a"):
    text = (H.ROOT / "tests" / "cuda" / "conformance_sm90.cu").read_text()
    if arch != "sm_90a":
        text = (
            text[
                : text.index(
                    "/* Each block of a" if arch == "sm_120a" else "/* A warpgroup releases"
                )
            ]
            + text[text.index("/* y [64][N]") :]
        )
    a, b = text.index("/* A box of N dim"), text.index("/* A map in global")
    box, text = text[a:b], text[:a] + "BOXES" + text[b:]
    boxes = ""
    for n in range(1, 6):
        at, put = (", ".join(f"p.{v}[{i}]" for i in range(n)) for v in ("at", "put"))
        boxes += (
            box.replace("Nd", f"{n}d")
            .replace("AT,", at + ",")
            .replace("PUT", put)
            .replace("BYTES", str(4 * int(np.prod(BOX[:n]))))
        )
    a = text.index("/* y [64][N]")
    one, text = text[a:], text[:a]
    for t, n, form in wgmma:
        name = wgmma_name(t, n, form)
        text += (
            one.replace("k_WGMMA", "k_" + name)
            .replace("WGMMA", name)
            .replace("NUMBER", str(n))
            .replace("TURNED", "true" if "_bt" in form else "false")
            .replace("OPERAND_A", "ra" if "_ra" in form else "smem_desc(s.a, 128, 256, 0)")
        )
    return H.inline(
        '#line 1 "conformance_sm90.cu"\n' + text.replace("BOXES", boxes),
        "conformance_sm90.cu",
        set(),
    )


def with_maps(fn, arrays, maps, at=(), put=(), **more):
    """Launch a kernel whose struct begins with two maps, unless these are copied to memory."""
    fields = ["x", "y", *(list(at) + [0] * 5)[:5], *(list(put) + [0] * 5)[:5]]
    space = "256x" if all(m[5] for m in maps) else "128x" if len(maps) == 1 else ""
    return launch(
        fn,
        arrays["x"],
        len(arrays["y"]),
        text=source90(),
        pack="@" + space + "QQ10i",
        fields=fields,
        arrays=arrays,
        maps=maps,
        **more,
    )


@pytest.mark.parametrize("n", range(1, 6))
def test_boxes_of_tensors(n):
    shape = (1, 1, 1, 1, 1, *DIMS[:n][::-1])[-n:]
    full = (*shape[:-1], 12)  # rows of 48 bytes
    x = RNG.integers(1, 1000, full).astype(np.float32)
    strides = [48 * int(np.prod(DIMS[1:i])) for i in range(1, n)] + [0]
    arrays = dict(x=x.ravel().view(np.uint32), y=np.zeros(x.size, np.uint32))
    maps = [(k, 7, DIMS[:n], strides, BOX[:n], None) for k in "xy"]
    y = (
        with_maps(f"box_{n}d", arrays, maps, AT[:n], PUT[:n], shared=256)
        .view(np.float32)
        .reshape(full)
    )
    want = np.zeros(full, np.float32)
    for i in np.ndindex(*BOX[:n]):  # innermost first
        src, dst = (tuple(v[k] + i[k] for k in range(n)) for v in (AT, PUT))
        if all(0 <= d < m for d, m in zip(dst, DIMS)):
            want[dst[::-1]] = x[src[::-1]] if all(0 <= d < m for d, m in zip(src, DIMS)) else 0
    assert (y == want).all()


@pytest.mark.findings
@pytest.mark.parametrize(
    "width,at,put,says",
    [
        (8, (2, 0), (0, 0), "multiple of 16 bytes"),
        (8, (-1, 0), (0, 0), "multiple of 16 bytes"),
        (8, (0, 0), (3, 0), "multiple of 16 bytes"),
        (8, (0, 0), (0, -1), "must not be negative"),
        (6, (0, 0), (4, 0), "writes beyond"),
    ],
)
def test_boxes_that_no_gpu_takes(width, at, put, says):
    """Each of these boxes ended a kernel on an H100, or wrote beyond its tensor; the emulator
    reports them."""
    H.only_emulated()
    arrays = dict(x=np.zeros(60, np.uint32), y=np.zeros(60, np.uint32))
    maps = [(k, 7, (width, 5), [48, 0], BOX[:2], None) for k in "xy"]
    with pytest.raises(H.Finding, match=says):
        with_maps("box_2d", arrays, maps, at, put, shared=256)


def test_map_in_memory_and_bulk_stores():
    data = RNG.integers(0, 1 << 31, 64).astype(np.uint32)
    arrays = dict(x=np.zeros(64, np.uint32), y=np.zeros(32, np.uint32), data=data)
    y = with_maps("far_map", arrays, [("data", 7, (32, 2), (128, 0), (32, 1), "x")], shared=256)
    assert (y == data[32:]).all()
    y = launch("bulk_out", data[:32], 64, shared=256, text=source90())
    assert (y == np.concatenate([data[:32] + 1, data[:32] + 2])).all()
    x = np.arange(256, dtype=np.uint32)
    assert (launch("registers", x, 256, block=256, text=source90()) == x + 1 + (x >= 128)).all()


def test_multicast():
    x, z = RNG.integers(0, 1 << 31, (2, 64)).astype(np.uint32)
    arrays = dict(x=x, y=np.zeros(320, np.uint32), z=z)
    y = with_maps(
        "multicast",
        arrays,
        [("z", 7, (32, 2), (128, 0), (32, 1), None)],
        grid=2,
        shared=1024,
        cluster=2,
    ).reshape(2, 160)
    for b in range(2):
        assert (
            (y[b, :64] == x).all()
            and (y[b, 64:128] == z).all()
            and (y[b, 128:] == 1000 * (1 - b) + (LANE ^ 1)).all()
        )


@pytest.mark.parametrize("n", (32, 64, 96, 128, 192, 256) if H.REAL else (32, 128, 256))
def test_wgmma(n):
    kinds = [k for k in WGMMA if k[1] == n]
    text, rng = source90(kinds), np.random.default_rng(n)
    for t, _, form in kinds:
        k = 32 if t == "e4m3" else 16
        a, b = rng.integers(-15, 16, (64, k)), rng.integers(-15, 16, (k, n))
        v = np.concatenate([a.ravel(), (b if "_bt" in form else b.T).ravel()]).astype(np.float32)
        if t == "e4m3":
            v = to_e4m3(v).astype(np.uint8).view(np.uint16)
        elif t == "bf16":
            v = (v.view(np.uint32) >> 16).astype(np.uint16)
        else:
            v = v.astype(np.float16).view(np.uint16)
        for acc in (1, 0):
            y = (
                launch(
                    "k_" + wgmma_name(t, n, form),
                    v,
                    64 * n,
                    block=128,
                    shared=64 * 32 + 256 * 32,
                    text=text,
                    n=acc,
                )
                .view(np.float32)
                .reshape(64, n)
            )
            assert (y == a @ b + acc * (np.arange(64)[:, None] + 2 * np.arange(n))).all(), (
                t,
                form,
                acc,
            )


# ---- all of them ----------------------------------------------------------------------------------------------------


def preprocessed(text):
    """Text with macros expanded, for sm_90; also for a header that lacks the names of its template."""
    return subprocess.run(
        ["gcc", "-E", "-P", "-x", "c++", "-D__CUDA_ARCH__=900", "-I", str(H.TEMPLATES), "-"],
        input=text,
        capture_output=True,
        text=True,
    ).stdout


def functions_with_ptx(text, mark):
    for part in re.split(mark, text)[1:]:
        part = re.split(r"__global__|#define", part)[0]
        if re.search(r'\basm\s*(volatile)?\s*\(\s*("[^"]|LLMC_)', part):
            yield re.search(r"(\w+)\s*\(", part)[1]


@pytest.mark.skipif(H.REAL, reason="compiled for the GPU at hand by every other test")
def test_real_compiler():
    """For every architecture, without spills and warnings"""
    found = H.nvrtc_tool()
    if found is None:
        pytest.skip("no libnvrtc")
    lib, tool = found
    todo = [("conformance.cu", source(a), a) for a in H.ARCHS] + [
        ("conformance_sm90.cu", source90(arch=a), a) for a in ("sm_100a", "sm_120a")
    ]
    todo += [
        (
            "conformance_sm90.cu",
            source90([k for k in WGMMA if k[1] in (32, 96) or k[0] == "e4m3"]),
            "sm_90a",
        )
    ]
    for r in tool.compile_all(lib, todo):
        assert tool.bad(r) is None, f"{r['name']}, {r['arch']}: {r['log']}"


@pytest.mark.skipif(H.REAL, reason="the templates are the same on a GPU")
def test_every_wrapper_has_a_case():
    """Every function of templates/cuda with PTX is called by a kernel with a known result: here, or
    in tests/emu/t_sm90.cu, which the GPU check runs as well."""
    wrappers = set()
    for path in sorted((H.TEMPLATES / "cuda").rglob("*.h")):
        wrappers |= set(functions_with_ptx(path.read_text(), r"\bDEV\b")) - {
            "name"
        }  # also code that the preprocessor removes
        wrappers |= set(
            functions_with_ptx(
                preprocessed(f'#include "{path.relative_to(H.TEMPLATES)}"\n'),
                "static __device__ __forceinline__",
            )
        )
    assert (
        len(wrappers) > 150
        and {
            "ld_v4_stream",
            "h2_fma",
            "flash_exp2",
            "wgmma_f16_m64n96k16_ra_bt",
            "atom_add_release_cluster",
            "tensor_load_4d",
        }
        <= wrappers
    )
    kernels = ""
    for text in (
        source("sm_90a"),
        source90(WGMMA),
        approximations(),
        (H.ROOT / "tests/emu/t_sm90.cu").read_text(),
    ):
        text = preprocessed(text)
        assert "__global__" in text
        kernels += text
    kernels = "".join(
        re.findall(r"__global__.*?\n}", kernels, re.S)
        + re.findall(r"template <int \w+> __device__.*?\n}", kernels, re.S)
    )
    called = set(re.findall(r"\b(\w+)\s*(?:<\d+>)?\(", kernels))
    assert not wrappers - called, (
        f"no case for {sorted(wrappers - called)}: add one to tests/cuda/conformance.cu"
    )
