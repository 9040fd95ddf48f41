"""Packed weights as a mapped file of the cache: larger than memory, shared, verified once."""

import json
import os
import re
import struct
import subprocess

import numpy as np
import pytest

from memory_group import memory_group

LAYERS, HIDDEN, WIDTH, VOCAB = 4, 256, 16384, 300
MIB = 1 << 20
RUN = ["--arch", "generic", "--tokens", "1,2,3", "-n", "3", "--ignore-eos", "-t", "1", "--json"]


def checkpoint(folder, experts):
    """Write a Hugging Face folder with 194 MB of f32 weights, most of them in feed-forwards."""
    config = {
        "architectures": ["MixtralForCausalLM" if experts else "LlamaForCausalLM"],
        "model_type": "mixtral" if experts else "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH // (experts or 1),
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if experts:
        config |= {"num_local_experts": experts, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "model.embed_tokens": (VOCAB, HIDDEN),
        "lm_head": (VOCAB, HIDDEN),
        "model.norm": (HIDDEN,),
    }
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for p in "qkvo":
            shapes[f"{at}self_attn.{p}_proj"] = (HIDDEN, HIDDEN)
        for e in range(experts):
            for p, shape in (
                ("w1", (WIDTH // experts, HIDDEN)),
                ("w2", (HIDDEN, WIDTH // experts)),
            ):
                shapes[f"{at}block_sparse_moe.experts.{e}.{p}"] = shape
            shapes[f"{at}block_sparse_moe.experts.{e}.w3"] = (WIDTH // experts, HIDDEN)
        if experts:
            shapes[f"{at}block_sparse_moe.gate"] = (experts, HIDDEN)
        else:
            for p in ("gate", "up"):
                shapes[f"{at}mlp.{p}_proj"] = (WIDTH, HIDDEN)
            shapes[f"{at}mlp.down_proj"] = (HIDDEN, WIDTH)
        for p in ("input_layernorm", "post_attention_layernorm"):
            shapes[at + p] = (HIDDEN,)
    head, end = {}, 0
    for name, shape in shapes.items():
        n = 4 * int(np.prod(shape))
        head[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + n]}
        end += n
    text = json.dumps(head).encode()
    rng = np.random.default_rng(1)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            scale = 1 if len(shape) == 1 else shape[-1] ** -0.5
            f.write((rng.random(shape, np.float32) * 2 * scale).tobytes())
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("large"), 0)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("experts"), 16)


def run(llmc, model, cache, *args, enter=None):
    p = subprocess.run(
        [llmc.path, "run", model, *RUN, *args],
        capture_output=True,
        text=True,
        preexec_fn=enter,
        env={k: v for k, v in os.environ.items() if k != "LLMC_FREE_MEMORY"}
        | {"LLMC_CACHE": cache},
    )
    return p


def test_weights_may_exceed_memory(llmc, model, tmp_path):
    """194 MB of weights in a group of 128 MB: refused in memory, equal tokens from a file."""
    cache = str(tmp_path)
    p = run(llmc, model, cache)
    assert p.returncode == 0, p.stderr
    want = json.loads(p.stdout)["tokens"]
    with memory_group(128 * MIB) as enter:
        p = run(llmc, model, cache, enter=enter)
        assert p.returncode == 2, p.stderr
        assert re.search(
            r"^  --cache-packed: 1\d\d MiB of weights in a file of the cache", p.stderr, re.M
        )
        for _ in range(2):  # makes the file, and uses it
            p = run(llmc, model, cache, "--cache-packed", enter=enter)
            assert p.returncode == 0, p.stderr
            assert json.loads(p.stdout)["tokens"] == want
    (packed,) = [f for f in tmp_path.rglob("packed")]
    assert packed.stat().st_size > 190 * MIB
    assert len([f for f in packed.parent.iterdir() if f.name.startswith("verified.")]) == 1
    with open(packed, "r+b") as f:  # another file of this name is verified again
        f.seek(-5000, 2)
        byte = f.read(1)[0]
        f.seek(-5000, 2)
        f.write(bytes([byte ^ 1]))
    p = run(llmc, model, cache, "--cache-packed")
    assert json.loads(p.stdout)["tokens"] == want and "damaged or cut off" in p.stderr


def test_without_a_cache_folder_what_does_not_fit_is_refused(llmc, model, tmp_path):
    cache = str(tmp_path / "file")
    open(cache, "w").close()
    p = subprocess.run(
        [llmc.path, "run", model, *RUN, "--cache-packed"],
        capture_output=True,
        text=True,
        env={**os.environ, "LLMC_CACHE": cache, "LLMC_FREE_MEMORY": "100M"},
    )
    assert (
        p.returncode == 2 and "do not fit the free memory, 100 MB, and cannot be a file" in p.stderr
    )


def test_experts_are_read_ahead(llmc, mixture, tmp_path):
    """Tokens are those of weights in memory, and bench reports the share of experts that was in memory: less of them after their pages were dropped."""
    cache = str(tmp_path)
    p = run(llmc, mixture, cache)
    assert p.returncode == 0, p.stderr
    want = json.loads(p.stdout)["tokens"]

    def hits():
        p = subprocess.run(
            [llmc.path, "bench", mixture, "--arch", "generic", "-t", "2", "--cache-packed"]
            + ["-p", "8", "-n", "8", "-r", "3", "--json"],
            capture_output=True,
            text=True,
            env={**os.environ, "LLMC_CACHE": cache},
        )
        assert p.returncode == 0, p.stderr
        return [r["expert_hits"] for r in json.loads(p.stdout)["results"]]

    p = run(llmc, mixture, cache, "--cache-packed")
    assert json.loads(p.stdout)["tokens"] == want
    (packed,) = tmp_path.rglob("packed")
    with open(packed, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    cold, warm = hits(), hits()
    assert 0 <= cold[0] < 1 and cold[0] < warm[0] <= 1
    with memory_group(96 * MIB) as enter:
        p = run(llmc, mixture, cache, "--cache-packed", enter=enter)
        assert json.loads(p.stdout)["tokens"] == want
