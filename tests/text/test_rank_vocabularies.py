"""Llama 3's tokenizer.model (one token and its rank per line) against tiktoken's rule.

The neighbours whose concatenation has the lowest rank merge first; on a tie this is the leftmost
pair. A word that is in the vocabulary is one token. The tokenizers library splits words with the
regex of Meta's code.
"""

import base64
import json
import random

import pytest
import random_texts as texts
import text_lib as lib
from tokenizers import Regex, pre_tokenizers

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PROSE = [
    "The quick brown fox didn't jump over 1234567 lazy dogs; then it SANG, aaaaaaaaaaaa!\n\n\n  And aaaaa again.",
    "  Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\r\n \t",
    "我能吞下玻璃而不伤身体。 ガラスを食べられます。 나는 유리를 먹을 수 있어요.",
    "🇩🇪👩‍👩‍👧🦙 e\u0301 \u200b\ufeff\u00a0\u3000x",
    "",
]
SPECIAL = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    2: "<|reserved_special_token_0|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
    11: "<|reserved_special_token_3|>",
    255: "<|reserved_special_token_247|>",
}


def vocabulary(seed):
    """Builds bytes in some order, then substrings of prose, many of which no pair of tokens forms."""
    rnd = random.Random(seed)
    out = [bytes([b]) for b in range(256)]
    rnd.shuffle(out)
    seen = set(out)
    while len(out) < 900:
        text = rnd.choice(PROSE[:4]).encode()
        at = rnd.randrange(len(text))
        piece = text[at : at + rnd.choice([2, 2, 2, 3, 3, 4, 6, 9])]
        if piece not in seen:
            seen.add(piece)
            out.append(piece)
    return out


def write(folder, vocab, vocab_size=None):
    (folder / "tokenizer.model").write_bytes(
        b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(vocab))
    )
    if vocab_size != 0:
        (folder / "params.json").write_text(
            json.dumps({"dim": 64, "vocab_size": vocab_size or len(vocab) + 256})
        )
    return folder


def encode(vocab, text):
    rank, out = {t: i for i, t in enumerate(vocab)}, []
    cut = pre_tokenizers.Split(Regex(WORDS), "isolated")
    for word, _ in cut.pre_tokenize_str(text) if text else []:
        word = word.encode()
        parts = [word] if word in rank else [word[i : i + 1] for i in range(len(word))]
        while len(parts) > 1:
            best = min(
                range(len(parts) - 1), key=lambda i: rank.get(parts[i] + parts[i + 1], 1 << 30)
            )
            if parts[best] + parts[best + 1] not in rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        out += [rank[p] for p in parts]
    return out


@pytest.mark.parametrize("seed", range(3))
def test_ranks(tmp_path, seed):
    vocab = vocabulary(seed)
    with lib.Tokenizer(write(tmp_path, vocab)) as t:
        assert t.size() == len(vocab) + 256
        for text in PROSE + list(texts.texts("ranks", 60)):
            ids = encode(vocab, text)
            assert t.encode(text) == ids, text
            assert t.decode(ids) == text


def test_special_tokens_follow_the_ranks(tmp_path):
    vocab = vocabulary(9)
    n = len(vocab)
    with lib.Tokenizer(write(tmp_path, vocab)) as t:
        for at, name in SPECIAL.items():
            assert t.text(n + at) == name
            assert t.encode(name, lib.PARSE_SPECIAL) == [n + at]
            assert t.encode(name) == encode(vocab, name)
        assert t.encode("a<|eot_id|>b", lib.ADD_SPECIAL | lib.PARSE_SPECIAL) == [
            n,
            *encode(vocab, "a"),
            n + 9,
            *encode(vocab, "b"),
        ]
        assert t.decode([n, *encode(vocab, "so"), n + 9]) == "so"


def test_mistakes_are_sentences(tmp_path):
    vocab = vocabulary(1)
    line = [base64.b64encode(t).decode() + f" {i}\n" for i, t in enumerate(vocab)]

    def refused(text, match):
        write(tmp_path, vocab)
        (tmp_path / "tokenizer.model").write_text(text)
        with pytest.raises(lib.LlmcError, match=match):
            lib.Tokenizer(tmp_path)

    refused("".join(line[:-1]) + "QQ== x\n", "line 900 is not a token in base64 and its rank")
    refused("".join(line[:-1]), "899 ranks for a model of another number of tokens")
    refused("".join(line[:-1]) + line[-1].replace(" 899", " 905"), "900 lines have ranks up to 905")
    refused(
        "".join(line[:-1]) + line[5].split()[0] + " 899\n",
        "line 900: the token or its rank, 899, occurs twice",
    )
    for bad in "QQ==QQ==", "QQ=A", "====":
        refused("".join(line[:-1]) + bad + " 899\n", "line 900: the token is not base64")
    refused("".join(line[:-1]) + "AAAA" * 400 + " 899\n", "line 900: a token of 1200 bytes")
    gone = [base64.b64encode(b"zq").decode() + " 7\n" if i == 7 else x for i, x in enumerate(line)]
    refused("".join(gone), f"the byte 0x{vocab[7][0]:02x} has no rank")
    write(tmp_path, vocab, 128256)
    with pytest.raises(lib.LlmcError, match="900 ranks for a model of another number of tokens"):
        lib.Tokenizer(tmp_path)
    (tmp_path / "params.json").unlink()
    with pytest.raises(
        lib.LlmcError,
        match="900 ranks: configs/pretokenizers.yaml does not list the tokens after them",
    ):
        lib.Tokenizer(tmp_path)
