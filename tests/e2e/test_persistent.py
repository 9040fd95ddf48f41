"""Decode steps as one persistent kernel, on emulated GPUs: the same bits as with a launch per op."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from cuda_emu import environment
from golden_run import LLMC, ROOT, run, weights
from waiting import HANG

EVERY = "LLMC_CHECK_ALL" in os.environ  # make check-all
DENSE = (
    "hidden=640",
    "n_layers=2",
    "attention.n_heads=10",
    "attention.n_kv_heads=2",
    "attention.head_dim=64",
    "ffn.width=704",
    "dtype=bf16",
)
# Steps of the given numbers of rows, of sequences of 1 to 69 tokens. Prints the kernels of the graph
# that was made last, after each step, and the lines of the log.
STEPS = """
import ctypes, json, os, sys, llmc
import numpy as np

emulator = ctypes.CDLL(os.environ["LLMC_CUDA_LIBDIR"] + "/libcuda.so.1")
n = [ctypes.c_int() for _ in range(4)]
log, got, kernels = [], [], []
path, out, steps, *sets = sys.argv[1:]
kw = dict(random_weights=True, device="cuda", set=sets, out_dir=out)
with llmc.open(path, log=lambda level, line: log.append(line), **kw) as m:
    with m.session(context=96, seqs=5, chunk=69) as s:
        seqs = [s.seq() for _ in range(5)]
        for i, q in enumerate(seqs):
            s.forward([(q, [(31 * i + 7 * j) % 293 for j in range(1 + 17 * i)], 1)])
        for rows in map(int, steps):
            chunks = [(q, [11 * rows + i], 1) for i, q in enumerate(seqs[-rows:])]
            got.append(np.array(s.forward(chunks)))
            emulator.emu_graph(*map(ctypes.byref, n))
            kernels.append(n[0].value)
np.save(out + "/logits.npy", np.concatenate(got))
print(json.dumps([kernels, log]))
"""


def steps(tmp_path, env, rows, *sets, model="configs/tiny.yaml"):
    """The logits of STEPS, the kernels of its graphs, and its log"""
    p = subprocess.run(
        [sys.executable, "-c", STEPS, model, str(tmp_path), rows, *sets],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=ROOT,
        env=os.environ | env,
    )
    assert p.returncode == 0, p.stderr
    return np.load(tmp_path / "logits.npy"), *json.loads(p.stdout)


@pytest.mark.parametrize(
    "arch, mode, sets",
    [("sm_90a", "check", ())]
    + [("sm_80", "fast", ("kv.dtype=bf16", "step.prefetch=never"))]
    + [("sm_90a", "fast", ("storage.default=q8_0", "family=qwen3", "step.prefetch=never"))] * EVERY
    + [(a, "check", ("storage.default=q8_0",)) for a in ("sm_100a", "sm_120a")] * EVERY,
)
def test_a_persistent_step_has_the_same_bits(arch, mode, sets, tmp_path):
    """In checking mode no access races with one of another op. There are no five rows then: the
    emulator wants prefetches of decode attention to be read sooner than mixed kernels do."""
    rows = "123412" if mode == "check" else "1234512"
    env = environment(arch, mode=mode, seed=3, LLMC_EMU_STACK=1 << 19, LLMC_EMU_L2_KB=51200)
    got = []
    for how in "never", "always":
        out = tmp_path / how
        out.mkdir()
        got.append(steps(out, env, rows, *DENSE, *sets, f"step.persistent={how}"))
    (want, per_op, _), (logits, kernels, log) = got
    assert np.isfinite(logits).all() and np.array_equal(want, logits)
    assert kernels[0] == 3 and kernels[1:4] == [2] * 3  # begin, the step, once the sampler
    assert kernels[4] == (2 if mode == "check" else per_op[4]) and per_op[4] > 10
    assert any("one persistent kernel" in line for line in log)


def plan(tmp_path, *args):
    p = subprocess.run(
        [LLMC, "plan", *args, "--target", "cuda", "--arch", "sm_90a"],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=ROOT,
    )
    assert p.returncode == 0, p.stderr
    return re.search(r"^decode steps.*$", p.stdout, re.M)[0]


def test_the_plan_names_the_form_and_the_reason(tmp_path):
    always = ("--set", "step.persistent=always")
    assert plan(tmp_path, "configs/llama3.2-1b.yaml").endswith("(step.persistent: never)")
    assert re.search(
        r"one persistent kernel, kernels/decode_step\.\w+\.cu, with 7 bodies",
        plan(tmp_path, "configs/llama3.2-1b.yaml", *always),
    )
    assert plan(tmp_path, "configs/qwen3-30b-a3b.yaml", *always).endswith(
        "not one persistent kernel: norm_route of layer 0 has no body for it"
    )
    assert plan(
        tmp_path, "configs/llama3.2-1b.yaml", *always, "--set", "deterministic=true"
    ).endswith("norm_qkv of layer 0 has no body for it")


@pytest.mark.parametrize(
    "name",
    ["gpt2-gelu-bf16"]
    + ["gpt_bigcode-modern-bf16", "gpt_neo-modern-bf16", "mpt-modern-bf16"] * EVERY,
)
def test_golden_models_have_the_same_bits(name, tmp_path, monkeypatch):
    """All with 16-bit weights and rows of 16 bytes, as decode kernels need them: layer norms,
    biases, learned positions, one KV head, windows, ALiBi. Tokens run one by one."""
    for k, v in environment("sm_90a", seed=1, LLMC_EMU_STACK=1 << 19).items():
        monkeypatch.setenv(k, v)
    g = weights.Golden(name)
    got = []
    for how in "never", "always":
        out = tmp_path / how
        out.mkdir()
        g.build(out)
        keys = {"kv.dtype": "f16", "step.persistent": how}
        got.append(run(out, g, "--device", "cuda", "--chunk", "1", set=keys))
    assert np.array_equal(got[0][0], got[1][0]) and got[0][1] == got[1][1]
    (text,) = out.glob("*/plan-cuda-sm_90a.txt")
    assert ": one persistent kernel, kernels/" in text.read_text()
