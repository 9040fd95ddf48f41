"""GGUF vocabularies of the model "gemma4", and of the model "gpt2" where tokenizer.ggml.pre selects
gemma4's rules.

BPE by merges over characters, with spaces as U+2581 and bytes as <0xXX>. The oracle is the `tokenizers` library with the normalizer, model and decoder of
Gemma 4's tokenizer.json.
"""

import json

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

import random_texts as texts
import text_lib as lib
import vocab_gguf as gguf

BYTES = [f"<0x{b:02X}>" for b in range(256)]
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>"]
PROSE = [
    "  Zwölf Boxkämpfer jagen Viktor.\n\n\tx = [1,  2]",
    "我能吞下玻璃。 나는 유리를",
    "🇩🇪👩‍👩‍👧🦙 e\u0301 \u200b\ufeff\u00a0\u3000",
    "a <bos>b<turn|>\n<|turn>user\nhi",
    "▁a ▁▁ b",
    "",
]


def library(known=BYTES):
    """Merges trained on words with marked spaces; characters outside the vocabulary fall back to bytes."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator(
        [t.replace("🦙", "") for t in texts.CORPUS],
        trainers.BpeTrainer(vocab_size=1500, limit_alphabet=400, show_progress=False),
    )
    model = json.loads(learner.to_str())["model"]
    pieces = [t for t, _ in sorted(model["vocab"].items(), key=lambda x: x[1])]
    vocab = {t: i for i, t in enumerate(dict.fromkeys([*CONTROL, *known, *pieces]))}
    tok = Tokenizer(
        models.BPE(
            vocab,
            [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tok.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in (*CONTROL, "<|turn>", "<turn|>")]
    )
    return tok


@pytest.fixture(
    scope="module",
    params=[(BYTES, "gemma4"), (BYTES[:0xC0] + BYTES[0xE5:], "gemma4"), (BYTES, "gpt2")],
    ids=["bytes", "some bytes", "by name"],
)
def pair(request, tmp_path_factory):
    """If the vocabulary has only some byte tokens, each run of other characters becomes one unknown
    token."""
    known, model = request.param
    want = library(known)
    merges = [
        m if isinstance(m, str) else " ".join(m)
        for m in json.loads(want.to_str())["model"]["merges"]
    ]
    assert len(merges) > 300
    tokens = [want.id_to_token(i) for i in range(want.get_vocab_size())]
    kinds = [
        3
        if t in CONTROL[:3] or t in ("<|turn>", "<turn|>")
        else 2
        if t == "<unk>"
        else 6
        if t in BYTES
        else 1
        for t in tokens
    ]
    path = tmp_path_factory.mktemp("characters") / "v.gguf"
    gguf.write(
        path,
        {
            "general.architecture": (gguf.STR, "gemma4"),
            "tokenizer.ggml.model": (gguf.STR, model),
            "tokenizer.ggml.pre": (gguf.STR, "gemma4" if model == "gemma4" else "sarvam-moe"),
            "tokenizer.ggml.tokens": (gguf.ARR, gguf.STR, tokens),
            "tokenizer.ggml.token_type": (gguf.ARR, gguf.I32, kinds),
            "tokenizer.ggml.merges": (gguf.ARR, gguf.STR, merges),
            "tokenizer.ggml.unknown_token_id": (gguf.U32, 3),
            "tokenizer.ggml.bos_token_id": (gguf.U32, 2),
        },
    )
    with lib.Tokenizer(path) as got:
        yield want, got, model


def test_cuts_and_joins_as_tokenizers_does(pair):
    want, got, _ = pair
    assert got.size() == want.get_vocab_size()
    for text in PROSE + list(texts.texts("characters", 300)):
        ids = want.encode(text, add_special_tokens=False).ids
        assert got.encode(text, lib.PARSE_SPECIAL) == ids, repr(text)
        for skip in (True, False):
            whole = want.decode(ids, skip_special_tokens=skip)
            assert got.decode(ids, skip) == whole, repr(text)
            assert "".join(got.stream(ids, skip)) == whole, repr(text)


def test_begins_with_its_token(pair):
    """The model gemma4 adds a begin token although the file does not request one."""
    want, got, model = pair
    assert (got.encode("hi", lib.ADD_SPECIAL)[0] == 2) == (model == "gemma4") and want.id_to_token(
        2
    ) == "<bos>"
