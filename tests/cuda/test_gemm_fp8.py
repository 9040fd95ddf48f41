"""GEMMs of e4m3 (templates/cuda/gemm/gemm_fp8.h, gemm_fp8_sm90.h; `activations: f8`) against numpy in double precision:
activations rounded to e4m3 with a scale per group of the weights, exact weights. What remains is the
rounding of fp32 sums."""

import cuda_harness as H
import numpy as np
import pytest

import gemm_weights as W
import sass
from kv_types import E4M3, to_e4m3
from planted import plant
from test_gemm import EPS, Case, norm, silu


def rounded(x, group):
    b = x.astype(np.float32).reshape(*x.shape[:-1], -1, group)
    peak = np.abs(b).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        q = E4M3[to_e4m3(b * (np.float32(448) / peak))]
        d = (peak * (np.float32(1) / np.float32(448))).astype(np.float64)
    return np.where(peak < 1e-30, 0, q * d).reshape(x.shape)


def close(got, x, w, more=0, tol=1e-6):
    """Compare relative to the sum of magnitudes of the terms."""
    assert np.isfinite(got).all()
    err = np.abs(got - (x @ w.T + more)) / (np.abs(x) @ np.abs(w).T + np.abs(more) + 1e-30)
    assert err.max() < tol, f"{err.max():g} of the terms"


def group_of(dtype):
    return int(dtype.split("_")[1])


def weights(c, rows=None):
    packed, values = W.make(c.r, rows or c.rows, c.cols, c.dtype)
    return packed, values.astype(np.float64)


def params(c, **more):
    return c.params(ACT_F8=1, **more)


def matmul(arch, runs, rows, cols, dtype, bias=True):
    c = Case(rows + cols, max(n for n, _, _ in runs), rows, cols, dtype)
    packed, w = weights(c)
    b = c.f(rows) if bias else None
    k = H.build("matmul_mixed", arch, params(c))
    for n, mode, seed in runs:
        (y,) = k.run(
            H.make_step(pos=list(range(n)), rows=[n]),
            [c.x[:n], packed, b, H.out((n, rows))],
            mode=mode,
            seed=seed,
            bucket=n + seed,
        )
        close(y, rounded(c.x[:n], group_of(dtype)), w, b if bias else 0)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "dtype, rows, cols, arch",
    [
        ("f8_128", 1031, 384, "sm_89"),
        ("f8_32", 131, 160, "sm_120a"),
        ("f8_128", 67, 128, "sm_120a"),
        ("f8_32", 263, 544, "sm_89"),
        ("f8_128", 131, 896, "sm_89"),
        ("f8_128", 263, 384, "sm_90a"),
    ],
)
def test_matmul(dtype, rows, cols, arch):
    """Rows of both tiles, columns that fill no stage, odd numbers of results"""
    matmul(arch, [(n, "fast", i) for i, n in enumerate((9, 17, 64, 129))], rows, cols, dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "dtype, cols, arch",
    [("f8_32", 672, "sm_89"), ("f8_128", 768, "sm_89"), ("f8_128", 768, "sm_90a")],
)
def test_matmul_checked(dtype, cols, arch):
    """On sm_90a, with two clusters: 9 rows run the middle tile, 129 the large one."""
    rows = 263 if arch == "sm_90a" else 1031
    matmul(arch, [(9, "check", 1), (129, "check", 2)], rows, cols, dtype, False)


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_extreme_values(arch):
    """Zeros, tiny, huge and not finite rows; every code of e4m3 as a weight"""
    rows, cols, n = 33, 256, 12
    c = Case(2, n, rows, cols, "f8_128")
    packed, w = weights(c)
    c.x[1] = 0
    c.x[2, :128], c.x[2, 128:] = 1e-31, 1e-29
    c.x[3, 40] = np.inf
    c.x[4, 5] = np.nan
    c.x[5] *= 1e37
    c.x[6] *= 1e-25
    c.x[7, ::2] *= 1e-6  # becomes subnormal or zero
    k = H.build("matmul_mixed", arch, params(c))
    (y,) = k.run(c.step, [c.x, packed, None, H.out((n, rows))])
    assert np.isnan(y[3:5]).all() and (y[1] == 0).all()
    fine = [0, 1, 2, *range(5, n)]
    close(y[fine], rounded(c.x[fine], 128), w)


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_rows_do_not_depend_on_other_rows(arch):
    n, rows, cols = 140, 300, 256
    c = Case(21, n, rows, cols, "f8_128")
    packed, _ = weights(c)
    k = H.build("matmul_mixed", arch, params(c))
    (every,) = k.run(c.step, [c.x, packed, None, H.out((n, rows))])
    for pick in [137], list(range(3, 63)), list(range(2, 140)):
        step = H.make_step(pos=list(range(len(pick))), rows=[len(pick)])
        (y,) = k.run(step, [c.x[pick], packed, None, H.out((len(pick), rows))], seed=1)
        assert (y.view(np.uint32) == every[pick].view(np.uint32)).all()


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_glu(arch):
    rows, n, cols = 521, 130, 256
    c = Case(rows, n, rows, cols, "f8_128")
    nw, b = c.f(cols), c.f(2 * rows)
    packed, w = weights(c, 2 * rows)
    k = H.build("norm_glu_mixed", arch, params(c, NORM="rms", EPS=EPS, PLUS_ONE=0, ACT="silu"))
    z = rounded(norm(c.x, "rms", nw, None), 128) @ w.T + b
    (y,) = k.run(c.step, [c.x, nw, None, packed, b, H.out((n, rows))])
    # the norm is rounded otherwise, so single codes may differ by one
    err = np.abs(y - silu(z[:, :rows]) * z[:, rows:])
    assert np.sqrt((err**2).mean()) < 4e-3 * np.sqrt((y**2).mean()), err.max()


def test_where_it_runs():
    """GPUs with mma.sync of e4m3 at a higher rate than f16, or wgmma; other GPUs and types keep 16 bits."""
    p = dict(ROWS=64, COLS=256, DETERMINISTIC=1)

    def of(arch, dtype, f8=1):
        k = H.expand("matmul_mixed", arch, dict(p, W_DTYPE=dtype, ACT_F8=f8))
        return "gemm_fp8_config" in k["text"] or "gemm90_fp8_config" in k["text"]

    for arch in H.ARCHS[1:]:
        for dtype in "f8_32", "f8_128":
            has = ("sm_89", "sm_120a", "sm_90a")[: 3 if dtype == "f8_128" else 2]
            assert of(arch, dtype) == (arch in has)
            assert not of(arch, dtype, 0)
    assert not of("sm_89", "q8_0") and not of("sm_89", "bf16") and not of("sm_89", "u8_128")


PLANTED = {
    "a stage is read before it has come": (
        "cp_async_wait<T::STAGES - 2>();\n\t\t\t__syncthreads();\n\t\t\tif (step + T",
        "cp_async_wait<T::STAGES - 1>();\n\t\t\t__syncthreads();\n\t\t\tif (step + T",
    ),
    "a stage is filled while it is read": ("__syncthreads();\n\t\t\tif (step + T", "if (step + T"),
    "scales of another stage": ("scales(at), wm, wn, acc)", "scales(into), wm, wn, acc)"),
    "scales of the next group": (
        "x.scales(min(m0 + i % T::BM, x.n - 1)) +",
        "x.scales(min(m0 + i % T::BM, x.n - 1)) + 1 +",
    ),
    "scales past the last row": ("min(m0 + i % T::BM, x.n - 1)", "m0 + i % T::BM"),
    "columns past a row": (
        "k0 + c * 16 < W::COLS)\n\t\t\t                     ? 16",
        "k0 + c * 16 <= W::COLS)\n\t\t\t                     ? 16",
    ),
    "one scale for two rows": ("x[c >> 1], acc[i][j][c]", "x[0], acc[i][j][c]"),
    "halves of a fragment exchanged": (
        "2 * (g * IN_GROUP + k) + cb)",
        "2 * (g * IN_GROUP + k) + 1 - cb)",
    ),
    "one scale per row": ("to.scales(t)[k / R::GROUP] =", "to.scales(t)[0] ="),
    "weights' scales of other rows": (
        "const int row = i % T::BN",
        "const int row = (i + 1) % T::BN",
    ),
}


PLANTED90 = {
    "weights are not released to the async proxy": (
        "of_x[i * 128 + (int)threadIdx.x] = d_x[i];\n\t\tfence_proxy_async();",
        "of_x[i * 128 + (int)threadIdx.x] = d_x[i];",
    ),
    "a stage is read before it has come": (
        "mbar_wait(&s.ring.full[at], it / T::STAGES & 1);\n#pragma unroll",
        "#pragma unroll",
    ),
    "a stage is filled while it is read": (
        "mbar_wait(&s.ring.empty[at], (it / T::STAGES & 1) ^ 1);",
        "",
    ),
    "sums are read while they are computed": (
        "wgmma_wait<0>();\n\t\t\t\twgmma_pin(part);",
        "wgmma_pin(part);",
    ),
    "a sum of the last group is kept": (
        "b + k * 2,\n\t\t\t\t\t                      k > 0);",
        "b + k * 2, true);",
    ),
    "scales of the other half of the rows": (
        "warp % 4 * 16 +\n\t\t\t\t\t                       h * 8",
        "warp % 4 * 16 + (1 - h) * 8",
    ),
    "scales of the next step": ("d_x[i] = x[i][step];", "d_x[i] = x[i][0];"),
    "weights' scales of the first group": ("W::D + step * 4", "W::D"),
    "the other warpgroup's activations": (
        "smem_desc(stage + group * MT * 8192, 16, 1024,\n\t\t\t                                       128),\n\t\t\t                         b = smem_desc(stage + T::A_BYTES, 16, 1024, 128);\n\t\t\tconst float",
        "smem_desc(stage + (1 - group) * MT * 8192, 16, 1024, 128), b = smem_desc(stage + T::A_BYTES, 16, 1024, 128);\n\t\t\tconst float",
    ),
    "a stage is released before its scales are read": (
        "wgmma_pin(part);\n",
        "wgmma_pin(part);\n\t\t\t\tif (i == MT - 1 && lane < 2)\n\t\t\t\t\tmbar_arrive_cluster(&s.ring.empty[at], lane);\n",
    ),
}


def find_planted(arch, c, exchange):
    packed, w = weights(c)
    k = H.build("matmul_mixed", arch, params(c))
    k.text = plant(H.inline(k.text, k.name, set()), *exchange)
    with pytest.raises(AssertionError):
        (y,) = k.run(c.step, [c.x, packed, None, H.out((c.n, c.rows))], mode="check", seed=2)
        close(y, rounded(c.x, group_of(c.dtype)), w)


@pytest.mark.findings
@pytest.mark.parametrize("bug", PLANTED90 if H.EVERY else list(PLANTED90)[::5])
def test_planted_bugs_are_found_on_sm90(bug):
    c = Case(6, 140, 300, 1024, "f8_128")
    c.x *= np.exp2(np.arange(c.cols) // 128).astype(np.float32)  # groups with scales of their own
    find_planted("sm_90a", c, PLANTED90[bug])


@pytest.mark.findings
@pytest.mark.parametrize("bug", PLANTED if H.EVERY else list(PLANTED)[::5])
def test_planted_bugs_are_found(bug):
    find_planted("sm_89", Case(6, 20, 97, 672, "f8_32"), PLANTED[bug])


def test_nvrtc():
    """Real NVRTC: no spills; mma of 8-bit floats"""
    for dtype, arch in [("f8_128", "sm_89"), ("f8_128", "sm_90a")] + [
        ("f8_128", "sm_120a"),
        ("f8_32", "sm_89"),
        ("f8_32", "sm_120a"),
    ] * H.EVERY:
        done = H.nvrtc(
            "norm_glu_mixed",
            dict(
                ROWS=14336,
                COLS=4096,
                NORM="rms",
                EPS=EPS,
                PLUS_ONE=0,
                ACT="silu",
                W_DTYPE=dtype,
                ACT_F8=1,
                DETERMINISTIC=1,
            ),
            [arch],
        )
        if done is None:
            pytest.skip("no NVRTC here")
        f = sass.functions(done[0]["cubin"])
        if f:
            s = f[done[0]["symbol"]]
            if arch == "sm_90a":  # two tiles; no wait inside of a group
                assert s.count("QGMMA") >= 12 and not s.count("LDL", "STL")
                continue
            assert s.count("QMMA") >= (64 if dtype == "f8_128" else 16)
            assert s.count("LDSM") >= 6 and not s.count("LDL", "STL")
