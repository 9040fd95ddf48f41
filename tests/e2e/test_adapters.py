"""Adapters merged into the weights, against PEFT (tests/golden/make_lora.py)."""

import json
import os
import shutil
import sys

import numpy as np
import pytest

import llmc
from processor import RUNS

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
)
import weights  # noqa: E402

LORA = os.path.join(weights.HERE, "lora")
CASES = sorted(
    set(os.listdir(LORA)) - {"nemotron-experts"}
)  # its modules are named unlike its checkpoint
ON = [(c, "ref", None) for c in CASES] + [
    (c, "cpu", "v4")
    for c in ("llama-all", "qv-rslora", "gpt2-stack", "mixtral-experts")
    if RUNS["v4"]
]


def config(case):
    with open(os.path.join(LORA, case, "adapter_config.json")) as f:
        return json.load(f)


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    return {
        k: np.frombuffer(
            data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]], np.float32
        ).reshape(v["shape"])
        for k, v in json.loads(data[8 : 8 + n]).items()
        if k != "__metadata__"
    }


def logits(model, ids):
    with model.session(context=len(ids), chunk=len(ids), n_out=len(ids)) as s:
        return np.array(s.forward([(s.seq(), ids, len(ids))]))


@pytest.mark.parametrize("case,device,arch", ON)
def test_logits_are_pefts(case, device, arch, tmp_path):
    g = weights.Golden(config(case)["base_model_name_or_path"])
    g.build(tmp_path)
    want = np.load(os.path.join(LORA, case, "logits.npy"))
    m = llmc.Model(
        tmp_path, device=device, arch=arch, set=[f"lora.path={LORA}/{case}", "kv.dtype=f32"]
    )
    got = logits(m, g.prompt)
    assert (
        np.abs(want - g.logits).max() > 1 and np.abs(got - want).max() < 3e-3 * np.abs(want).max()
    ), np.abs(got - want).max()
    none = llmc.Model(tmp_path, device="ref", set=[f"lora.path={LORA}/{case}", "lora.scale=0"])
    assert np.abs(logits(none, g.prompt) - g.logits).max() < 3e-3 * np.abs(want).max()


def test_the_sum_is_rounded_once(tmp_path):
    """With 16-bit weights the sum is rounded once, so it equals merged weights that were
    rounded."""
    case = "llama-all"
    g = weights.Golden(config(case)["base_model_name_or_path"])
    g.build(tmp_path / "base")
    t = {n: weights.tensor(g.seed, n, s, g.plus_one) for n, s in g.tensors.items()}
    merged = dict(t)
    a = read_safetensors(os.path.join(LORA, case, "adapter_model.safetensors"))
    scale = np.float32(5 / 3)
    for n in t:
        stem = "base_model.model." + n.removesuffix(".weight")
        if stem + ".lora_A.weight" in a:
            merged[n] = t[n] + (a[stem + ".lora_B.weight"] * scale) @ a[stem + ".lora_A.weight"]
    shutil.copytree(tmp_path / "base", tmp_path / "merged")
    weights.write_safetensors(tmp_path / "merged" / "model.safetensors", merged, "f32")
    for how in ("storage.default=bf16", "storage.default=f16"):
        pair = [
            llmc.Model(tmp_path / folder, device="ref", set=[how, *lora])
            for folder, lora in (("base", [f"lora.path={LORA}/{case}"]), ("merged", []))
        ]
        x, y = (logits(m, g.prompt[:5]) for m in pair)
        assert (
            np.abs(x - y).max() < 2e-2 * np.abs(y).max()
        )  # a sum in another order may round differently
        assert pair[0].plan["lora"] == f"{LORA}/{case}"


@pytest.mark.parametrize(
    "change,output",
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"bias": "all"}, "biases"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"[qv]_proj": 3}}, "expression"),
        ({"alpha_pattern": {"q_proj": "3"}}, "expected a number"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"lora_alpha": "5"}, "lora_alpha"),
        ({"lora_alpha": 1e300}, "is not finite"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"kasa_config": {"a": 1}}, "kasa_config"),
    ],
)
def test_what_is_not_read_is_refused(change, output, tmp_path):
    g = weights.Golden("llama-modern")
    g.build(tmp_path / "base")
    shutil.copytree(os.path.join(LORA, "llama-all"), tmp_path / "a")
    (tmp_path / "a" / "adapter_config.json").write_text(
        json.dumps({**config("llama-all"), **change})
    )
    with pytest.raises(llmc.Error, match=output):
        llmc.Model(tmp_path / "base", device="ref", set=[f"lora.path={tmp_path}/a"])


def test_an_adapter_of_another_model_is_refused(tmp_path):
    weights.Golden("llama-smol").build(tmp_path / "tied")
    weights.Golden("qwen2-windows").build(tmp_path / "other")
    for base, case, output in (
        ("tied", "embed-head", "head.tied"),
        ("other", "llama-all", "trained on another model"),
        ("other", "gpt2-stack", "transformer.h.0"),
        ("other", "nothing", "adapter_config.json"),
    ):
        with pytest.raises(llmc.Error, match=output):
            llmc.Model(tmp_path / base, device="ref", set=[f"lora.path={LORA}/{case}"])


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_over_a_gguf_file(kind, tmp_path):
    """Modules have Hugging Face's names and row order. Blocks that cannot hold the sum become
    f16."""
    gguf = pytest.importorskip("gguf")
    from gguf.quants import dequantize

    source = os.path.join(weights.HERE, "gguf", f"llama-{kind}.gguf")
    r = gguf.GGUFReader(source)
    n_q, n_kv = (int(r.fields[f"llama.attention.head_count{k}"].contents()) for k in ("", "_kv"))
    names = {
        "attn_q": ("self_attn.q_proj", n_q),
        "attn_k": ("self_attn.k_proj", n_kv),
        "attn_v": ("self_attn.v_proj", 0),
        "ffn_down": ("mlp.down_proj", 0),
    }
    w = gguf.GGUFWriter(str(tmp_path / "merged.gguf"), "llama")
    for f in r.fields.values():
        if not f.name.startswith("GGUF.") and f.name != "general.architecture":
            w.add_key_value(
                f.name, f.contents(), f.types[0], f.types[-1] if len(f.types) > 1 else None
            )
    adapter = {}
    for t in r.tensors:
        x = dequantize(t.data, t.tensor_type).astype(np.float32)
        part = t.name.split(".")
        if part[0] == "blk" and part[2] in names:
            module, heads = names[part[2]]
            stem = f"base_model.model.model.layers.{part[1]}.{module}"
            a, b = (
                0.05 * weights.noise(f"{stem}/{i}", 3 * n).astype(np.float32)
                for i, n in enumerate((x.shape[1], x.shape[0]))
            )
            a, b = a.reshape(3, -1), b.reshape(-1, 3)
            adapter |= {stem + ".lora_A.weight": a, stem + ".lora_B.weight": b}
            x += 2 * (weights.halves_to_pairs(b, heads) if heads else b) @ a
        w.add_tensor(t.name, x)
    weights.finish_gguf(w)
    (tmp_path / "a").mkdir()
    weights.write_safetensors(tmp_path / "a" / "adapter_model.safetensors", adapter, "f32")
    (tmp_path / "a" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6})
    )
    ids = [3 + 7 * i % 200 for i in range(40)]
    plain, got, want = (
        logits(llmc.Model(p, device="ref", set=s), ids)
        for p, s in (
            (source, []),
            (source, [f"lora.path={tmp_path}/a"]),
            (tmp_path / "merged.gguf", []),
        )
    )
    assert (
        np.abs(want - plain).max() > 0.05 * np.abs(want).max()
        and np.abs(got - want).max() < 1e-2 * np.abs(want).max()
    ), np.abs(got - want).max()
