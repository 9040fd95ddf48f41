"""Models split over ranks (parallel.tp): logits against torch on the reference and on kernels, and
the same bits in any batch. Three ranks are needed: a sum of two has only one order, and four
share evenly."""

import json
import os
import re

import numpy as np
import pytest

import llmc
from bits import rows, whole
from golden_run import Refused, check, run, weights
from processor import cpu_archs

BEST = cpu_archs()[-1]
CASES = weights.cases()
ONE_EACH = {}
for case in CASES:
    ONE_EACH.setdefault(case.split("-")[0], case)
REFUSED = re.compile(
    r"parallel\.tp: (plain experts|layers that share a block)|parallel\.tp = \d+: (more ranks than the \d+ (heads|kv heads must be a multiple)|.* is over all heads together|\d+ ranks would share a kv head|the \d+ value heads of a delta rule are split by \d+)"
)
ALL = os.environ.get("LLMC_CHECK_ALL")


def split(name, tmp_path, ranks, *args):
    """Compare the golden model on n ranks with torch; False if it cannot be split, for a known
    reason."""
    g = weights.Golden(name)
    g.build(tmp_path)
    try:
        check(g, *run(tmp_path, g, "--tp", str(ranks), *args))
    except Refused as e:
        assert REFUSED.search(str(e)), e
        return False
    return True


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", CASES if ALL else ONE_EACH.values())
def test_reference_over_ranks(name, tmp_path):
    """Three ranks where possible, else two; LLMC_CHECK_ALL=1 runs all numbers."""
    done = [
        n for n in ((2, 3, 4, 8) if ALL else (3,)) if split(name, tmp_path, n, "--device", "ref")
    ]
    if not done:
        done = split(name, tmp_path, 2, "--device", "ref")
    # one kv head with two query heads, one key head for all value heads, no heads, shared blocks
    assert done or name.startswith(
        (
            "falcon",
            "kimi_linear-modern",
            "mamba",
            "nemotron_h",
            "olmo_hybrid",
            "qwen3_next",
            "zamba2",
        )
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name,ranks",
    [
        ("llama-smol", 3),
        ("gpt2-inner", 2),
        ("gpt_neox-parallel", 2),
        ("gemma2-caps", 2),
        ("qwen2_moe-sparse", 2),
        ("deepseek_v3-plain", 2),
        ("chatglm2-bias", 2),
        ("bloom-six-heads", 3),
    ]
    + [("gpt_oss-plain", 2), ("olmo2-plain", 2)] * bool(ALL),
)
def test_kernels_over_ranks(name, ranks, tmp_path):
    assert split(name, tmp_path, ranks, "--arch", BEST, "--threads", "2")


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "name",
    [
        c
        for c in (CASES if ALL else ONE_EACH.values())
        if ("moe" in c or c.startswith(("gpt_oss", "mixtral", "deepseek")))
    ],
)
def test_experts_dealt_whole(name, tmp_path):
    """parallel.experts: whole, against torch: the last rank has fewer experts, and some rows choose
    only experts of another rank."""
    g = weights.Golden(name)
    g.build(tmp_path)
    for ranks in (3, 2):
        try:
            check(
                g,
                *run(
                    tmp_path,
                    g,
                    "--tp",
                    str(ranks),
                    "--set",
                    "parallel.experts=whole",
                    "--device",
                    "ref",
                ),
            )
            return
        except Refused as e:
            assert REFUSED.search(str(e)) or "need at least as many experts" in str(e), e
    assert name.endswith("-one"), "neither 3 nor 2 ranks take it"  # one expert


@pytest.mark.parametrize(
    "name",
    ["qwen2_moe-sparse"] + ["deepseek_v3-plain", "gpt_oss-plain", "mixtral-plain"] * bool(ALL),
)
def test_kernels_with_experts_whole(name, tmp_path):
    assert split(
        name, tmp_path, 2, "--set", "parallel.experts=whole", "--arch", BEST, "--threads", "2"
    )


COMMON = "llmc: 1\nvocab_size: 323\nmax_positions: 1024\ntext: {bos: 1, eos: [2]}\n"
MODELS = {
    # 3 groups of 3 query heads; 5 blocks, split 2, 2, 1; one windowed layer, whose pages are
    # numbered separately
    "llama": COMMON
    + """name: ranks-llama
family: llama
n_layers: 2
hidden: 288
attention: {n_heads: 9, n_kv_heads: 3, head_dim: 32, window: 23, window_layers: [1]}
ffn: {width: 160}
head: {tied: true}
storage: {default: q4_1, rules: [{tensor: embed, type: q8_0}]}
""",
    # split experts and a shared one; one block per rank
    "moe": COMMON
    + """name: ranks-moe
family: qwen2_moe
n_layers: 2
hidden: 64
attention: {n_heads: 6, n_kv_heads: 3, head_dim: 16}
ffn: {width: 96}
moe: {n_experts: 7, top_k: 3, width: 96, shared: {width: 96}}
""",
}
N = 150
TOK = [int(t) for t in np.random.default_rng(1).integers(3, 323, N)]


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "m.yaml"
    path.write_text(MODELS[request.param])
    with llmc.open(path, random_weights=True, arch=BEST, set=["parallel.tp=3"]) as m:
        yield m


def test_a_result_depends_on_the_request_alone(model):
    want = whole(model, TOK)
    assert np.array_equal(whole(model, TOK, threads=2), want)
    with model.session(context=N, chunk=N, n_out=N, seqs=3, threads=1) as s:
        q = s.seq()
        got = [rows(s, [(q, [t], 1)]) for t in TOK]
        assert np.array_equal(np.concatenate(got), want), "prefill and decode differ"
        s.free(q)
        q, at, got = s.seq(), 0, []
        for n in (1, 7, 31, 33, N):
            n = min(n, N - at)
            other = s.seq()
            part = (
                rows(s, [(other, TOK[5 : 5 + 20], 1), (q, TOK[at : at + n], n)])
                if n + 20 <= N
                else None
            )
            s.free(other)
            part = part[1:] if part is not None else rows(s, [(q, TOK[at : at + n], n)])
            got.append(part)
            at += n
        assert np.array_equal(np.concatenate(got), want), "chunks and company change the result"


def test_pages_are_copied_on_all_ranks(model):
    """A fork writes to a copy of the last page; a freed page that is reused is empty."""
    want = whole(model, TOK)
    with model.session(context=N, chunk=N, n_out=N, seqs=3) as s:
        a = s.seq()
        rows(s, [(a, TOK[:45], 1)])
        b = s.fork(a)
        rows(s, [(b, [9, 9, 9, 9], 1)])
        assert np.array_equal(rows(s, [(a, TOK[45:80], 35)]), want[45:80])
        s.free(b)
        s.trim(a, 40)
        assert np.array_equal(rows(s, [(a, TOK[40:], N - 40)]), want[40:])


def test_requests_at_once_are_as_alone(model):
    prompts = [TOK[i : i + 5 + 3 * i] for i in range(12)]
    with model.engine(seqs=1, context=N) as e:
        alone = [e.submit(p, max_tokens=12, ignore_eos=True).wait()["tokens"] for p in prompts]
    with model.engine(seqs=5, context=N) as e:
        requests = [e.submit(p, max_tokens=12, ignore_eos=True) for p in prompts]
        assert [r.wait()["tokens"] for r in requests] == alone


def test_a_saved_sequence_has_the_pages_of_all_ranks(model):
    want = whole(model, TOK)
    with model.session(context=N, chunk=N, n_out=N, seqs=3, threads=2) as s:
        q = s.seq()
        rows(s, [(q, TOK[:70], 1)])
        kept = s.save(q)
        s.free(q)
        other = s.seq()
        rows(s, [(other, [9] * 100, 1)])  # overwrites its former pages
        s.free(other)
        q = s.load(kept)
        assert np.array_equal(rows(s, [(q, TOK[70:], N - 70)]), want[70:])
    with model.session(context=N, chunk=N, n_out=N) as s:
        q = s.load(kept)
        assert np.array_equal(rows(s, [(q, TOK[70:], N - 70)]), want[70:])
        with pytest.raises(llmc.Error, match="damaged or cut short"):
            s.load(kept[:-1])


def test_ops_are_timed_over_ranks(tmp_path, llmc):
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["llama"])
    llmc(
        "bench",
        path,
        "--random-weights",
        "--device",
        "ref",
        "--tp",
        "3",
        "--ops",
        "-p",
        "8",
        "-n",
        "4",
        "-r",
        "1",
        "--json",
    )
    for result in json.loads(llmc.out)["results"]:
        ops = {o["op"]: o["n"] for o in result["ops"]}
        assert (
            ops["all_reduce"] == 4 and ops["all_gather"] == 1 and ops["attention"] == 2
        )  # in two layers


@pytest.mark.parametrize(
    "was,lie",
    [
        (r'("op":"all_reduce".{0,200}?"scale":)1\.0', r"\g<1>0.5"),
        (r'("keep":)23\b', r"\g<1>24"),
        (r'("recent":)40\b', r"\g<1>39"),
        (r'("sinks":)4\b', r"\g<1>3"),
    ],
)
def test_plans_of_one_process_are_compared(was, lie, tmp_path, llmc):
    """Plans that would deadlock, or that number pages differently, are refused."""
    path, out = tmp_path / "m.yaml", tmp_path / "out"
    path.write_text(MODELS["llama"])
    llmc(
        "compile",
        path,
        "-o",
        out,
        "--arch",
        BEST,
        "--tp",
        "3",
        "--set",
        "kv={dtype: int8, window: 40, sinks: 4}",
    )
    plan = out / f"plan-cpu-{BEST}-r2of3.json"
    text = plan.read_text()
    plan.write_text(re.sub(was, lie, text, count=1, flags=re.S))
    assert plan.read_text() != text
    args = ["--random-weights", "--arch", BEST, "--tokens", "5,6,7", "-n", "2"]
    llmc("run", out, *args, "--trust-artifact", code=1)
    assert "rank 2 of 3 has another plan than rank 0" in llmc.err


def test_an_artifact_has_a_plan_for_each_rank(tmp_path, llmc):
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["llama"])
    llmc("compile", path, "-o", tmp_path / "out", "--arch", BEST, "--tp", "3", "--aot")
    assert {f for f in os.listdir(tmp_path / "out") if f.endswith(".json")} == {
        f"plan-cpu-{BEST}-r{k}of3.json" for k in range(3)
    }
    run_it = (
        "run",
        "--random-weights",
        "--tokens",
        "5,6,7",
        "-n",
        "8",
        "--ignore-eos",
        "--json",
        "--arch",
        BEST,
    )
    llmc(
        *run_it, tmp_path / "out"
    )  # the last rank has another share, whose kernels were shipped too
    assert "cannot be used" not in llmc.err
    first = llmc.out
    llmc(*run_it, path, "--tp", "3")
    assert (
        re.search(r'"tokens":\[[^]]*\]', first)[0] == re.search(r'"tokens":\[[^]]*\]', llmc.out)[0]
    )
