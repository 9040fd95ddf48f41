"""FastLLM files. Files of its exporter must give transformers' logits for the values that FastLLM
reads (tests/golden/make_flm.py); inconsistent files are refused."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from golden_run import LLMC, ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import flm_file as F  # noqa: E402
from waiting import HANG  # noqa: E402

FOLDER = os.path.join(ROOT, "tests", "golden", "flm")
KEYS = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "vocab_size": 16,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rope_scaling": None,
    "eos_token_id": "[2, 3]",
    "torch_dtype": "torch.float32",
    "rope_parameters": "{'rope_theta': 10000.0, 'rope_type': 'default'}",
    "_name_or_path": "a \"name\" of 'some' kind",
    "tie_word_embeddings": False,
}


def command(*args):
    p = subprocess.run([LLMC, *map(str, args)], capture_output=True, text=True, timeout=HANG)
    return p.returncode, p.stdout, p.stderr


def run(path, prompt, tmp, *args):
    out = str(tmp / "out.npy")
    code, _, err = command(
        "run",
        path,
        "--tokens",
        ",".join(map(str, prompt)),
        "--logits",
        out,
        "--json",
        "--ignore-eos",
        "-n",
        "1",
        "--artifact",
        tmp / "artifact",
        "--set",
        "kv.dtype=f32",
        *args,
    )
    return (np.load(out) if code == 0 else None), err


@pytest.mark.parametrize(
    "name,args,within",
    [
        ("f16", ["--device", "ref"], 1e-5),
        ("int8", ["--device", "ref"], 1e-5),
        ("int4", ["--device", "ref"], 1e-5),
        ("int4-groups", ["--device", "ref"], 1e-5),
        ("int4-groups", ["--arch", "generic"], 1e-3),
    ],
)
def test_a_file_equals_transformers_on_its_values(name, args, within, tmp_path):
    g = np.load(os.path.join(FOLDER, name + ".npz"))
    got, err = run(os.path.join(FOLDER, name + ".flm"), g["prompt"], tmp_path, *args)
    assert got is not None, err
    assert np.abs(got - g["logits"]).max() <= within * np.ptp(g["logits"])
    assert "warning" not in err, err


def tensors(rng, matrix):
    """Return a Llama of one layer; matrix(name, x) makes the bytes of a linear layer."""
    out = [F.floats("model.embed_tokens.weight", rng.normal(size=(16, 32)))]
    for name, rows, cols in [
        ("self_attn.q_proj", 32, 32),
        ("self_attn.k_proj", 32, 32),
        ("self_attn.v_proj", 32, 32),
        ("self_attn.o_proj", 32, 32),
        ("mlp.gate_proj", 40, 32),
        ("mlp.up_proj", 40, 32),
        ("mlp.down_proj", 32, 40),
    ]:
        out.append(matrix(f"model.layers.0.{name}.weight", rng.normal(size=(rows, cols)) / 6))
    for name in ("input_layernorm", "post_attention_layernorm"):
        out.append(F.floats(f"model.layers.0.{name}.weight", np.ones(32)))
    return out + [
        F.floats("model.norm.weight", np.ones(32)),
        F.floats("lm_head.weight", rng.normal(size=(16, 32)), F.F16),
    ]


def int4(name, x):
    """Encode FastLLM's first int4 (type 4), whose zero point is rounded."""
    lo, hi = np.minimum(x.min(1), 0).astype(np.float32), np.maximum(x.max(1), 0).astype(np.float32)
    scale, zero = F.ranges(lo, hi, 4)
    q = np.clip(np.round(x / scale[:, None] + zero[:, None]), 0, 15).astype(np.uint8).reshape(-1)
    return F.matrix(
        name,
        x.shape,
        F.INT4,
        struct.pack("<i", 0)
        + np.stack([lo, hi], 1).astype("<f4").tobytes()
        + (q[0::2] << 4 | q[1::2]).tobytes(),
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_made_by_hand(version, tmp_path):
    """Type 4 and f16; the oracle is the model with the decoded values in fp32."""
    made, plain = tmp_path / "made.flm", tmp_path / "plain.flm"
    F.write(str(made), tensors(np.random.default_rng(1), int4), KEYS, version=version)
    values = F.read(str(made)).weights
    F.write(str(plain), [F.floats(n, x) for n, x in values.items()], KEYS)
    got, err = run(made, [4, 5, 6], tmp_path, "--device", "ref")
    want, err2 = run(plain, [4, 5, 6], tmp_path, "--device", "ref")
    assert got is not None and want is not None, err + err2
    assert np.abs(got - want).max() <= 1e-5 * np.ptp(want)


def test_import_resolves_the_keys_of_the_file(tmp_path):
    F.write(str(tmp_path / "m.flm"), tensors(np.random.default_rng(1), F.floats), KEYS)
    code, out, err = command("import", tmp_path / "m.flm")
    assert code == 0 and not err, err
    for line in ("name: m", "family: llama", "eos: [2, 3]", "hidden: 32", "from a FastLLM model"):
        assert line in out, out


def changed(k, to):
    return {x: v for x, v in (KEYS | {k: to}).items() if v is not ...}


@pytest.mark.parametrize(
    "make,says",
    [
        (
            lambda: (tensors(np.random.default_rng(1), F.floats), changed("model_type", ...), 2),
            "without model_type",
        ),
        (lambda: (tensors(np.random.default_rng(1), F.floats), KEYS, 0), "without model_type"),
        (
            lambda: (tensors(np.random.default_rng(1), F.floats), KEYS, 3),
            "version 3; llmc reads versions 0, 1 and 2",
        ),
        (
            lambda: (
                tensors(np.random.default_rng(1), F.floats),
                changed("model_type", "nobody"),
                2,
            ),
            "nobody",
        ),
        (
            lambda: (
                [t for t in tensors(np.random.default_rng(1), F.floats) if b"v_proj" not in t],
                KEYS,
                2,
            ),
            "v_proj",
        ),
        (lambda: ([F.matrix("a", (2, 2), 5, b"")], KEYS, 2), "type 5; llmc reads 0 (f32)"),
        (
            lambda: ([F.matrix("a", (2, 2), F.INT8, struct.pack("<i", 1))], KEYS, 2),
            "matrices with a range per row or group",
        ),
        (
            lambda: (
                [F.matrix("a", (2, 64), F.INT4_GROUP, struct.pack("<iii", 0, 3, 32))],
                KEYS,
                2,
            ),
            "3 groups of 32 do not match its 64 columns",
        ),
        (lambda: ([F.matrix("a", (2, 64), F.F32, b"")], KEYS, 2), "the file ends within a value"),
        (lambda: ([F.floats("a", np.zeros((2, 2))), b"more"], KEYS, 2), ""),
        (
            lambda: (tensors(np.random.default_rng(1), F.floats), changed("peft_size", "many"), 2),
            "not a number of adapters",
        ),
    ],
)
def test_files_that_lie(make, says, tmp_path):
    weights, keys, version = make()
    F.write(str(tmp_path / "m.flm"), weights, keys, version=version)
    code, _, err = command("run", tmp_path / "m.flm", "--tokens", "4", "--device", "ref")
    assert code == 1 and says in err and "m.flm" in err, err
    assert "Sanitizer" not in err


def test_a_range_that_is_no_number(tmp_path):
    def broken(name, x):
        pairs = np.full((x.shape[0], 2), np.nan, "<f4")
        return F.matrix(
            name, x.shape, F.INT8, struct.pack("<i", 0) + pairs.tobytes() + bytes(x.size)
        )

    F.write(str(tmp_path / "m.flm"), tensors(np.random.default_rng(1), broken), KEYS)
    got, err = run(tmp_path / "m.flm", [4], tmp_path, "--device", "ref")
    assert got is None and "q_proj" in err or "proj" in err, err
