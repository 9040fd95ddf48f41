"""Bad input that only a complete run detects: each fault gets a message, and no data is lost.

Faults of descriptions are in tests/golden/yaml-errors, of checkpoint headers in the unit tests of
formats and weights, of configurations in test_import.py, of artifacts in test_artifacts.py."""

import json
import os
import resource
import struct
import subprocess

import numpy as np
import pytest

TINY = "configs/tiny.yaml"
RANDOM = ["--random-weights", "--arch", "generic"]


def safetensors(path, tensors):
    """Write a minimal file: {name: float32 array or (dtype, shape, bytes)}."""
    head, data = {}, b""
    for name, t in tensors.items():
        dtype, shape, raw = (
            t if isinstance(t, tuple) else ("F32", t.shape, t.astype("<f4").tobytes())
        )
        head[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture(scope="module")
def tensors(llmc):
    """Return the tensors of the tiny description, filled with zeros."""
    plan = llmc.json("plan", TINY, "--set", "storage.default=f32", "--arch", "generic")["plan"]
    out = {}
    for t in plan["tensor"]:
        for s in t["src"]:
            out[s["name"]] = np.zeros(
                (s["rows"], s["cols"]) if s["cols"] else (s["rows"],), np.float32
            )
    return out


def run(llmc, weights, code, *extra):
    llmc(
        "run",
        TINY,
        "--arch",
        "generic",
        "--set",
        "storage.default=f32",
        "--weights",
        weights,
        "--tokens",
        "1,2",
        "-n",
        "1",
        "--quiet",
        *extra,
        code=code,
    )
    return llmc.err


def test_a_whole_checkpoint_runs(llmc, tensors, tmp_path):
    safetensors(tmp_path / "model.safetensors", tensors)
    run(llmc, tmp_path / "model.safetensors", 0, "--ignore-eos")


def test_a_missing_tensor_is_named(llmc, tensors, tmp_path):
    name = next(n for n in tensors if "down" in n)
    safetensors(tmp_path / "model.safetensors", {k: v for k, v in tensors.items() if k != name})
    assert name in run(llmc, tmp_path / "model.safetensors", 1)


def test_a_wrong_shape_shows_both(llmc, tensors, tmp_path):
    name = next(n for n in tensors if "down" in n)
    rows, cols = tensors[name].shape
    safetensors(
        tmp_path / "model.safetensors", {**tensors, name: np.zeros((rows, cols + 1), np.float32)}
    )
    err = run(llmc, tmp_path / "model.safetensors", 1)
    assert name in err and str(cols) in err and str(cols + 1) in err


def test_a_wrong_dtype_is_named(llmc, tensors, tmp_path):
    name = next(n for n in tensors if "down" in n)
    rows, cols = tensors[name].shape
    safetensors(
        tmp_path / "model.safetensors",
        {**tensors, name: ("I32", (rows, cols), bytes(rows * cols * 4))},
    )
    err = run(llmc, tmp_path / "model.safetensors", 1)
    assert name in err and "holds integers (i32), weights are expected" in err
    # 16-bit tensors for a 32-bit description are widened; both also become blocks
    # (tests/e2e/test_quantise_at_load.py)
    safetensors(
        tmp_path / "model.safetensors",
        {**tensors, name: ("BF16", (rows, cols), bytes(rows * cols * 2))},
    )
    run(llmc, tmp_path / "model.safetensors", 0)


@pytest.mark.parametrize("cut", [4, 100, -1, -1000])
def test_a_truncated_checkpoint(llmc, tensors, tmp_path, cut):
    path = tmp_path / "model.safetensors"
    safetensors(path, tensors)
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    assert "model.safetensors" in run(llmc, path, 1)


def test_a_missing_shard_is_named(llmc, tensors, tmp_path):
    names = sorted(tensors)
    safetensors(tmp_path / "model-00001-of-00002.safetensors", {n: tensors[n] for n in names[:4]})
    index = {n: f"model-0000{1 if n in names[:4] else 2}-of-00002.safetensors" for n in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert "model-00002-of-00002.safetensors" in run(
        llmc, tmp_path / "model.safetensors.index.json", 1
    )


def test_a_pickled_checkpoint_that_is_damaged(llmc, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(100))
    assert "a zip archive without its directory" in run(llmc, tmp_path, 1)


def test_a_prompt_of_invalid_utf8_is_read_as_replacement_characters(llmc, smollm2):
    p = subprocess.run(
        [
            llmc.path.encode(),
            b"run",
            smollm2.encode(),
            b"--prompt",
            b"caf\xc3 \xff",
            b"-n",
            b"1",
            b"--json",
        ],
        capture_output=True,
    )
    assert p.returncode == 0 and json.loads(p.stdout)["prompt_tokens"]


def test_an_empty_prompt(llmc, smollm2):
    llmc("run", smollm2, "--prompt", "", "--no-special", code=1)
    assert "empty" in llmc.err


def limited(limit):
    """Limit the file size. SIGXFSZ is ignored, so writes fail as on a full disk."""
    import signal

    def before():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return before


def files_below(folder):
    return [os.path.join(d, f) for d, _, fs in os.walk(folder) for f in fs]


def test_a_full_disk_while_compiling_leaves_nothing_that_a_later_run_trusts(llmc, tmp_path):
    env = dict(os.environ, LLMC_CACHE=str(tmp_path / "cache"))
    cmd = [llmc.path, "run", TINY, *RANDOM, "--tokens", "1,2", "-n", "2", "--ignore-eos", "--json"]
    p = subprocess.run(cmd, capture_output=True, text=True, env=env, preexec_fn=limited(2000))
    assert p.returncode == 2 and p.stderr.strip()
    p = subprocess.run(cmd, capture_output=True, text=True, env=env)
    assert p.returncode == 0, p.stderr


def test_a_full_disk_while_keeping_packed_weights_goes_on_in_memory(llmc, smollm2, tmp_path):
    cache = tmp_path / "cache"
    env = dict(os.environ, LLMC_CACHE=str(cache))
    cmd = [llmc.path, "run", smollm2, "--prompt", "Hello", "-n", "2", "--cache-packed", "--json"]
    want = subprocess.run(
        [c for c in cmd if c != "--cache-packed"], capture_output=True, text=True, env=env
    )
    full = subprocess.run(
        cmd, capture_output=True, text=True, env=env, preexec_fn=limited(20_000_000)
    )
    assert full.returncode == 0, full.stderr
    assert json.loads(full.stdout)["tokens"] == json.loads(want.stdout)["tokens"]
    assert (
        not [f for f in files_below(cache / "weights") if os.path.getsize(f) > 0]
        if (cache / "weights").exists()
        else True
    )
    kept = subprocess.run(cmd, capture_output=True, text=True, env=env)
    again = subprocess.run(cmd, capture_output=True, text=True, env=env)
    assert (
        json.loads(kept.stdout)["tokens"]
        == json.loads(again.stdout)["tokens"]
        == json.loads(want.stdout)["tokens"]
    )
    packed = files_below(cache / "weights")
    assert packed
    # a truncated packed file is not used
    with open(packed[0], "r+b") as f:
        f.truncate(os.path.getsize(packed[0]) // 2)
    cut = subprocess.run(cmd, capture_output=True, text=True, env=env)
    assert json.loads(cut.stdout)["tokens"] == json.loads(want.stdout)["tokens"]


def test_standard_output_that_is_full(llmc):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        p = subprocess.run(
            [llmc.path, "plan", TINY], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert p.returncode == 2 and "cannot write" in p.stderr


def test_an_unwritable_output_folder(llmc, tmp_path):
    (tmp_path / "file").write_text("x")
    llmc("compile", TINY, "-o", tmp_path / "file" / "out", code=2)
    assert str(tmp_path / "file") in llmc.err


def test_learned_positions_end(llmc):
    """A model with learned positions is refused beyond its last position."""
    model = "tests/golden/models/gpt2-plain"
    limit = int(llmc.json("plan", model, "--device", "ref")["plan"]["max_positions"])
    llmc(
        "run",
        model,
        "--random-weights",
        "--device",
        "ref",
        "--tokens",
        "1",
        "--context",
        limit + 1,
        code=1,
    )
    assert str(limit) in llmc.err


def test_one_layer_of_a_70b_shape_runs(llmc):
    """Sizes of a 70B model (8192, 28672, GQA 64/8), one layer, a vocabulary of prime size."""
    r = llmc.json(
        "run",
        "configs/llama2-70b.yaml",
        "--random-weights",
        "--set",
        "n_layers=1",
        "--set",
        "storage.default=q4_0",
        "--set",
        "vocab_size=2003",
        "--tokens",
        "1,2,3",
        "-n",
        "2",
        "--ignore-eos",
    )
    assert len(r["tokens"]) == 2


def test_a_context_beyond_4_gib_of_kv(llmc):
    """131072 positions of a large KV cache: pages have offsets beyond 4 GiB, and only used pages
    are touched."""
    sets = [
        x
        for s in (
            "attention.n_kv_heads=3",
            "attention.head_dim=256",
            "n_layers=16",
            "max_positions=131072",
            "kv.dtype=f32",
        )
        for x in ("--set", s)
    ]
    mem = llmc.json("plan", TINY, *sets, "--length", 131072)["memory"]
    assert mem["kv"] > 1 << 32
    r = llmc.json(
        "run",
        TINY,
        *RANDOM,
        *sets,
        "--context",
        131072,
        "--tokens",
        "1,2,3",
        "-n",
        "2",
        "--ignore-eos",
    )
    assert len(r["tokens"]) == 2
