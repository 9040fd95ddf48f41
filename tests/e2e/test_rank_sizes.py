"""Sizes that `llmc plan --tp N` reports per rank, against sizes computed here from the shapes in
model cards. One rank gives the plan of a description without the key. A process uses the memory
that the plan reports."""

import json
import os
import subprocess
import sys

import pytest

from golden_run import LLMC, ROOT
from waiting import HANG

# from config.json: layers, hidden, query heads, kv heads, head size, ffn, vocabulary
CARDS = {
    "llama3-70b": (80, 8192, 64, 8, 128, 28672, 128256),
    "llama2-7b": (32, 4096, 32, 32, 128, 11008, 32000),
    "llama3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256),
    "mistral-7b": (32, 4096, 32, 8, 128, 14336, 32000),
    "mixtral-8x7b": (32, 4096, 32, 8, 128, 14336, 32000),
}


def plan(name, *args):
    p = subprocess.run(
        [
            LLMC,
            "plan",
            f"{ROOT}/configs/{name}.yaml",
            "--device",
            "ref",
            "--json",
            "--set",
            "kv.dtype=f16",
            "-c",
            "4096",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def shares(total, unit, n):
    """Split as evenly as units allow; the first ranks get more."""
    units = -(-total // unit)
    share = [units // n + (k < units % n) for k in range(n)]
    end = [min(sum(share[: k + 1]) * unit, total) for k in range(n)]
    return [b - a for a, b in zip([0, *end], end)]


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("n", [2, 3, 4, 8] if os.environ.get("LLMC_CHECK_ALL") else [3, 8])
def test_a_rank_holds_its_share(name, n):
    layers, hidden, heads, kv_heads, head, ffn, vocab = CARDS[name]
    experts = 8 if name == "mixtral-8x7b" else 1
    kv, width, rows = shares(kv_heads, 1, n), shares(ffn, 32, n), shares(vocab, 64, n)
    got = plan(name, "--tp", str(n))["ranks"]
    assert len(got) == n
    for k, r in enumerate(got):
        q = kv[k] * heads // kv_heads
        matrices = (
            layers
            * (2 * q * head * hidden + 2 * kv[k] * head * hidden + experts * 3 * width[k] * hidden)
            + vocab * hidden
            + rows[k] * hidden
        )
        small = layers * 2 * hidden + hidden  # norms, 4 bytes per element
        router = layers * experts * hidden if experts > 1 else 0
        assert (r["heads"], r["kv_heads"], r["vocab"]) == (q, kv[k], rows[k])
        assert (r["ffn"] or r["expert"]) == width[k]
        assert r["weights"] == pytest.approx(2 * (matrices + router) + 4 * small, rel=2e-3)
        assert r["kv_per_token"] == 2 * 2 * layers * kv[k] * head
        assert (r["sums"], r["sum_bytes"]) == (2 * layers, 2 * layers * 4 * hidden)
        assert r["join_bytes"] == 4 * rows[k]


def test_more_ranks_than_kv_heads_share_them():
    got = plan("llama3-70b", "--tp", "16")["ranks"]
    assert {(r["heads"], r["kv_heads"], r["kv_per_token"]) for r in got} == {
        (4, 1, 2 * 2 * 80 * 128)
    }


def test_latents_are_on_every_rank():
    """DeepSeek-V2-Lite: 16 heads are split; a latent of 512 + 64 in each of 27 layers is on every
    rank; experts have 1408 columns, and two are shared."""
    got = plan("deepseek-v2-lite", "--tp", "4")["ranks"]
    assert {(r["heads"], r["expert"], r["shared"], r["kv_per_token"]) for r in got} == {
        (4, 352, 704, 27 * 576 * 2)
    }


@pytest.mark.skipif(not os.environ.get("LLMC_CHECK_ALL"), reason="large plans: make check-all")
@pytest.mark.parametrize("name", ["llama2-70b", "deepseek-v3"])
def test_the_guide_has_the_figures_of_the_command(name):
    p = subprocess.run(
        [sys.executable, f"{ROOT}/tools/parallel_doc.py", "--check", name],
        capture_output=True,
        text=True,
    )
    assert p.returncode == 0, p.stderr


def test_one_rank_is_a_plan_without_the_key(tmp_path):
    source = open(f"{ROOT}/tests/golden/graphs/llama.yaml").read()
    for name, text in (("without", source), ("with", source + "parallel: {tp: 1}\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
        subprocess.run(
            [
                LLMC,
                "compile",
                str(tmp_path / f"{name}.yaml"),
                "-o",
                str(tmp_path / name),
                "--arch",
                "v3",
            ],
            check=True,
            capture_output=True,
        )
    files = sorted(
        os.path.relpath(os.path.join(d, f), tmp_path / "with")
        for d, _, fs in os.walk(tmp_path / "with")
        for f in fs
    )
    assert files and any(f.startswith("plan") for f in files)
    for f in files:
        assert (tmp_path / "with" / f).read_bytes() == (tmp_path / "without" / f).read_bytes(), f


MEASURE = """
import re, sys, llmc
def status(key):
    return int(re.search(key + r":\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
before = status("RssAnon")
with llmc.open(sys.argv[1], random_weights=True, device="ref", set=["parallel.tp=3"]) as m:
    weights = status("RssAnon") - before
    before = status("VmData")
    with m.session(context=4096, seqs=16, threads=1) as s:
        print(weights, status("VmData") - before)
"""


def test_a_process_uses_the_memory_of_its_plans(tmp_path):
    """Three ranks in one process: resident weights and mapped session memory, within 5 %."""
    path = tmp_path / "m.yaml"
    path.write_text(
        "llmc: 1\nname: sizes\nfamily: llama\nvocab_size: 8000\nmax_positions: 4096\nn_layers: 4\nhidden: 1024\ntext: {bos: 1, eos: [2]}\n"
        "attention: {n_heads: 16, n_kv_heads: 8, head_dim: 64}\nffn: {width: 4096}\ndtype: bf16\n"
    )
    out = subprocess.run(
        [
            LLMC,
            "plan",
            str(path),
            "--device",
            "ref",
            "--tp",
            "3",
            "--json",
            "-c",
            "4096",
            "--seqs",
            "16",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ranks = json.loads(out)["ranks"]
    p = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, timeout=HANG
    )
    assert p.returncode == 0, p.stderr
    weights, session = map(int, p.stdout.split())
    assert weights == pytest.approx(sum(r["weights"] for r in ranks), rel=0.05)
    assert session == pytest.approx(sum(r["kv"] + r["scratch"] for r in ranks), rel=0.05)
