"""GGUF files made by llama.cpp's tools, of every packed type and of the families that llmc is tuned
for, against transformers' logits for the same weights (tests/golden/make_gguf.py).

The reference dequantises and computes in fp32, so it must be as close for every file as for plain
weights. Kernels round activations and have one tolerance per kind. They run a selection of files,
because each file and instruction set takes seconds to build; LLMC_CHECK_ALL=1 runs all."""

import glob
import json
import os
import subprocess

import numpy as np
import pytest

from cuda_emu import environment
from golden_run import LLMC, ROOT
from test_goldens import RUNS
from waiting import HANG

FOLDER = os.path.join(ROOT, "tests", "golden", "gguf")
CASES = sorted(os.path.basename(p)[:-5] for p in glob.glob(os.path.join(FOLDER, "*.gguf")))
# Largest difference relative to the range of the logits. Measured: 1.5e-6, 2e-4, 3.5e-2; prefill
# rows on a GPU, where tensor cores use 16 bits for both operands, 1.1e-3.
PLAIN, I16, I8, GPU_ROWS = 1e-5, 5e-4, 6e-2, 5e-3
ARCHS = ("generic", "v3", "v4")
CPU = [("llama-q4_k_m", a) for a in ARCHS] + [
    ("llama-q4_1-mixed", "generic"),
    ("qwen2-q4_k_m-fallback", "v3"),
    ("qwen3-q4_k_m", "v3"),
    ("llama-q5_k_m", "v4"),
    ("llama-codes", "v4"),
]
CPU_I8 = [("llama-q4_1", "generic")]
if os.environ.get("LLMC_CHECK_ALL"):  # every file on every instruction set: ten minutes
    CPU = [(c, a) for c in CASES for a in ARCHS]
    CPU_I8 = [(c, a) for c, a in CPU if not c.endswith(("f32", "f16"))]
# llama-q5_k_m has q5_k and q6_k in one layer
CUDA = (
    [c for c in CASES if c.startswith(("llama-q", "llama-codes"))]
    if os.environ.get("LLMC_CHECK_ALL")
    else ["llama-q5_k_m"]
)


def run(name, folder, *args):
    """Return (error of the logits, [tokens, expected tokens])."""
    g = np.load(os.path.join(FOLDER, name + ".npz"))
    out = os.path.join(str(folder), "out.npy")
    p = subprocess.run(
        [
            LLMC,
            "run",
            os.path.join(FOLDER, name + ".gguf"),
            "--tokens",
            ",".join(map(str, g["prompt"])),
            "--logits",
            out,
            "--json",
            "--ignore-eos",
            "-n",
            str(len(g["greedy"])),
            "--threads",
            "2",
            "--set",
            "kv.dtype=f32",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    got, want = np.load(out), g["logits"]
    assert got.shape == want.shape and np.isfinite(got).all()
    return float(np.abs(got - want).max() / np.ptp(want)), [
        json.loads(p.stdout)["tokens"],
        g["greedy"].tolist(),
    ]


def test_every_type_and_family_is_there():
    assert {c.split("-")[0] for c in CASES} == {"llama", "mistral", "qwen2", "qwen3"}
    types = "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k q6_k q4_k_m q5_k_m codes"
    assert {f"llama-{t}" for t in types.split()} <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_reference(name, tmp_path):
    error, (got, want) = run(name, tmp_path, "--device", "ref")
    assert error <= PLAIN
    assert got == want


@pytest.mark.sample(3)
@pytest.mark.parametrize("name,arch", CPU)
def test_cpu(name, arch, tmp_path):
    if not RUNS[arch]:
        pytest.skip(f"this processor does not run {arch}")
    error, (got, want) = run(name, tmp_path, "--device", "cpu", "--arch", arch)
    assert error <= (PLAIN if name.endswith(("f32", "f16")) else I16)
    assert got == want


@pytest.mark.parametrize("name,arch", CPU_I8)
def test_cpu_int8(name, arch, tmp_path):
    """int8 activations are coarser; a very small error would mean that the setting was ignored."""
    if not RUNS[arch]:
        pytest.skip(f"this processor does not run {arch}")
    error, _ = run(name, tmp_path, "--device", "cpu", "--arch", arch, "--set", "activations=i8")
    assert I16 < error <= I8


@pytest.mark.parametrize("name", [c for c in CUDA if c != "llama-q8_0"])
def test_cuda_int8(name, monkeypatch, tmp_path):
    """The same integers as on CPUs. A deterministic model uses them for any number of rows."""
    for k, v in environment("sm_86", seed=len(name)).items():
        monkeypatch.setenv(k, v)
    i8 = "--device", "cuda", "--set", "activations=i8", "--set", "deterministic=true"
    error, _ = run(name, tmp_path, *i8)
    assert GPU_ROWS < error <= I8


@pytest.mark.parametrize("name", CUDA)
def test_cuda(name, monkeypatch, tmp_path):
    """A decode step of one row is as close as the reference: weights are not rounded, and x has 22
    bits."""
    for k, v in environment("sm_90a", seed=len(name)).items():
        monkeypatch.setenv(k, v)
    for args, most in ([], GPU_ROWS), (["--chunk", "1"], PLAIN):
        error, (got, want) = run(name, tmp_path, "--device", "cuda", *args)
        assert error <= most
        assert got == want
