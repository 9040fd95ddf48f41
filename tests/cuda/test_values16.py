"""Values that steps store in bf16 between GEMMs (compiler/fuse/narrow_bf16.c). A consumer gives the
same bits as from fp32, which it would round itself; a producer rounds once, to nearest even."""

import cuda_harness as H
import numpy as np
import pytest
import sass

from test_gemm import EPS, Case, close, rounded, to_bf16
from test_moe_fused import Experts, step as rows_step


def same(got, want):
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def both(template, arch, name, params):
    """The kernel for fp32, and the one with bf16 for the argument `name`"""
    return H.build(template, arch, params), H.build(
        template, arch, dict(params, **{f"{name}_DTYPE": "bf16"})
    )


def product(arch, n, rows, cols, mode="fast", seed=0, path="own", deterministic=1):
    c = Case(n + rows, n, rows, cols, "bf16")
    packed, w = c.weights()
    b = c.f(rows)
    fp32, bf16 = both("matmul_mixed", arch, "X", c.params(DETERMINISTIC=deterministic))
    assert any(x.get("fn", "").endswith("_quantize_act") for x in fp32.launches) and not any(
        x.get("fn", "").endswith(("_quantize_act", "_quantize_act_row_major"))
        for x in bf16.launches
    )
    (want,) = fp32.run(c.step, [c.x, packed, b, H.out((n, rows))], path=path)
    (got,) = bf16.run(
        c.step, [to_bf16(c.x), packed, b, H.out((n, rows))], mode=mode, seed=seed, path=path
    )
    same(got, want)
    close(got, rounded(c.x, "bf16") @ w.T + b)


# Every way to load rows: cp.async, tensor maps for mma, boxes for wgmma (the last one partial, or
# beyond the rows for one CTA), with all three tiles
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "arch, n, rows, cols",
    [
        ("sm_80", 130, 97, 72),
        ("sm_120a", 130, 300, 168),
        ("sm_90a", 300, 72, 192),
        ("sm_90a", 513, 520, 128),
        ("sm_90a", 67, 136, 704),
    ],
)
def test_reads(arch, n, rows, cols):
    product(arch, n, rows, cols)
    product(arch, n, rows, cols, "check", 2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch, n", [("sm_80", 9), ("sm_90a", 40)])
def test_few_rows_read(arch, n):
    product(arch, n, 136, 192, "check", 1, deterministic=0)


def test_a_library_reads():
    product("sm_90a", 70, 136, 192, "check", 1, "library", deterministic=0)


@pytest.mark.parametrize("path", ["own", "library"])
def test_adds_in_place(path):
    n, rows, cols = 140, 72, 128
    c = Case(3, n, rows, cols, "bf16")
    packed, w = c.weights()
    r = c.f(n, rows)
    fp32, bf16 = both("matmul_add_mixed", "sm_90a", "X", c.params(SCALE=0.5, DETERMINISTIC=0))
    got = [
        k.run(
            c.step,
            [x, packed, None, H.inout(r), H.alias(3)],
            mode="check",
            seed=1,
            path=path,
            repeat=1,
        )[0]
        for k, x in ((fp32, c.x), (bf16, to_bf16(c.x)))
    ]
    same(*got)
    close(got[1], 0.5 * r.astype(np.float64) + rounded(c.x, "bf16") @ w.T)


# planted: a stage that expects fewer bytes than arrive, a chunk of the wrong rows, x read before its
# producer has ended
@pytest.mark.sample(1)
@pytest.mark.findings
@pytest.mark.parametrize("what", ["bytes", "rows", "wait"])
def test_planted(what):
    n, rows, cols = (40, 136, 192) if what == "wait" else (200, 136, 192)
    c = Case(4, n, rows, cols, "bf16")
    packed, w = c.weights()
    k = H.build("matmul_mixed", "sm_90a", c.params(DETERMINISTIC=0, X_DTYPE="bf16"))
    right, wrong = {
        "bytes": ("return (rows + 63) / 64 * 8192;", "return rows * 128;"),
        "rows": ("m(m0 + first * 64)", "m(m0)"),
        "wait": (
            "	PDL_WAIT();\n	PDL_LAUNCH();\n	const int n = min(*count, NT * 8);",
            "	const int n = min(*count, NT * 8);",
        ),
    }[what]
    assert right in k.text
    k.text = k.text.replace(right, wrong)
    with pytest.raises(AssertionError):
        (y,) = k.run(c.step, [to_bf16(c.x), packed, None, H.out((n, rows))], mode="check", seed=1)
        close(y, rounded(c.x, "bf16") @ w.T)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "op, arch, n, path",
    [
        ("norm_glu", "sm_80", 130, "own"),
        ("norm_glu", "sm_90a", 130, "own"),
        ("norm_glu", "sm_90a", 20, "own"),
        ("norm_glu", "sm_90a", 130, "library"),
        ("norm_act", "sm_100a", 130, "own"),
    ],
)
def test_writes(op, arch, n, path):
    c = Case(n, n, 136, 192, "bf16")
    nw, halves = c.f(192), 2 if op == "norm_glu" else 1
    packed, _ = c.weights(halves * 136)
    b = c.f(halves * 136)
    fp32, bf16 = both(
        f"{op}_mixed",
        arch,
        "Y",
        c.params(NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu", DETERMINISTIC=0),
    )
    (want,) = fp32.run(c.step, [c.x, nw, None, packed, b, H.out((n, 136))], path=path)
    (got,) = bf16.run(
        c.step,
        [c.x, nw, None, packed, b, H.out((n, 136), np.uint16)],
        mode="check",
        seed=1,
        path=path,
    )
    assert np.array_equal(got, to_bf16(want))


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch, shared", [("sm_80", 40), ("sm_90a", 64)])
def test_experts(arch, shared):
    rows, width = 70, 64
    e = Experts(5, 2, 128, width, shared, ["bf16"] * 4, mix=1)
    e.choose(rows)
    x, res, weight = (
        e.r.standard_normal((rows, 128)).astype(np.float32),
        e.r.standard_normal((rows, 128)).astype(np.float32),
        e.r.random((rows, 3)).astype(np.float32),
    )
    h = []
    for k, dtype in zip(
        both("norm_moe_glu_mixed", arch, "H", dict(e.glu_params, DETERMINISTIC=0)),
        (np.float32, np.uint16),
    ):
        h += k.run(
            rows_step(rows),
            [
                x,
                e.nw,
                e.nb,
                e.id,
                e.gate.packed,
                e.up.packed,
                None,
                None,
                *(m.packed for m in e.s[:2]),
                None,
                H.out((rows, 2 * width + shared), dtype),
            ],
            mode="check",
            seed=1,
        )
    assert np.array_equal(h[1], to_bf16(h[0]))
    y = []
    for k, v in zip(both("moe_down_add_mixed", arch, "H", dict(e.down_params, DETERMINISTIC=0)), h):
        y += k.run(
            rows_step(rows),
            [v, e.id, weight, e.down.packed, None, e.s[2].packed, res, H.out((rows, 128))],
            mode="check",
            seed=1,
        )
    same(*y)


def test_refuses():
    """Kernels that accept fp32 only: GEMMs with other weights, which scale a row by its largest
    value, and kernels of decode steps"""
    p = dict(ROWS=64, COLS=64, X_DTYPE="bf16")
    assert H.accepts("matmul_mixed", "sm_80", dict(p, W_DTYPE="bf16"))
    assert not any(
        H.accepts("matmul_mixed", "sm_80", dict(p, W_DTYPE=d)) for d in ("f16", "q8_0", "q4_k")
    )
    assert not H.accepts("matmul_decode", "sm_80", dict(p, W_DTYPE="bf16")) and not H.accepts(
        "matmul", "sm_75", dict(p, W_DTYPE="bf16")
    )
    experts = dict(
        N_EXPERTS=4,
        TOP_K=2,
        HIDDEN=64,
        WIDTH=64,
        SHARED=64,
        SHARED_GATE=0,
        SCALE=1.0,
        HAS_S_DOWN=1,
        DOWN_DTYPE="bf16",
        H_DTYPE="bf16",
        N_REMOTE_EXPERTS=0,
    )
    assert H.accepts(
        "moe_down_add_mixed", "sm_80", dict(experts, S_DOWN_DTYPE="bf16")
    ) and not H.accepts("moe_down_add_mixed", "sm_80", dict(experts, S_DOWN_DTYPE="q8_0"))


def test_real_compiler():
    """No spill, no warning; a stage is loaded by tensor maps only, and shared operands are
    multicast to both CTAs."""
    done = H.nvrtc(
        "matmul_add_mixed",
        dict(ROWS=4096, COLS=14336, W_DTYPE="bf16", X_DTYPE="bf16", DETERMINISTIC=0, SCALE=1.0),
        ["sm_90a"],
    )
    if done is None:
        pytest.skip("no NVRTC")
    f = sass.functions(done[0]["cubin"])
    if f:
        main = f[done[0]["symbol"]]
        assert main.count("UTMALDG") == 9 and main.count("UBLKCP", "LDL", "STL") == 0
        assert sum("MULTICAST" in main[i] for i in main.where("UTMALDG")) == 4
