"""Models on two devices (placement, --offload): an emulated GPU and the CPU. Logits are torch's, as
those of each device alone; bits are the same in batches, chunks, decode, forks and saved sequences.
What does not work on two devices is refused with a sentence."""

import json
import os
import re
import subprocess
import sys

import pytest

from cuda_emu import environment
from golden_run import LLMC, ROOT, error, run, weights
from test_ranks import COMMON

sys.path.insert(0, os.path.join(ROOT, "tests", "serve"))
import tiny_model  # noqa: E402

ALL = os.environ.get("LLMC_CHECK_ALL")
MODELS = {
    "dense": COMMON
    + """name: offload-dense
family: qwen2
n_layers: 3
hidden: 96
attention: {n_heads: 6, n_kv_heads: 3, head_dim: 32}
ffn: {width: 160}
storage: {default: q4_0}
""",
    "moe": COMMON
    + """name: offload-moe
family: qwen2_moe
n_layers: 2
hidden: 64
attention: {n_heads: 4, n_kv_heads: 4, head_dim: 16}
ffn: {width: 128}
moe: {n_experts: 7, top_k: 3, width: 32, shared: {width: 128}}
""",
}

SCRIPT = """
import json, sys
sys.path.insert(0, "tests/e2e")
import numpy as np, llmc
from bits import rows, whole
N = 37
tok = [int(t) for t in np.random.default_rng(1).integers(3, 323, N)]
with llmc.open(sys.argv[1], random_weights=True, device="ref") as m:
    want = whole(m, tok).view(np.float32)
with llmc.open(sys.argv[1], random_weights=True, device="cuda", arch="sm_75", set=["deterministic=true", *sys.argv[2:]]) as m:
    got = whole(m, tok, threads=2)
    far = float(abs(got.view(np.float32) - want).max() / abs(want).max())
    again = bool(np.array_equal(whole(m, tok), got))
    with m.session(context=64, chunk=32, n_out=32, seqs=3) as s:
        q, at, parts = s.seq(), 0, []
        for n in (1, 7, 20, 9):  # chunks with another sequence in the step
            o = s.seq()
            parts.append(rows(s, [(o, tok[5:9], 1), (q, tok[at:at + n], n)])[1:])
            s.free(o)
            at += n
        f, kept = s.fork(q), s.save(q)
        rows(s, [(f, [9], 1)])
        s.trim(q, 33)
        parts[-1] = parts[-1][:-4]
        parts += [rows(s, [(q, [t], 1)]) for t in tok[33:35]]
        s.free(q)
        q = s.load(kept)
        s.trim(q, 35)
        parts.append(rows(s, [(q, tok[35:], 2)]))
        same = bool(np.array_equal(np.concatenate(parts), got))
    prompts = [(tok[i:] + tok)[:n] for i, n in enumerate((36, 31, 12, 3))]
    params = dict(max_tokens=5, ignore_eos=True)
    with m.session(context=96) as s:
        alone = [s.run(p, **params)["tokens"] for p in prompts]
    with m.engine(context=96, seqs=3, chunk=40, kv_tokens=96, swap_bytes=1 << 20) as e:  # three pages
        requests = [e.submit(p, **params) for p in prompts[:1:-1]]
        two = e.submit(prompts[1], n=2, **params)  # which need four pages
        crowd = [r.wait()["tokens"] for r in requests]
        two = [(v.index, v.token) for v in two.events() if v.kind == "token"]
        crowd += [[t for i, t in two if i == k] for k in (0, 1)]
        crowd += [e.submit(p, **params).wait()["tokens"] for p in prompts[:1] * 2]
        guessed = e.submit(prompts[3], speculate=3, logit_bias={5: 9}, max_tokens=9, ignore_eos=True).wait()["tokens"]
        plain = e.submit(prompts[3], speculate=-1, logit_bias={5: 9}, max_tokens=9, ignore_eos=True).wait()["tokens"]
        stats = e.stats()
print(json.dumps([far, again, same, crowd == alone[:1:-1] + [alone[1], alone[1], alone[0], alone[0]], guessed == plain, {k: stats[k] for k in ("preemptions", "swaps_in", "prefix_hits", "drafts")}]))
"""


def script(text, *args, **env):
    p = subprocess.run(
        [sys.executable, "-c", text, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment(**env)},
    )
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "model, placed, mode",
    [("dense", "placement.gpu_layers=2", "fast"), ("moe", "placement.cpu.experts=all", "check")]
    + [
        ("dense", "placement.gpu_layers=0", "fast"),
        ("dense", "placement.cpu.layers=1", "check"),
        ("dense", "placement.cpu.embedding=true", "fast"),
        ("moe", "placement.cpu.moe_layers=1", "fast"),
        ("moe", "placement.gpu_layers=1", "fast"),
    ]
    * bool(ALL),
)
def test_two_devices(model, placed, mode, tmp_path):
    """With prefix hits, preemption with KV swapped to the host, and n-gram drafts."""
    path = tmp_path / "m.yaml"
    path.write_text(MODELS[model])
    far, again, same, crowd, guessed, stats = script(SCRIPT, path, placed, mode=mode)
    assert far < 1e-3, "not the reference's logits"
    assert again and same, "chunks, company, decoding or a saved sequence change the bits"
    assert crowd and guessed
    assert all(stats.values()), stats


@pytest.mark.parametrize(
    "name, args",
    [("qwen3_moe-renorm", ["--offload", "experts"]), ("llama-bias-linear-bf16", ["-ngl", "1"])]
    + [
        ("deepseek_v2-lite", ["--n-cpu-moe", "9"]),
        ("deepseek_v3-v32-chooses", ["--n-cpu-moe", "9"]),
        ("gpt_oss-plain", ["--offload", "experts=0"]),
        ("mixtral-plain", ["--offload", "experts"]),
        ("llama4-plain", ["--offload", "experts"]),
        ("gemma3n-plain", ["--offload", "0"]),
        ("qwen3_next-plain", ["--offload", "1"]),
    ]
    * bool(ALL),
)
def test_logits_are_torchs(name, args, monkeypatch, tmp_path):
    """In one chunk, and row by row, which decodes the prompt."""
    for k, v in environment("sm_80").items():
        monkeypatch.setenv(k, v)
    g = weights.Golden(name)
    g.build(tmp_path)
    for more in ([], ["--chunk", "1"]):
        logits, tokens = run(tmp_path, g, *args, *more)
        e = error(g, logits)
        assert e < (1e-5 if g.dtype == "f32" else 5e-2), e
        assert g.dtype != "f32" or tokens == g.greedy


def plan(*args, expect=0):
    p = llmc("plan", *args, "--json", expect=expect)
    return p.stderr if expect else json.loads(p.stdout)


GPU = ["--quantize", "q4_k", "--gpu", "rtx4090", "--host-bandwidth", "60"]
QWEN, DENSE = "configs/qwen3-30b-a3b.yaml", "configs/llama3-70b.yaml"
LATENT, STACKED = "configs/deepseek-v2-lite.yaml", "configs/phi3-mini.yaml"
LATENT_RULE = r"blk\.1\.((%s|attn_output)|ffn_(gate|up|down)_(sh|)exps?)\.=CPU"
AUTO = ["--offload", "auto", "--memory"]


def placed(model, *args):
    """Ops and layers of each phase on the GPU, and its bytes of weights. The CPU has the rest."""
    got = plan(model, *args, "--arch", "sm_80", "--device", "cuda")
    steps = [[(s["op"], s["layer"]) for s in p["step"]] for p in got["plan"]["phase"]]
    return steps, [t["id"] for t in got["plan"]["tensor"]], got["memory"]["weights"]


@pytest.mark.parametrize(
    "model, rules, same",
    [
        (QWEN, ["exps=CPU"], ["--offload", "experts"]),
        (QWEN, [r"\.ffn_.*=CPU"], ["--offload", "experts"]),
        (QWEN, [r"blk\.([0-9]|1[0-9])\.ffn_(up|down|gate)_exps\.=CPU"], ["--n-cpu-moe", "20"]),
        (QWEN, [r"blk\.(?:4[0-7])\..*exps=CUDA0,exps=CPU"], ["--n-cpu-moe", "40"]),
        (QWEN, [r"blk\.4[0-7]\.=CUDA0", "exps=CPU"], ["--n-cpu-moe", "40"]),
        (DENSE, [r"blk\.\d\.=CPU", "token_embd=CPU"], ["--offload", "layers=0-9"]),
        (DENSE, [r"blk\.\d\.=CUDA0"], []),
        (
            DENSE,
            [r"blk\.0\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.weight=CPU", "token_embd=CPU"],
            ["--offload", "layers=0"],
        ),
        (DENSE, [r"blk\.3\.(attn_qkv|attn_out|ffn_)=CPU"], ["--offload", "layers=3"]),
        (LATENT, [LATENT_RULE % r"attn_q|attn_kv_a_mqa|attn_kv_b"], ["--offload", "layers=1"]),
        (LATENT, [LATENT_RULE % "attn_q|attn_kv_a_mqa|attn_[kv]_b"], ["--offload", "layers=1"]),
        (STACKED, [r"blk\.1\.(attn_(qkv|output)|ffn_(up|down))\.=CPU"], ["--offload", "layers=1"]),
        ("plain", [r"blk\.1\.ffn_(up|down)_exps\.=CPU"], ["--offload", "experts=1"]),
        (QWEN, [r"blk\.2\.ffn_(gate_up|down)_exps\.=CPU"], ["--offload", "experts=2"]),
    ],
)
def test_override_tensor_is_llama_cpps(model, rules, same, tmp_path):
    """Rules over GGUF names place what the options of llmc place; the first match decides. A rule
    needs no names that the model, or its converter, does not have."""
    if model == "plain":
        model = tmp_path / "m.yaml"
        model.write_text(MODELS["moe"].replace("top_k: 3,", "top_k: 3, kind: plain, act: relu2,"))
    args = [a for r in rules for a in ("-ot", r)]
    assert placed(model, *args) == placed(model, *same)


def total(*args):
    return plan(*args, *GPU)["memory"]["total"]


def test_auto_moves_the_fewest_experts():
    """One layer more on the GPU would not fit. A row reads 8 of 128 experts of a layer."""
    got = plan(QWEN, *GPU, *AUTO, "8G,32G")
    n, memory = got["offload"]["moe_layers"], 8 << 30
    assert got["offload"]["gpu_layers"] == 48 and 0 < n < 48
    assert got["memory"]["total"] <= memory < total(QWEN, "--n-cpu-moe", str(n - 1))
    # a router of 128 rows in bf16, experts in q4_k: 144 bytes per 256 elements, some more if packed
    one = got["gpu"]["steps"][0]
    experts = one["host_bytes"] / n - 128 * 2048 * 2
    assert one["rows"] == 1 and 144 <= experts / (8 * 3 * 2048 * 768 / 256) < 152
    assert one["host_s"] == pytest.approx(one["host_bytes"] / 60e9)
    assert one["crossings"] == 2 * n
    assert one["link_s"] == pytest.approx(2 * n * (15e-6 + 2048 * 4 / 32e9), abs=1e-8)
    assert one["seconds"] == pytest.approx(one["gpu_s"] + one["host_s"] + one["link_s"], abs=1e-8)
    assert one["tps"] == pytest.approx(1 / one["seconds"], rel=1e-4)


def test_auto_uses_what_there_is():
    whole = plan(QWEN, *GPU, *AUTO, "24G,64G")
    assert whole["offload"]["gpu_layers"] == 48 and whole["offload"]["moe_layers"] == 0
    assert whole["gpu"]["steps"][-1]["test"] == "prefill"  # one device
    big = plan(DENSE, *GPU, *AUTO, "24G,64G")
    n = big["offload"]["gpu_layers"]
    assert big["memory"]["total"] <= 24 << 30 < total(DENSE, "--offload", str(n + 1))
    none = plan(DENSE, *GPU, *AUTO, "8G,16G", expect=2)
    assert "fits no division" in none and "8.0 GiB and 16.0 GiB are available" in none
    assert "the second size is the host's" in plan(DENSE, *GPU, "--memory", "8G,16G", expect=1)


def test_auto_runs(tmp_path):
    """The memory holds one layer of three on the GPU."""
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["dense"].replace("hidden: 96", "hidden: 192"))
    args = ["--random-weights", "--context", "64", "--chunk", "8", "--tokens", "1,2", "-n", "2"]
    p = subprocess.run(
        [LLMC, "run", path, *args, "--ignore-eos", *AUTO, "69700000"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_80")},
    )
    assert p.returncode == 0, p.stderr
    assert re.search(r"^offload: 2 of 3 layers on the CPU", p.stderr, re.M), p.stderr


RUN = ["--random-weights", "--tokens", "5,9,17,30,44", "-n", "9", "--ignore-eos", "-t", "1"]


def llmc(*args, expect=0, **env):
    p = subprocess.run(
        [LLMC, *map(str, args)], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert p.returncode == expect, p.stderr
    return p


@pytest.fixture
def dense(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["dense"].replace("max_positions: 1024", "max_positions: 131072"))
    return path


def part(err):
    """Total of the table of a refusal, and the free bytes."""
    unit = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    rows = re.findall(r"^  (total|free|limit) +([\d.]+) (B|[KMG]iB)\b", err, re.M)
    return [float(v) * unit[u] for _, v, u in rows]


def test_the_cpus_part_is_refused_before_it_is_allocated(dense):
    """The refusal comes before kernels are compiled; the context is what both devices hold."""
    run = ["run", dense, *RUN, "--offload", "2"]
    env = environment("sm_75")
    p = llmc(*run, expect=2, **env, LLMC_FREE_MEMORY="1M")
    assert "the part on the CPU needs more memory than is free:" in p.stderr
    assert "compil" not in p.stderr
    need, free = part(p.stderr)
    assert need > free == 1 << 20
    p = llmc(*run, "--memory", "1G,1M", expect=2, **env)
    assert "the part on the CPU needs more memory than --memory allows:" in p.stderr
    p = llmc(*run, "--context", "100000", expect=2, **env, LLMC_FREE_MEMORY="8M")
    (context,) = re.findall(r"^  --context (\d+)$", p.stderr, re.M)
    assert "compil" not in p.stderr and int(context) < 100000
    assert "--offload auto, or a rule with less on the CPU" in p.stderr
    p = llmc(*run, "--context", context, **env, LLMC_FREE_MEMORY="8M")
    p = llmc(*run, **env, LLMC_FREE_MEMORY="8M")
    fitted = re.search(r"context (\d+) of the model's 131072 .* of 8.0 MiB for the CPU", p.stderr)
    assert 256 <= int(fitted[1]) < int(context)


def test_division_is_among_the_remedies(dense):
    """The model runs with the remedy if the other device holds the rest."""
    env = environment("sm_75")
    tight = {"LLMC_FREE_MEMORY": "1M"}
    p = llmc("run", dense, *RUN, expect=2, **env, **tight)
    assert re.search(r"^  --offload auto: a part of the model on GPU 0, which has", p.stderr, re.M)
    llmc("run", dense, *RUN, "--offload", "auto", **env, **tight)
    p = llmc("run", dense, *RUN, expect=2, **tight, LLMC_CUDA_LIBDIR="/nonexistent")
    assert "--offload" not in p.stderr
    p = llmc("run", dense, *RUN, "--set", "kv.window=32", "--kv", "int8", expect=2, **env, **tight)
    assert "--offload" not in p.stderr, "exact KV pages cannot be divided"
    big = ["run", "configs/llama2-7b.yaml", *RUN, "--arch", "sm_75", "--device", "cuda"]
    p = llmc(*big, expect=2, **env, LLMC_EMU_MEM_MB="900")
    assert "a part of the model on the CPU (--offload auto)" in p.stderr


def test_a_compiled_folder_has_kernels_of_both_devices(dense, tmp_path):
    """It runs where nothing can be compiled, with the tokens of the description."""
    env = environment("sm_75", LLMC_CACHE=tmp_path / "cache")
    out = tmp_path / "out"
    make = ["compile", dense, "-o", out, "--arch", "sm_75", "--aot", "-q"]
    llmc(*make, "--offload", "2", **env)
    assert {p.name[:3] for p in out.glob("aot/*")} == {"sm_", "cpu"}
    want = llmc("run", dense, *RUN, "--json", "--offload", "2", **environment("sm_75"))
    for path in (tmp_path / "cache/kernels").glob("*"):
        path.unlink() if path.is_file() else None
    got = llmc("run", out, *RUN, "--json", "--device", "cuda", **env, LLMC_CC="/bin/false")
    assert json.loads(got.stdout)["tokens"] == json.loads(want.stdout)["tokens"]
    p = llmc(*make, "--offload", "auto", expect=1, **env)
    assert "auto chooses by the memory and the bandwidths of the machine that runs" in p.stderr
    p = llmc("compile", dense, "--target", "cpu", "--offload", "1", expect=1, **env)
    want = "--offload divides a model between a GPU and the CPU, but --target is cpu"
    assert want in p.stderr


@pytest.mark.parametrize("kv", ["int8", "int4"] if not ALL else ["int8", "int6", "int4", "f32"])
def test_kv_types(kv, tmp_path):
    """Both devices store their pages in this type: greedy tokens are those of the CPU."""
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["dense"])
    tokens = []
    for where in (["--offload", "2"], ["--device", "cpu"]):
        p = llmc(
            "run",
            path,
            *RUN,
            "--temperature",
            "0",
            "--json",
            "--kv",
            kv,
            *where,
            **environment("sm_80"),
        )
        tokens.append(json.loads(p.stdout)["tokens"])
    assert tokens[0] == tokens[1] and len(tokens[0]) == 9


DRAFT = """
import json, sys, llmc
P = [[5, 9, 17, 30, 44], [9] * 12, [3, 8, 1]]
one = dict(device="cuda", arch="sm_75")
same = ["deterministic=true"]
with llmc.open(sys.argv[1], set=[*same, "placement.gpu_layers=1"], **one) as two, llmc.open(sys.argv[1], set=same, **one) as whole, llmc.open(sys.argv[1]) as cpu:
    out = {}
    for name, m, draft in [("plain", two, None), ("gpu", two, whole), ("two", two, two), ("cpu", two, cpu), ("of", whole, two)]:
        try:
            with m.engine(context=64, seqs=3, chunk=32, speculate=-1 if draft is None else 0, draft=draft) as e:
                r = [e.submit(p, max_tokens=8, ignore_eos=True, temperature=0) for p in P]
                out[name] = [x.wait()["tokens"] for x in r], e.stats()["accepted"]
        except llmc.Error as e:
            out[name] = str(e), 0
print(json.dumps(out))
"""


def test_draft_models(tmp_path):
    """Greedy tokens are the same with a draft model on one device or on two."""
    got = script(DRAFT, tiny_model.build(tmp_path / "m"))
    plain = got.pop("plain")[0]
    for name, (tokens, accepted) in got.items():
        assert tokens == plain and accepted > 0, name


def test_packed_weights_of_the_cpu_are_mapped(tmp_path):
    """They are a file of the cache, of the CPU's share, and tokens are the same."""
    run = ["run", tiny_model.build(tmp_path / "m"), "--offload", "1", "--json"]
    run += ["--tokens", "5,9,17", "-n", "5", "--ignore-eos", "--temperature", "0"]
    env = environment("sm_75", LLMC_CACHE=tmp_path / "cache")
    tokens = [
        json.loads(llmc(*run, *more, **env).stdout)["tokens"]
        for more in ([], ["--cache-packed"], ["--cache-packed"])
    ]
    assert tokens[0] == tokens[1] == tokens[2]
    (packed,) = (tmp_path / "cache").glob("weights/*/packed")
    assert 0 < packed.stat().st_size < plan(run[1], "--arch", "generic")["memory"]["weights"]


@pytest.mark.parametrize(
    "case, rule",
    [("mixtral-experts", "placement.cpu.experts=all")]
    + [("llama-all", "placement.gpu_layers=1"), ("qv-rslora", "placement.gpu_layers=1")]
    * bool(ALL),
)
def test_a_merged_adapter(case, rule, tmp_path):
    """Each device adds the adapter to its own weights: the logits are PEFT's."""
    folder = os.path.join(weights.HERE, "lora", case)
    with open(os.path.join(folder, "adapter_config.json")) as f:
        g = weights.Golden(json.load(f)["base_model_name_or_path"])
    g.build(tmp_path)
    far = script(ADAPTER, tmp_path, folder, rule, json.dumps([int(t) for t in g.prompt]))
    assert far < 5e-3


ADAPTER = """
import json, sys, numpy as np, llmc
path, adapter, rule, ids = sys.argv[1:]
ids = json.loads(ids)
want = np.load(adapter + "/logits.npy")
with llmc.open(path, device="cuda", arch="sm_80", set=["lora.path=" + adapter, "kv.dtype=f32", rule]) as m:
    assert m.info["two_devices"]
    with m.session(context=len(ids), chunk=len(ids), n_out=len(ids)) as s:
        got = np.array(s.forward([(s.seq(), ids, len(ids))]))
print(json.dumps(float(abs(got - want).max() / abs(want).max())))
"""


@pytest.mark.parametrize(
    "args, want",
    [
        (
            ["--offload", "1", "--kv", "int8", "--set", "kv.window=32"],
            "not supported with exact KV pages (kv.window)",
        ),
        (
            ["--offload", "1", "--set", "attention.mask=none"],
            "not supported with encoders (attention.mask)",
        ),
        (
            ["--offload", "1", "--set", "mtp.part=rows", "--set", "mtp.layers=1"],
            "not supported with MTP heads (mtp.part)",
        ),
        (
            ["-ot", r"blk\.0=CPU", "--device", "cuda:0,1", "--set", "parallel.tp=3"],
            "not supported with ranks of a layer (parallel.tp)",
        ),
        (
            ["--offload", "2", "--device", "cpu"],
            "--offload divides a model between a GPU and the CPU, but --device is cpu",
        ),
        (["--n-cpu-moe", "2", "--device", "ref"], "--n-cpu-moe divides a model"),
        (["--offload", "auto", "--offload", "2"], "--offload auto: unknown; expected auto alone"),
        (
            ["--offload", "heads"],
            "--offload heads: unknown; expected auto alone, a number of layers",
        ),
        (["--offload", "experts="], "no layers after the ="),
        (["--offload", "experts"], "placement.cpu.experts: this model has no experts"),
        (["--n-cpu-moe", "1"], "placement.cpu.moe_layers: this model has no experts"),
        (
            ["--offload", "layers=7"],
            "placement.cpu.layers names layer 7: the model has layers 0 to 2",
        ),
        (
            ["-ot", r"ffn_up=CPU"],
            "blk.0.ffn_up.weight is on the CPU and blk.0.attn_q.weight is not; the routed "
            "experts of a layer (ffn_.*_exps), a whole layer",
        ),
        (["-ot", "exps=CPU"], '"exps=CPU" matches no tensor of layers 0 to 2'),
        (["-ot", r"blk\.3=CPU"], "matches no tensor of layers 0 to 2"),
        (["-ot", "^output=CPU"], "output.weight is on the CPU, but the head"),
        (["-ot", "blk=CUDA1"], '"blk=CUDA1": expected REGEX=CPU, or REGEX=CUDA0'),
        (["-ot", "(a=CPU"], "is not a regular expression: missing closing parenthesis"),
        (["-ot", r"(\w*\w*\w*.)*[!?]=CPU"], "is too slow to match"),
        (["-ot", "blk=CPU", "--device", "cpu"], "--override-tensor divides a model"),
        (
            ["-ot", r"blk\.0=CPU", "--set", "adapters.slots=2"],
            "not supported with adapter slots (adapters.slots)",
        ),
        (["--offload", "1", "--tp", "3"], "not supported with ranks of a layer (parallel.tp)"),
        (["--offload", "1", "--pp", "2"], "not supported with pipeline stages (parallel.pp)"),
        (
            ["--offload", "1", "--set", "adapters.slots=2"],
            "not supported with adapter slots (adapters.slots)",
        ),
        (
            ["--offload", "1", "--set", "kv.host=1M"],
            "not supported with pages in host memory (kv.host)",
        ),
    ],
)
def test_what_two_devices_refuse(args, want, tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["dense"])
    p = subprocess.run(
        [LLMC, "run", path, "--random-weights", "--tokens", "1,2", "--arch", "sm_75", *args]
        if "--device" not in args
        else [LLMC, "run", path, "--random-weights", "--tokens", "1,2", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment()},
    )
    assert p.returncode == 1 and want in p.stderr, p.stderr
