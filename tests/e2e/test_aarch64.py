"""The library and its kernels on AArch64: built by the cross compiler, run by qemu-user. The fp32
reference is the oracle of the kernels."""

import json
import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CROSS = "aarch64-linux-gnu"
BUILD = os.path.join(ROOT, "build", "aarch64")
EVERY = "LLMC_CHECK_ALL" in os.environ
HANG = 900  # seconds, for one program under emulation
pytestmark = pytest.mark.skipif(
    not shutil.which(CROSS + "-gcc")
    or not shutil.which("qemu-aarch64")
    or not os.path.exists(f"/usr/lib/{CROSS}/pkgconfig/libutf8proc.pc"),
    reason="no cross compiler of AArch64 (tools/deps.sh --cross aarch64)",
)

# programs that take a second under emulation; all of them take minutes
UNIT = ["base", "expr", "spec", "text", "grammar", "formats_gguf", "threads"]
if EVERY:
    UNIT += ["jinja", "sample", "formats_safetensors", "serve_body", "engine_sched", "shard"]
TYPES = {  # weights that `quant.method` makes of random ones, by the path that they take
    "neon": ["q4_k", "q8_0"],
    "i8mm": ["q6_k", "q4_1"],
}
MORE = ["none", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"]
CPU = {"neon": "neoverse-n1", "i8mm": "max"}  # the first has dot products, but no i8mm


@pytest.fixture(scope="module")
def built():
    cc = ("ccache " if shutil.which("ccache") else "") + CROSS + "-gcc"
    programs = [f"build/aarch64/unit/test_{u}" for u in UNIT]
    r = subprocess.run(
        ["make", "-s", "-j2", f"CROSS={CROSS}", f"CC={cc}", "all", *programs],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert r.returncode == 0 and not r.stderr, r.stderr[-4000:]


def run(cpu, *argv, **env):
    r = subprocess.run(
        ["qemu-aarch64", "-cpu", cpu, *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, "LLMC_CC": CROSS + "-gcc", **env},
    )
    assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-4000:]
    return r.stdout + r.stderr


@pytest.mark.parametrize("name", UNIT)
def test_a_unit_program_passes(built, name):
    assert "PASSED" in run("max", f"{BUILD}/unit/test_{name}")


@pytest.mark.parametrize(
    "cpu,best", [("max", "i8mm"), ("neoverse-n1", "neon"), ("cortex-a72", "generic")]
)
def test_doctor_finds_the_target_of_the_processor(built, cpu, best):
    p = json.loads(run(cpu, f"{BUILD}/llmc", "doctor", "--json"))["processor"]
    assert p["best_target"] == "cpu-" + best
    assert p["runs"] == {"generic": True, "neon": best != "generic", "i8mm": best == "i8mm"}, (
        "targets of this architecture only"
    )
    assert "amx" not in p and "AVX" not in p["features"]["has"] + p["features"]["lacks"]


@pytest.mark.parametrize(
    "arch,quant_format", [(a, s) for a in TYPES for s in (MORE if EVERY else TYPES[a])]
)
def test_kernels_agree_with_the_reference(built, arch, quant_format):
    quantised = [] if quant_format == "none" else ["--set", f"quant.method={quant_format}"]
    text = run(
        CPU[arch],
        *(f"{BUILD}/llmc", "verify", "configs/tiny.yaml", "--random-weights", "--arch", arch),
        # these sizes suit superblocks, which have 256 columns
        *("--set", "hidden=256", "--set", "ffn.width=512", "--set", "attention.n_heads=8"),
        *("--set", "attention.n_kv_heads=2", "-t", "2", *quantised),
    )
    assert f"of cpu-{arch} agree with the fp32 reference" in text


@pytest.mark.parametrize("arch,kv", [("i8mm", "int8"), ("neon", "int4")])
def test_integer_attention_agrees_with_the_reference(built, arch, kv):
    """Run attention with smmla and sdot; tests/kernels/test_attention.py runs the definition of
    these instructions in plain vectors."""
    text = run(
        CPU[arch],
        *(f"{BUILD}/llmc", "verify", "configs/tiny.yaml", "--random-weights", "--arch", arch),
        *("--kv", kv, "-t", "2"),
    )
    assert f"of cpu-{arch} agree with the fp32 reference" in text


def test_a_real_model_answers(built):
    """SmolLM2 computes the prompt as one chunk of 5 tokens, and then runs GEMVs."""
    if not os.environ.get("LLMC_SMOLLM2"):
        pytest.skip("LLMC_SMOLLM2 is not set")
    text = run(
        "max",
        *(f"{BUILD}/llmc", "run", os.environ["LLMC_SMOLLM2"], "--arch", "i8mm"),
        *(
            "--prompt",
            "The capital of France is",
            "-n",
            "2",
            "--context",
            "256",
            "--temperature",
            "0",
        ),
    )
    assert " Paris." in text
