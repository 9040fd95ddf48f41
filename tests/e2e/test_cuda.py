"""Whole models on emulated GPUs: a selection of tests/golden/models (all with LLMC_CHECK_ALL=1),
deterministic mode, chunks, batches."""

import json
import os
import subprocess

import numpy as np
import pytest

from cuda_emu import environment
from golden_run import LLMC, error, run, weights
from test_goldens import CASES, CHOICE
from waiting import HANG

EVERY = "LLMC_CHECK_ALL" in os.environ  # make check-all
EXACT = 1e-5  # fp32 weights and activations
NEARLY = 2e-4  # steps of one row: bf16 weights, activations of 16 bits
ROUNDED = 5e-2  # steps of several rows: bf16 weights, activations rounded to bf16
CHOSEN = 2e-1  # like ROUNDED, where rounding may also change the selected experts


@pytest.fixture
def gpu(monkeypatch):
    def use(*args, **kw):
        for k, v in environment(*args, **kw).items():
            monkeypatch.setenv(k, v)

    return use


def matches(g, logits, tokens, one_row=False):
    e = error(g, logits)
    most = (
        EXACT
        if g.dtype == "f32"
        else NEARLY
        if one_row
        else CHOSEN
        if "moe" in g.name
        or "mixtral" in g.name
        or "deepseek" in g.name
        or "gpt_oss" in g.name
        or "qwen3_next" in g.name
        or "kimi" in g.name
        else ROUNDED
    )
    assert e <= most, f"off by {e:.2e} of the range"
    # Errors up to e keep the order of two logits that differ by more than 2 e. g.gap: smallest
    # difference of the two best logits of any new token
    if g.greedy and (most < ROUNDED or most == ROUNDED and g.gap > 2 * e):
        assert tokens == g.greedy[: len(tokens)]


@pytest.mark.parametrize("name", CASES if EVERY else CHOICE)
def test_golden(name, gpu, tmp_path):
    gpu("sm_90a", seed=len(name))
    g = weights.Golden(name)
    g.build(tmp_path)
    matches(g, *run(tmp_path, g, "--device", "cuda"))
    if g.dtype == "bf16" and not g.name.startswith("chatglm1"):
        matches(g, *run(tmp_path, g, "--device", "cuda", "--chunk", "1"), one_row=True)


@pytest.mark.parametrize(
    "name,arch",
    [("qwen3-bias-tied", a) for a in ("sm_75", "sm_80", "sm_89", "sm_121a")]
    + [("llama-bias-linear-bf16", "sm_103a")]
    + (
        [("qwen3-bias-tied", a) for a in ("sm_100a", "sm_103a", "sm_110a", "sm_120a")]
        + [("llama-bias-linear-bf16", a) for a in ("sm_75", "sm_80", "sm_89", "sm_120a")]
    )
    * EVERY,
)
def test_architectures(name, arch, gpu, tmp_path):
    gpu(arch)
    g = weights.Golden(name)
    g.build(tmp_path)
    matches(g, *run(tmp_path, g, "--device", "cuda:0"))


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3-plain"]
    + [
        "llama-bias-linear-bf16",
        "gpt_oss-plain",
        "qwen3_next-plain",
        "llama-smol",
        "glm4-modern-bf16",
        "gemma2-caps",
        "mixtral-plain",
    ]
    * EVERY,
)
def test_checked(name, gpu, tmp_path):
    """Checking mode of the emulator: no race, no read of unwritten memory, no address out of
    bounds. test_checked_long has a dense model."""
    gpu("sm_90a", mode="check")
    g = weights.Golden(name)
    g.build(tmp_path)
    matches(g, *run(tmp_path, g, "--device", "cuda", n=2 if not g.greedy else None))


LONG = (
    "hidden=640",
    "n_layers=1",
    "attention.n_heads=10",
    "attention.n_kv_heads=2",
    "attention.head_dim=64",
    "ffn.width=704",
    "dtype=bf16",
    "kv.dtype=f32",
)


@pytest.mark.parametrize(
    "model,mode,sets",
    [
        ("configs/tiny.yaml", "check", LONG),
        ("tests/gpu/rehearsal-mla.yaml", "check" if EVERY else "fast", ()),
    ]
    + [("tests/gpu/rehearsal-moe.yaml", "check", ())] * EVERY,
    ids=["dense", "mla"] + ["moe"] * EVERY,
)
def test_prefetch_changes_no_bit(model, mode, sets, gpu, tmp_path, monkeypatch):
    """Decode kernels prefetch the next op's weights. In checking mode, the kernels that follow read
    all of them."""
    gpu("sm_90a", mode=mode)
    monkeypatch.setenv("LLMC_EMU_L2_KB", "51200")
    got = []
    for how in "never", "auto":
        out, total = tmp_path / f"{how}.npy", tmp_path / f"{how}.bytes"
        monkeypatch.setenv("LLMC_EMU_PREFETCHED", str(total))
        cmd = [LLMC, "run", model, "--random-weights", "--device", "cuda", "--tokens", "1,2,3,4,5"]
        cmd += ["-n", "5", "--ignore-eos", "--logits", out, "-q", "--artifact", tmp_path / how]
        for s in (*sets, f"step.prefetch={how}"):
            cmd += ["--set", s]
        p = subprocess.run(cmd, capture_output=True, text=True, timeout=HANG)
        assert p.returncode == 0, p.stderr
        got.append((out.read_bytes(), int(total.read_text()) if total.exists() else 0))
    assert got[0][0] == got[1][0]
    assert got[1][1] > got[0][1] + 50000  # routers and caches are prefetched in any case


def test_checked_long(gpu, tmp_path):
    """GEMM pipelines wrap around their ring, and positions are split over CTAs. Golden models are
    too small for both."""
    gpu("sm_90a", mode="check")
    got = []
    for device in "ref", "cuda":
        out = tmp_path / f"{device}.npy"
        cmd = [
            LLMC,
            "run",
            "configs/tiny.yaml",
            "--random-weights",
            "--device",
            device,
            "--tokens",
            ",".join(str(7 * i % 293) for i in range(200)),
            "-n",
            "3",
            "--ignore-eos",
            "--logits",
            out,
            "--json",
            "--artifact",
            tmp_path / device,
        ]
        for s in LONG:
            cmd += ["--set", s]
        p = subprocess.run(cmd, capture_output=True, text=True, timeout=HANG)
        assert p.returncode == 0, p.stderr
        got.append((np.load(out), json.loads(p.stdout)["tokens"]))
    assert np.abs(got[0][0] - got[1][0]).max() <= ROUNDED * np.ptp(got[0][0])
    assert got[0][1] == got[1][1]


def test_later_chunks_of_latent_attention(gpu, tmp_path):
    """Chunks of 80, 80 and 40: the first two use the expanded form (the second at depth 80), the
    third the absorbed form."""
    gpu("sm_90a")
    got = []
    for device in "ref", "cuda":
        out = tmp_path / f"{device}.npy"
        p = subprocess.run(
            [
                LLMC,
                "run",
                "tests/gpu/rehearsal-mla.yaml",
                "--random-weights",
                "--device",
                device,
                "--tokens",
                ",".join(str(37 * i % 499) for i in range(200)),
                "--chunk",
                "80",
                "-n",
                "1",
                "--ignore-eos",
                "--logits",
                out,
                "-q",
                "--artifact",
                tmp_path / device,
            ],
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert p.returncode == 0, p.stderr
        got.append(np.load(out))
    text = (tmp_path / "cuda" / "plan-cuda-sm_90a.txt").read_text()
    assert "n (c + n / 2) > 64 c" in text and len(got[0]) == 200
    assert np.abs(got[0] - got[1]).max() <= ROUNDED / 10 * np.ptp(got[0])


@pytest.mark.parametrize(
    "name, mode",
    [("gpt2-gelu-bf16", "fast")]
    + [("llama-bias-linear-bf16", "check"), ("llama-bias-linear-bf16", "fast")] * EVERY,
)
def test_cublaslt(name, mode, gpu, monkeypatch, tmp_path):
    """Every prefill GEMM that can use cuBLASLt, through a stand-in for the library: norm_qkv,
    matmul_add with bias, norm_act, and in make check-all matmul_add without bias and norm_glu.
    tests/cuda/test_library.py tests each of them."""
    gpu("sm_80", mode=mode)
    monkeypatch.setenv("LLMC_CUBLASLT", "always")
    g = weights.Golden(name)
    g.build(tmp_path)
    matches(g, *run(tmp_path, g, "--device", "cuda", n=1 if mode == "check" else None))


@pytest.mark.parametrize(
    "name",
    ["gemma3-layers-bf16", "mixtral-bf16"] + ["llama-bias-linear-bf16", "glm4-modern-bf16"] * EVERY,
)
def test_deterministic(name, gpu, tmp_path):
    """The bits are the same for the whole prompt and for chunks of three."""
    gpu("sm_90a")
    g = weights.Golden(name)
    g.build(tmp_path)
    whole, tokens = run(tmp_path, g, "--device", "cuda", set={"deterministic": "true"})
    chunks, again = run(
        tmp_path, g, "--device", "cuda", "--chunk", "3", set={"deterministic": "true"}
    )
    assert np.array_equal(whole, chunks)
    assert tokens == again


def test_verify(gpu, tmp_path):
    gpu("sm_90a")
    g = weights.Golden("qwen3-plain")
    g.build(tmp_path)
    p = subprocess.run(
        [
            LLMC,
            "verify",
            str(tmp_path),
            "--device",
            "cuda",
            "--tokens",
            ",".join(map(str, g.prompt)),
            "--set",
            "kv.dtype=f32",
        ],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr + p.stdout


@pytest.mark.parametrize("storage", ["q5_1"] + ["q8_0"] * EVERY)
def test_quantised_embedding_of_its_own(storage, gpu):
    """An untied embedding in quantised blocks: rows are gathered from it, but it is no GEMM
    operand."""
    gpu("sm_90a")
    tiny = os.path.join(os.path.dirname(__file__), "..", "..", "configs", "tiny.yaml")
    p = subprocess.run(
        [
            LLMC,
            "verify",
            tiny,
            "--random-weights",
            "--device",
            "cuda",
            "--tokens",
            "1,200,3",
            "--set",
            f"storage.default={storage}",
        ],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr + p.stdout


def test_smollm2(gpu):
    """Four tokens of a real model equal those of transformers."""
    import json
    from test_smollm2 import CACHE, GOLDEN, compare

    path = os.environ.get("LLMC_SMOLLM2") or os.path.join(
        CACHE, "downloads", "SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    if not os.path.exists(path):
        pytest.skip("no SmolLM2: LLMC_SMOLLM2 is not set and tools/smollm2.sh has not run")
    gpu("sm_90a")
    case = next(c for c in GOLDEN["cases"] if c["name"] == "fact")
    p = subprocess.run(
        [
            LLMC,
            "run",
            path,
            "--device",
            "cuda",
            "--tokens",
            ",".join(map(str, case["prompt"])),
            "-n",
            "4",
            "-c",
            "256",
            "--ignore-eos",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    tokens = json.loads(p.stdout)["tokens"]
    assert len(tokens) == 4
    compare(case, tokens)
