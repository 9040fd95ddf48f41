"""Tokens of fill-in-the-middle: found by the keys of a GGUF file, which take precedence, and by
their names."""

import pytest

import llmc
import vocab_gguf as gguf

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "▁a"]
KEY = "tokenizer.ggml."


def vocabulary(path, marks, **keys):
    tokens = [*TOKENS, *marks]
    types = [2, 3, 3, *[1] * (len(TOKENS) - 3), *[3] * len(marks)]
    gguf.write(
        path,
        {
            "general.architecture": (gguf.STR, "llama"),
            KEY + "model": (gguf.STR, "llama"),
            KEY + "tokens": (gguf.ARR, gguf.STR, tokens),
            KEY + "scores": (gguf.ARR, gguf.F32, [0.0] * len(tokens)),
            KEY + "token_type": (gguf.ARR, gguf.I32, types),
            KEY + "bos_token_id": (gguf.U32, 1),
            KEY + "eos_token_id": (gguf.U32, 2),
            **{KEY + k + "_token_id": (gguf.U32, v) for k, v in keys.items()},
        },
    )
    with llmc.Tokenizer(path) as t:
        return t.fim()


def test_a_vocabulary_without_marks(tmp_path):
    assert vocabulary(tmp_path / "a.gguf", ["x", "<|fim_prefix|>", "<|fim_suffix|>"]) is None


@pytest.mark.parametrize(
    "names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")], ids=["new", "old"]
)
def test_keys_name_the_marks(tmp_path, names):
    marks = ["P", "S", "M", "R", "F", "X"]
    keys = dict(zip(names, (6, 7, 8)), fim_rep=9, fim_sep=10, fim_pad=11)
    got = vocabulary(tmp_path / "a.gguf", marks, **keys)
    assert got == {
        "prefix": 6,
        "suffix": 7,
        "middle": 8,
        "repo": 9,
        "file": 10,
        "suffix_first": False,
        "stop": [11, 6, 7, 8, 9, 10],
    }


def test_keys_win_over_names(tmp_path):
    marks = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "P", "S", "M"]
    got = vocabulary(tmp_path / "a.gguf", marks, fim_pre=9, fim_suf=10, fim_mid=11)
    assert (got["prefix"], got["suffix"], got["middle"]) == (9, 10, 11)
    got = vocabulary(tmp_path / "b.gguf", marks)
    assert (got["prefix"], got["suffix"], got["middle"]) == (6, 7, 8)
    # a key whose id is not in the vocabulary counts as absent
    got = vocabulary(tmp_path / "c.gguf", marks, fim_pre=99, fim_suf=10, fim_mid=11)
    assert (got["prefix"], got["suffix"], got["middle"]) == (6, 7, 8)


def test_the_order_is_that_of_the_names(tmp_path):
    """Keys of the file give the ids of the marks; the names of the marks determine the order of the
    parts."""
    got = vocabulary(tmp_path / "a.gguf", ["[SUFFIX]", "[PREFIX]"], fim_pre=7, fim_suf=6)
    assert got["suffix_first"] and got["middle"] == -1
    got = vocabulary(tmp_path / "b.gguf", ["[SUFFIX]", "[PREFIX]", "[MIDDLE]"])
    assert got["suffix_first"] and (got["prefix"], got["suffix"], got["middle"]) == (7, 6, -1)
    assert got["stop"] == [8, 7, 6]
