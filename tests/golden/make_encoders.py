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
    """Define a case. inputs: lengths of prompts. kind: the suffix of transformers' class; "": the
    expectation is the rows of the last layer."""
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


ROBERTA = dict(BERT, pad_token_id=1, max_position_embeddings=66, type_vocab_size=1)
case("roberta-plain", "roberta", ROBERTA, inputs=(1, 37, 64))
case(
    "roberta-xlm-bf16", "xlm-roberta", ROBERTA, dtype="bf16", hidden_size=96, num_attention_heads=6
)
case("roberta-camembert", "camembert", ROBERTA, pad_token_id=2, type_vocab_size=2)

DISTIL = dict(
    vocab_size=131,
    dim=72,
    hidden_dim=100,
    n_layers=3,
    n_heads=9,
    activation="gelu",
    max_position_embeddings=64,
    pad_token_id=0,
    torch_dtype="float32",
)
case("distilbert-plain", "distilbert", DISTIL, inputs=(1, 37, 64))
case("distilbert-relu", "distilbert", DISTIL, activation="relu", dim=60, n_heads=5)
case("distilbert-bf16", "distilbert", DISTIL, dtype="bf16", sinusoidal_pos_embds=True)

MODERN = dict(
    vocab_size=131,
    hidden_size=72,
    intermediate_size=100,
    num_hidden_layers=4,
    num_attention_heads=9,
    hidden_activation="gelu",
    max_position_embeddings=128,
    norm_eps=1e-3,
    global_rope_theta=5000.0,
    local_rope_theta=100.0,
    global_attn_every_n_layers=3,
    local_attention=16,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    cls_token_id=1,
    sep_token_id=2,
    torch_dtype="float32",
)
case("modernbert-plain", "modernbert", MODERN, inputs=(1, 9, 70))
case(
    "modernbert-biases",
    "modernbert",
    MODERN,
    norm_bias=True,
    attention_bias=True,
    mlp_bias=True,
    local_attention=7,
    global_attn_every_n_layers=2,
)
case("modernbert-bf16", "modernbert", MODERN, dtype="bf16", hidden_size=96, num_attention_heads=6)

ROPE = dict(BERT, hidden_act=..., rope_parameters=dict(rope_type="default", rope_theta=500.0))
del ROPE["hidden_act"]
case("nomic_bert-plain", "nomic_bert", ROPE, inputs=(1, 2, 70), max_position_embeddings=128)
case("nomic_bert-bf16", "nomic_bert", ROPE, dtype="bf16", hidden_size=96, num_attention_heads=6)
case(
    "nomic_bert-theta",
    "nomic_bert",
    ROPE,
    rope_parameters=...,
    hidden_size=60,
    num_attention_heads=5,
)
case("gte-plain", "gte", ROPE, inputs=(1, 2, 70), max_position_embeddings=128)
case("gte-no-types", "gte", ROPE, type_vocab_size=0, rope_parameters=...)
case("gte-bf16", "gte", ROPE, dtype="bf16", hidden_size=96, num_attention_heads=6)
case("jina_v3-plain", "jina_embeddings_v3", ROPE, inputs=(1, 2, 60))
case("jina_v3-theta", "jina_embeddings_v3", ROPE, rope_parameters=..., type_vocab_size=1)
case(
    "jina_v3-bf16", "jina_embeddings_v3", ROPE, dtype="bf16", hidden_size=96, num_attention_heads=6
)

EURO = dict(
    vocab_size=131,
    hidden_size=72,
    intermediate_size=100,
    num_hidden_layers=3,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=128,
    rms_norm_eps=1e-3,
    rope_parameters=dict(rope_type="default", rope_theta=500.0),
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    torch_dtype="float32",
)
case("eurobert-plain", "eurobert", EURO, inputs=(1, 2, 70))
case("eurobert-biases", "eurobert", EURO, attention_bias=True, mlp_bias=True, rope_parameters=...)
case("eurobert-bf16", "eurobert", EURO, dtype="bf16", hidden_size=96, num_attention_heads=6)

GEMMA = dict(
    EURO,
    head_dim=12,
    hidden_activation="gelu_pytorch_tanh",
    num_hidden_layers=4,
    sliding_window=16,
    sliding_window_pattern=3,
    query_pre_attn_scalar=10,
    use_bidirectional_attention=True,
    rope_parameters=...,
)
del GEMMA["rope_parameters"]
case("gemma3-embedding", "gemma3_text", GEMMA, plus_one=True, inputs=(1, 9, 70))
case(
    "gemma3-embedding-odd-bf16", "gemma3_text", GEMMA, plus_one=True, dtype="bf16", sliding_window=7
)


# classifiers that read the first row of a prompt
KIND = "SequenceClassification"
case(
    "bert-labels",
    "bert",
    BERT,
    kind=KIND,
    num_labels=3,
    architectures=["BertForSequenceClassification"],
)
case(
    "bert-pairs",
    "bert",
    BERT,
    kind=KIND,
    num_labels=1,
    inputs=(9, 37, 64),
    architectures=["BertForSequenceClassification"],
)
case("roberta-labels", "xlm-roberta", ROBERTA, kind=KIND, num_labels=1)
case("distilbert-labels", "distilbert", DISTIL, kind=KIND, num_labels=2)
case(
    "modernbert-labels",
    "modernbert",
    MODERN,
    kind=KIND,
    num_labels=4,
    classifier_pooling="cls",
    architectures=["ModernBertForSequenceClassification"],
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
    # prompts must not contain the padding token, because it shifts the positions of RoBERTa
    pad = c["config"]["pad_token_id"]
    inputs = [
        [t + 3 if t == pad else t for t in W.prompt(seed + n, n, c["config"]["vocab_size"])]
        for n in c["inputs"]
    ]

    @torch.no_grad()
    def run(m, pairs=False):
        """Run the model. pairs: the last two thirds of a prompt have token type 1."""
        out = []
        for ids in inputs:
            types = [int(i >= len(ids) // 3) for i in range(len(ids))]
            more = {"token_type_ids": torch.tensor([types])} if pairs else {}
            y = m(torch.tensor([ids]), **more)
            out.append((y.logits if c["kind"] else y.last_hidden_state[0]).double().numpy())
        return np.concatenate(out)

    rows = run(model.float())
    typed = name == "bert-pairs" and run(model.float(), pairs=True).tolist()
    wobble = float(np.abs(run(model.double()) - rows).max() / (rows.max() - rows.min()))
    d = os.path.join(W.ENCODERS, name)
    body = dict(
        family=name.split("-")[0],
        seed=seed,
        dtype=c["dtype"],
        plus_one=c["plus_one"],
        set=c["set"],
        inputs=inputs,
        wobble=wobble,
    )
    if typed:
        body["typed"] = typed
    W.write_case(d, c["config"], body, shapes)
    np.save(os.path.join(d, "rows.npy"), rows.astype(np.float32))
    print(f"{name:34} range {rows.max() - rows.min():6.2f} wobble {wobble:.1e}", flush=True)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or CASES:
        make(wanted, CASES[wanted])
