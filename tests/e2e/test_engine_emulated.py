"""The engine on an emulated GPU. With deterministic: true every request gets the tokens that it
gets alone, with tokens sampled on device and host, preemption with KV swapped to the host,
prefix hits and a cancellation. Logprobs have the same bits, also on tensor cores. And: a GPU
that fails."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir, "serve"))
import tiny_model  # noqa: E402
from cuda_emu import environment  # noqa: E402
from golden_run import weights  # noqa: E402

SCRIPT = """
import json, llmc
with llmc.open("configs/tiny.yaml", random_weights=True, device="cuda", arch="sm_75", set={"deterministic": "true"}) as m:
    prompts = [[3 + (i * 7 + k * 5) % 290 for k in range(n)] for i, n in enumerate((36, 31, 12, 3))]
    prompts.append(prompts[0][:33] + [9])
    params = [dict(max_tokens=n, ignore_eos=True) for n in (2, 5, 4, 3, 2)]
    params[2].update(temperature=0.9, seed=4, top_p=0.9)
    # the device leaves these to the host, with all of their steps
    params[0].update(temperature=1.0, seed=3, mirostat=2, mirostat_tau=6.0)
    params[3].update(repetition_penalty=1.3, min_tokens=2, repeat_last_n=8)
    params[4].update(temperature=1.0, seed=9, dry_multiplier=0.8, xtc_probability=0.5, xtc_threshold=0.01)
    with m.session(context=96) as s:
        alone = [s.run(p, **k)["tokens"] for p, k in zip(prompts, params)]
    with m.engine(context=96, seqs=3, chunk=40, kv_tokens=96, swap_bytes=1 << 20) as e:
        first = e.submit(prompts[0], **params[0]).wait()["tokens"]
        requests = [e.submit(p, **k) for p, k in zip(prompts[:1:-1], params[:1:-1])]
        two = e.submit(prompts[1], n=2, n_top=2, **params[1])  # which need four pages of three
        gone = e.submit(prompts[0], max_tokens=50, ignore_eos=True)
        gone.cancel()
        crowd = [r.wait()["tokens"] for r in requests]
        two = [(v.index, v.token) for v in two.events() if v.kind == "token"]
        crowd += [[t for i, t in two if i == 1], [t for i, t in two if i == 0]]
        stats = e.stats()
    # guessed ahead or not: the same tokens and logprobs, drawn and greedy; the bias makes the text repeat itself
    with m.engine(context=96, seqs=2, chunk=40) as e:
        guess = [[[(v.token, repr(v.logprob)) for v in e.submit(prompts[3], max_tokens=9, ignore_eos=True, logprobs=True, speculate=k, logit_bias={5: 9, 6: 8}, **p).events()
                   if v.kind == "token"] for p in (dict(), dict(temperature=0.5, seed=2))] for k in (-1, 0)]
        drafts = e.stats()["drafts"]
with llmc.open("configs/tiny.yaml", random_weights=True, device="cuda", arch="sm_75", no_weights=True) as m:
    try:
        m.engine(speculate=3)
        refused = ""
    except llmc.Error as e:
        refused = str(e)
print(json.dumps([guess, drafts, refused, alone, first, crowd, {k: stats[k] for k in (
    "kv_pages_used", "preemptions", "swaps_in", "swaps_out", "prefix_hits", "failed", "running")}]))
"""


def test_a_crowd_on_a_gpu_answers_as_each_alone():
    build = os.environ.get("LLMC_EMU_BUILD", "build")
    subprocess.run(["make", "-s", "-f", "emu/emu.mk", f"BUILD={build}", "emu-lib"], check=True)
    p = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "LLMC_CUDA_LIBDIR": os.path.abspath(f"{build}/emu")},
    )
    assert p.returncode == 0, p.stderr
    draft, drafts, refused, alone, first, crowd, stats = json.loads(p.stdout.splitlines()[-1])
    assert draft[0] == draft[1] and drafts > 0 and "deterministic: true" in refused
    assert first == alone[0] and crowd == alone[:1:-1] + [alone[1], alone[1]]
    assert (
        stats["preemptions"] > 0
        and stats["swaps_in"] == stats["swaps_out"] > 0
        and stats["prefix_hits"] > 0
    )
    assert stats["kv_pages_used"] == stats["failed"] == stats["running"] == 0


THINKING = """
import json, sys, llmc
with llmc.open(sys.argv[1], device="cuda", arch="sm_75", set={"deterministic": "true"}) as m:
    params = dict(max_tokens=8, ignore_eos=True, temperature=1.0, seed=2)
    limits = [dict(thinking=["", "</think>"], thinking_budget=n, **params) for n in (0, 3, 50)]
    prompt = m.tokenizer.encode("hello")
    with m.engine(context=64, seqs=3) as e:
        free = e.submit(prompt, **params).wait()["tokens"]
        crowd = [r.wait()["tokens"] for r in [e.submit(prompt, **p) for p in limits]]
    with m.session(context=64) as s:
        alone = [s.run(prompt, **p)["tokens"] for p in limits]
print(json.dumps([free, crowd, alone]))
"""


def test_a_budget_of_reasoning_is_a_mask_on_the_device(tmp_path):
    """The end mark follows exactly as many tokens as the budget allows, and these equal the tokens
    without a budget."""
    build = os.environ.get("LLMC_EMU_BUILD", "build")
    subprocess.run(["make", "-s", "-f", "emu/emu.mk", f"BUILD={build}", "emu-lib"], check=True)
    marks = ["<think>", "</think>"]
    folder = tiny_model.build(tmp_path / "tiny", marks=marks)
    p = subprocess.run(
        [sys.executable, "-c", THINKING, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "LLMC_CUDA_LIBDIR": os.path.abspath(f"{build}/emu")},
    )
    assert p.returncode == 0, p.stderr
    free, crowd, alone = json.loads(p.stdout.splitlines()[-1])
    end = tiny_model.vocabulary(marks).index("</think>")
    assert crowd == alone and crowd[2] == free and end not in free
    assert crowd[0][0] == end and crowd[1][:4] == [*free[:3], end]


WEIGHTS = """
import json, os, sys, llmc
old, new, broken = sys.argv[1:]
options = dict(device="cuda", arch="sm_75", set={"deterministic": "true"})
def answer(e):
    events = e.submit("hello world" * 9, max_tokens=4, ignore_eos=True, logprobs=True, prompt_logprobs=True).events()
    return [(v.token, repr(v.logprob)) for v in events if v.kind in ("prompt", "token")]
def fresh(path):
    with llmc.open(path, **options) as m, m.engine(context=96, seqs=2) as e:
        return answer(e)
with llmc.open(old, **options) as m, m.engine(context=96, seqs=2) as e:
    got = [answer(e), answer(e)]
    e.replace_weights(new)
    got.append(answer(e))
    try:
        e.replace_weights(broken)
    except llmc.Error as error:
        got.append(str(error))
    got.append(answer(e))
print(json.dumps([fresh(old), fresh(new), got]))
"""


def test_weights_are_replaced_on_the_device(tmp_path):
    """Log probabilities are bit-identical with those of a model that is opened from the new
    checkpoint."""
    old = tiny_model.build(tmp_path / "old")
    new, broken = str(tmp_path / "new"), str(tmp_path / "broken")
    for folder in (new, broken):
        shutil.copytree(old, folder)
        (path,) = pathlib.Path(folder).glob("*.safetensors")
        raw = bytearray(path.read_bytes())
        n = int.from_bytes(raw[:8], "little") + 8
        raw[n:] = raw[n + 1440 :] + raw[n : n + 1440]  # other values of the same tensors
        path.write_bytes(raw if folder == new else raw[:-1])
    p = subprocess.run(
        [sys.executable, "-c", WEIGHTS, old, new, broken],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_75")},
    )
    assert p.returncode == 0, p.stderr
    before, after, got = json.loads(p.stdout.splitlines()[-1])
    assert before != after and got[:3] == [before, before, after]
    assert "safetensors" in got[3] and got[4] == after


HOST = """
import json, sys, llmc
sets = json.loads(sys.argv[1])
with llmc.open("configs/tiny.yaml", random_weights=True, device="cuda", arch="sm_75", set={"deterministic": "true", **sets}) as m:
    prompts = [[3 + (i * 7 + k * 11) % 290 for k in range(n)] for i, n in enumerate((70, 66, 97, 40))]
    params = dict(max_tokens=3, ignore_eos=True)
    with m.session(context=128) as s:
        alone = [s.run(p, **params)["tokens"] for p in prompts]
    memory = m.memory(context=128)
    with m.engine(context=128, seqs=3, chunk=64, kv_tokens=160) as e:  # five pages, of which every prompt but one takes more than half
        turns = [[e.submit(p, **params).wait()["tokens"] for p in prompts] for _ in range(2)]
        crowd = [e.submit(p, **params) for p in prompts]
        turns.append([r.wait()["tokens"] for r in crowd])
        stats = e.stats()
    refused = []
    for options in (dict(no_prefix_cache=True), dict(swap_bytes=1 << 20)):
        try:
            m.engine(**options)
        except llmc.Error as e:
            refused.append(str(e))
print(json.dumps([alone, turns, refused, memory["kv_host"], memory["kv_per_token"], stats]))
"""
HOSTS = {
    "f16": {},
    "window": {"attention.window": "40", "attention.window_layers": "[0]"},
    "int4": {"kv.dtype": "int4", "kv.rotate": "true"},
    "ranks": {"parallel.tp": "2"},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", HOSTS)
def test_pages_beyond_the_device_come_back_from_host_memory(name):
    build = os.environ.get("LLMC_EMU_BUILD", "build")
    subprocess.run(["make", "-s", "-f", "emu/emu.mk", f"BUILD={build}", "emu-lib"], check=True)
    p = subprocess.run(
        [sys.executable, "-c", HOST, json.dumps({"kv.host": "1M", **HOSTS[name]})],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "LLMC_CUDA_LIBDIR": os.path.abspath(f"{build}/emu"),
            "LLMC_EMU_DEVICES": "2",
        },
    )
    assert p.returncode == 0, p.stderr
    alone, turns, refused, host, per_token, stats = json.loads(p.stdout.splitlines()[-1])
    assert turns == [alone] * 3
    assert len(refused) == 2 and all(
        f"kv.host and {name} exclude each other" in r
        for name, r in zip(("no_prefix_cache", "swap_bytes"), refused)
    )
    assert stats["host_pages_total"] > 20 and 1 << 19 < host <= 1 << 20
    # in the second round, the pages of all prompts but the first are in host memory
    assert (
        stats["host_out"] >= stats["host_in"] >= 64
        and stats["host_in"] % 32 == 0
        and stats["prefix_hits"] >= 64 + 64 + 96 + 32
    )
    assert 0 < stats["host_pages_used"] <= stats["host_pages_total"]
    assert stats["swaps_out"] == stats["failed"] == stats["kv_pages_used"] == 0


TENSOR_CORES = """
import glob, json, os, sys, llmc
folder, model, storage = sys.argv[1:]
if storage:  # widths that wgmma takes
    make = dict(random_weights=True, set={"hidden": "128", "ffn.width": "192", "attention.n_heads": "4", "attention.n_kv_heads": "2",
                                          "attention.head_dim": "32", "storage.default": storage})
else:
    make = dict(set={})
make["set"]["deterministic"] = "true"
with llmc.open(model, device="cuda", arch="sm_90a", out_dir=folder, **make) as m:
    ids = [3 + (i * 37) % 110 for i in range(37)]
    prompts = [ids, ids[5:25], ids[:3], ids[20:] + ids[:11]]
    params = [dict(max_tokens=4, ignore_eos=True, logprobs=True, prompt_logprobs=True, n_top=3) for _ in prompts]
    params[3].update(temperature=0.9, seed=4, top_p=0.9)
    def heard(r):
        return [(v.kind, v.token, repr(v.logprob), v.top) for v in r.events() if v.kind != "finish"]
    with m.engine(context=64, seqs=4, chunk=24, no_prefix_cache=True) as e:
        alone = [heard(e.submit(p, **k)) for p, k in zip(prompts, params)]
        steps = [e.stats()["steps"]]
        together = [heard(r) for r in [e.submit(p, **k) for p, k in zip(prompts, params)]]
        steps.append(e.stats()["steps"] - steps[0])
    with m.session(context=64) as s:  # and the whole prompt in one step
        whole = s.run(prompts[0], max_tokens=4, ignore_eos=True)["tokens"]
kernels = {os.path.basename(f).split(".")[0]: open(f).read() for f in glob.glob(folder + "/kernels/*.cu")}
print(json.dumps([alone, together, whole, steps, sorted(k for k, text in kernels.items() if "_sm90.h" in text), sorted(kernels)]))
"""


@pytest.mark.parametrize(
    "model, storage",
    [("configs/tiny.yaml", "bf16"), ("configs/tiny.yaml", "q4_0")]
    + [("llama-bias-linear-bf16", "")] * ("LLMC_CHECK_ALL" in os.environ),
)
def test_batches_on_tensor_cores_answer_as_each_alone(model, storage, tmp_path):
    if not storage:
        model = weights.Golden(model).build(str(tmp_path / "model"))
    p = subprocess.run(
        [sys.executable, "-c", TENSOR_CORES, str(tmp_path / "artifact"), model, storage],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_90a", seed=5)},
    )
    assert p.returncode == 0, p.stderr
    alone, together, whole, (one_by_one, steps), wgmma, kernels = json.loads(
        p.stdout.splitlines()[-1]
    )
    mixed = {"lm_head_mixed", "matmul_add_mixed", "norm_glu_mixed", "norm_qkv_mixed"}
    assert mixed <= set(kernels)
    if storage:
        assert mixed | {"attention_mixed"} <= set(wgmma)
    assert steps < one_by_one  # requests were batched
    assert together == alone
    assert [v[1] for v in alone[0] if v[0] == "token"] == whole


FAILING = """
import json, llmc
with llmc.open("configs/tiny.yaml", random_weights=True, device="cuda", arch="sm_75") as m, m.engine(context=96, seqs=3) as e:
    said = []
    requests = [e.submit([3, 4, 5, 6], max_tokens=20, ignore_eos=True) for _ in range(4)]
    for work in [r.wait for r in requests] + [lambda: e.submit([1])]:
        try:
            work()
            said.append("LLMC_OK")
        except llmc.Error as x:
            said.append(x.name)
    stats = e.stats()
print(json.dumps([said, stats["failed"], stats["running"], stats["waiting"], stats["kv_pages_used"]]))
"""


def test_a_failing_gpu_fails_the_requests_and_nothing_hangs():
    build = os.environ.get("LLMC_EMU_BUILD", "build")
    p = subprocess.run(
        [sys.executable, "-c", FAILING],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "LLMC_CUDA_LIBDIR": os.path.abspath(f"{build}/emu"),
            "LLMC_EMU_FAIL": "cuGraphLaunch@4:719",
        },
    )
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout.splitlines()[-1]) == [["LLMC_E_DEVICE"] * 5, 4, 0, 0, 0]
