"""GGUF vocabularies of the model "bert" (WordPiece), whose tokens mark the beginning of a word by U+2581, and the tokens around pairs. The oracle is the
`tokenizers` library."""

import pytest
from tokenizers import AddedToken

import random_texts as texts
import text_lib as lib
import vocab_gguf as gguf
from test_tokenizers import BERT, wordpiece


def marked(token, kind):
    return token if kind == 3 else token[2:] if token.startswith("##") else "▁" + token


def old(token, kind):
    """Convert a token as older converters did, which did not change tokens in brackets."""
    return token if token[0] + token[-1] == "[]" else marked(token, kind)


@pytest.fixture(
    scope="module",
    params=[
        (marked, {}, {}),
        (old, {}, {}),
        (marked, {"lowercase": False}, {"lowercase": False}),
        (marked, {"lowercase": False}, {"lowercase": False, "strip_accents": True}),
        (marked, {"lowercase": True}, {"strip_accents": False}),
    ],
    ids=["plain", "old", "cased", "stripped", "accents"],
)
def pair(request, tmp_path_factory):
    mark, keys, options = request.param
    keys = keys | (
        {"strip_accents": options["strip_accents"]} if "strip_accents" in options else {}
    )
    want = wordpiece(**options)
    want.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in BERT])
    tokens = [want.id_to_token(i) for i in range(want.get_vocab_size())]
    kinds = [3 if t in BERT else 1 for t in tokens]
    path = tmp_path_factory.mktemp("words") / "v.gguf"
    content = {
        "general.architecture": (gguf.STR, "bert"),
        "tokenizer.ggml.model": (gguf.STR, "bert"),
        "tokenizer.ggml.pre": (gguf.STR, "jina-v2-en"),
        "tokenizer.ggml.tokens": (gguf.ARR, gguf.STR, [mark(*t) for t in zip(tokens, kinds)]),
        "tokenizer.ggml.token_type": (gguf.ARR, gguf.I32, kinds),
    }
    ids = {"unknown": "[UNK]", "seperator": "[SEP]", "cls": "[CLS]", "padding": "[PAD]"}
    for name, token in ids.items():
        content[f"tokenizer.ggml.{name}_token_id"] = (gguf.U32, want.token_to_id(token))
    for name, value in keys.items():
        content[f"tokenizer.ggml.normalizer.{name}"] = (gguf.BOOL, value)
    gguf.write(path, content)
    with lib.Tokenizer(path) as got:
        yield want, got


def test_cuts_and_joins_as_tokenizers_does(pair):
    want, got = pair
    assert got.size() == want.get_vocab_size()
    for text in [*texts.CORPUS[:20], "a[MASK]b [unused7] ##ing ▁x", *texts.texts("words", 200)]:
        ids = want.encode(text).ids
        assert got.encode(text, lib.PARSE_SPECIAL | lib.ADD_SPECIAL) == ids, repr(text)
        for skip in (True, False):
            assert got.decode(ids, skip) == want.decode(ids, skip_special_tokens=skip), repr(text)


def test_pairs_of_words(pair):
    want, got = pair
    both = got.encode("Ab c", lib.ADD_FIRST) + got.encode("d, É", lib.ADD_SECOND)
    assert both == want.encode("Ab c", "d, É").ids


@pytest.mark.parametrize(
    "add,around",
    [
        ("bos eos", "bos A eos B eos"),
        ("bos eos sep", "bos A eos sep B eos"),
        ("eos", "A eos B eos"),
        ("sep", "A sep B"),
        ("bos", "bos A bos B"),
        ("", "A B"),
    ],
)
def test_tokens_around_pairs(add, around, tmp_path):
    """If the file has no template for pairs, each string is encoded alone."""
    names = ["A", "B", "bos", "eos", "sep"]
    path = tmp_path / "v.gguf"
    content = {
        "tokenizer.ggml.model": (gguf.STR, "gpt2"),
        "tokenizer.ggml.pre": (gguf.STR, "gpt-2"),
        "tokenizer.ggml.tokens": (gguf.ARR, gguf.STR, names),
        "tokenizer.ggml.token_type": (gguf.ARR, gguf.I32, [1, 1, 3, 3, 3]),
        "tokenizer.ggml.merges": (gguf.ARR, gguf.STR, []),
        "tokenizer.ggml.bos_token_id": (gguf.U32, 2),
        "tokenizer.ggml.eos_token_id": (gguf.U32, 3),
        "tokenizer.ggml.seperator_token_id": (gguf.U32, 4),
    }
    for name in ("bos", "eos", "sep"):
        content[f"tokenizer.ggml.add_{name}_token"] = (gguf.BOOL, name in add.split())
    gguf.write(path, content)
    with lib.Tokenizer(path) as got:
        ids = got.encode("A", lib.ADD_FIRST) + got.encode("B", lib.ADD_SECOND)
        assert [names[i] for i in ids] == around.split()
