#!/usr/bin/env python3
"""Write tests/golden/encoders/<case>/{config.json, case.json, rows.npy}: tiny encoders with odd shapes, and the rows that
transformers computes for a few prompts.

Needs torch and transformers 5. Weights are those of weights.py, by name. Run:  python tests/golden/make_encoders.py [case ...]
"""

import json
import os
import sys
import tempfile

import numpy as np
import torch

import weights as W

torch.set_num_threads(1)
CASES = {}


def case(
    name,
    model_type,
    base,
    *,
    dtype="f32",
    plus_one=False,
    inputs=(1, 2, 37),
    set=None,
    kind="",
    **more,
):
    """inputs: lengths of prompts. kind: the suffix of transformers' class, "" for the rows of the last layer."""
    config = dict(model_type=model_type, **base)
    for k, v in more.items():
        if v is ...:
            config.pop(k, None)
        else:
            config[k] = v
    assert name not in CASES
    CASES[name] = dict(
        config=config, dtype=dtype, plus_one=plus_one, inputs=inputs, set=set or {}, kind=kind
    )


BERT = dict(
    vocab_size=131,
    hidden_size=72,
    intermediate_size=100,
    num_hidden_layers=3,
    num_attention_heads=9,
    hidden_act="gelu",
    max_position_embeddings=64,
    type_vocab_size=2,
    layer_norm_eps=1e-3,
    torch_dtype="float32",
    pad_token_id=0,
)

case("bert-plain", "bert", BERT, inputs=(1, 2, 37, 64))
case("bert-576-bf16", "bert", BERT, dtype="bf16", hidden_size=576, num_hidden_layers=2)
case(
    "bert-relu",
    "bert",
    BERT,
    hidden_act="relu",
    type_vocab_size=1,
    vocab_size=257,
    hidden_size=60,
    num_attention_heads=5,
)


def tensors(model):
    return {
        n: list(p.shape) for n, p in sorted(model.state_dict().items()) if p.is_floating_point()
    }


def make(name, c):
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    auto = {"": AutoModel, "SequenceClassification": AutoModelForSequenceClassification}[c["kind"]]
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(c["config"], f)
        config = AutoConfig.from_pretrained(d)
        model = auto.from_config(config, attn_implementation="eager").eval()
    shapes = tensors(model)
    seed = 1
    values = {
        n: torch.from_numpy(W.rounded(W.tensor(seed, n, s, c["plus_one"]), c["dtype"]))
        for n, s in shapes.items()
    }
    model.load_state_dict(values, strict=False)
    inputs = [W.prompt(seed + n, n, c["config"]["vocab_size"]) for n in c["inputs"]]

    @torch.no_grad()
    def run(m):
        out = []
        for ids in inputs:
            y = m(torch.tensor([ids]))
            out.append((y.logits if c["kind"] else y.last_hidden_state[0]).double().numpy())
        return np.concatenate(out)

    rows = run(model.float())
    wobble = float(np.abs(run(model.double()) - rows).max() / (rows.max() - rows.min()))
    d = os.path.join(W.ENCODERS, name)
    os.makedirs(d, exist_ok=True)
    with open(os.path.join(d, "config.json"), "w") as f:
        json.dump(c["config"], f, indent=1)
        f.write("\n")
    body = dict(
        family=name.split("-")[0],
        seed=seed,
        dtype=c["dtype"],
        plus_one=c["plus_one"],
        set=c["set"],
        inputs=inputs,
        wobble=wobble,
    )
    with open(os.path.join(d, "case.json"), "w") as f:
        f.write("{\n" + "".join(f' "{k}": {json.dumps(v)},\n' for k, v in body.items()))
        f.write(' "tensors": {\n')
        f.write(",\n".join(f'  "{n}": {json.dumps(s)}' for n, s in shapes.items()) + "\n }\n}\n")
    np.save(os.path.join(d, "rows.npy"), rows.astype(np.float32))
    print(f"{name:34} range {rows.max() - rows.min():6.2f} wobble {wobble:.1e}", flush=True)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or CASES:
        make(wanted, CASES[wanted])
