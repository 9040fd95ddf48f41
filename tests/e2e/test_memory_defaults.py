"""Context and KV by free memory, and the refusal before anything is allocated. LLMC_FREE_MEMORY
replaces the machine's; tests/unit/test_free_memory.c covers control groups."""

import json
import os
import re
import resource
import subprocess

import pytest

TINY = "configs/tiny.yaml"
RUN = ["--random-weights", "--arch", "generic", "--tokens", "1,2,3", "-n", "2", "--ignore-eos"]
# a model whose KV is large for its weights: 4 layers, K and V of 8 heads of 64 in f16
LONG = """llmc: 1
name: long
family: llama
vocab_size: 300
max_positions: 131072
n_layers: 4
hidden: 128
attention: {n_heads: 8, n_kv_heads: 8, head_dim: 64}
ffn: {width: 160}
text: {eos: [2]}
dtype: f32
"""
KV = 4 * 2 * 8 * 64 * 2  # bytes per position
PAGE = 32
MIB = 1 << 20


@pytest.fixture
def model(tmp_path):
    (tmp_path / "long.yaml").write_text(LONG)
    return str(tmp_path / "long.yaml")


def with_free(size):
    return {"LLMC_FREE_MEMORY": str(size)}


def test_the_context_is_the_models(llmc, model):
    llmc("run", TINY, *RUN)
    assert "llmc: context 256, the model's (" in llmc.err
    llmc("run", model, *RUN, env=with_free("8G"))
    assert "llmc: context 131072, the model's (1.0 GiB of KV)" in llmc.err
    llmc("run", model, *RUN, "--context", "200000", env=with_free("8G"))
    assert "llmc: context 200000, as set" in llmc.err
    llmc("run", model, *RUN, "--quiet", env=with_free("8G"))
    assert llmc.err == ""


@pytest.mark.parametrize("free", [64, 100, 500])
def test_less_memory_gives_a_shorter_context(llmc, model, free):
    """KV takes half of the memory that weights and scratch leave, to a page."""
    llmc("run", model, *RUN, env=with_free(f"{free}M"))
    got = re.search(
        r"llmc: context (\d+) of the model's 131072 \(.*\); limit: half of .* of \S+ MiB \(LLMC_FREE_MEMORY\)$",
        llmc.err,
        re.M,
    )
    context = int(got[1])
    m = llmc.json("plan", model, "--arch", "generic", "--context", context)["memory"]
    rest = free * MIB - m["weights"] - m["scratch"] - m["state"]
    assert abs(context - rest / 2 / KV) <= 2 * PAGE


def test_a_limit_of_memory_counts_like_free_memory(llmc, model):
    llmc("run", model, *RUN, env=with_free("100M"))
    want = re.search(r"context (\d+) of", llmc.err)[1]
    llmc("run", model, *RUN, "--memory", "100M", env=with_free("8G"))
    got = re.search(r"context (\d+) of .* of 100 MiB \(--memory\)", llmc.err)[1]
    assert abs(int(got) - int(want)) <= PAGE


def table(err):
    """Bytes of the rows of a refusal."""
    unit = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return {
        k: float(v) * unit[u]
        for k, v, u in re.findall(r"^  (\w+) +([\d.]+) (B|[KMG]iB)\b", err, re.M)
    }


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_what_does_not_fit_is_refused_before_it_is_allocated(llmc, command):
    """137 GB of weights, with an address space that could not hold them."""
    p = subprocess.run(
        [llmc.path, command, "configs/llama2-70b.yaml", "--random-weights", "--arch", "generic"]
        + ["--tokens", "1"] * (command == "run")
        + ["--port", "0"] * (command == "serve"),
        capture_output=True,
        text=True,
        env={**os.environ, **with_free("20G")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (60 << 30, 60 << 30)),
    )
    assert p.returncode == 2 and p.stdout == ""
    assert "llama2-70b: needs more memory than is free:" in p.stderr
    t = table(p.stderr)
    assert t["weights"] + t["KV"] + t["scratch"] == pytest.approx(t["total"], rel=0.02)
    assert 137e9 < t["weights"] < 139e9 and t["free"] == 20 << 30
    assert "even weights of type Q4_K take" in p.stderr and "compil" not in p.stderr


def test_the_remedies_are_true(llmc, model):
    big = "configs/llama2-7b.yaml"
    llmc(
        "run",
        big,
        "--random-weights",
        "--tokens",
        "1",
        "--arch",
        "generic",
        env=with_free("9G"),
        code=2,
    )
    (how,) = re.findall(
        r"^  --quantize (\w+), or a file of type \w+: .* of weights$", llmc.err, re.M
    )
    total = llmc.json("plan", big, "--quantize", how, "--context", "256")["memory"]["total"]
    assert total < 9 << 30
    run = ["run", model, *RUN]
    llmc(*run, "--context", "100000", env=with_free("200M"), code=2)
    (context,) = re.findall(r"^  --context (\d+)$", llmc.err, re.M)
    llmc(*run, "--context", context, env=with_free("200M"))
    llmc(*run, "--context", int(context) + 2 * PAGE, env=with_free("200M"), code=2)


@pytest.mark.parametrize(
    "free, contexts", [("14G", 6), ("2500M", None), ("1G", None), ("700M", None)]
)
def test_a_server_has_one_context_and_up_to_seqs(llmc, model, free, contexts):
    p = subprocess.Popen(
        [llmc.path, "serve", model, "--random-weights", "--arch", "generic", "--port", "0"]
        + ["--seqs", "6", "--json", "-t", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **with_free(free)},
    )
    try:
        r = json.loads(p.stdout.readline())
    finally:
        p.terminate()
        p.communicate()
    lim, mem = r["limits"], r["memory"]
    assert lim["seqs"] == 6 and lim["kv_tokens"] >= lim["context"]
    if contexts:
        assert lim["context"] == 131072 and lim["kv_tokens"] == contexts * 131072
    else:
        bytes_ = float(free[:-1]) * (MIB if free[-1] == "M" else MIB << 10)
        assert lim["kv_tokens"] < 6 * 131072
        assert lim["context"] == min(131072, lim["kv_tokens"])
        rest = bytes_ - mem["weights"] - mem["scratch"] - mem["state"]
        assert mem["kv"] == pytest.approx(rest / 2, rel=0.02)


def test_a_prompt_that_is_too_long_names_both_limits(llmc):
    ids = ",".join(["5"] * 9)
    llmc("run", TINY, *RUN[:3], "--tokens", ids, "--context", "8", code=1)
    assert "the prompt has 9 tokens, the context holds 8 of the model's 256 positions" in llmc.err
