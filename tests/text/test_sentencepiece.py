"""tokenizer.model, and the GGUFs made of it, against the sentencepiece library."""

import base64
import random

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

import vocab_gguf as gguf
import text_lib as lib
import spm_proto
import random_texts as texts

SPM = "tokenizer.ggml."
COMMON = dict(
    vocab_size=1600,
    character_coverage=0.98,
    minloglevel=2,
    hard_vocab_limit=False,
    num_threads=1,
    max_sentence_length=100000,
)
KINDS = {
    "bpe": dict(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    ),
    "bpe with user symbols": dict(
        model_type="bpe",
        byte_fallback=True,
        user_defined_symbols=["<|user|>", "▁▁", "ab", "1"],
        split_digits=True,
    ),
    "bpe without bytes": dict(model_type="bpe", normalization_rule_name="nmt_nfkc"),
    "bpe without prefix": dict(
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
    ),
    "unigram": dict(model_type="unigram"),
    "unigram with bytes": dict(
        model_type="unigram",
        byte_fallback=True,
        vocab_size=1700,
        normalization_rule_name="nmt_nfkc_cf",
    ),
    "unigram with user symbols": dict(
        model_type="unigram",
        user_defined_symbols=["<|user|>", "the", "he"],
        remove_extra_whitespaces=False,
    ),
    "unigram with suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True),
}
SENTENCES = [t.replace("\0", "") for t in texts.CORPUS if t.strip()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spm")
    (folder / "corpus.txt").write_text("\n".join(s.replace("\n", " ") for s in SENTENCES))
    done = {}

    def get(kind):
        if kind not in done:
            stem = folder / kind.replace(" ", "_")
            sentencepiece.SentencePieceTrainer.train(
                input=str(folder / "corpus.txt"),
                model_prefix=str(stem),
                **{**COMMON, **KINDS[kind]},
            )
            done[kind] = folder / (stem.name + ".model")
        return done[kind]

    return get


def random_ids(rng, n):
    return [
        rng.randrange(n) if rng.random() < 0.5 else rng.randrange(min(n, 300))
        for _ in range(rng.randrange(12))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_model_file(kind, trained):
    path = trained(kind)
    want = sentencepiece.SentencePieceProcessor(model_file=str(path))
    rng = random.Random(kind)
    with lib.Tokenizer(path) as got:
        assert got.size() == want.get_piece_size()
        for text in texts.texts(kind, 1000):
            ids = want.encode(text)
            assert got.encode(text) == ids, repr(text)
            whole = want.decode(ids)
            assert got.decode(ids) == whole, repr(text)
            assert "".join(got.stream(ids)) == whole, repr(text)
        if "suffix" in kind:
            return
        for _ in range(700):
            ids = random_ids(rng, want.get_piece_size())
            whole = want.decode(ids)
            assert got.decode(ids) == whole, ids
            assert "".join(got.stream(ids)) == whole, ids


def to_gguf(model, path, kind):
    proto = spm_proto.read(model)
    keys = {
        "general.architecture": (gguf.STR, "test"),
        SPM + "model": (gguf.STR, "t5" if proto.model_type == 1 else "llama"),
        SPM + "tokens": (gguf.ARR, gguf.STR, [p.piece for p in proto.pieces]),
        SPM + "scores": (gguf.ARR, gguf.F32, [p.score for p in proto.pieces]),
        SPM + "token_type": (gguf.ARR, gguf.I32, [p.type for p in proto.pieces]),
        SPM + "bos_token_id": (gguf.U32, 1),
        SPM + "eos_token_id": (gguf.U32, 2),
        SPM + "unknown_token_id": (gguf.U32, 0),
        SPM + "add_bos_token": (gguf.BOOL, True),
        SPM + "add_eos_token": (gguf.BOOL, kind.startswith("unigram")),
        SPM + "add_space_prefix": (gguf.BOOL, proto.add_dummy_prefix),
        SPM + "remove_extra_whitespaces": (gguf.BOOL, proto.remove_extra_whitespaces),
        "tokenizer.chat_template": (
            gguf.STR,
            "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
        ),
    }
    if proto.charsmap:
        keys[SPM + "precompiled_charsmap"] = (gguf.ARR, gguf.U8, list(proto.charsmap))
    gguf.write(path, keys)


@pytest.mark.parametrize("kind", ["bpe", "bpe without prefix", "unigram", "unigram with bytes"])
def test_gguf(kind, trained, tmp_path):
    want = sentencepiece.SentencePieceProcessor(model_file=str(trained(kind)))
    path = tmp_path / "vocab.gguf"
    to_gguf(trained(kind), path, kind)
    with lib.Tokenizer(path) as got:
        for text in texts.texts(kind, 500):
            ids = want.encode(text)
            assert got.encode(text) == ids, repr(text)
            assert got.encode(text, lib.ADD_SPECIAL) == [
                1,
                *ids,
                *([2] if kind.startswith("unigram") else []),
            ]
            assert got.decode(ids) == want.decode(ids), repr(text)
        assert (
            got.chat([{"role": "user", "content": "hi"}, {"role": "user", "content": "ho"}])
            == "<s>hi</s>ho</s>"
        )
        assert got.encode("<s>", lib.PARSE_SPECIAL) == [1]
        assert got.decode([1], skip_special=False) == "<s>"
        assert got.decode([1]) == ""


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf", "nfkc"])
def test_precompiled_normalizer(rule, tmp_path):
    """In a tokenizer.json the same character map applies per grapheme."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES[:300]).replace("\r", " "))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"),
        model_prefix=str(tmp_path / "m"),
        **{**COMMON, "vocab_size": 1600, "normalization_rule_name": rule},
    )
    proto = spm_proto.read(tmp_path / "m.model")
    want = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], 0))
    want.normalizer = normalizers.Precompiled(proto.charsmap)
    want.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    want.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    want.save(str(tmp_path / "tokenizer.json"))
    assert (
        base64.b64encode(proto.charsmap[:12]).decode() in (tmp_path / "tokenizer.json").read_text()
    )
    with lib.Tokenizer(tmp_path / "tokenizer.json") as got:
        for text in texts.texts(rule, 500):
            ids = want.encode(text).ids
            assert got.encode(text) == ids, repr(text)
            assert got.decode(ids) == want.decode(ids)


def test_bytelevel_gguf(tmp_path):
    """A GGUF with the vocabulary of a byte-level tokenizer.json, written like the converters do."""
    import json

    import test_tokenizers

    for pre, kind in [
        ("gpt-2", "gpt2"),
        ("smollm", "digits"),
        ("tekken", "cased"),
        ("llama-bpe", "llama3"),
    ]:
        want = test_tokenizers.KINDS[kind]()
        if kind == "llama3":
            want.normalizer = normalizers.Sequence([])
        state = json.loads(want.to_str())
        # a GGUF file has no fields for lstrip, rstrip, single_word and normalized
        state["added_tokens"] = [
            t
            for t in state["added_tokens"]
            if not (t["lstrip"] or t["rstrip"] or t["single_word"] or t["normalized"])
        ]
        want = Tokenizer.from_str(json.dumps(state))
        size = want.get_vocab_size()
        added = {t["id"]: t["special"] for t in json.loads(want.to_str())["added_tokens"]}
        gguf.write(
            tmp_path / "v.gguf",
            {
                SPM + "model": (gguf.STR, "gpt2"),
                SPM + "pre": (gguf.STR, pre),
                SPM + "tokens": (gguf.ARR, gguf.STR, [want.id_to_token(i) for i in range(size)]),
                SPM + "token_type": (
                    gguf.ARR,
                    gguf.I32,
                    [1 if i not in added else 3 if added[i] else 4 for i in range(size)],
                ),
                SPM + "merges": (
                    gguf.ARR,
                    gguf.STR,
                    [" ".join(m) for m in state["model"]["merges"]],
                ),
            },
        )
        with lib.Tokenizer(tmp_path / "v.gguf") as got:
            for text in texts.texts(pre, 300):
                ids = want.encode(text, add_special_tokens=False).ids
                assert got.encode(text, lib.PARSE_SPECIAL) == ids, (pre, repr(text))
                assert got.decode(ids, False) == want.decode(ids, skip_special_tokens=False)
