"""MoE folders as MLX's converters write them: the experts of a layer in one tensor, `switch_mlp`,
and DeepSeek-V3's kv_b_proj as `embed_q` and `unembed_out`, plain and in 4 bits. They are
compared with transformers on the same weights (tests/golden/models), and with a folder of the
values scale * code + bias."""

import json
import os
import re
import sys

import numpy as np
import pytest

import golden_run
import weights

sys.path.insert(0, os.path.join(golden_run.ROOT, "tests", "golden"))
import quant_format_values as S  # noqa: E402

ROLES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def stacked(tensors):
    """Stack mlp.experts.N.up_proj.weight of a layer into mlp.switch_mlp.up_proj.weight."""
    out = {}
    for name, x in tensors.items():
        m = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name)
        if m:
            out.setdefault(f"{m[1]}.switch_mlp.{ROLES.get(m[3], m[3])}.weight", {})[int(m[2])] = x
        else:
            out[name] = x
    return {
        n: np.stack([x[e] for e in range(len(x))]) if isinstance(x, dict) else x
        for n, x in out.items()
    }


def absorbed(tensors, config):
    """Split self_attn.kv_b_proj [heads * (nope + v), rank] into embed_q [heads, rank, nope] and
    unembed_out [heads, v, rank]."""
    out = {}
    for name, x in tensors.items():
        if "kv_b_proj" not in name:
            out[name] = x
            continue
        x = x.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
        k, v = np.split(x, [config["qk_nope_head_dim"]], 1)
        out[name.replace("kv_b_proj", "embed_q")], out[name.replace("kv_b_proj", "unembed_out")] = (
            np.ascontiguousarray(k.swapaxes(1, 2)),
            v,
        )
    return out


def affine(x):
    """Quantise as MLX does, in 4 bits with groups of 32 of the last dimension; return {suffix:
    tensor} and the values scale * code + bias."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    low, high = groups.min(-1), groups.max(-1)
    scale, bias = ((high - low) / 15).astype(np.float16), low.astype(np.float16)
    code = (
        np.clip(np.rint((groups - bias[..., None]) / scale[..., None].astype(np.float32)), 0, 15)
        .astype(np.uint32)
        .reshape(*x.shape[:-1], -1, 8)
    )
    packed = {
        "weight": ("U32", (code << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)),
        "scales": ("F16", scale),
        "biases": ("F16", bias),
    }
    return packed, (
        scale[..., None].astype(np.float32) * code.reshape(groups.shape)
        + bias[..., None].astype(np.float32)
    ).reshape(x.shape).astype(np.float32)


def same(tmp_path, g, packed, plain, within):
    """Check that a folder of 4 bits and one of its values give the same logits."""
    got = []
    for kind, tensors in (("plain", plain), ("packed", packed)):
        folder = tmp_path / kind
        folder.mkdir()
        config = dict(
            g.config,
            **({"quantization": {"group_size": 32, "bits": 4}} if kind == "packed" else {}),
        )
        (folder / "config.json").write_text(json.dumps(config))
        S.write(folder / "model.safetensors", tensors)
        got.append(golden_run.run(str(folder), g, "--device", "ref")[0])
    assert np.abs(got[0] - got[1]).max() <= within * np.ptp(got[0])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    [
        "mixtral-plain",
        "qwen3_moe-renorm",
        "qwen3_moe-dense-layers",
        "qwen2_moe-plain",
        "olmoe-plain",
        "glm4_moe-plain",
        "minimax_m2-plain",
        "ernie4_5_moe-plain",
        "hunyuan_v1_moe-plain",
    ],
)
def test_plain(tmp_path, name):
    g = weights.Golden(name)
    folder = g.build(str(tmp_path / "model"))
    weights.write_safetensors(
        f"{folder}/model.safetensors",
        stacked({n: weights.tensor(g.seed, n, s, g.plus_one) for n, s in g.tensors.items()}),
        g.dtype,
    )
    got, tokens = golden_run.run(folder, g, "--device", "ref")
    golden_run.check(g, got, tokens)


WIDER = {44: 128, 36: 96, 56: 64, 28: 32}  # multiples of 32


def test_four_bits(tmp_path):
    g = weights.Golden("mixtral-plain")
    g.config.update(hidden_size=128, intermediate_size=96, head_dim=16)
    t = stacked(
        {n: weights.tensor(g.seed, n, [WIDER.get(k, k) for k in s]) for n, s in g.tensors.items()}
    )
    packed, plain = {}, {}
    for name, x in t.items():
        plain[name] = packed[name] = ("F32", x)
        if "switch_mlp" in name:
            parts, value = affine(x)
            plain[name] = ("F32", value)
            packed.update({name[: -len("weight")] + k: v for k, v in parts.items()})
    same(tmp_path, g, packed, plain, 1e-5)


@pytest.mark.parametrize(
    "name", ["deepseek_v3-plain", "deepseek_v3-glm4-lite", "deepseek_v3-glm5-shares"]
)
def test_latents_in_two(tmp_path, name):
    g = weights.Golden(name)
    folder = g.build(str(tmp_path / "model"))
    t = absorbed(
        stacked({n: weights.tensor(g.seed, n, s, g.plus_one) for n, s in g.tensors.items()}),
        g.config,
    )
    weights.write_safetensors(f"{folder}/model.safetensors", t, g.dtype)
    got, tokens = golden_run.run(folder, g, "--device", "ref")
    golden_run.check(g, got, tokens)


def test_latents_of_four_bits(tmp_path):
    """The groups of embed_q run across its columns, so its values are kept in 16 bits. The
    configuration includes layers that predict further tokens, which MLX drops."""
    g = weights.Golden("deepseek_v3-plain")
    g.config.update(kv_lora_rank=64, qk_nope_head_dim=96, v_head_dim=32, num_nextn_predict_layers=1)
    heads, hidden = g.config["num_attention_heads"], g.config["hidden_size"]
    shapes = {
        "q_b_proj": [heads * (96 + 8), 20],
        "kv_a_proj_with_mqa": [64 + 8, hidden],
        "kv_a_layernorm": [64],
        "kv_b_proj": [heads * (96 + 32), 64],
        "o_proj": [hidden, heads * 32],
    }
    packed, plain = {}, {}
    for n, x in {
        n: weights.tensor(g.seed, n, shapes.get(n.split(".")[-2], s)) for n, s in g.tensors.items()
    }.items():
        packed[n] = plain[n] = ("F32", x)
        if "kv_b_proj" not in n:
            continue
        del packed[n]
        value = []
        for part, y in absorbed({n: x}, g.config).items():
            parts, v = affine(y)
            packed.update({part[: -len("weight")] + k: p for k, p in parts.items()})
            value.append(v.astype(np.float16).astype(np.float32) if "embed_q" in part else v)
        plain[n] = ("F32", np.concatenate([value[0].swapaxes(1, 2), value[1]], 1).reshape(x.shape))
    same(tmp_path, g, packed, plain, 1e-5)
