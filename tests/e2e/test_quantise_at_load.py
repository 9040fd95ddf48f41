"""A 16-bit folder that is quantised while it is loaded has the logits of a folder with the
quantised values in fp32. The values come from the gguf package for its types, and from formulas
in numpy for the quantisation formats."""

import json
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest

from golden_run import LLMC, ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import quant_format_values as S  # noqa: E402
from waiting import HANG  # noqa: E402

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPT = [1, 50, 7, 99, 23, 4, 4, 88]


def bf16(x):
    return (x.view(np.uint32) + 0x8000 >> 16).astype(np.uint16)


def tensors(bits=32):
    rng, out = np.random.default_rng(5), {}
    hidden, width, heads, kv, dim = 256, 384, 4, 2, 64
    shapes = {
        "model.embed_tokens": (101, hidden),
        "lm_head": (101, hidden),
        "model.norm": (hidden,),
    }
    for i in range(2):
        m = f"model.layers.{i}."
        shapes |= {
            m + "self_attn.q_proj": (heads * dim, hidden),
            m + "self_attn.k_proj": (kv * dim, hidden),
            m + "self_attn.v_proj": (kv * dim, hidden),
            m + "self_attn.o_proj": (hidden, heads * dim),
            m + "mlp.gate_proj": (width, hidden),
            m + "mlp.up_proj": (width, hidden),
            m + "mlp.down_proj": (hidden, width),
            m + "input_layernorm": (hidden,),
            m + "post_attention_layernorm": (hidden,),
        }
    for name, shape in shapes.items():
        x = rng.standard_normal(shape).astype(np.float32) * (0.06 if len(shape) > 1 else 0.02) + (
            len(shape) == 1
        )
        out[name + ".weight"] = S.floats("BF16", bf16(x)) if bits == 16 or len(shape) == 1 else x
    return out


def groups(x, columns, bits, symmetric=False, scale=np.float16):
    g = x.reshape(x.shape[0], -1, columns)
    lo, hi = np.minimum(g.min(-1, keepdims=True), 0), np.maximum(g.max(-1, keepdims=True), 0)
    top, half = 2**bits - 1, 2 ** (bits - 1)
    d = (
        (np.maximum(hi, -lo) / np.float32(half) if symmetric else (hi - lo) / np.float32(top))
        .astype(scale)
        .astype(np.float32)
    )
    zero = half if symmetric else np.clip(np.floor(-lo / d + np.float32(0.5)), 0, top)
    q = np.clip(np.floor(g * (1 / d) + np.float32(zero) + np.float32(0.5)), 0, top)
    return ((q - zero) * d).astype(np.float32).reshape(x.shape)


def affine(x, columns, bits):
    """Return a scale and a minimum in fp32."""
    g = x.reshape(x.shape[0], -1, columns)
    lo, hi, top = g.min(-1, keepdims=True), g.max(-1, keepdims=True), np.float32(2**bits - 1)
    d = (hi - lo) / top
    q = np.clip(np.floor((g - lo) * (1 / d) + np.float32(0.5)), 0, top)
    return (q * d + lo).astype(np.float32).reshape(x.shape)


def e4m3(x, columns):
    g = x.reshape(x.shape[0], -1, columns)
    d = np.abs(g).max(-1, keepdims=True) / np.float32(448)
    grid = np.sort(np.unique(S.floats("F8_E4M3", np.arange(127, dtype=np.uint8))))
    a = np.abs(g / d)
    at = np.clip(np.searchsorted(grid, a), 1, len(grid) - 1)
    near = np.where(a - grid[at - 1] < grid[at] - a, grid[at - 1], grid[at])
    return (np.sign(g) * near * d).astype(np.float32).reshape(x.shape)


def of_ggml(name):
    kind = gguf.GGMLQuantizationType[name]
    return lambda x: gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)


def linear(name):
    return name.endswith("proj.weight")


def matrix(name):
    return "norm" not in name


CASES = {
    "q8_0": (["--quantize", "q8_0"], of_ggml("Q8_0"), matrix),
    "q4_0": (["--quantize", "q4_0"], of_ggml("Q4_0"), matrix),
    "q5_1": (["--quantize", "q5_1"], of_ggml("Q5_1"), matrix),
    "f16": (
        ["--set", "storage.default=f16"],
        lambda x: x.astype(np.float16).astype(np.float32),
        matrix,
    ),
    "rules": (
        ["--set", "storage={default: bf16, rules: [{tensor: down, layers: 1, type: q8_0}]}"],
        of_ggml("Q8_0"),
        lambda n: n == "model.layers.1.mlp.down_proj.weight",
    ),
    "awq": (["--quantize", "awq"], lambda x: groups(x, 128, 4), linear),
    "gptq-8-64": (
        ["--set", "quant={method: gptq, bits: 8, group: 64}"],
        lambda x: groups(x, 64, 8),
        linear,
    ),
    "gptq-row": (
        ["--set", "quant.method=gptq", "--set", "quant.group=-1"],
        lambda x: groups(x, x.shape[1], 4),
        linear,
    ),
    "gptq-3": (["--set", "quant={method: gptq, bits: 3}"], lambda x: groups(x, 128, 3), linear),
    "mlx": (["--quantize", "mlx"], lambda x: affine(x, 64, 4), matrix),
    "hqq-2-128": (
        ["--set", "quant={method: hqq, bits: 2, group: 128}"],
        lambda x: affine(x, 128, 2),
        linear,
    ),
    "eetq": (["--quantize", "eetq"], lambda x: groups(x, x.shape[1], 8, True), linear),
    "fp8": (["--quantize", "fp8"], lambda x: e4m3(x, 128), linear),
}
KERNELS = ("awq", "eetq")  # these run on kernels as well; kernels of the others are tested per type


def folder(path, values, kind):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    S.write(
        str(path / "model.safetensors"),
        {k: (kind, x if kind == "F32" else bf16(x)) for k, x in values.items()},
    )
    return path


def run(where, tmp, *args, prompt=PROMPT):
    out = str(tmp / "out.npy")
    p = subprocess.run(
        [
            LLMC,
            "run",
            str(where),
            "--tokens",
            ",".join(map(str, prompt)),
            "--logits",
            out,
            "--json",
            "--ignore-eos",
            "-n",
            "1",
            "--threads",
            "2",
            "--artifact",
            str(tmp / "artifact"),
            "--set",
            "kv.dtype=f32",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    return (np.load(out) if p.returncode == 0 else None), p.stderr


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_values(name, tmp_path):
    args, rounded, which = CASES[name]
    kind = (
        "BF16" if name in ("rules", "awq") else "F32"
    )  # 16-bit values often lie halfway between two codes, where rounding may differ
    t = tensors(16 if kind == "BF16" else 32)
    want, err = run(
        folder(
            tmp_path / "values", {k: rounded(x) if which(k) else x for k, x in t.items()}, "F32"
        ),
        tmp_path,
        "--device",
        "ref",
    )
    assert want is not None, err
    plain = folder(tmp_path / "plain", t, kind)
    for more, within in [(["--device", "ref"], 2e-6)] + [([], 1e-3)] * (name in KERNELS):
        got, err = run(plain, tmp_path, *args, *more)
        assert got is not None, err
        off = np.abs(got - want).max() / np.ptp(want)
        assert off <= within, f"off by {off:.2e} of the range"
    bare, _ = run(plain, tmp_path, "--device", "ref")
    assert (
        np.abs(bare - want).max() / np.ptp(want) > 10 * 2e-6 or name == "f16"
    )  # the setting has an effect


def test_the_cache_keeps_what_was_quantised(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    plain = folder(tmp_path / "plain", tensors(16), "BF16")
    first, err = run(plain, tmp_path, "--device", "ref", "--quantize", "q4_0", "-v")
    assert (
        first is not None and "quantising 16 matrices" in err and "the cache keeps them" in err
    ), err
    again, err = run(plain, tmp_path, "--device", "ref", "--quantize", "q4_0", "-v")
    assert (again == first).all() and "quantising" not in err
    other, err = run(plain, tmp_path, "--device", "ref", "--quantize", "q8_0", "-v")
    assert "quantising 16 matrices" in err and (other != first).any()


@pytest.mark.parametrize(
    "args,words",
    [
        (["--quantize", "q3"], "quant.method = q3: expected one of gptq, awq"),
        (
            ["--quantize", "q4_0", "--set", "quant.bits=4"],
            "the type determines bits and group size",
        ),
        (["--set", "quant={method: awq, bits: 8}"], "quant.bits = 8: awq has 4"),
        (["--set", "quant={method: awq, group: 48}"], "multiples of 32"),
        (["--set", "quant.group=32"], "quant.group has no effect without quant.method"),
        (
            ["--set", "quant={method: gptq, group: 96}"],
            "not a multiple of the 96 that share a scale",
        ),
        (
            ["--set", "storage.rules=[{tensor: q, type: q4_0, group: 64}]"],
            "blocks of q4_0 have their own scales",
        ),
        (
            ["--set", "storage.rules=[{tensor: q, type: u4_128, group: 64}]"],
            "for u4_128 a multiple of 128 columns",
        ),
        (
            ["--set", "storage.rules=[{tensor: q, type: u4_128, group: wide}]"],
            "group must be the number of columns",
        ),
        (
            ["--set", "storage.rules=[{tensor: q, type: u4_128, symmetric: 4}]"],
            "symmetric must be true or false",
        ),
    ],
)
def test_conflicting_options_are_refused(args, words, tmp_path):
    got, err = run(
        folder(tmp_path / "plain", tensors(16), "BF16"), tmp_path, "--device", "ref", *args
    )
    assert got is None and words in err, err


def test_quantised_files_are_not_quantised_again(tmp_path):
    case = os.path.join(ROOT, "tests", "golden", "quant_formats", "gptq-4")
    got, err = run(case, tmp_path, "--device", "ref", "--quantize", "q8_0")
    assert got is None and "q8_0" in err and "are not quantised again" in err, err
