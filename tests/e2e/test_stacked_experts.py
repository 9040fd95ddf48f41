"""Folders of mixtures as MLX's converters leave them: the experts of a layer in one tensor, `switch_mlp`, plain and of 4 bits, against transformers on the same weights
(tests/golden/models) and against a folder of the values that the formula scale * code + bias gives."""
import json
import os
import re
import sys

import numpy as np
import pytest

import golden_run
import weights

sys.path.insert(0, os.path.join(golden_run.ROOT, "tests", "golden"))
import scheme_values as S  # noqa: E402

ROLES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def stacked(tensors):
    """model.layers.0.mlp.experts.3.up_proj.weight -> one of model.layers.0.mlp.switch_mlp.up_proj.weight, in the order of experts"""
    out = {}
    for name, x in tensors.items():
        m = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name)
        if m:
            out.setdefault(f"{m[1]}.switch_mlp.{ROLES.get(m[3], m[3])}.weight", {})[int(m[2])] = x
        else:
            out[name] = x
    return {n: np.stack([x[e] for e in range(len(x))]) if isinstance(x, dict) else x for n, x in out.items()}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["mixtral-plain", "qwen3_moe-renorm", "qwen3_moe-dense-layers", "qwen2_moe-plain", "olmoe-plain", "glm4_moe-plain", "minimax_m2-plain", "ernie4_5_moe-plain",
                                  "hunyuan_v1_moe-plain"])
def test_plain(tmp_path, name):
    g = weights.Golden(name)
    folder = g.build(str(tmp_path / "model"))
    weights.write_safetensors(f"{folder}/model.safetensors", stacked({n: weights.tensor(g.seed, n, s, g.plus_one) for n, s in g.tensors.items()}), g.dtype)
    got, tokens = golden_run.run(folder, g, "--device", "ref")
    golden_run.check(g, got, tokens)


WIDER = {44: 128, 36: 96, 56: 64, 28: 32}  # whole groups of 32


def test_four_bits(tmp_path):
    g = weights.Golden("mixtral-plain")
    g.config.update(hidden_size=128, intermediate_size=96, head_dim=16)
    t = stacked({n: weights.tensor(g.seed, n, [WIDER.get(k, k) for k in s]) for n, s in g.tensors.items()})
    packed, plain = {}, {}
    for name, x in t.items():
        plain[name] = ("F32", x)
        if "switch_mlp" not in name:
            packed[name] = ("F32", x)
            continue
        groups = x.reshape(*x.shape[:-1], -1, 32)
        low, high = groups.min(-1), groups.max(-1)
        scale, bias = ((high - low) / 15).astype(np.float16), low.astype(np.float16)
        code = np.clip(np.rint((groups - bias[..., None]) / scale[..., None].astype(np.float32)), 0, 15).astype(np.uint32).reshape(*x.shape[:-1], -1, 8)
        base = name[:-len("weight")]
        packed[name] = ("U32", (code << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32))
        packed[base + "scales"], packed[base + "biases"] = ("F16", scale), ("F16", bias)
        plain[name] = ("F32", (scale[..., None].astype(np.float32) * code.reshape(groups.shape) + bias[..., None].astype(np.float32)).reshape(x.shape).astype(np.float32))
    got = []
    for kind, tensors in (("plain", plain), ("packed", packed)):
        folder = tmp_path / kind
        folder.mkdir()
        config = dict(g.config, **({"quantization": {"group_size": 32, "bits": 4}} if kind == "packed" else {}))
        (folder / "config.json").write_text(json.dumps(config))
        S.write(folder / "model.safetensors", tensors)
        got.append(golden_run.run(str(folder), g, "--device", "ref")[0])
    assert np.abs(got[0] - got[1]).max() <= 1e-5 * np.ptp(got[0])
