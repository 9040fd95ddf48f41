"""Every kernel that llmc emits, through the real NVRTC: it compiles without a warning and nothing spills. The tiny description for every
architecture and storage type, an 8B model for sm_80 and sm_90a; LLMC_CHECK_ALL=1: all descriptions of configs/ for all."""
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


def check(configs, archs, sets=()):
    rows = cuda_resources.survey([ROOT / "configs" / c for c in configs], archs, sets)
    wrong = [f"{r['config']} {r['arch']} {r['fn']}: {r['wrong']}\n{r['log']}" for r in rows if r["wrong"]]
    assert rows and not wrong, "\n".join(wrong[:5])


@pytest.mark.sample(7)
@pytest.mark.parametrize("arch", nvrtc.ARCHS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
def test_tiny(arch, dtype):
    check(["tiny.yaml"], [arch], [f"storage.default={dtype}"])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_8b(arch):
    check(["llama3-8b.yaml"], [arch])


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["q4_0", "q5_1", "q4_k", "q6_k"])
def test_8b_quantised(dtype):
    check(["llama3-8b.yaml"], ["sm_90a"], [f"storage.default={dtype}"])


@pytest.mark.sample(6)
@pytest.mark.skipif(not os.environ.get("LLMC_CHECK_ALL"), reason="LLMC_CHECK_ALL is not set")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("kv", ["f8", "int8", "int6", "int4"])
def test_8b_cached_rows(kv, arch):
    check(["llama3-8b.yaml"], [arch], [f"kv.dtype={kv}"])


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_turned_rows(arch):
    check(["tiny.yaml"], [arch], ["kv={k: int8, v: int4, rotate: true}"])


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_between_ranks(arch):
    """Kernels of the runtime's own, which no description emits."""
    p = subprocess.run([sys.executable, str(ROOT / "tools/nvrtc.py"), "--arch", arch, "-I", "templates", "templates/cuda/runtime/collective.cu"], cwd=ROOT,
                       capture_output=True, text=True)
    lines = p.stdout.splitlines()
    assert p.returncode == 0 and len(lines) == 5 and all(" 0 spill" in line for line in lines), p.stdout + p.stderr


@pytest.mark.skipif(not os.environ.get("LLMC_CHECK_ALL"), reason="LLMC_CHECK_ALL is not set")
@pytest.mark.parametrize("config", sorted(p.name for p in (ROOT / "configs").glob("*.yaml") if p.name != "pretokenizers.yaml"))
def test_all(config):
    check([config], nvrtc.ARCHS)
