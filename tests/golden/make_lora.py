#!/usr/bin/env python3
"""Write tests/golden/lora/<case>/: an adapter saved by PEFT, and the logits of PEFT's model with the golden models' weights (weights.py).

Needs torch, transformers 5 and peft. Run:  python tests/golden/make_lora.py
"""

import json
import os
import shutil
import sys
import tempfile

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import weights as W

torch.set_num_threads(1)
OUT = os.path.join(W.HERE, "lora")
CASES = {  # name of the case: base model, arguments for PEFT
    "llama-all": ("llama-modern", dict(r=3, lora_alpha=5, target_modules="all-linear")),
    "llama-some": (
        "llama-modern",
        dict(
            r=5,
            lora_alpha=7,
            use_rslora=True,
            target_modules=["k_proj", "o_proj", "up_proj", "down_proj"],
        ),
    ),
    "qv-rslora": (
        "qwen3-plain",
        dict(
            r=4,
            lora_alpha=6,
            use_rslora=True,
            target_modules=["q_proj", "v_proj"],
            alpha_pattern={"v_proj": 9},
            rank_pattern={"layers.1.self_attn.q_proj": 2},
        ),
    ),
    "embed-head": (
        "llama-modern",
        dict(r=2, lora_alpha=4, target_modules=["embed_tokens", "lm_head"]),
    ),
    "gpt2-stack": (
        "gpt2-inner",
        dict(r=2, lora_alpha=3, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]),
    ),
    "mixtral-experts": (
        "mixtral-window",
        dict(
            r=2,
            lora_alpha=3,
            target_modules=["q_proj"],
            target_parameters=["experts.gate_up_proj", "experts.down_proj"],
            alpha_pattern={"experts.down_proj": 5},
        ),
    ),
    "qwen3-moe-experts": (
        "qwen3_moe-renorm",
        dict(
            r=2,
            lora_alpha=4,
            target_modules=["o_proj"],
            target_parameters=["experts.down_proj", "experts.gate_up_proj"],
        ),
    ),
    "phimoe-experts": (
        "phimoe-plain",
        dict(
            r=3,
            lora_alpha=4,
            target_modules=["q_proj"],
            target_parameters=["experts.gate_up_proj", "experts.down_proj"],
            alpha_pattern={"experts.down_proj": 7},
        ),
    ),
    "qwen2-moe-experts": (
        "qwen2_moe-plain",
        dict(
            r=3,
            lora_alpha=5,
            target_modules=["v_proj"],
            target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        ),
    ),
    "qwen2-moe-down": (
        "qwen2_moe-plain",
        dict(
            r=2,
            lora_alpha=5,
            use_rslora=True,
            target_modules=["o_proj"],
            target_parameters=["experts.down_proj"],
        ),
    ),
    "nemotron-experts": (
        "nemotron_h-plain",
        dict(
            r=3,
            lora_alpha=4,
            target_modules=["o_proj"],
            target_parameters=["experts.up_proj", "experts.down_proj"],
        ),
    ),
    "deepseek-lite": (
        "deepseek_v2-lite",
        dict(
            r=3,
            lora_alpha=5,
            target_modules=["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
        ),
    ),
    "deepseek-latents": (
        "deepseek_v3-plain",
        dict(
            r=4,
            lora_alpha=5,
            use_rslora=True,
            target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
        ),
    ),
    "phi3-stacks": (
        "phi3-longrope-long",
        dict(r=2, lora_alpha=4, target_modules=["qkv_proj", "gate_up_proj", "down_proj"]),
    ),
}


def make(case, base, options):
    g = W.Golden(base)
    out = os.path.join(OUT, case)
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as d:
        g.build(d)
        model = AutoModelForCausalLM.from_pretrained(
            d, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        )
        p = get_peft_model(model, LoraConfig(**options)).eval()
        with torch.no_grad():
            for name, x in p.named_parameters():
                if "lora_" in name:
                    x.copy_(
                        torch.from_numpy(W.noise(f"{case}/{name}", x.numel()).reshape(x.shape))
                        * 0.15
                    )
            logits = p(torch.tensor([g.prompt])).logits[0]
        p.save_pretrained(d + "/a", save_embedding_layers=False)
        os.makedirs(out)
        shutil.copy(d + "/a/adapter_model.safetensors", out)
        with open(d + "/a/adapter_config.json") as f:
            config = json.load(f)
        config["base_model_name_or_path"] = base
        with open(os.path.join(out, "adapter_config.json"), "w") as f:
            json.dump(config, f, indent=1, sort_keys=True)
    np.save(os.path.join(out, "logits.npy"), logits.numpy().astype(np.float32))
    print(case, float(np.abs(logits.numpy() - g.logits).max()), float(np.abs(g.logits).max()))


if __name__ == "__main__":
    for case, (base, options) in CASES.items():
        if not sys.argv[1:] or case in sys.argv[1:]:
            make(case, base, options)
