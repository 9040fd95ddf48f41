#!/usr/bin/env python3
"""Write tests/golden/mtp/heads.json: outputs of draft heads (MTP layers) of golden models.

transformers omits these layers. The head is therefore built as in DeepSeek's description and in servers that run it:

    rows [T, H]   the model's rows after its final norm; for further draft tokens the head's own, after shared_head.norm (ERNIE 4.5 has none). Step 3.5 uses rows
                  before these norms, and its head has its own output matrix
    x = eh_proj([enorm(embed(token after the row)) | hnorm(row)])
    x = one layer of the model's kind, causal over all rows so far;  logits = lm_head(shared_head.norm(x))

with transformers' layer, norm and head (a model of one layer with input x). Embedding and head are the model's: checkpoints contain a second copy.
Needs torch and transformers 5. Run:  python tests/golden/make_mtp.py
"""

import json
import os
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import weights as W

torch.set_num_threads(1)
MODELS = [
    "glm4_moe-qk-norm",
    "glm4_moe-plain",
    "deepseek_v3-yarn",
    "deepseek_v3-one-group-bf16",
    "qwen3_next-plain",
    "qwen3_5-plain",
    "qwen3_5_moe-plain",
    "exaone_moe-plain",
    "mimo_v2-plain",
    "ernie4_5_moe-plain",
    "step3p5-plain",
]
# settings of a model with only one layer, which is the layer of the head
ONE = {
    "qwen3_next": dict(layer_types=["full_attention"]),
    "qwen3_5": dict(layer_types=["full_attention"]),
    "qwen3_5_moe": dict(layer_types=["full_attention"]),
    "exaone_moe": dict(layer_types=["full_attention"], mlp_layer_types=["dense"]),
    "mimo_v2": dict(layer_types=["sliding_attention"], mlp_layer_types=["dense"]),
    "step3p5": dict(
        layer_types=["sliding_attention"],
        mlp_layer_types=["dense"],
        rope_theta=[50.0],
        partial_rotary_factors=[1.0],
        swiglu_limits=[0.0],
        swiglu_limits_shared=[0.5],
        moe_layers_enum=None,
    ),
}
WRAPPED = {"step3p5": "step3p7"}  # the model type is the language model inside this one
OUT = os.path.join(W.HERE, "mtp", "heads.json")
GUESSES = 4


def short(x):
    return [float(f"{v:.7g}") for v in x]


def load(config, tensors, dtype):
    if config["model_type"] in WRAPPED:
        small = dict(
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
            hidden_size=16,
            intermediate_size=16,
        )
        config = dict(
            model_type=WRAPPED[config["model_type"]],
            text_config=config,
            vision_config=small,
            image_token_id=3,
            tie_word_embeddings=False,
        )
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(config, f)
        W.write_safetensors(os.path.join(d, "model.safetensors"), tensors, dtype)
        auto = AutoModelForCausalLM if "text_config" not in config else AutoModelForImageTextToText
        m, info = auto.from_pretrained(
            d,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        assert (
            not [k for k in info["missing_keys"] if "vision" not in k and "projector" not in k]
            and not info["mismatched_keys"]
        ), info
        return m.eval()


def text_of(model):
    return getattr(model.model, "language_model", model.model)


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


@torch.no_grad()
def head(name):
    g = W.Mtp(name)
    w = {n: W.rounded(x, g.dtype) for n, x in g.values().items()}
    eps, how, plus = g.config["rms_norm_eps"], g.how, float(g.plus_one)
    own, full = how["layer"], how.get("renamed", ("", ""))
    config = {k: v for k, v in g.config.items() if k != "num_nextn_predict_layers"}
    model = load(
        config | {k: g.config[k] for k in ("num_nextn_predict_layers",) if how.get("lists")},
        {k: v for k, v in w.items() if "mtp" not in k and not k.startswith(own)},
        g.dtype,
    )
    one = {
        "model.layers.0." + k[len(own) :].replace(*full[::-1]): v
        for k, v in w.items()
        if k.startswith(own)
        and k[len(own) :].split(".")[0]
        in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm")
    }
    one |= {
        "model.norm.weight": w[(how["norm"] or "model.norm") + ".weight"],
        "lm_head.weight": w["lm_head.weight"],
        "model.embed_tokens.weight": w["model.embed_tokens.weight"],
    }
    layer = load(
        config | dict(num_hidden_layers=1, first_k_dense_replace=0) | ONE.get(g.family, {}),
        one,
        g.dtype,
    )
    body, own_body = text_of(model), text_of(layer)
    if how.get("raw"):
        body.norm = torch.nn.Identity()
    if how.get("raw") or not how["norm"]:
        own_body.norm = torch.nn.Identity()
    t = {k: torch.from_numpy(v) for k, v in w.items()}
    ids = list(g.prompt)

    def run(rows, tokens):
        e = t["model.embed_tokens.weight"][tokens]
        x = (
            torch.cat(
                [
                    rms(e, plus + t[how["enorm"] + ".weight"], eps),
                    rms(rows, plus + t[how["hnorm"] + ".weight"], eps),
                ],
                -1,
            )
            @ t[how["proj"] + ".weight"].T
        )
        h = own_body(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
        last = rms(h, plus + t[how["norm"] + ".weight"], eps) if how.get("raw") else h
        return h, last @ t[how.get("output", "lm_head") + ".weight"].T

    rows = body(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    last = rms(rows[-1], plus + t["model.norm.weight"], eps) if how.get("raw") else rows[-1]
    ids.append(int((last @ t["lm_head.weight"].T).argmax()))
    tokens, guesses, gap = ids[1:], [], 1.0
    h, logits = run(rows, tokens)
    said = [short(r) for r in logits[-3:].double().tolist()]
    for _ in range(GUESSES):
        top = logits[-1].sort().values
        gap = min(gap, float((top[-1] - top[-2]) / (top[-1] - top[0])))
        guesses.append(int(logits[-1].argmax()))
        rows, tokens = torch.cat([rows, h[-1:]]), tokens + guesses[-1:]
        h, logits = run(rows, tokens)
    return {
        "model": name,
        "text": ids,
        "row": short(rows[len(ids) - 2].double().tolist()),
        "logits": said,
        "guesses": guesses,
        "gap": round(gap, 6),
        "behind": short(logits[-1].double().tolist()),
    }


if __name__ == "__main__":
    os.makedirs(os.path.dirname(OUT), exist_ok=True)
    made = [head(m) for m in MODELS]
    with open(OUT, "w") as f:
        json.dump(made, f, separators=(",", ":"))
        f.write("\n")
    for m in made:
        print(m["model"], m["guesses"], m["gap"])
