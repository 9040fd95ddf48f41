"""Ids of real vocabularies: SmolLM2's against the `tokenizers` library, and those in LLMC_TEST_DATA against stored ids.

LLMC_TEST_DATA holds tokenizers/*.gguf with inputs in .inp files and their ids in .out files.
"""

import os
import pathlib

import gguf
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import random_texts as texts
import text_lib as lib

DATA = os.environ.get("LLMC_TEST_DATA")
FILES = sorted(pathlib.Path(DATA, "tokenizers").glob("*.gguf")) if DATA else []
CONTROL = 3
PROSE = [
    "The quick brown fox jumps over the lazy dog. It didn't care; 3,141,592.65 times!",
    "def f(x):\n\treturn {'a': x ** 2}  # über\n\n\n",
    "  Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.  ",
    "我能吞下玻璃而不伤身体。 ガラスを食べられます。 나는 유리를 먹을 수 있어요.",
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "x=1;y=22;z=333;w=4444 1234567890",
    "🇩🇪👩‍👩‍👧🦙 e\u0301 \u200b\ufeff\u00a0\u3000",
]


def oracle(path):
    """Builds the tokens and merges of the file with the split rules of SmolLM2's tokenizer.json: single digits, then GPT-2 words."""
    fields = gguf.GGUFReader(path).fields
    tokens, merges = (
        fields["tokenizer.ggml.tokens"].contents(),
        fields["tokenizer.ggml.merges"].contents(),
    )
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    tok = Tokenizer(
        models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges])
    )
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tok.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False)
            for t, k in zip(tokens, kinds)
            if k == CONTROL
        ]
    )
    return tok


def test_smollm2s_vocabulary(smollm2):
    want = oracle(smollm2)
    assert want.get_vocab_size() > 40000
    with lib.Tokenizer(smollm2) as got:
        assert got.size() == want.get_vocab_size()
        for text in PROSE + list(texts.texts("smollm2", 200)):
            ids = want.encode(text, add_special_tokens=False).ids
            assert got.encode(text, lib.PARSE_SPECIAL) == ids, repr(text)
            for skip in (True, False):
                whole = want.decode(ids, skip_special_tokens=skip)
                assert got.decode(ids, skip) == whole, repr(text)
                assert "".join(got.stream(ids, skip)) == whole, repr(text)


@pytest.mark.skipif(
    not FILES, reason="LLMC_TEST_DATA does not name a folder with tokenizers/*.gguf"
)
@pytest.mark.parametrize("path", FILES, ids=[f.stem for f in FILES])
def test_expected_ids(path):
    cases = pathlib.Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    rows = pathlib.Path(f"{path}.out").read_text().splitlines()
    del cases[len(rows) :]  # the file ends with a separator
    assert len(cases) == len(rows)
    with lib.Tokenizer(path) as tok:
        for text, row in zip(cases, rows):
            want = [int(x) for x in row.split()]
            ids = tok.encode(text)
            assert ids == want, text
            assert "".join(tok.stream(ids)) == tok.decode(ids)
            assert tok.decode(ids).strip(" ") == text.strip(" ")
