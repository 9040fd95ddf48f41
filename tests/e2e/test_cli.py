"""The command line: output formats, exit codes, and messages for bad input."""

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

from cuda_emu import environment

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))
import tiny_model  # noqa: E402
from waiting import HANG  # noqa: E402

TINY = "configs/tiny.yaml"
RUN = [
    "run",
    TINY,
    "--random-weights",
    "--arch",
    "generic",
    "--tokens",
    "1,2,3",
    "-n",
    "4",
    "--ignore-eos",
]
COMMANDS = [
    "run",
    "chat",
    "import",
    "compile",
    "plan",
    "bench",
    "verify",
    "eval",
    "quantize",
    "tokenize",
    "embed",
    "cache",
    "doctor",
    "serve",
    "completion",
    "man",
]


def test_help_of_every_command_shows_options_and_examples(llmc):
    llmc("--help")
    for c in COMMANDS:
        assert re.search(rf"^  {c} ", llmc.out, re.M)
    for c in COMMANDS:
        llmc(c, "--help")
        assert (
            f"usage: llmc {c}" in llmc.out
            and "examples:\n  llmc" in llmc.out.replace('  echo "Who', "  llmc")
            and "--json" in llmc.out
            or c in ("chat", "serve", "completion", "man")
        )
    llmc("--version")
    assert re.fullmatch(r"llmc \d+\.\d+\.\d+\n", llmc.out)


def test_run_json_has_exactly_the_promised_fields(llmc):
    r = llmc.json(*RUN)
    assert set(r) == {"prompt_tokens", "tokens", "text", "finish_reason", "timing"}
    assert (
        r["prompt_tokens"] == [1, 2, 3] and len(r["tokens"]) == 4 and r["finish_reason"] == "length"
    )
    assert set(r["timing"]) == {"load_s", "prefill_s", "decode_s", "prefill_tps", "decode_tps"}


def test_run_is_deterministic_and_seeds_matter(llmc):
    greedy = llmc.json(*RUN)["tokens"]
    assert llmc.json(*RUN)["tokens"] == greedy
    hot = [*RUN, "--temperature", "5", "-n", "12"]
    a, b = llmc.json(*hot, "--seed", "1")["tokens"], llmc.json(*hot, "--seed", "2")["tokens"]
    assert a == llmc.json(*hot, "--seed", "1")["tokens"] and a != b
    assert llmc.json(*hot, "--top-k", "1")["tokens"][:4] == greedy


def test_logits_are_a_numpy_file(llmc, tmp_path):
    path = tmp_path / "l.npy"
    llmc(*RUN, "--logits", path)
    x = np.load(path)
    vocab = int(llmc.json("plan", TINY)["plan"]["vocab"])
    assert x.dtype == np.float32 and x.shape == (3, vocab) and np.isfinite(x).all()
    assert llmc.json(*RUN)["tokens"][0] == int(x[-1].argmax())


def test_logits_do_not_depend_on_the_chunk(llmc, tmp_path):
    args = [
        "run",
        TINY,
        "--random-weights",
        "--arch",
        "generic",
        "--tokens",
        ",".join(map(str, range(1, 40))),
        "-n",
        "1",
    ]
    for chunk in (1, 7, 39):
        llmc(*args, "--chunk", chunk, "--logits", tmp_path / f"{chunk}.npy")
    a, b, c = (np.load(tmp_path / f"{k}.npy") for k in (1, 7, 39))
    assert (a == b).all() and (a == c).all()


def test_bench_json(llmc):
    r = llmc.json(
        "bench",
        TINY,
        "--random-weights",
        "--arch",
        "generic",
        "-p",
        "8",
        "-n",
        "4",
        "-b",
        "1,2",
        "-d",
        "0,40",
        "-r",
        "2",
    )
    assert [x["test"] for x in r["results"]] == [
        "pp8",
        "tg4",
        "tg4 b2",
        "tg4 @ d40",
        "tg4 b2 @ d40",
    ]
    for x in r["results"]:
        assert set(x) == {
            "test",
            "tps",
            "tps_stddev",
            "gbps",
            "bw_fraction",
            "batch",
            "depth",
            "tokens",
            "steps",
            "step_s",
            "bytes",
        }
        assert x["tps"] > 0 and x["gbps"] > 0 and x["step_s"] > 0
    # per step: K and V of 40 more positions, 3 layers of one head of 32 in f16
    assert [(x["batch"], x["depth"], x["tokens"], x["steps"]) for x in r["results"]] == [
        (1, 0, 8, 1),
        (1, 0, 4, 4),
        (2, 0, 8, 4),
        (1, 40, 4, 4),
        (2, 40, 8, 4),
    ]
    assert (
        r["results"][4]["bytes"] - r["results"][2]["bytes"]
        == 2 * (r["results"][3]["bytes"] - r["results"][1]["bytes"])
        == 2 * 40 * 2 * 3 * 32 * 2
    )
    # the depth is followed by one more position, and by further ones only with --ops
    llmc(
        "bench",
        TINY,
        "--random-weights",
        "--arch",
        "generic",
        "-p",
        "0",
        "-n",
        "7",
        "-r",
        "1",
        "--context",
        "8",
    )


@pytest.mark.parametrize(
    "device",
    [["--arch", "generic", "-t", "1"], ["--arch", "generic", "-t", "2"], ["--device", "ref"]],
)
def test_bench_of_single_ops(llmc, device):
    run = ["bench", TINY, "--random-weights", *device]
    prompt, decode = llmc.json(*run, "-p", "8", "-n", "4", "-d", "40", "-r", "1", "--ops")[
        "results"
    ]
    steps = llmc.json("plan", TINY, *device)["plan"]["phase"][0]["step"]
    for r, rows, pairs, seen in ((prompt, 8, 36, 8), (decode, 1, 45, 45)):
        ops = r["ops"]
        assert sum(o["n"] for o in ops) == len(steps) and {o["op"] for o in ops} == {
            s["op"] for s in steps
        }
        assert all(o["s"] > 0 and not o["cublaslt"] for o in ops)
        assert sum(o["weight_bytes"] for o in ops) == prompt["bytes"]
        (attention,) = [o for o in ops if o["op"] == "attention"]
        # 3 layers, 3 heads of 32 over one head of the cache, K and V
        assert attention["ops"] == 3 * pairs * 2 * 3 * (32 + 32)
        assert attention["cache_bytes"] == 3 * seen * 2 * 32 * (4 if "ref" in device else 2)
        # all GEMMs but the head's: q, k and v, output, gate, up and down; the head computes one row
        products = 3 * (96 * (96 + 32 + 32) + 96 * 96 + 3 * 96 * 160)
        assert sum(o["ops"] for o in ops) - attention["ops"] == 2 * (rows * products + 300 * 96)
    llmc(*run, "-p", "8", "-n", "0", "-r", "1", "--ops")
    assert re.search(r"^  attention +3 x .* us = .* ms +\d+ % .* GB/s .* GOP/s$", llmc.out, re.M), (
        llmc.out
    )


LATENT = """llmc: 1
name: latent
family: deepseek_v2
vocab_size: 64
max_positions: 256
n_layers: 2
hidden: 64
attention: {kind: mla, n_heads: 3, kv_rank: 40, nope_dim: 32, rope_dim: 16, v_dim: 24, head_dim: 48}
ffn: {width: 64}
norm: {eps: 1.0e-6}
text: {bos: 1, eos: [2]}
dtype: f32
"""


def test_bench_of_the_attention_module(llmc, tmp_path):
    (tmp_path / "m.yaml").write_text(LATENT)
    alone = [
        "bench",
        "mla",
        tmp_path / "m.yaml",
        "--random-weights",
        "--device",
        "ref",
        "-b",
        "1",
        "-d",
        "40",
    ]
    (x,) = llmc.json(*alone)["results"]
    assert x["absorbed_s"] > 0 and x["expanded_s"] is None and x["speedup"] is None
    llmc(*alone)
    assert (
        re.search(r"^ +1 +40 +[0-9.]+ us +- +-$", llmc.out, re.M)
        and "only absorbed kernels" in llmc.out
    )
    run = [
        "bench",
        "mla",
        tmp_path / "m.yaml",
        "--random-weights",
        "--arch",
        "generic",
        "-t",
        "1",
        "-b",
        "1,2",
        "-d",
        "5,40",
    ]
    r = llmc.json(*run)
    assert [(x["sequences"], x["depth"]) for x in r["results"]] == [
        (1, 5),
        (1, 40),
        (2, 5),
        (2, 40),
    ]
    assert all(
        x["absorbed_s"] > 0 and abs(x["expanded_s"] / x["absorbed_s"] / x["speedup"] - 1) < 0.01
        for x in r["results"]
    )
    llmc(*run)
    assert (
        re.search(r"^ +2 +40 +[0-9.]+ us +[0-9.]+ us +[0-9.]+ x$", llmc.out, re.M)
        and "20.4 x and 3.63 x on an A100" in llmc.out
    )


def test_forms_of_latent_attention_agree(llmc, tmp_path):
    (tmp_path / "m.yaml").write_text(LATENT)
    run = [
        "run",
        tmp_path / "m.yaml",
        "--random-weights",
        "--arch",
        "generic",
        "--tokens",
        ",".join(map(str, range(3, 40))),
        "-n",
        "1",
    ]
    logits = []
    for form in ("absorbed", "expanded"):
        for chunk in (1, 7, 37):
            llmc(
                *run,
                "--set",
                f"attention.form={form}",
                "--kv",
                "f32",
                "--chunk",
                chunk,
                "--logits",
                tmp_path / "l.npy",
            )
            logits.append(np.load(tmp_path / "l.npy"))
    assert not (logits[0] == logits[3]).all()
    assert max(abs(x - logits[0]).max() for x in logits) < 1e-4 * abs(logits[0]).max()


MIXTURE = """llmc: 1
name: experts
family: qwen3_moe
vocab_size: 64
max_positions: 64
n_layers: 2
hidden: 64
attention: {n_heads: 4, n_kv_heads: 2, head_dim: 16}
ffn: {width: 64}
moe: {n_experts: 8, top_k: 2, width: 32}
norm: {eps: 1.0e-6}
text: {bos: 1, eos: [2]}
dtype: f32
"""


def test_bench_counts_the_experts_that_are_read(llmc, tmp_path):
    (tmp_path / "m.yaml").write_text(MIXTURE)
    run = [
        "bench",
        tmp_path / "m.yaml",
        "--random-weights",
        "--device",
        "ref",
        "-p",
        "0",
        "-n",
        "1",
        "-r",
        "1",
    ]
    one, two = [x["bytes"] for x in llmc.json(*run, "-b", "1,2")["results"]]
    everything = llmc.json(*run, "--set", "moe.top_k=8")["results"][0]["bytes"]
    expert = 2 * 3 * 32 * 64 * 4  # in both layers: gate, up and down in f32
    assert everything - one == 6 * expert
    assert two - one == (8 * (1 - 0.75**2) - 2) * expert  # two rows that choose at random
    assert llmc.json("plan", tmp_path / "m.yaml", "--device", "ref")["token_bytes"] == one
    # a shared expert is read completely, however few routed experts are
    (tmp_path / "m.yaml").write_text(MIXTURE.replace("qwen3_moe", "qwen2_moe"))
    small, large = [
        llmc.json(*run, "--ops", "--set", f"moe.shared.width={n}")["results"][0] for n in (32, 64)
    ]
    assert large["bytes"] - small["bytes"] == 2 * 3 * 32 * 64 * 4
    assert (
        sum(o["weight_bytes"] for o in large["ops"]) - sum(o["weight_bytes"] for o in small["ops"])
        == 2 * 3 * 32 * 64 * 4
    )
    (tmp_path / "m.yaml").write_text(MIXTURE)
    llmc("plan", tmp_path / "m.yaml", "--arch", "generic")
    # gate, up and a norm of 256 bytes, then down
    assert (
        "; 128.2 KiB (of one row 32.2 KiB); " in llmc.out
        and "; 64.0 KiB (of one row 16.0 KiB); " in llmc.out
    )


def test_plan_shows_steps_memory_and_what_fits(llmc):
    llmc("plan", "configs/llama2-70b.yaml", "--memory", "200G", "--length", "4096")
    assert "norm_qkv" in llmc.out and "attention" in llmc.out and "weights" in llmc.out
    assert re.search(r"200 GiB holds \d+ such sequences", llmc.out)
    r = llmc.json("plan", "configs/llama2-70b.yaml", "--batch", "2")
    m = r["memory"]
    assert (
        137e9 < m["weights"] < 139e9
        and m["total"] == m["weights"] + m["kv"] + m["scratch"] + m["state"]
    )
    assert m["kv_per_token"] == 80 * 2 * 8 * 128 * 2
    more = llmc.json("plan", "configs/llama2-70b.yaml", "--batch", "4")["memory"]
    assert more["kv"] == 2 * m["kv"] and more["weights"] == m["weights"]


def test_memory_limit_refuses_before_anything_is_allocated(llmc):
    llmc(*RUN, "--memory", "1K", code=2)
    assert "--memory allows" in llmc.err


@pytest.mark.parametrize(
    "stage, want",
    [
        ("spec", "n_heads"),
        ("graph", "rmsnorm"),
        ("fuse", "norm_qkv"),
        ("order", "decode"),
        ("plan", "norm_qkv"),
    ],
)
def test_dump_prints_a_stage_and_writes_nothing(llmc, tmp_path, stage, want):
    llmc("compile", os.path.abspath(TINY), "--arch", "generic", "--dump", stage, cwd=tmp_path)
    assert want in llmc.out and not os.listdir(tmp_path)


def test_compile_writes_an_artifact_that_runs(llmc, tmp_path):
    out = tmp_path / "tiny"
    llmc("compile", TINY, "-o", out, "--arch", "generic")
    names = sorted(os.listdir(out))
    assert {"model.yaml", "plan-cpu-generic.json", "plan-cpu-generic.txt", "kernels"} <= set(names)
    for f in os.listdir(out / "kernels"):
        if f.endswith(".c"):
            text = open(out / "kernels" / f).read()
            assert "do not edit" in text
            if not f.startswith("gemm_"):  # these belong to a weight type, not to a model
                assert "lines of model.yaml" in text and re.search(
                    r"weights [\d.]+ \w+ per call, .*[\d.]+ \w+ per row", text
                )
    r = llmc.json(
        "run",
        out,
        "--random-weights",
        "--arch",
        "generic",
        "--tokens",
        "1,2,3",
        "-n",
        "4",
        "--ignore-eos",
    )
    assert r["tokens"] == llmc.json(*RUN)["tokens"]


def test_verify_agrees_and_exits_3_when_not(llmc, arch):
    r = llmc.json("verify", TINY, "--random-weights", "--arch", arch)
    assert (
        r["ok"]
        and len(r["rows"]) >= 8
        and all(
            set(x) == {"layer", "op", "value", "max_err", "range", "tolerance", "ok"}
            for x in r["rows"]
        )
    )


def test_verify_names_the_first_op_beyond_its_tolerance(llmc, tmp_path):
    """verify finds a kernel that was damaged in the artifact."""
    out = tmp_path / "tiny"
    llmc("compile", TINY, "-o", out, "--arch", "generic")
    spoiled = 0
    for f in os.listdir(out / "kernels"):
        if f.startswith("matmul_add"):
            path = out / "kernels" / f
            text = open(path).read()
            # keep the signature, never write the result
            head, _, body = text.partition("const llmc_step *s")
            brace = body.index("{")
            path.write_text(
                head
                + "const llmc_step *s"
                + body[: brace + 1]
                + "\n\tif (s) return;"
                + body[brace + 1 :]
            )
            spoiled += 1
    assert spoiled
    llmc(
        "verify",
        out,
        "--trust-artifact",
        "--random-weights",
        "--arch",
        "generic",
        code=3,
        env={"LLMC_KERNEL_CFLAGS": "-O1 -w"},
    )
    assert re.search(r"matmul_add of layer 0: \S+ is off by", llmc.err)


@pytest.mark.parametrize(
    "args, code, text",
    [
        ([], 1, "usage"),
        (["frobnicate"], 1, "no such command"),
        (["run"], 1, "name a model"),
        (["run", "nowhere.gguf", "--prompt", "x"], 1, "no such file"),
        (["run", "README.md", "--prompt", "x"], 1, "neither a YAML"),
        (["run", "configs", "--prompt", "x"], 1, "holds neither config.json"),
        (["run", TINY, "--bogus"], 1, "no such option"),
        (["run", TINY, "--prompt"], 1, "needs a value"),
        (["run", TINY, "-n", "three"], 1, "expected an integer"),
        (["run", TINY, "--temperature", "nan"], 1, "expected a number"),
        (["run", TINY, "--tokens", "1,,2"], 1, "expected ids"),
        (["run", TINY, "--tokens", "1", "--prompt", "x"], 1, "exclude each other"),
        (["run", TINY, "--tokens", "1", "--no-mmproj"], 1, "used only with --image"),
        (["plan", TINY, "--draft", TINY, "--html", "x"], 1, "plan the draft model by its own path"),
        (
            ["serve", TINY, "--model", TINY, "--mmproj", "x"],
            1,
            "--mmproj works only with one model",
        ),
        (["serve", "--models-dir", ".", "--mmproj", "x"], 1, "--mmproj works only with one model"),
        (["run", TINY, "--tokens", "1", "extra"], 1, "one argument too many"),
        (
            ["run", TINY, "--random-weights", "--prompt", "x"],
            1,
            "has no tokenizer; pass token ids with --tokens",
        ),
        (["run", TINY, "--tokens", "1"], 1, "no weights"),
        (
            ["run", TINY, "--random-weights", "--tokens", "1", "--device", "tpu"],
            1,
            "expected cpu, cuda, cuda:0",
        ),
        (
            ["run", TINY, "--random-weights", "--tokens", "1", "--device", "cuda:x"],
            1,
            "cuda:N (from 0)",
        ),
        (
            ["run", TINY, "--random-weights", "--tokens", "1", "--arch", "sparc"],
            1,
            "expected generic, v3, vnni, v4, amx, neon or i8mm",
        ),
        (["run", TINY, "--random-weights", "--tokens", "99999999"], 1, "99999999"),
        (["run", TINY, "--random-weights", "--tokens", ""], 1, "empty"),
        (["run", TINY, "--random-weights", "--tokens", "1", "--context", "-4"], 1, "context"),
        (
            ["run", TINY, "--random-weights", "--tokens", "1,2,3,4,5", "--context", "4"],
            1,
            "context holds 4",
        ),
        (["run", TINY, "--random-weights", "--tokens", "1", "--set", "hidden"], 1, "key=value"),
        (
            ["run", TINY, "--random-weights", "--tokens", "1", "--set", "attention.n_hads=3"],
            1,
            "n_heads",
        ),
        (["run", TINY, "--random-weights", "--tokens", "1", "--stop", ""], 1, "empty"),
        (
            ["run", TINY, "--random-weights", "--tokens", "1", "--draft", TINY, "--speculate", "0"],
            1,
            "--draft and --speculate 0 exclude each other",
        ),
        (
            ["chat", TINY, "--draft", "mtp", "--speculate", "0"],
            1,
            "--draft and --speculate 0 exclude each other",
        ),
        (["compile", "nowhere.yaml"], 1, "no such file"),
        (["compile", TINY, "--arch", "v9"], 1, "expected generic, v3, vnni, v4, amx, neon or i8mm"),
        (["compile", TINY, "--dump", "soup"], 1, "expected spec, graph"),
        (["import", TINY], 1, "is a description already"),
        (["bench", TINY, "-p", "x"], 1, "take lists"),
        (["bench", "mla"], 1, "name a model"),
        (["bench", "mla", TINY, "-d", "0"], 1, "-d one of 1 to"),
        (
            ["bench", "mla", TINY, "--random-weights"],
            1,
            "only latent attention (attention.kind: mla) has forms",
        ),
        (["cache", "--days", "-1", "--prune"], 1, "expected 0 or more"),
        (["tokenize", TINY, "--text", "x"], 1, ""),
    ],
)
def test_mistakes_get_a_sentence(llmc, args, code, text):
    llmc(*args, code=code)
    assert text in llmc.err and llmc.err.strip()
    assert "Traceback" not in llmc.err and len(llmc.err) < 4000


def test_a_prompt_that_fills_the_context(llmc):
    """A prompt as long as the context yields one token; one more token does not fit."""
    ids = ",".join(["5"] * 33)
    r = llmc.json(
        "run",
        TINY,
        "--random-weights",
        "--arch",
        "generic",
        "--tokens",
        ids,
        "--context",
        "33",
        "-n",
        "-1",
        "--ignore-eos",
    )
    assert len(r["tokens"]) == 1
    r = llmc.json(
        "run",
        TINY,
        "--random-weights",
        "--arch",
        "generic",
        "--tokens",
        ids,
        "--context",
        "36",
        "-n",
        "-1",
        "--ignore-eos",
    )
    assert len(r["tokens"]) == 4


def test_cache_lists_and_prunes(llmc, tmp_path):
    env = {"LLMC_CACHE": str(tmp_path / "c")}
    llmc(*RUN, env=env)
    choices = tmp_path / "c" / "cublaslt"  # stored per GPU
    choices.mkdir()
    (choices / "0123").write_bytes(b"x" * 80)
    r = llmc.json("cache", env=env)
    parts = {p["name"]: p for p in r["parts"]}
    assert parts["kernels"]["files"] > 0 and parts["models"]["files"] > 0
    assert parts["cublaslt"] == {"name": "cublaslt", "files": 1, "bytes": 80}
    llmc("cache", "--prune", env=env)  # nothing is 30 days old
    assert llmc.json("cache", env=env)["parts"] == r["parts"]
    llmc("cache", "--prune", "--all", env=env)
    assert all(p["files"] == 0 for p in llmc.json("cache", env=env)["parts"])
    llmc(*RUN, env=env)


def test_doctor(llmc):
    llmc("doctor")
    head, *rows, last = llmc.out.splitlines()
    assert last == "ready: models run on this machine"
    assert re.search(
        r"^found +memory +[\d.]+ [GT]iB, [\d.]+ \w+ free \(\S+\); reads ", llmc.out, re.M
    )
    assert re.search(r"^found +cache +\S+, [\d.]+ \w+ free on its disk$", llmc.out, re.M)
    assert head.startswith("llmc ") and "\033" not in llmc.out
    assert all(re.match(r"(found|missing)  +\S", r) for r in rows), llmc.out
    names = [r.split()[1] for r in rows if r.split()[1] not in ("AMX", "features")]
    assert names[:4] == ["processor", "memory", "compiler", "cache"]
    r = llmc.json("doctor")
    assert r["compiler"]["found"] and r["processor"]["threads"] >= 1
    disk = os.statvfs(os.environ["LLMC_CACHE"])
    assert r["cache"]["free_bytes"] == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.05)
    with open("/proc/meminfo") as f:
        total = int(f.readline().split()[1]) * 1024
    assert 0 < r["memory"]["free_bytes"] <= r["memory"]["total_bytes"] <= total
    free = llmc.json("doctor", env={"LLMC_FREE_MEMORY": "3G"})["memory"]
    assert free == {"total_bytes": 3 << 30, "free_bytes": 3 << 30, "limited_by": "LLMC_FREE_MEMORY"}


def test_doctor_lists_the_models_that_fit(llmc):
    env = {"LLMC_FREE_MEMORY": "3G"}
    models = {m["name"]: m for m in llmc.json("doctor", "--models", env=env)["models"]}
    configs = [p.removesuffix(".yaml") for p in os.listdir("configs")]
    named = {n for n in configs if "." in n or "-" in n}
    assert named <= {*models, "pretokenizers", "tiny"} and len(models) > 20
    forms = [m[k] for m in models.values() for k in ("stored", "q4_k") if k in m]
    fit = [f for f in forms if f["context"]]
    assert fit and len(fit) < len(forms)
    assert all(f["weight_bytes"] < 3 << 30 for f in fit)
    assert all(f["context"] for f in forms if f["weight_bytes"] < 2 << 30)
    # 16-bit weights: two bytes per parameter
    m = models["llama3-8b"]
    assert m["stored"]["weight_bytes"] == pytest.approx(2 * m["params"], rel=0.01)
    assert m["q4_k"]["weight_bytes"] < 0.35 * m["stored"]["weight_bytes"]


def test_no_compiler_is_reported_and_ref_still_runs(llmc, tmp_path):
    env = {"PATH": str(tmp_path), "LLMC_CACHE": str(tmp_path / "cache"), "LLMC_CC": ""}
    llmc(*RUN, code=2, env=env)
    assert "compiler" in llmc.err and "ref" in llmc.err
    llmc(
        "run", TINY, "--random-weights", "--device", "ref", "--tokens", "1,2,3", "-n", "2", env=env
    )
    llmc("doctor", code=2, env=env)
    assert re.search(r"^missing +compiler +install one", llmc.out, re.M)
    assert llmc.out.splitlines()[-1].startswith("not ready: without a C compiler")


def test_results_alone_on_stdout(llmc):
    p = subprocess.run([llmc.path, *RUN, "--json", "--verbose"], capture_output=True, text=True)
    assert p.returncode == 0 and json.loads(p.stdout) and p.stdout.count("\n") == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_chat_answers_as_run_does(llmc, device, tmp_path_factory):
    """Two questions from a pipe, an empty line, end of file; the second answer depends on the first
    question."""
    folder = tiny_model.build(tmp_path_factory.mktemp("chat"))
    env = environment("sm_75") if device == "cuda" else {}
    options = [
        "--device",
        device,
        "--temperature",
        "0",
        "-n",
        "2",
        "--system",
        "be brief",
        "--quiet",
    ]
    llmc("chat", folder, *options, stdin="hi\n\nhello\r\n/quit\nnot said\n", env=env)
    assert llmc.err == ""
    answers = llmc.out.split("\n")
    assert len(answers) == 3 and answers[2] == ""
    llmc("run", folder, "--chat", "--prompt", "hi", *options, env=env)
    assert answers[0] == llmc.out.rstrip("\n")
    turns = [("system", "be brief"), ("user", "hi"), ("assistant", answers[0]), ("user", "hello")]
    prompt = (
        "".join(f"<|im_start|>{r}\n{t}<|im_end|>\n" for r, t in turns) + "<|im_start|>assistant\n"
    )
    llmc("run", folder, "--prompt", prompt, *options[:6], "--quiet", env=env)
    assert answers[1] == llmc.out.rstrip("\n")


def test_generated_text_does_not_steer_a_terminal(llmc, tmp_path):
    """Control characters reach a pipe, and a terminal as question marks."""
    folder = tiny_model.build(tmp_path / "m")
    rules = tmp_path / "rules.gbnf"
    rules.write_text('root ::= "a\\x1B[31m\\nb\\x9Bc"')
    command = [llmc.path, "run", folder, "--prompt", "x", "--grammar", rules, "--quiet"]

    def on_terminal(*args):
        at, side = pty.openpty()
        p = subprocess.Popen(args, stdout=side, stderr=side)
        os.close(side)
        shown = b""
        try:
            while piece := os.read(at, 4096):
                shown += piece
        except OSError:  # the other side is closed
            pass
        os.close(at)
        assert p.wait(HANG) == 0
        return shown

    shown = on_terminal(*command, "-n", "40")
    assert b"a?[31m\r\nb?c" in shown and b"\x1b" not in shown and b"\x9b" not in shown
    llmc(*command[1:], "-n", "40")
    assert llmc.out.startswith("a\x1b[31m\nb\x9bc")
    # bytes that are no character: half of one, and an 8-bit control
    words = tiny_model.vocabulary()
    ids = [words.index(chr(0xC3)), words.index(tiny_model.byte_chars()[0x9B]), words.index("A")]
    ids = ",".join(map(str, [*ids, ids[1], ids[2]]))
    shown = on_terminal(llmc.path, "tokenize", folder, "--ids", ids)
    assert shown == "\u00db".encode() + b"A\xef\xbf\xbdA\r\n", shown


@pytest.mark.parametrize("drafts", [False, True])
def test_chat_on_a_terminal(llmc, smollm2, drafts):
    """Per line: a prompt, the answer, its speed, and accepted draft tokens; then end of file."""
    at, side = pty.openpty()
    os.write(at, b"What is the capital of France?\n")
    p = subprocess.Popen(
        [
            llmc.path,
            "chat",
            smollm2,
            "--temperature",
            "0",
            "-n",
            "12",
            *["--draft", smollm2][: 2 * drafts],
        ],
        stdin=side,
        stdout=side,
        stderr=side,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(side)
    output = b""
    while b"tokens, " not in output:
        output += os.read(at, 4096)
    os.write(at, b"\x04")
    try:
        while piece := os.read(at, 4096):
            output += piece
    except OSError:  # the other side is closed
        pass
    os.close(at)
    assert p.wait(HANG) == 0
    text = output.decode()
    assert (
        "Ctrl-D or /quit ends" in text
        and "> " in text
        and "Paris" in text
        and re.search(
            r"\(\d+ tokens, [\d.]+/s"
            + r"; \d+ of \d+ draft tokens accepted, [\d.]+ tokens per drafting step" * drafts
            + r"\)",
            text,
        )
    )
