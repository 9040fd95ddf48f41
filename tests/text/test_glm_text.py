"""ChatGLM's tokenizers: sentencepiece, and the additions of ChatGLM's Python code. The oracle is
sentencepiece on the text that this code would pass on.

Also byte-level BPE in vocab.json and merges.txt, compared with the tokenizers library.
"""

import io
import json

import pytest
import sentencepiece
from tokenizers import ByteLevelBPETokenizer

import text_lib as lib

TEXT = [
    "hello world, how are you today?",
    "the quick brown fox jumps over the lazy dog",
    "def f(x): return x + 1",
    "\u95ee\u9898\u548c\u7b54\u6848 one two three",
] * 30
PIECES = ["<n>", "<|tab|>", *[f"<|blank_{i}|>" for i in range(2, 81)]]
ENDS = ["[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"]
TEXTS = [
    "hello",
    "a\nb",
    "x  y   z",
    "\tthe\n\n  dog\t",
    " " * 200 + "fox",
    "def f(x):\n        return x\n",
    "\u95ee: hello?",
    "",
    " ",
    "  ",
    "<n>",
]


def train(path, **how):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=out,
        vocab_size=700,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        byte_fallback=True,
        normalization_rule_name="identity",
        **how,
    )
    path.write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def pieces_for(text):
    text = text.replace("\n", "<n>").replace("\t", "<|tab|>")
    for n in range(80, 1, -1):
        text = text.replace(" " * n, f"<|blank_{n}|>")
    return text


@pytest.mark.parametrize(
    "kind,shift,as_control", [("unigram", 0, True), ("bpe", 0, False), ("unigram", 300, False)]
)
def test_chatglm_6b(kind, shift, as_control, tmp_path):
    users, control = (PIECES, ENDS) if as_control else (PIECES + ENDS, [])
    want = train(
        tmp_path / "ice_text.model",
        model_type=kind,
        user_defined_symbols=users,
        control_symbols=control,
        remove_extra_whitespaces=False,
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": "<sop>",
                "eos_token": "<eop>",
                "num_image_tokens": shift,
                "tokenizer_class": "ChatGLMTokenizer",
            }
        )
    )
    t = lib.Tokenizer(tmp_path)
    assert t.size() == want.get_piece_size() + shift
    for text in TEXTS:
        assert t.encode(text, lib.ADD_SPECIAL) == [
            i + shift for i in want.encode(pieces_for(text))
        ], repr(text)
        if text != "<n>" and not text.startswith(" "):
            assert t.decode(t.encode(text)) == text
    ids = t.encode("a[gMASK]<sop>", lib.PARSE_SPECIAL)
    assert ids[-2:] == [want.piece_to_id(x) + shift for x in ("[gMASK]", "<sop>")]
    one, more = (
        [{"role": "user", "content": "Hi"}],
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes"},
            {"role": "user", "content": "Why?"},
        ],
    )
    assert t.chat(one) == "Hi[gMASK]<sop>"
    assert (
        t.chat(more)
        == "[Round 0]\n\u95ee\uff1aHi\n\u7b54\uff1aYes\n[Round 1]\n\u95ee\uff1aWhy?\n\u7b54\uff1a[gMASK]<sop>"
    )


def test_chatglm2(tmp_path):
    want = train(tmp_path / "tokenizer.model", model_type="bpe")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ChatGLMTokenizer", "remove_space": False})
    )
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    t, n = lib.Tokenizer(tmp_path), want.get_piece_size()
    assert t.encode("the dog", lib.ADD_SPECIAL) == [n + 1, n + 3, *want.encode("the dog")]
    assert t.encode("<|user|>", lib.PARSE_SPECIAL)[-1] == n + 6
    assert t.chat(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes"},
            {"role": "user", "content": "Why?"},
        ]
    ) == (
        "[Round 1]\n\n\u95ee\uff1aHi\n\n\u7b54\uff1aYes\n\n[Round 2]\n\n\u95ee\uff1aWhy?\n\n\u7b54\uff1a"
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer"})
    )
    assert lib.Tokenizer(tmp_path).size() == n


def test_image_tokens_that_lie(tmp_path):
    train(tmp_path / "ice_text.model", model_type="unigram")
    (tmp_path / "tokenizer_config.json").write_text('{"num_image_tokens": 99999999}')
    with pytest.raises(lib.LlmcError) as e:
        lib.Tokenizer(tmp_path)
    assert "num_image_tokens" in e.value.text


def test_vocab_and_merges(tmp_path):
    want = ByteLevelBPETokenizer()
    want.train_from_iterator(TEXT, vocab_size=400, show_progress=False)
    want.save_model(str(tmp_path))
    n = want.get_vocab_size()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<eom>": n + 1, "<|Human|>": n}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<eom>", "tokenizer_class": "MossTokenizer"})
    )
    t = lib.Tokenizer(tmp_path)
    for text in TEXTS + TEXT[:4]:
        assert t.encode(text) == want.encode(text).ids, repr(text)
        assert t.decode(t.encode(text)) == text
    assert t.encode("x<eom>", lib.PARSE_SPECIAL)[-1] == n + 1
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(lib.LlmcError) as e:
        lib.Tokenizer(tmp_path)
    assert "merges.txt" in e.value.text
