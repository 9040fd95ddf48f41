#!/usr/bin/env python3
"""Write tests/golden/embed/vectors.json: embeddings by transformers, with the golden models' weights (weights.py) without their heads.

Needs torch and transformers 5. Run:  python tests/golden/make_embed.py
"""

import json
import os
import tempfile

import torch
from transformers import AutoModel, AutoModelForSequenceClassification

import weights as W

torch.set_num_threads(1)
# lengths of one token, two tokens, more than a KV page, and more than a chunk
LENGTHS = (1, 2, 33, 57)
MODELS = [
    "llama-smol",
    "qwen3-plain",
    "gemma-plain" if "gemma-plain" in W.cases() else "gemma2-caps",
    "bloom-plain",
    "mixtral-window",
]
OUT = os.path.join(W.HERE, "embed", "vectors.json")


def short(x):
    return [float(f"{v:.7g}") for v in x]


def texts(g):
    return [W.prompt(g.seed + 7 + n, n, g.config["vocab_size"]) for n in LENGTHS]


def hidden(name):
    g = W.Golden(name)
    with tempfile.TemporaryDirectory() as d:
        g.build(d)
        model = AutoModel.from_pretrained(
            d, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        rows = []
        for ids in texts(g):
            with torch.no_grad():
                h = model(torch.tensor([ids])).last_hidden_state[0].double()
            rows.append(
                {"ids": ids, "last": short(h[-1]), "mean": short(h.mean(0)), "cls": short(h[0])}
            )
    return {"model": name, "texts": rows}


def labels(name, n):
    """Build a classifier with n labels from the weights of the golden model."""
    g = W.Golden(name)
    g.config.update(
        architectures=[g.config["model_type"].capitalize() + "ForSequenceClassification"],
        num_labels=n,
        pad_token_id=None,
    )
    g.tensors = {k: v for k, v in g.tensors.items() if k != "lm_head.weight"} | {
        "score.weight": [n, g.config["hidden_size"]]
    }
    with tempfile.TemporaryDirectory() as d:
        g.build(d)
        model = AutoModelForSequenceClassification.from_pretrained(
            d, dtype=torch.float32, attn_implementation="eager", num_labels=n
        ).eval()
        rows = []
        for ids in texts(g):
            with torch.no_grad():
                rows.append(
                    {"ids": ids, "scores": short(model(torch.tensor([ids])).logits[0].double())}
                )
    return {"model": name, "labels": n, "texts": rows}


if __name__ == "__main__":
    with open(OUT, "w") as f:
        json.dump(
            {
                "hidden": [hidden(m) for m in MODELS],
                "labels": [labels("llama-smol", 5), labels("qwen3-plain", 1)],
            },
            f,
            separators=(",", ":"),
        )
