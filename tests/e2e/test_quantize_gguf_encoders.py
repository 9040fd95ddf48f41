"""llmc quantize FOLDER OUT.gguf of encoders: rows of the file against those that transformers computes for the folder (tests/golden/encoders), keys and names
against files of llama.cpp's converter (tests/golden/gguf-encoders), and ids of the written tokenizer against `tokenizers`."""

import base64
import json
import os
import re

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import Tokenizer

import llmc as binding
import test_gguf_encoders
from golden_run import weights
from test_gguf_encoders import FOLDER, PAIRS, TEXTS, cosines

REFUSED = {  # no key of GGUF describes them
    "bert-relu": "ffn.act",
    "distilbert-relu": "ffn.act",
    "distilbert-labels": "another model",
    "modernbert-biases": "bias",
    "gemma3-embedding": "attention.scale",
    "gemma3-embedding-odd-bf16": "attention.scale",
    "gte-plain": "no GGUF architecture",
    "gte-no-types": "no GGUF architecture",
    "gte-bf16": "no GGUF architecture",
}


def rows(path, inputs):
    with binding.Model(str(path), device="ref", set=["kv.dtype=f32"]) as m:
        return m.info, test_gguf_encoders.rows(m, inputs)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", weights.cases(weights.ENCODERS))
def test_families(llmc, tmp_path, name):
    case, out = weights.Encoder(name), tmp_path / "out.gguf"
    labels = name.endswith(("-labels", "-pairs"))
    build = case.build if labels else lambda d: case.build_served(d, "cls_token", True)
    folder = build(str(tmp_path / "model"))
    if name in REFUSED:
        llmc("quantize", folder, out, "--type", case.dtype, code=1)
        assert REFUSED[name] in llmc.err
        assert not out.exists()
        return
    llmc("quantize", folder, out, "--type", case.dtype, "-q")
    info, got = rows(out, case.inputs)
    assert got.shape == case.logits.shape
    assert np.abs(got - case.logits).max() <= 1e-5 * np.ptp(case.logits)
    assert info["pool"] == 3 and info["normalize"] == (not labels)


def test_windows_of_gemma(llmc, tmp_path):
    """Six layers, as GGUF has them, and the scale that the format implies."""
    case = weights.Encoder("gemma3-embedding")
    case.config |= dict(
        num_hidden_layers=6, query_pre_attn_scalar=12, sliding_window_pattern=6, layer_types=None
    )
    for n, s in list(case.tensors.items()):
        if (m := re.match(r"layers\.[01](\..*)", n)) and n.startswith("layers."):
            case.tensors[f"layers.{int(n[7]) + 4}{m[1]}"] = s
    folder = case.build_served(str(tmp_path / "model"), "mean_tokens", True)
    llmc("quantize", folder, tmp_path / "out.gguf", "--type", "f32", "-q")
    want, got = rows(folder, case.inputs)[1], rows(tmp_path / "out.gguf", case.inputs)[1]
    assert np.abs(got - want).max() <= 1e-5 * np.ptp(want)


@pytest.mark.parametrize("name", ["bert-plain", "modernbert-plain", "nomic_bert-plain"])
def test_blocks_of_8_bits(llmc, tmp_path, name):
    """The widths of the case are not multiples of a block; these are."""
    case = weights.Encoder(name)
    wide = {72: 96, 100: 128, 144: 192, 200: 256, 216: 288}
    case.tensors = {n: [wide.get(d, d) for d in s] for n, s in case.tensors.items()}
    case.config |= dict(hidden_size=96, intermediate_size=128, num_attention_heads=6)
    folder = case.build(str(tmp_path / "model"))
    values = {}
    for kind in ("f32", "q8_0"):
        out = tmp_path / f"{kind}.gguf"
        llmc("quantize", folder, out, "--type", kind, "--method", "nearest", "-q")
        values[kind] = {t.name: t for t in GGUFReader(str(out)).tensors}
    assert values["q8_0"]["token_embd.weight"].tensor_type.name == "Q8_0"
    for key, t in values["q8_0"].items():
        want, got = values["f32"][key].data, dequantize(t.data, t.tensor_type)
        assert got.shape == want.shape
        step = np.abs(want).max(-1, keepdims=True) / 127 if t.tensor_type.name == "Q8_0" else 0
        assert (np.abs(got - want) <= 0.85 * step).all(), key  # half a step, from 16-bit weights
    want, got = (rows(tmp_path / f"{k}.gguf", case.inputs)[1] for k in values)
    assert np.median(cosines(got, want)) >= 0.995  # weights with loud columns, a few layers


def theirs(name):
    return GGUFReader(os.path.join(FOLDER, name + ".gguf"))


def value(reader, key):
    f = reader.fields.get(key)
    return f and f.contents()


def unigram(path, name="xlm_roberta"):
    """The tokenizer.json of a golden file."""
    r = theirs(name)
    tokens, scores = (value(r, f"tokenizer.ggml.{k}") for k in ("tokens", "scores"))
    charsmap = bytes(np.array(value(r, "tokenizer.ggml.precompiled_charsmap"), np.uint8))
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    space = dict(type="Metaspace", replacement="▁", prepend_scheme="always", split=True)
    ends = {t: dict(id=t, ids=[tokens.index(t)], tokens=[t]) for t in ("<s>", "</s>")}

    def token(t):
        return {"SpecialToken": dict(id=t, type_id=0)}

    def text(t):
        return {"Sequence": dict(id=t, type_id=0)}

    pair = [token("<s>"), text("A"), token("</s>"), token("</s>"), text("B"), token("</s>")]
    path.write_text(
        json.dumps(
            dict(
                version="1.0",
                added_tokens=[weights.special_token(tokens.index(t), t) for t in special],
                normalizer=dict(
                    type="Precompiled", precompiled_charsmap=base64.b64encode(charsmap).decode()
                ),
                pre_tokenizer=dict(
                    type="Sequence", pretokenizers=[dict(type="WhitespaceSplit"), space]
                ),
                post_processor=dict(
                    type="TemplateProcessing",
                    single=[token("<s>"), text("A"), token("</s>")],
                    pair=pair,
                    special_tokens=ends,
                ),
                decoder=space,
                model=dict(
                    type="Unigram",
                    unk_id=tokens.index("<unk>"),
                    byte_fallback=False,
                    vocab=[[t, float(s)] for t, s in zip(tokens, scores) if "[PAD" not in t],
                ),
            )
        )
    )


def test_unigram(llmc, tmp_path):
    case = weights.Encoder("roberta-plain")
    case.config["vocab_size"] = 300
    case.tensors["embeddings.word_embeddings.weight"][0] = 300
    folder = case.build(str(tmp_path / "model"))
    unigram(tmp_path / "model" / "tokenizer.json")
    llmc("quantize", folder, tmp_path / "out.gguf", "--type", "f32", "-q")
    want = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    with binding.Tokenizer(str(tmp_path / "out.gguf")) as got:
        for text in TEXTS:
            assert got.encode(text) == want.encode(text).ids, text
        for pair in PAIRS:
            both = got.encode(pair[0], special=4) + got.encode(pair[1], special=8)
            assert both == want.encode(*pair).ids
    ours, them = GGUFReader(str(tmp_path / "out.gguf")), theirs("xlm_roberta")
    keys = ("model", "scores", "token_type", "precompiled_charsmap", "add_space_prefix")
    keys += ("remove_extra_whitespaces", "add_sep_token", "add_bos_token", "add_eos_token")
    for key in keys + ("bos_token_id", "eos_token_id", "seperator_token_id"):
        assert value(ours, f"tokenizer.ggml.{key}") == value(them, f"tokenizer.ggml.{key}"), key


def test_wordpiece(llmc, tmp_path):
    """Tokens and keys are those of llama.cpp's converter."""
    them, case = theirs("bert"), weights.Encoder("bert-plain")
    tokens = value(them, "tokenizer.ggml.tokens")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    plain = [t if t in words else t[1:] if t[0] == "▁" else "##" + t for t in tokens]
    case.config["vocab_size"] = len(tokens)
    case.tensors["embeddings.word_embeddings.weight"][0] = len(tokens)
    folder = case.build_served(str(tmp_path / "model"))
    path = tmp_path / "model" / "tokenizer.json"
    made = json.loads(path.read_text())
    made["model"]["vocab"] = {t: i for i, t in enumerate(plain)}
    made["added_tokens"] = [weights.special_token(plain.index(t), t) for t in words]
    made["post_processor"] = dict(
        type="BertProcessing",
        sep=["[SEP]", plain.index("[SEP]")],
        cls=["[CLS]", plain.index("[CLS]")],
    )
    path.write_text(json.dumps(made))
    llmc("quantize", folder, tmp_path / "out.gguf", "--type", "f32", "-q")
    ours = GGUFReader(str(tmp_path / "out.gguf"))
    keys = ("model", "tokens", "token_type", "eos_token_id", "seperator_token_id")
    keys += ("bos_token_id", "unknown_token_id", "normalizer.lowercase", "token_type_count")
    for key in keys:
        assert value(ours, f"tokenizer.ggml.{key}") == value(them, f"tokenizer.ggml.{key}"), key
    names = {t.name for t in ours.tensors if "blk.2" not in t.name}
    assert names == {t.name for t in them.tensors}
    with binding.Tokenizer(str(tmp_path / "out.gguf")) as got:
        want = Tokenizer.from_file(str(path))
        assert [got.encode(t) for t in TEXTS] == [want.encode(t).ids for t in TEXTS]
