"""llmc quantize FOLDER OUT.gguf writes the model as llama.cpp's converter does. It is compared with
transformers' logits of the folder (tests/golden/models), and with names, shapes, types and keys
of files that this converter wrote (tests/golden/gguf-families)."""

import base64
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from gguf import GGUFReader

import golden_run
import weights

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))
import tiny_model  # noqa: E402
from waiting import HANG  # noqa: E402

THEIRS = os.path.join(golden_run.ROOT, "tests", "golden", "gguf-families")
# families whose plain case converts; other cases may convert, or are refused with one of SENTENCES
CONVERTS = {
    "arcee",
    "baichuan",
    "bloom",
    "chatglm2",
    "cohere",
    "cohere2",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "hunyuan_v1",
    "llama",
    "minimax_m2",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
}
SENTENCES = ("no GGUF architecture for", "cannot export", "no file is written", "does not fit")
# families whose plain case no GGUF key describes: layers without RoPE, a limit inside experts
OTHERS = {"gpt_oss-plain", "smollm3-plain"}


def family(name):
    return name.split("-")[0]


def logits(llmc, model, g, out):
    llmc(
        "run",
        model,
        "--device",
        "ref",
        "--tokens",
        ",".join(map(str, g.prompt)),
        "--logits",
        out,
        "--json",
        "--ignore-eos",
        "-n",
        str(len(g.greedy) or 1),
        "--set",
        "kv.dtype=f32",
        "--artifact",
        f"{out}.d",
    )
    return np.load(out), json.loads(llmc.out)["tokens"]


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", weights.cases())
def test_families(llmc, tmp_path, name):
    g = weights.Golden(name)
    folder, out = g.build(tmp_path / "model"), tmp_path / "out.gguf"
    p = subprocess.run(
        [golden_run.LLMC, "quantize", folder, str(out), "--type", g.dtype, "-q"],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    if not out.exists():
        assert (
            name in OTHERS or family(name) not in CONVERTS or not name.endswith(("-plain", "-smol"))
        ), p.stderr
        assert (
            any(w in p.stderr for w in SENTENCES)
            and p.returncode == 1
            and not list(tmp_path.glob("out*"))
        ), p.stderr
        return
    got, tokens = logits(llmc, out, g, str(tmp_path / "out.npy"))
    if (
        family(name).startswith("gemma") and g.dtype == "bf16"
    ):  # a folder rounds the scale of the embedding, a GGUF does not
        assert golden_run.error(g, got) < 2e-2
    else:
        golden_run.check(g, got, tokens)
    theirs = os.path.join(THEIRS, family(name) + ".gguf")
    if os.path.exists(theirs):
        same_form(out, theirs)


@pytest.mark.parametrize("name", ["gemma2-caps", "gemma3-pattern", "gemma3-layers-bf16"])
def test_gemma(llmc, tmp_path, name):
    """Attention scale by head size, as in all published sizes but 27B. The expected logits are
    llmc's for the folder, which other tests compare with transformers."""
    g = weights.Golden(name)
    g.config["query_pre_attn_scalar"] = g.config["head_dim"]
    if family(name) == "gemma3":  # five of six layers have a window; these models have fewer layers
        g.config = {k: v for k, v in g.config.items() if "pattern" not in k} | {
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"])[
                : g.config["num_hidden_layers"]
            ]
        }
    folder, out = g.build(tmp_path / "model"), tmp_path / "out.gguf"
    llmc("quantize", folder, out, "--type", g.dtype, "-q")
    want, _ = logits(llmc, folder, g, str(tmp_path / "want.npy"))
    got, _ = logits(llmc, out, g, str(tmp_path / "out.npy"))
    assert np.abs(got - want).max() <= (1e-5 if g.dtype == "f32" else 2e-2) * np.ptp(
        want
    )  # bf16: a folder rounds the scale of the embedding
    mine = {t.name: t.data for t in GGUFReader(out).tensors}
    norm = next(n for n in g.tensors if n.endswith("layers.1.input_layernorm.weight"))
    assert np.allclose(
        mine["blk.1.attn_norm.weight"],
        1 + weights.rounded(weights.tensor(g.seed, norm, g.tensors[norm], g.plus_one), g.dtype),
        rtol=1e-6,
    )


def keys_of(reader):
    arch = reader.fields["general.architecture"].contents()
    return {k: f for k, f in reader.fields.items() if k.startswith(arch + ".")}


def same_form(ours, theirs):
    """Check that each tensor has the name, rank and kind of type of the converter's file (sizes are
    of another model), and each key its type."""
    a, b = GGUFReader(ours), GGUFReader(theirs)
    assert (
        a.fields["general.architecture"].contents() == b.fields["general.architecture"].contents()
    )
    kind = lambda t: (len(t.shape), t.tensor_type.name == "F32")
    mine, first = (
        {t.name: kind(t) for t in a.tensors},
        lambda n: not n.startswith("blk.") or n.startswith("blk.0."),
    )
    for t in b.tensors:
        if (
            first(t.name)
            and t.name in mine
            and not all(t.tensor_type.name == "F32" for t in a.tensors)
        ):
            assert mine[t.name] == kind(t), t.name
    mine = keys_of(a)
    for k, f in keys_of(b).items():
        if k in mine:
            assert mine[k].types == f.types, k


TEXT = (
    "hello world, hello 12345  there\n\n it's <|im_start|>user\nfine<|im_end|> caf\u00e9 \U0001f600"
)


def ids(llmc, model):
    return llmc.json("tokenize", model, "--text", TEXT)["ids"]


def test_tokenizer_and_template(llmc, tmp_path):
    """Keys are named as by llama.cpp's converter; a string gets the same ids as in the folder."""
    folder, out = tiny_model.build(tmp_path / "model", padding=3), tmp_path / "out.gguf"
    llmc("quantize", folder, out, "--type", "f16", "-q")
    f = {k: v.contents() for k, v in GGUFReader(out).fields.items()}
    vocab = tiny_model.vocabulary()
    assert f["tokenizer.ggml.model"] == "gpt2" and f["tokenizer.ggml.pre"] == "gpt-2"
    assert f["tokenizer.ggml.tokens"] == vocab + [f"[PAD{len(vocab) + i}]" for i in range(3)]
    assert (
        f["tokenizer.ggml.token_type"]
        == [3] * len(tiny_model.SPECIAL) + [1] * (len(vocab) - len(tiny_model.SPECIAL)) + [5] * 3
    )
    assert (
        f["tokenizer.ggml.merges"] == tiny_model.MERGES
        and f["tokenizer.chat_template"] == tiny_model.TEMPLATE
    )
    assert (
        f["tokenizer.ggml.bos_token_id"],
        f["tokenizer.ggml.eos_token_id"],
        f["tokenizer.ggml.add_bos_token"],
    ) == (1, 2, False)
    assert f["general.file_type"] == 1 and f["general.name"] == "model"
    assert ids(llmc, out) == ids(llmc, folder)


PIECES = (
    ["<unk>", "<s>", "</s>"]
    + [f"<0x{i:02X}>" for i in range(256)]
    + [
        "\u2581",
        "h",
        "e",
        "l",
        "o",
        "w",
        "r",
        "d",
        "he",
        "ll",
        "\u2581he",
        "\u2581hell",
        "\u2581hello",
        "or",
        "ld",
        "\u2581w",
        "\u2581world",
        "\u2581wor",
        "<tool>",
    ]
)
JOINS = [
    "h e",
    "\u2581 he",
    "l l",
    "\u2581he ll",
    "\u2581hell o",
    "o r",
    "l d",
    "\u2581 w",
    "\u2581w or",
    "\u2581wor ld",
]


def test_merges_become_scores(llmc, tmp_path):
    """A tokenizer.json converted from a missing tokenizer.model: tokens, bytes, and scores in the
    order of merges."""
    folder, out = tiny_model.build(tmp_path / "model", padding=20), tmp_path / "out.gguf"
    t = tiny_model.tokenizer()
    t["added_tokens"] = [
        {**a, "id": i, "content": PIECES[i]} for i, a in enumerate(t["added_tokens"][:3])
    ] + [dict(t["added_tokens"][0], id=len(PIECES) - 1, content="<tool>", special=False)]
    t["pre_tokenizer"] = None
    t["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }
    t["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    t["model"].update(
        vocab={p: i for i, p in enumerate(PIECES)},
        merges=JOINS,
        byte_fallback=True,
        unk_token="<unk>",
        fuse_unk=True,
    )
    json.dump(t, open(f"{folder}/tokenizer.json", "w"))
    llmc("quantize", folder, out, "--type", "f32", "-q")
    f = {k: v.contents() for k, v in GGUFReader(out).fields.items()}
    assert f["tokenizer.ggml.model"] == "llama" and f["tokenizer.ggml.add_space_prefix"] is True
    kinds, score = (
        dict(zip(f["tokenizer.ggml.tokens"], f["tokenizer.ggml.token_type"])),
        dict(zip(f["tokenizer.ggml.tokens"], f["tokenizer.ggml.scores"])),
    )
    assert [kinds[k] for k in ("<unk>", "<s>", "<0x41>", "h", "<tool>")] == [2, 3, 6, 1, 4]
    made = ["".join(j.split()) for j in JOINS]
    assert all(score[a] > score[b] for a, b in zip(made, made[1:])) and score["h"] < score[made[-1]]
    assert ids(llmc, out) == ids(llmc, folder)


def letters():
    """Return GPT-2's character for each byte."""
    kept = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    return {b: chr(b) for b in kept} | {
        b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in kept)
    }


def test_merges_of_ranks(llmc, tmp_path):
    """tokenizer.model with bytes and ranks: merges are ordered as by transformers'
    TikTokenConverter, by rank of the result, then by ranks of the parts."""
    ranks = [bytes([b]) for b in range(256)] + [
        b"aa",
        b"ab",
        b"aaa",
        b"abab",
        b"aaaa",
        b"ba",
        b"aba",
        b"bab",
        b"aaaaa",
        b"he",
        b"el",
        b"hel",
    ]
    folder, out = (
        tiny_model.build(
            tmp_path / "model", padding=len(ranks) + 256 - len(tiny_model.vocabulary())
        ),
        tmp_path / "out.gguf",
    )
    os.unlink(f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer.model", "wb") as f:
        f.writelines(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(ranks))
    with open(f"{folder}/params.json", "w") as f:
        json.dump({"vocab_size": len(ranks) + 256}, f)
    llmc("quantize", folder, out, "--type", "f32", "-q")
    rank, letter = {t: i for i, t in enumerate(ranks)}, letters()
    want = [
        sorted(
            (rank[t[:i]], rank[t[i:]]) for i in range(1, len(t)) if t[:i] in rank and t[i:] in rank
        )
        for t in ranks
    ]
    text = lambda i: "".join(letter[b] for b in ranks[i])
    assert GGUFReader(out).fields["tokenizer.ggml.merges"].contents() == [
        f"{text(a)} {text(b)}" for of in want for a, b in of
    ]


def test_blocks_by_way_of_16_bits(llmc, tmp_path):
    """The blocks equal those made from the 16-bit GGUF, which is deleted. test_quantize.py has
    stopped runs."""
    folder = tiny_model.build(tmp_path / "model")
    for args in (
        ["--type", "q8_0", "--method", "nearest"],
        ["--type", "q5_0", "--window", "64", "--windows", "8"],
    ):
        out, whole, two = (
            tmp_path / f"{args[1]}.gguf",
            tmp_path / f"{args[1]}-16.gguf",
            tmp_path / f"{args[1]}-two.gguf",
        )
        llmc("quantize", folder, out, *args, "-q", "-t", "2")
        llmc("quantize", folder, whole, "--type", "f32", "-q")
        llmc("quantize", whole, two, *args, "-q", "-t", "2")
        a, b = GGUFReader(out), GGUFReader(two)
        assert [t.name for t in a.tensors] == [t.name for t in b.tensors]
        for x, y in zip(a.tensors, b.tensors):
            assert x.tensor_type == y.tensor_type and (x.data == y.data).all(), x.name
        for f in (out, whole, two):
            f.unlink()
    assert os.listdir(tmp_path) == ["model"]


def test_mistakes_are_sentences(llmc, tmp_path):
    folder, out = tiny_model.build(tmp_path / "model"), tmp_path / "out.gguf"
    llmc("quantize", folder, out, "--type", "int4", code=1)
    assert "is for folders" in llmc.err
    t = tiny_model.tokenizer()
    t["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": "[a-m]+"},
                "behavior": "Isolated",
                "invert": False,
            },
            dict(t["pre_tokenizer"], use_regex=False),
        ],
    }
    json.dump(t, open(f"{folder}/tokenizer.json", "w"))
    llmc("quantize", folder, out, "--type", "f16", code=1)
    assert "no name for" in llmc.err
    t["pre_tokenizer"] = tiny_model.tokenizer()["pre_tokenizer"]
    t["normalizer"] = {"type": "Lowercase"}
    json.dump(t, open(f"{folder}/tokenizer.json", "w"))
    llmc("quantize", folder, out, "--type", "f16", code=1)
    assert "normalizes text before splitting it" in llmc.err
    t["normalizer"] = None
    json.dump(t, open(f"{folder}/tokenizer.json", "w"))
    config = json.load(open(f"{folder}/config.json"))
    json.dump(
        dict(config, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        open(f"{folder}/config.json", "w"),
    )
    llmc("quantize", folder, out, "--type", "f16", code=1)
    assert "would be imported as another model" in llmc.err and "rope.scaling" in llmc.err
    assert os.listdir(tmp_path) == ["model"]
