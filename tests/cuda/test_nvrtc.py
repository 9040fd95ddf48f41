"""Compiles every kernel that llmc emits with the real NVRTC: no warning and no spill. One
description per architecture: the tiny one, with plain or rotated rows of the cache, or an 8B
model. LLMC_CHECK_ALL=1: all descriptions of configs/ for all architectures, the tiny one in
three types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import cuda_resources  # noqa: E402
import nvrtc  # noqa: E402

pytestmark = pytest.mark.skipif(nvrtc.find() is None, reason="no libnvrtc")
EVERY = "LLMC_CHECK_ALL" in os.environ  # make check-all
TINY = (
    [(d, a) for a in nvrtc.ARCHS for d in ("f32", "bf16", "q8_0")]
    if EVERY
    else [("q8_0", "sm_89"), ("bf16", "sm_103a"), ("f32", "sm_121a")]
)


def check(configs, archs, sets=()):
    rows = cuda_resources.survey([ROOT / "configs" / c for c in configs], archs, sets)
    wrong = [
        f"{r['config']} {r['arch']} {r['fn']}: {r['wrong']}\n{r['log']}" for r in rows if r["wrong"]
    ]
    assert rows and not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("dtype,arch", TINY)
def test_tiny(dtype, arch):
    check(["tiny.yaml"], [arch], [f"storage.default={dtype}"])


@pytest.mark.parametrize("arch", ["sm_90a"] + ["sm_80"] * EVERY)
def test_8b(arch):
    check(["llama3-8b.yaml"], [arch])


@pytest.mark.skipif(not EVERY, reason="LLMC_CHECK_ALL is not set")
@pytest.mark.parametrize("dtype", ["q4_0", "q5_1", "q4_k", "q6_k"])
def test_8b_quantised(dtype):
    check(["llama3-8b.yaml"], ["sm_90a"], [f"storage.default={dtype}"])


@pytest.mark.skipif(not EVERY, reason="LLMC_CHECK_ALL is not set")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("kv", ["f8", "int8", "int6", "int4"])
def test_8b_cached_rows(kv, arch):
    check(["llama3-8b.yaml"], [arch], [f"kv.dtype={kv}"])


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90a"] + ["sm_80"] * EVERY)
def test_rotated_rows(arch):
    check(["tiny.yaml"], [arch], ["kv={k: int8, v: int4, rotate: true}"])


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_between_ranks(arch):
    """Kernels of the runtime, which no description emits"""
    p = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tools/nvrtc.py"),
            "--arch",
            arch,
            "-I",
            "templates",
            "templates/cuda/runtime/collective.cu",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    lines = p.stdout.splitlines()
    assert p.returncode == 0 and len(lines) == 5 and all(" 0 spill" in line for line in lines), (
        p.stdout + p.stderr
    )


@pytest.mark.skipif(not EVERY, reason="LLMC_CHECK_ALL is not set")
@pytest.mark.parametrize(
    "config",
    sorted(p.name for p in (ROOT / "configs").glob("*.yaml") if p.name != "pretokenizers.yaml"),
)
def test_all(config):
    check([config], nvrtc.ARCHS)
