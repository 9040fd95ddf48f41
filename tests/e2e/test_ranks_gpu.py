"""Ranks on GPUs of one process, on emulated devices in checking mode. Their all-reduces write to
peer memory; flags, slots and ordering between devices are checked while devices pause in turn.
Logits are compared with the reference on one rank, and bits are the same in any batch and chunk.
A rank that fails or never arrives ends the group with a message."""

import json
import os
import re
import subprocess
import sys

import pytest

from cuda_emu import LIBS, environment
from golden_run import ROOT
import test_ranks
import test_state

ALL = os.environ.get("LLMC_CHECK_ALL")
COMMON = test_ranks.COMMON
MODELS = {
    "llama": test_ranks.MODELS["llama"],  # 3 ranks: 9 heads, 5 blocks
    "moe": test_ranks.MODELS["moe"],
    # kv heads shared by two ranks, biases after the all-reduce, 10 blocks on 8 ranks
    "wide": COMMON
    + """name: ranks-wide
family: qwen2
n_layers: 1
hidden: 96
attention: {n_heads: 8, n_kv_heads: 4, head_dim: 32}
ffn: {width: 320}
storage: {default: q4_0}
""",
    # 7 experts on 4 ranks: two each, one on the last; rows choose 3
    "experts": COMMON
    + """name: ranks-experts
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
path, ranks, device, *sets = sys.argv[1:]
N = 37
tok = [int(t) for t in np.random.default_rng(1).integers(3, 323, N)]
with llmc.open(path, random_weights=True, device="ref") as m:
    want = whole(m, tok).view(np.float32)
with llmc.open(path, random_weights=True, device=device, arch="sm_75", set=[f"parallel.tp={ranks}", "deterministic=true", *sets]) as m:
    got = whole(m, tok)
    far = float(abs(got.view(np.float32) - want).max() / abs(want).max())
    with m.session(context=64, chunk=32, n_out=32, seqs=3) as s:
        q, at, parts = s.seq(), 0, []
        for n in (1, 7, 20, 9):  # chunks with another sequence beside them, decode, a fork whose page is copied
            o = s.seq()
            parts.append(rows(s, [(o, tok[5:9], 1), (q, tok[at:at + n], n)])[1:])
            s.free(o)
            at += n
        f = s.fork(q)
        rows(s, [(f, [9], 1)])
        s.trim(q, 33)
        parts[-1] = parts[-1][:-4]
        parts += [rows(s, [(q, [t], 1)]) for t in tok[33:]]
        same = bool(np.array_equal(np.concatenate(parts), got))
    with m.engine(context=64, seqs=3) as e:
        prompts = [tok[i:i + 3 + 4 * i] for i in range(4)]
        alone = [e.submit(prompts[i], max_tokens=3, ignore_eos=True).wait()["tokens"] for i in (0, 3)]
        together = [r.wait()["tokens"] for r in [e.submit(p, max_tokens=3, ignore_eos=True) for p in prompts]]
print(json.dumps([far, same, alone == [together[0], together[3]]]))
"""


def run(script, *args, **env):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment(**env)},
    )


@pytest.mark.parametrize(
    "name, ranks, device, seed",
    [("llama", 3, "cuda:2,0,1", 1), ("experts", 4, "cuda", 1)]
    + (
        [("wide", 4, "cuda", 2), ("experts", 2, "cuda", 3)]
        + [("moe", 3, "cuda", seed) for seed in range(4)]
        + [("wide", n, "cuda", n) for n in (2, 8)]
        if ALL
        else []
    ),
)
def test_ranks_on_gpus(name, ranks, device, seed, tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(MODELS[name])
    whole = ["parallel.experts=whole"] * (name == "experts")
    p = run(SCRIPT, path, ranks, device, *whole, mode="check", seed=seed, LLMC_EMU_DEVICES=ranks)
    assert p.returncode == 0, p.stderr
    far, same, alike = json.loads(p.stdout.splitlines()[-1])
    assert far < 1e-4
    assert same, "chunks, company or decoding change the bits"
    assert alike


STAGES = """
import json, sys
sys.path.insert(0, "tests/e2e")
import numpy as np, llmc
from bits import rows, whole
N = 45
tok = [int(t) for t in np.random.default_rng(1).integers(3, 323, N)]
common = dict(random_weights=True, arch="sm_75")
team = ["parallel.tp=" + sys.argv[3], "deterministic=true"]
with llmc.open(sys.argv[1], device="cuda", set=team, **common) as m:
    want = whole(m, tok)
with llmc.open(sys.argv[1], device=sys.argv[2], set=["parallel.pp=2", *team], **common) as m:
    got = whole(m, tok)  # in several pieces
    with m.session(context=96, chunk=64, n_out=64, seqs=3) as s:
        q = s.seq()
        parts = [rows(s, [(q, tok[:40], 40)])] + [rows(s, [(q, [t], 1)]) for t in tok[40:43]]
        f, kept = s.fork(q), s.save(q)
        rows(s, [(f, [9], 1)])
        s.free(q)
        q = s.load(kept)
        parts.append(rows(s, [(f, [7], 1), (q, tok[43:], N - 43)])[1:])
    with m.engine(context=96, seqs=3) as e:
        prompts = [tok[i:i + 3 + 4 * i] for i in range(4)]
        alone = [e.submit(prompts[i], max_tokens=3, ignore_eos=True).wait()["tokens"] for i in (0, 3)]
        together = [r.wait()["tokens"] for r in [e.submit(p, max_tokens=3, ignore_eos=True) for p in prompts]]
print(json.dumps([bool(np.array_equal(got, want)), bool(np.array_equal(np.concatenate(parts), want)), alone == [together[0], together[3]]]))
"""


@pytest.mark.parametrize(
    "name, team, device, mode",
    [("llama", 1, "cuda:1,0", "fast"), ("llama", 2, "cuda:3,0,1,2", "fast")]
    + [
        ("llama", 1, "cuda", "check"),
        ("moe", 1, "cuda", "check"),
        ("moe", 2, "cuda", "check"),
        ("llama", 3, "cuda:5,0,4,1,3,2", "check"),
    ]
    * bool(ALL),
)
def test_stages_on_gpus(name, team, device, mode, tmp_path):
    """One GPU per stage, or per rank of a stage: the same bits as one stage, in chunks, decode, forks,
    saved sequences and batches."""
    path = tmp_path / "m.yaml"
    path.write_text(MODELS[name])
    p = run(STAGES, path, device, team, mode=mode, seed=1, LLMC_EMU_DEVICES=2 * team)
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout.splitlines()[-1]) == [True, True, True]


STATES = """
import json, sys
sys.path.insert(0, "tests/e2e")
import numpy as np, llmc
from bits import rows, whole
tok, params = [int(t) for t in np.random.default_rng(1).integers(3, 320, 40)], dict(max_tokens=3, ignore_eos=True, temperature=0)
sets = ["linear.order=" + sys.argv[2], "dtype=f32", "storage.default=f32", "kv.dtype=f32"]
with llmc.open(sys.argv[1], random_weights=True, device="ref", set=sets) as m:
    want = whole(m, tok).view(np.float32)
with llmc.open(sys.argv[1], random_weights=True, device="cuda", arch="sm_75", set=["parallel.tp=2", "deterministic=true", *sets]) as m:
    got = whole(m, tok)
    far = float(abs(got.view(np.float32) - want).max() / abs(want).max())
    with m.session(context=64, chunk=32, n_out=32, seqs=3) as s:
        q = s.seq()
        rows(s, [(q, tok[:20], 1)])
        fork = s.fork(q)
        rows(s, [(q, [7], 1)])
        loaded = s.load(s.save(fork))
        same = all(np.array_equal(rows(s, [(x, tok[20:25], 5)]), got[20:25]) for x in (fork, loaded))
    with m.engine(context=64, seqs=2, chunk=32, no_prefix_cache=True) as e:
        alone = [[x.token for x in e.submit(tok[:n], **params).events()] for n in (36, 36, 40)]
    with m.engine(context=64, seqs=2, chunk=32) as e:
        events = [list(e.submit(tok[:n], **params).events()) for n in (36, 36, 40)]
print(json.dumps([far, same, [[x.token for x in v] for v in events] == alone, [v[-1].n_cached for v in events]]))
"""


@pytest.mark.skipif(not ALL, reason="emulated at length: make check-all")
@pytest.mark.parametrize("order", ["grouped", "tiled"])
def test_states_on_gpus(order, tmp_path):
    """Forks, saved sequences and snapshots include the recurrent states of both ranks."""
    path = tmp_path / "m.yaml"
    path.write_text(test_state.TEXTS["kinds"])
    p = run(STATES, path, order, mode="check", seed=1, LLMC_EMU_DEVICES=2)
    assert p.returncode == 0, p.stderr
    far, same, alike, found = json.loads(p.stdout.splitlines()[-1])
    assert far < 1e-4 and same and alike and found == [0, 32, 32]


@pytest.mark.parametrize("name", test_ranks.ONE_EACH.values() if ALL else ["deepseek_v3-plain"])
def test_goldens_on_gpus(name, tmp_path, monkeypatch):
    """Two GPUs against torch, in fast mode, since only the values are compared here."""
    for k, v in environment(arch="sm_75", LLMC_EMU_DEVICES=2).items():
        monkeypatch.setenv(k, v)
    assert test_ranks.split(name, tmp_path, 2, "--device", "cuda", "--arch", "sm_75") or ALL


MIXTURES = [
    c
    for c in test_ranks.ONE_EACH.values()
    if "moe" in c or c.startswith(("gpt_oss", "mixtral", "deepseek"))
]


@pytest.mark.parametrize(
    "name, arch",
    [("qwen2_moe-sparse", "sm_75")]
    + (
        [(c, "sm_75") for c in MIXTURES]
        + [("mixtral-plain", "sm_80"), ("qwen2_moe-sparse", "sm_90a")]
    )
    * bool(ALL),
)
def test_goldens_with_experts_whole(name, arch, tmp_path, monkeypatch):
    for k, v in environment(arch=arch, LLMC_EMU_DEVICES=2).items():
        monkeypatch.setenv(k, v)
    assert (
        test_ranks.split(
            name, tmp_path, 2, "--set", "parallel.experts=whole", "--device", "cuda", "--arch", arch
        )
        or ALL
    )


WAYS = """
import json, sys
sys.path.insert(0, "tests/e2e")
import numpy as np, llmc
from bits import rows, whole
tok = [int(t) for t in np.random.default_rng(1).integers(3, 323, 20)]
with llmc.open(sys.argv[1], random_weights=True, device="cuda", arch="sm_75", set=["parallel.tp=3", "deterministic=true"]) as m:
    with m.session(context=64, chunk=20, n_out=20, seqs=2) as s:
        q, o = s.seq(), s.seq()
        got = [rows(s, [(q, tok, 20)]), rows(s, [(q, [9], 1), (o, [7], 1)]), rows(s, [(q, [11], 1)])]
print(json.dumps([g.tolist() for g in got]))
"""


def test_algorithms_have_the_same_bits(tmp_path):
    """All-reduce by peer memory (one-shot and two-shot), by NCCL, by the fastest measured
    algorithm, and by NCCL if GPUs have no peer access; steps of three sizes."""
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["llama"])
    libs = tmp_path / "libs"  # library folder of a machine without NCCL
    libs.mkdir()
    for lib in ("libcuda.so.1", "libnvrtc.so.13"):
        (libs / lib).symlink_to(os.path.join(LIBS, lib))

    def bits(**env):
        p = run(WAYS, path, LLMC_EMU_DEVICES=3, LLMC_CACHE=tmp_path / "cache", **env)
        assert p.returncode == 0, p.stderr
        return p.stdout.splitlines()[-1]

    want = bits(LLMC_NCCL="never")
    assert bits(mode="check", LLMC_PEER_SUMS="two-shot") == want
    assert bits(mode="check", LLMC_NCCL="always") == want
    assert bits(LLMC_NCCL="auto", LLMC_PEER_SUMS="auto") == want
    choice = os.listdir(tmp_path / "cache" / "nccl")
    assert len(choice) == 1
    assert (
        bits(LLMC_NCCL="auto", LLMC_EMU_NO_PEERS=1) == want
        and os.listdir(tmp_path / "cache" / "nccl") == choice
    )
    if ALL:
        assert bits(LLMC_NCCL="auto", LLMC_CUDA_LIBDIR=libs) == want
    p = run(
        WAYS, path, LLMC_EMU_DEVICES=3, LLMC_NCCL="auto", LLMC_EMU_NO_PEERS=1, LLMC_CUDA_LIBDIR=libs
    )
    assert (
        p.returncode
        and "do not reach each other's memory" in p.stderr
        and "libnccl.so.2 is not there: pip install" in p.stderr
    )
    p = run(WAYS, path, LLMC_EMU_DEVICES=3, LLMC_NCCL="sometimes")
    assert p.returncode and "expected auto, always or never" in p.stderr
    p = run(WAYS, path, LLMC_EMU_DEVICES=3, LLMC_PEER_SUMS="three-shot")
    assert p.returncode and "expected auto, one-shot or two-shot" in p.stderr


@pytest.mark.parametrize(
    "source, output",
    [
        (
            "int ncclGetVersion(int *v) { *v = 21305; return 0; }",
            r"is too old: it lacks nccl\w+; pip install",
        ),
        (None, r"is of version 2\.13, 2\.14 is needed; pip install"),
    ],
)
def test_an_nccl_that_is_too_old(source, output, tmp_path):
    """NCCL lacks a function, or its version is too old: an error if NCCL is required; otherwise it
    is not used."""
    libs, calls = (
        tmp_path / "libs",
        re.findall(
            r"X\([^,]+, \w+, (nccl\w+),", open(os.path.join(ROOT, "runtime/cuda/nccl.c")).read()
        ),
    )
    libs.mkdir()
    for name in ("libcuda.so.1", "libnvrtc.so.13"):
        (libs / name).symlink_to(os.path.join(LIBS, name))
    source = source or "int ncclGetVersion(int *v) { *v = 21305; return 0; }\n" + "".join(
        f"int {c}(void) {{ return 5; }}\n" for c in calls if c != "ncclGetVersion"
    )
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", libs / "libnccl.so.2"],
        input=source,
        text=True,
        check=True,
    )
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["llama"])
    p = run(WAYS, path, LLMC_EMU_DEVICES=3, LLMC_NCCL="always", LLMC_CUDA_LIBDIR=libs)
    assert p.returncode and re.search(output, p.stderr), p.stderr
    p = run(
        WAYS, path, LLMC_EMU_DEVICES=3, LLMC_NCCL="auto", LLMC_EMU_NO_PEERS=1, LLMC_CUDA_LIBDIR=libs
    )
    assert (
        p.returncode
        and "do not reach each other's memory" in p.stderr
        and re.search(output, p.stderr)
    ), p.stderr


FAULT = """
import sys, llmc
path, tokens, sets = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()
with llmc.open(path, random_weights=True, device="cuda", arch="sm_75", set=sets) as m:
    try:
        with m.session(context=tokens + 16, chunk=tokens) as s:
            for i in range(3):
                try:
                    print("tokens", s.run([3 + i % 300 for i in range(tokens)], max_tokens=4, ignore_eos=True)["tokens"])
                except llmc.Error as e:
                    print("failed", e)
    except llmc.Error as e:  # where meeting for the first time is what fails
        print("failed", e, *["\\nfailed"] * 2)
"""


def outcomes(name, tmp_path, tokens, *sets, **env):
    """Return the result of each of three requests, "tokens" or "failed" with the reason, and close
    the model."""
    path = tmp_path / "m.yaml"
    path.write_text(MODELS[name])
    p = run(FAULT, path, tokens, " ".join(sets), **env)
    assert p.returncode == 0, p.stderr
    output = [line for line in p.stdout.splitlines() if line.startswith(("tokens", "failed"))]
    assert len(output) == 3, p.stdout
    return output


@pytest.mark.parametrize(
    "sets, gpus, launch",
    [(["parallel.tp=3"], 3, 4), (["parallel.tp=2", "parallel.pp=2"], 4, 6)]
    + [(["parallel.pp=2"], 2, 3)] * bool(ALL),
)
def test_a_gpu_that_fails_ends_the_group(sets, gpus, launch, tmp_path):
    """For any failing rank or stage, the others stop waiting."""
    output = outcomes(
        "llama",
        tmp_path,
        3,
        *sets,
        LLMC_EMU_DEVICES=gpus,
        LLMC_EMU_FAIL=f"cuGraphLaunch@{launch}:719",
    )
    assert [line.split()[0] for line in output[-2:]] == ["failed"] * 2, output


def test_a_rank_that_fails_while_algorithms_are_measured(tmp_path):
    """The waiting ranks are released, and opening fails with the message of the rank that
    failed."""
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["llama"])
    p = run(
        WAYS,
        path,
        LLMC_EMU_DEVICES=3,
        LLMC_CACHE=tmp_path / "cache",
        LLMC_NCCL="auto",
        LLMC_EMU_FAIL="ncclAllGather@2:2",
    )
    assert p.returncode > 0 and "an all-gather: NCCL" in p.stderr, p.stderr


@pytest.mark.parametrize("nccl", ["never", "always"] if ALL else ["never"])
def test_a_step_that_does_not_end_ends_the_group(nccl, tmp_path):
    """The prompt takes the emulator many times its limit of one second."""
    output = outcomes(
        "wide",
        tmp_path,
        951 if ALL else 451,  # the kernels of make check are not optimised
        "parallel.tp=2",
        "n_layers=2",
        LLMC_EMU_DEVICES=2,
        LLMC_NCCL=nccl,
        LLMC_COMM_TIMEOUT=1,
    )
    assert [line.split()[0] for line in output] == ["failed"] * 3, output


def test_which_gpus(tmp_path, llmc):
    path = tmp_path / "m.yaml"
    path.write_text(MODELS["llama"])
    args = ("run", path, "--random-weights", "--tokens", "5,6,7", "-n", "1", "--arch", "sm_75")
    env = environment(LLMC_EMU_DEVICES=2)

    def refused(*more, **other):
        p = subprocess.run(
            [llmc.path, *map(str, args), *more],
            capture_output=True,
            text=True,
            env={**os.environ, **env, **other},
        )
        assert p.returncode, p.stdout
        return p.stderr

    assert "3 ranks but 2 GPUs; name one GPU per rank" in refused(
        "--device", "cuda:0,1", "--tp", "3"
    )
    assert "GPU 1 is named twice" in refused("--device", "cuda:1,1")
    assert "expected cuda, cuda:N" in refused("--device", "cuda:0,")
    assert "there is no GPU 2" in refused("--device", "cuda", "--tp", "3")
    assert "there is no GPU 3" in refused(
        "--device", "cuda", "--tp", "2", "--pp", "2", LLMC_EMU_DEVICES="3"
    )
    assert re.search(
        "do not reach each other's memory.*LLMC_NCCL is",
        refused("--device", "cuda", "--tp", "3", LLMC_EMU_DEVICES="3", LLMC_EMU_NO_PEERS="1"),
    )
