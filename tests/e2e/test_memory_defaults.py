"""Context and KV by free memory, and the refusal before anything is allocated. LLMC_FREE_MEMORY
replaces the machine's; tests/unit/test_free_memory.c covers control groups."""

import json
import os
import re
import resource
import subprocess

import pytest

from memory_group import memory_group

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


def test_fit_never_has_fixed_limits_and_refuses_nothing(llmc, model):
    llmc("run", model, *RUN, "--fit", "never", env=with_free("1M"))
    assert "llmc: context 4096 of the model's 131072, not fitted to memory" in llmc.err
    llmc("run", model, *RUN, "--fit", "never", "--context", "9000", env=with_free("1M"))
    assert "llmc: context 9000 of the model's" in llmc.err
    llmc("run", model, *RUN, "--fit", "never", "--memory", "1M", code=2)
    assert "needs more memory than --memory allows" in llmc.err
    llmc("run", model, *RUN, "--fit", "perhaps", code=1)
    assert "--fit perhaps: expected auto or never" in llmc.err


def test_the_plan_shows_the_choice_for_any_machine(llmc, model):
    llmc("run", model, *RUN, env=with_free("100M"))
    want = int(re.search(r"llmc: context (\d+) of the", llmc.err)[1])
    llmc("plan", model, "--arch", "generic", "--fit", env=with_free("100M"))
    got = re.search(r"^context (\d+) of the model's 131072 .* half of the memory", llmc.out, re.M)[
        1
    ]
    assert int(got) == pytest.approx(want, rel=0.05)  # run needs rows for draft tokens
    plan = ["plan", model, "--arch", "generic", "--fit", "--batch", "6"]
    for size in ("100M", "3G"):  # another machine's, more or less than what is free here
        a = llmc.json(*plan, "--memory", size, env=with_free("200M"))
        b = llmc.json(*plan, env=with_free(size))
        assert a["fitted"].pop("text").count("as given") == 1
        assert b["fitted"].pop("text").count("LLMC_FREE_MEMORY") == 1
        # --memory counts tensors that stay in a mapped file too
        assert a["fitted"] == pytest.approx(b["fitted"], rel=0.02)
        assert a["memory"]["total"] < float(size[:-1]) * (MIB if size[-1] == "M" else MIB << 10)
    assert a["fitted"]["context"] == 131072 and a["fitted"]["seqs"] == 6
    assert llmc.json(*plan, "--memory", "100M")["fit"]["seqs"] in (1, 2)
    llmc(*plan, "--memory", "1M", code=2)
    assert "needs more memory than --memory allows" in llmc.err


def test_a_gpu_keeps_a_margin(llmc):
    """24 GiB, less weights, scratch and state, less a 32nd: the rest is KV."""
    r = llmc.json("plan", "configs/llama3-8b.yaml", "--gpu", "rtx4090", "--fit", "--batch", "8")
    m = r["memory"]
    rest = (24 << 30) * 31 / 32 - m["weights"] - m["scratch"] - m["state"]
    assert rest - 2 * PAGE * m["kv_per_token"] < m["kv"] <= rest


@pytest.fixture
def python(monkeypatch):
    import llmc

    monkeypatch.setenv("LLMC_FREE_MEMORY", "100M")
    return llmc


def context_of(session):
    with pytest.raises(Exception, match="does not fit the context of") as e:
        session.seq(length_bound=1 << 29)
    return int(re.search(r"the context of (\d+)", str(e.value))[1])


def test_python_callers_get_a_context_by_memory(llmc, python, model):
    llmc("run", model, *RUN, env=with_free("100M"))
    want = int(re.search(r"context (\d+) of", llmc.err)[1])
    with python.open(model, random_weights=True, arch="generic") as m:
        with m.session() as s:
            assert context_of(s) == pytest.approx(want, rel=0.1)  # weights have been taken
        with m.session(context=5000) as s:
            assert context_of(s) == 5000
        with pytest.raises(python.Error, match="needs more memory than is free"):
            m.session(context=100000)
    with python.open(model, random_weights=True, arch="generic", no_fit=True) as m:
        with m.session() as s:
            assert context_of(s) == 4096
        with m.session(context=100000) as s:
            assert context_of(s) == 100000
    limits = {"limits.context": 3000}
    with python.open(model, random_weights=True, arch="generic", set=limits) as m, m.session() as s:
        assert context_of(s) == 3000


def test_python_callers_do_not_open_what_cannot_run(python):
    with pytest.raises(python.Error, match="llama2-7b: needs more memory than is free"):
        python.open("configs/llama2-7b.yaml", random_weights=True, arch="generic")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_in_a_control_group(llmc, model, size, tmp_path):
    """Weights that the group cannot hold are refused, not killed; weights of 7/10 of a small group run."""
    embedding = 128 * 4 * 2  # bytes per row, head included
    rows = (size << 30) // embedding
    made = {}
    for name, vocab in (("much", rows * 7 // 10), ("more", rows * 99 // 100)):
        made[name] = str(tmp_path / f"{name}.yaml")
        with open(made[name], "w") as f:
            f.write(LONG.replace("vocab_size: 300", f"vocab_size: {vocab}"))
    with memory_group(size << 30) as enter:

        def run(model):
            return subprocess.run(
                [llmc.path, "run", model, *RUN],
                capture_output=True,
                text=True,
                preexec_fn=enter,
                env={k: v for k, v in os.environ.items() if k != "LLMC_FREE_MEMORY"},
            )

        p = run(made["more"])
        assert p.returncode == 2 and "needs more memory than is free" in p.stderr
        assert "llmc-test" in p.stderr and table(p.stderr)["free"] <= size << 30
        p = run(model)
        assert p.returncode == 0 and (size > 2 or "(/sys/fs/cgroup/" in p.stderr), p.stderr
        if size == 1:
            assert run(made["much"]).returncode == 0
