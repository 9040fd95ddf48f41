"""Vocabulary and dialogue settings of FastLLM files, against tokens and prompts of FastLLM itself.

The expected values are in tests/golden/flm/text.json, made by tests/golden/make_flm.py.
"""

import json
import pathlib
import sys

import pytest

import text_lib as L

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))
import flm_file as F  # noqa: E402

WANT = json.loads((GOLDEN / "flm" / "text.json").read_text())
PIECES = [
    (b"<unk>", 0, 0),
    (b"<s>", 1, 0),
    (b"</s>", 2, 0),
    *[(b"<0x%02X>" % i, 3 + i, 0) for i in range(256)],
]
PIECES += [(c.encode(), 259 + i, -20 - i) for i, c in enumerate("\u2581abcé")] + [
    (b"ab", 264, -1),
    ("\u2581ab".encode(), 265, -2),
    (b"bc", 266, -1),
]
ENDS = {"bos_token_id": 1, "eos_token_id": "[2, 264]", "unk_token_id": 0}


@pytest.fixture
def made(tmp_path):
    def make(keys=None, **how):
        F.write(str(tmp_path / "m.flm"), [], ENDS | (keys or {}), how.pop("pieces", PIECES), **how)
        return L.Tokenizer(tmp_path / "m.flm")

    return make


@pytest.mark.parametrize("text", [t for t in WANT["texts"] if "<" not in t])
def test_tokens_are_fastllm_s(text):
    t = L.Tokenizer(GOLDEN / "flm" / "int8.flm")
    assert t.encode(text, 0) == WANT["texts"][text]
    if "  " not in text:
        assert t.decode(WANT["texts"][text]) == text


def test_the_prompt_is_fastllm_s():
    t = L.Tokenizer(GOLDEN / "flm" / "int8.flm")
    turns = [("user", "Hi"), ("assistant", "Yes"), ("user", "Why?")]
    got = t.chat([{"role": r, "content": c} for r, c in turns])
    assert got == WANT["prompt"]
    assert 1 in t.encode(got, L.PARSE_SPECIAL)  # <FLM_FIX_TOKEN_1>


def test_equal_scores_merge_from_the_left(made):
    assert made().encode("abc", 0) == [265, 262]
    assert made({"tokenizer_add_dummy_prefix": "False"}).encode("abc", 0) == [264, 262]
    assert made({"tokenizer_remove_extra_whitespaces": "False"}).encode("a  b", 0) == [
        259,
        260,
        259,
        259,
        261,
    ]
    assert made().encode("a  b", 0) == [259, 260, 259, 261]


def test_special_tokens_are_found_first_and_stop_the_prefix(made):
    t = made(special=["</s>", "absent"])
    assert t.encode("ab</s>b", L.PARSE_SPECIAL) == [264, 2, 261]


def test_bytes_as_characters(made):
    chars = [
        ("\u0120".encode(), 0, 0),
        (b"a", 1, 1),
        (b"b", 2, 1),
        ("\u0120a".encode(), 3, -1),
        ("\u00c3".encode(), 4, 1),
        ("\u00a9".encode(), 5, 1),
        ("\u00c3\u00a9".encode(), 6, 0),
    ]
    t = made(
        {
            "tokenizer_byte_as_char": "True",
            "bos_token_id": "None",
            "eos_token_id": "2",
            "unk_token_id": "None",
        },
        pieces=chars,
    )
    assert t.encode("a aé", 0) == [1, 3, 6] and t.decode([1, 3, 6]) == "a aé"


def test_version_0_has_a_vocabulary_without_scores(tmp_path):
    F.write(str(tmp_path / "m.flm"), [], pieces=PIECES, version=0)
    assert L.Tokenizer(tmp_path / "m.flm").encode("ab", 0) == [265]


@pytest.mark.parametrize(
    "how,says",
    [
        (dict(pieces=[]), "without a vocabulary"),
        (dict(pieces=[(b"a", -1, 0.0)]), "has the number -1"),
        (dict(pieces=[(b"a", 1 << 22, 0.0)]), "too far"),
        (dict(pieces=[(b"a", 1, float("nan"))]), "no finite number"),
        (dict(keys={"user_role": "<FLM_FIX_TOKEN_999999999>"}), "too far"),
    ],
)
def test_vocabularies_that_lie(made, how, says):
    with pytest.raises(L.LlmcError) as e:
        made(**how)
    assert says in e.value.text and "m.flm" in e.value.text
