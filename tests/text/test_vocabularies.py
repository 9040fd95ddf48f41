"""Ids of real vocabularies, where they are present: $LLMC_DATA/tokenizers/*.gguf with .inp texts and .out ids."""

import os
import pathlib

import pytest

import text_lib as lib

DATA = os.environ.get("LLMC_DATA")
FILES = sorted(pathlib.Path(DATA, "tokenizers").glob("*.gguf")) if DATA else []


@pytest.mark.skipif(not FILES, reason="LLMC_DATA does not name a folder with tokenizers/*.gguf")
@pytest.mark.parametrize("path", FILES, ids=[f.stem for f in FILES])
def test_expected_ids(path):
    texts = pathlib.Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    rows = pathlib.Path(f"{path}.out").read_text().splitlines()
    del texts[len(rows):]  # the file ends with a separator
    assert len(texts) == len(rows)
    with lib.Tokenizer(path) as tok:
        for text, row in zip(texts, rows):
            want = [int(x) for x in row.split()]
            ids = tok.encode(text)
            assert ids == want, text
            assert "".join(tok.stream(ids)) == tok.decode(ids)
            assert tok.decode(ids).strip(" ") == text.strip(" ")
