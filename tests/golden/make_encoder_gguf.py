#!/usr/bin/env python3
"""Write tests/golden/gguf-encoders/<case>.{gguf,npz}: tiny encoders written by llama.cpp's converter in bf16, the rows that transformers computes with the same
weights, and the ids that `tokenizers` makes of a few strings and pairs. No code of llmc is involved. Heads that the converter drops a part of are
reimplemented in torch.

    make bench-peer PEER_ARGS=--build-only      # fetches llama.cpp
    python tests/golden/make_encoder_gguf.py --llama-cpp DIR [case ...]
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile

import numpy as np
import torch

import make_encoders as E
import weights as W

OUT = os.path.join(W.HERE, "gguf-encoders")
SEED = 5
TINY = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=300
)
TEXTS = [
    "The quick brown fox",
    "l'état, c'est moi! 3.14 (naïve)",
    "東京 Tokyo\tx\n",
    "unaffable [MASK] #1",
]
PAIRS = [("what is a panda?", "The giant panda is a bear."), ("Ünïcode", "a b")]
GPT = dict(  # the published configuration of Nomic's models
    vocab_size=300,
    n_embd=32,
    n_head=4,
    n_inner=48,
    n_layer=2,
    n_positions=2048,
    max_trained_positions=2048,
    layer_norm_epsilon=1e-3,
    rotary_emb_base=500.0,
    rotary_emb_fraction=1.0,
    rotary_emb_interleaved=False,
    rotary_emb_scale_base=None,
    qkv_proj_bias=False,
    mlp_fc1_bias=False,
    mlp_fc2_bias=False,
    prenorm=False,
    causal=False,
    type_vocab_size=2,
    activation_function="swiglu",
    pad_token_id=0,
)
LORAS = ["retrieval.query", "separation"]
# case: class of the converter, tokenizer, base of make_encoders.py, differences, and optional keys:
# kind and pooling of the head, and tensor names of the published checkpoint
CASES = {
    "bert": ("BertModel", "words", E.BERT, {}, dict(pooling="cls")),
    "bert_cased": ("BertModel", "cased", E.BERT, dict(type_vocab_size=1), dict(pooling="mean")),
    "bert_labels": (
        "BertForSequenceClassification",
        "words",
        E.BERT,
        dict(id2label={"0": "a", "1": "b", "2": "c"}),
        dict(kind=E.KIND, pooler=False),
    ),
    "roberta": ("RobertaModel", "bytes", E.ROBERTA, dict(pad_token_id=1), dict(pooling="mean")),
    "xlm_roberta": ("XLMRobertaModel", "pieces", E.ROBERTA, {}, dict(pooling="cls")),
    "xlm_roberta_labels": (
        "XLMRobertaForSequenceClassification",
        "pieces",
        E.ROBERTA,
        dict(id2label={"0": "LABEL_0"}),
        dict(kind=E.KIND),
    ),
    "distilbert": (
        "DistilBertModel",
        "words",
        E.DISTIL,
        dict(dim=32, hidden_dim=48, n_layers=2, n_heads=4),
        {},
    ),
    "nomic_bert": (
        "NomicBertModel",
        "words",
        E.ROPE,
        GPT,
        dict(
            pooling="mean",
            names=[
                ("embeddings.LayerNorm", "emb_ln"),
                ("layers.", "encoder.layers."),
                ("self_attn.o_proj", "attn.out_proj"),
                ("up_proj", "fc11"),
                ("gate_proj", "fc12"),
                ("down_proj", "fc2"),
                ("post_attention_layernorm", "norm1"),
                ("post_mlp_layernorm", "norm2"),
            ],
            stacks={"attn.Wqkv": [f"self_attn.{p}_proj" for p in "qkv"]},
        ),
    ),
    "modernbert": (
        "ModernBertModel",
        "bytes",
        E.MODERN,
        dict(num_hidden_layers=4),
        dict(pooling="mean"),
    ),
    "modernbert_labels": (
        "ModernBertForSequenceClassification",
        "bytes",
        E.MODERN,
        dict(
            num_hidden_layers=3, id2label={"0": "x", "1": "y", "2": "z"}, classifier_pooling="cls"
        ),
        dict(kind=E.KIND),
    ),
    "jina_v3": (
        "XLMRobertaModel",
        "pieces",
        E.ROPE,
        dict(
            model_type="xlm-roberta",
            type_vocab_size=1,
            pad_token_id=1,
            rotary_emb_base=500.0,
            position_embedding_type="rotary",
            lora_adaptations=LORAS,
            task_instructions={LORAS[0]: "Represent the query: ", LORAS[1]: ""},
            lora_rank=4,
            lora_alpha=1,
        ),
        dict(
            pooling="mean",
            names=[
                ("", "roberta."),
                ("embeddings.LayerNorm", "emb_ln"),
                ("layers.", "encoder.layers."),
                ("self_attn.o_proj", "mixer.out_proj"),
                ("post_attention_layernorm", "norm1"),
                ("post_mlp_layernorm", "norm2"),
            ],
            stacks={"mixer.Wqkv": [f"self_attn.{p}_proj" for p in "qkv"]},
        ),
    ),
    "gemma_embedding": (
        "Gemma3TextModel",
        "gpt",
        E.GEMMA,
        dict(
            num_hidden_layers=6,
            sliding_window_pattern=...,
            _sliding_window_pattern=6,
            query_pre_attn_scalar=12,
            num_key_value_heads=1,
        ),
        dict(pooling="mean", plus_one=True, dense=(40, 24)),
    ),
    "eurobert": ("EuroBertModel", "gpt", E.EURO, dict(num_key_value_heads=2), dict(pooling="mean")),
}


# ---- tokenizers ----


def corpus():
    text = pathlib.Path(W.HERE, "..", "..", "configs", "texts", "calibration.txt").read_text()[
        :20000
    ]
    return text.split("\n") + TEXTS + [s for p in PAIRS for s in p]


def charsmap():
    """Return sentencepiece's normalisation rules for a few characters."""
    import io

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as model

    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for old, new in (("\t", " "), ("\n", " "), ("ï", "i"), ("Ü", "U"), ("１", "1")):
            rules.write(
                " ".join(f"{ord(c):X}" for c in old)
                + "\t"
                + " ".join(f"{ord(c):X}" for c in new)
                + "\n"
            )
        rules.flush()
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c"] * 9),
            model_writer=out,
            vocab_size=8,
            normalization_rule_tsv=rules.name,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    proto = model.ModelProto()
    proto.ParseFromString(out.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def write_tokenizer(folder, kind, vocab):
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    words = kind in ("words", "cased")
    names = (
        dict(
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
        )
        if words
        else dict(
            bos_token="<s>",
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
            mask_token="<mask>",
        )
    )
    special = list(names.values())
    if words:
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer = normalizers.BertNormalizer(lowercase=kind == "words")
        tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tok.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab, special_tokens=special, limit_alphabet=120, show_progress=False
        )
    elif kind == "pieces":
        tok = Tokenizer(models.Unigram())
        tok.normalizer = normalizers.Precompiled(charsmap())
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        tok.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab - 10, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    tok.train_from_iterator(corpus(), trainer)
    assert tok.get_vocab_size() <= vocab, tok.get_vocab_size()
    begin, end = ("[CLS]", "[SEP]") if words else ("<s>", "</s>")
    if kind == "bytes":
        tok.post_processor = processors.RobertaProcessing(
            (end, tok.token_to_id(end)), (begin, tok.token_to_id(begin)), add_prefix_space=False
        )
    elif kind != "gpt":
        tok.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} $B:1 {end}:1" if words else f"{begin} $A {end} {end} $B {end}",
            special_tokens=[(s, tok.token_to_id(s)) for s in (begin, end)],
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, **names)
    fast.save_pretrained(folder)
    if kind in ("words", "cased", "pieces"):
        path = os.path.join(folder, "tokenizer_config.json")
        with open(path) as f:
            config = json.load(f)
        with open(path, "w") as f:
            more = dict(do_lower_case=kind == "words") if words else dict(add_prefix_space=True)
            name = "BertTokenizer" if words else "PreTrainedTokenizerFast"
            json.dump(
                config | more | dict(tokenizer_class=name, clean_up_tokenization_spaces=True), f
            )
    return tok


# ---- cases ----


def converter(folder):
    sys.path[:0] = [folder, os.path.join(folder, "gguf-py")]
    import conversion
    from conversion import base

    def load_hparams(path, is_mistral_format):
        with open(os.path.join(path, "config.json")) as f:  # transformers 5 would rename rope keys
            return json.load(f)

    base.ModelBase.load_hparams = staticmethod(load_hparams)
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    return conversion.get_model_class


def rounded(shapes, plus_one):
    return {n: W.rounded(W.tensor(SEED, n, s, plus_one), "bf16") for n, s in shapes.items()}


def theirs(config, more):
    """Return weights by transformers' names, and a function from ids to rows."""
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    auto = AutoModelForSequenceClassification if more.get("kind") else AutoModel
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(config, f)
        model = auto.from_config(AutoConfig.from_pretrained(d), attn_implementation="eager").eval()
    values = rounded(E.tensors(model), more.get("plus_one", False))
    model.load_state_dict({n: torch.from_numpy(v) for n, v in values.items()}, strict=False)

    def run(ids, dtype):
        y = model.to(dtype)(torch.tensor([ids]), output_hidden_states=True)
        if not more.get("kind"):
            return y.last_hidden_state[0]
        if more.get("pooler", True):
            return y.logits
        # the converter drops BERT's pooler, so the classifier reads the first row directly
        return model.classifier(y.hidden_states[-1][:, 0])

    return values, run


def published(values, more):
    """Rename and stack the matrices like those of the published checkpoint."""
    for whole, parts in more.get("stacks", {}).items():
        for first in [n for n in values if f".{parts[0]}." in n]:
            values[first.replace(parts[0], whole)] = np.concatenate(
                [values.pop(first.replace(parts[0], p)) for p in parts]
            )
    for old, new in more.get("names", ()):
        values = {n.replace(old, new, 1): v for n, v in values.items()}
    return values


def write_modules(folder, more):
    modules = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer")]
    if "pooling" in more:
        modules.append(
            dict(idx=1, name="1", path="1_Pooling", type="sentence_transformers.models.Pooling")
        )
        os.makedirs(os.path.join(folder, "1_Pooling"))
        word = {"mean": "mean_tokens", "cls": "cls_token"}[more["pooling"]]
        with open(os.path.join(folder, "1_Pooling", "config.json"), "w") as f:
            json.dump({f"pooling_mode_{word}": True}, f)
    dense, width = {}, TINY["hidden_size"]
    for i, out in enumerate(more.get("dense", ())):
        at = f"{i + 2}_Dense"
        modules.append(
            dict(idx=i + 2, name=str(i + 2), path=at, type="sentence_transformers.models.Dense")
        )
        os.makedirs(os.path.join(folder, at))
        with open(os.path.join(folder, at, "config.json"), "w") as f:
            json.dump(
                dict(
                    in_features=width,
                    out_features=out,
                    bias=False,
                    activation_function="torch.nn.modules.linear.Identity",
                ),
                f,
            )
        dense[at] = W.rounded(W.tensor(SEED, at, [out, width]), "bf16")
        W.write_safetensors(
            os.path.join(folder, at, "model.safetensors"), {"linear.weight": dense[at]}, "bf16"
        )
        width = out
    with open(os.path.join(folder, "modules.json"), "w") as f:
        json.dump(modules, f)
    return list(dense.values())


def make(name, conv):
    import gguf

    cls_name, tokenizer, base, changes, more = CASES[name]
    keys = dict(model_type=name.removesuffix("_labels").removesuffix("_cased"))
    keys["model_type"] = {
        "xlm_roberta": "xlm-roberta",
        "jina_v3": "jina_embeddings_v3",
        "gemma_embedding": "gemma3_text",
    }.get(keys["model_type"], keys["model_type"])
    own = TINY if "dim" not in base else dict(vocab_size=300)
    config = {k: v for k, v in (keys | base | own | changes).items() if v is not ...} | dict(
        architectures=[cls_name]
    )
    asked = dict(config, model_type=keys["model_type"])
    if name in ("nomic_bert", "jina_v3"):  # also compare with transformers' own form of this model
        asked |= dict(rope_parameters=dict(rope_type="default", rope_theta=500.0))
        asked = {k: v for k, v in asked.items() if k not in GPT or k in E.BERT} | dict(
            layer_norm_eps=1e-3
        )
        asked["position_embedding_type"] = "rotary" if name == "jina_v3" else "rope"
    with torch.no_grad():
        values, run = theirs(asked, more)
        lengths = (1, 2, 37)
        pad = config.get("pad_token_id", 0)
        inputs = [[t + 3 if t == pad else t for t in W.prompt(SEED + n, n, 290)] for n in lengths]
        rows = torch.cat([run(ids, torch.float64) for ids in inputs]).double().numpy()
        single = torch.cat([run(ids, torch.float32) for ids in inputs]).double().numpy()
    wobble = np.abs(rows - single).max() / np.ptp(rows)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        tok = write_tokenizer(folder, tokenizer, 300)
        dense = write_modules(folder, more)
        stored = published(dict(values), more)
        if "lora_adaptations" in config:
            stored = {
                f"{n[:-7]}.parametrizations.weight.original" if "Wqkv.weight" in n else n: v
                for n, v in stored.items()
            }
        W.write_safetensors(os.path.join(folder, "model.safetensors"), stored, "bf16")
        path = os.path.join(OUT, name + ".gguf")
        cls = conv(cls_name)
        if tokenizer == "gpt":
            cls.set_vocab = lambda self: self._set_vocab_gpt2()
        options = dict(sentence_transformers_dense_modules=True) if dense else {}
        with contextlib.redirect_stdout(sys.stderr):
            cls(
                pathlib.Path(folder), gguf.LlamaFileType.MOSTLY_BF16, pathlib.Path(path), **options
            ).write()
    for extra in pathlib.Path(OUT).glob(f"lora-*-{name}.gguf"):
        extra.unlink()
    tok.no_padding()
    texts = TEXTS if tokenizer != "gpt" else TEXTS[:3]
    arrays = {f"input{i}": np.array(ids) for i, ids in enumerate(inputs)}
    arrays |= {f"text{i}": np.array(tok.encode(t).ids) for i, t in enumerate(texts)}
    arrays |= {
        f"pair{i}": np.array(tok.encode(*p).ids) for i, p in enumerate(PAIRS) if tokenizer != "gpt"
    }
    for d in dense:
        rows = rows @ d.astype(np.float64).T
    np.savez_compressed(os.path.join(OUT, name + ".npz"), rows=rows.astype(np.float32), **arrays)
    print(
        f"{name:20} {os.path.getsize(path) // 1024} KiB range {np.ptp(rows):.2f} wobble {wobble:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--llama-cpp", help="folder with convert_hf_to_gguf.py", required=True)
    ap.add_argument("case", nargs="*")
    a = ap.parse_args()
    os.makedirs(OUT, exist_ok=True)
    module = converter(a.llama_cpp)
    failed = False
    for wanted in a.case or CASES:
        try:
            make(wanted, module)
        except (Exception, SystemExit) as e:
            failed = True
            import traceback

            traceback.print_exc()
            print(f"{wanted:20} FAILED: {type(e).__name__}: {str(e)[:300]}", flush=True)
    sys.exit(failed)
