"""GEMMs by wgmma (templates/cuda/*_mixed.cu.in): the same values as in test_gemm.py, on the
emulator of sm_90a"""

import cuda_harness as H
import numpy as np
import pytest
import sass
import test_qkv as QKV

from test_gemm import Case, close, norm, rounded, silu

ARCH = "sm_90a"
EPS = 1e-5


def build(op, c, deterministic=1, **more):
    return H.build(f"{op}_mixed", ARCH, c.params(DETERMINISTIC=deterministic, **more))


def matmul(n, rows, cols, dtype, mode="fast", seed=0, deterministic=1, bias=True):
    c = Case(n * rows + cols, n, rows, cols, dtype)
    packed, w = c.weights()
    b = c.f(rows) if bias else None
    (y,) = build("matmul", c, deterministic).run(
        c.step, [c.x, packed, b, H.out((n, rows))], mode=mode, seed=seed
    )
    close(y, rounded(c.x, dtype) @ w.T + (0 if b is None else b))


# All tiles, partial tiles, more pairs of tiles than clusters, odd numbers of tiles (a CTA without
# rows or columns of its own), fewer stages than the ring has and more, and few rows
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "n, rows, cols, dtype",
    [
        (70, 200, 64, "bf16"),
        (300, 72, 192, "f16"),
        (513, 520, 128, "bf16"),
        (700, 144, 704, "f16"),
        (65, 1, 64, "bf16"),
        (1, 130, 128, "f16"),
        (64, 100, 640, "bf16"),
        (17, 130, 128, "f16"),
    ],
)
def test_matmul(n, rows, cols, dtype):
    matmul(n, rows, cols, dtype)
    matmul(n, rows, cols, dtype, seed=1)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "n, rows, cols, dtype",
    [
        (129, 136, 192, "bf16"),
        (300, 72, 128, "f16"),
        (140, 72, 384, "bf16"),
        (520, 300, 64, "f16"),
        (50, 72, 640, "f16"),
        (66, 100, 64, "q8_0"),
        (300, 72, 128, "q4_0"),
    ],
)
def test_matmul_checked(n, rows, cols, dtype):
    matmul(n, rows, cols, dtype, mode="check", seed=2, bias=False)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype", ["q8_0", "q4_k", "iq4_xs"]
)  # others: test_gemm.py, the same unpacking
def test_matmul_of_blocks(dtype):
    matmul(150, 200, 512 if H.super_block(dtype) else 320, dtype, seed=1)


@pytest.mark.parametrize("dtype", ["bf16", "q5_0"])
def test_few_rows_when_deterministic(dtype):
    """One kernel for any number of rows; a row's result is the same alone and among others. With
    two clusters (also on a GPU) 16-bit weights use the small tile, the middle one (129 rows) and
    the large one (300): instructions of 32, 128 and 256 columns. No manual guarantees that they
    add in the same order."""
    c = Case(5, 300, 120, 192, dtype)
    packed, _ = c.weights()
    k = build("matmul", c, 1)
    (y,) = k.run(c.step, [c.x, packed, None, H.out((300, 120))])
    for first, n in (0, 1), (3, 20), (100, 129), (299, 1):
        step = H.make_step(pos=list(range(n)), rows=[n])
        (z,) = k.run(
            step,
            [np.ascontiguousarray(c.x[first : first + n]), packed, None, H.out((n, 120))],
            seed=1,
        )
        assert np.array_equal(y[first : first + n], z)


@pytest.mark.parametrize("bucket", [0, 400])
def test_add_in_place(bucket):
    n, rows, cols = 140, 70, 128
    c = Case(3, n, rows, cols, "f16")
    packed, w = c.weights()
    r = c.f(n, rows)
    k = build("matmul_add", c, SCALE=0.5)
    for mode, seed in H.RUNS:
        (y,) = k.run(
            c.step, [c.x, packed, None, H.inout(r), H.alias(3)], mode=mode, seed=seed, bucket=bucket
        )
        close(y, 0.5 * r.astype(np.float64) + rounded(c.x, "f16") @ w.T)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype, n, rows", [("bf16", 130, 136), ("bf16", 67, 60), ("q6_k", 130, 136)]
)
def test_glu(dtype, n, rows):
    c = Case(n, n, rows, 256, dtype)
    nw = c.f(256)
    packed, w = c.weights(2 * rows)
    b = c.f(2 * rows)
    k = build("norm_glu", c, NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu")
    z = rounded(norm(c.x, "rms", nw, None), dtype) @ w.T + b
    for mode, seed in H.RUNS if dtype == "bf16" else H.RUNS[:1]:
        (y,) = k.run(c.step, [c.x, nw, None, packed, b, H.out((n, rows))], mode=mode, seed=seed)
        close(y, silu(z[:, :rows]) * z[:, rows:], 5e-3)


@pytest.mark.parametrize("op", ["norm_matmul", "norm_act"])
def test_norm_and_act(op):
    c = Case(4, 70, 150, 128, "bf16")
    packed, w = c.weights()
    nw, nb, b = c.f(128), c.f(128), c.f(150)
    more = dict(ACT="silu") if op == "norm_act" else {}
    (y,) = build(op, c, NORM="layer", EPS=EPS, PLUS_ONE=0, **more).run(
        c.step, [c.x, nw, nb, packed, b, H.out((70, 150))]
    )
    z = rounded(norm(c.x, "layer", nw, nb), "bf16") @ w.T + b
    close(y, silu(z) if op == "norm_act" else z, 5e-3)


def test_head():
    c = Case(6, 90, 300, 128, "bf16")
    packed, w = c.weights()
    nw = c.f(128)
    rows = list(range(3, 88))
    step = H.make_step(pos=list(range(90)), rows=[90], out_row=rows)
    (y,) = build("lm_head", c, NORM="rms", EPS=EPS, PLUS_ONE=0, SCALE=0.9, SOFTCAP=30.0).run(
        step, [c.x, nw, None, packed, H.out((len(rows), 300))]
    )
    close(y, 30 * np.tanh(0.9 * rounded(norm(c.x, "rms", nw, None), "bf16")[rows] @ w.T / 30), 5e-3)


@pytest.mark.parametrize(
    "dtype, mode, seed", [("bf16", "check", 1)] + [("q8_0", "fast", 0)] * H.EVERY
)
def test_qkv(dtype, mode, seed):
    c = QKV.Case(
        64, 4, 2, 48, [1, 1, 66, 5], dtype=dtype, kv="f16", bias=True, qk_norm=True, rope_dims=32
    )
    c.check(
        H.build("norm_qkv_mixed", ARCH, c.params),
        2e-2 if dtype == "bf16" else 5e-3,
        mode=mode,
        seed=seed,
    )


def test_real_compiler():
    """No spill, no warning, so no serialised wgmma. The copies are those computed in
    cuda/gemm/gemm_sm90.h. Between the wgmma of two stages there is only the wait for the
    previous stage, in particular no fence of the whole GPU. Results are stored 16 bytes at a
    time."""
    for op, dtype, more in [
        ("matmul", "bf16", {}),
        ("norm_glu", "q6_k", dict(NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu")),
        *[("matmul_add", t, dict(SCALE=1.0)) for t in ("q5_k", "q6_k")] * H.EVERY,
    ]:
        done = H.nvrtc(
            f"{op}_mixed",
            dict(ROWS=4096, COLS=4096, W_DTYPE=dtype, DETERMINISTIC=0, **more),
            [ARCH],
        )
        if done is None:
            pytest.skip("no NVRTC")
        f = sass.functions(done[0]["cubin"])
        if f is None:
            continue
        main = f[done[0]["symbol"]]
        multicast = [
            sum("MULTICAST" in main[i] for i in main.where(name)) for name in ("UTMALDG", "UBLKCP")
        ]
        if dtype == "bf16":
            assert (
                main.count("HGMMA.64x256x16")
                == main.count("HGMMA.64x128x16")
                == main.count("HGMMA.64x32x16")
                == 4
            )
            assert main.count("UTMALDG") == 5 and main.count("UBLKCP") == 4 and multicast == [2, 2]
        else:
            assert (
                main.count("HGMMA.64x128x16") == 12
                and main.count("UTMALDG") == 0
                and main.count("UBLKCP") == 3
                and multicast == [0, 3]
            )
        assert main.count("USETMAXREG") == 2 and main.count("HMMA", "LDGSTS") == 0
        assert (
            main.count("WARPGROUP.DEPBAR") == main.count("HGMMA") // (2 if dtype == "bf16" else 3)
            and main.count("LDL", "STL") == 0
        )
        assert main.count("MEMBAR.ALL.GPU") == main.count("UCGABAR_ARV")
        assert main.count("STG") == main.count("STG.E.128") > 0
