"""Every entry of configs/pretokenizers.yaml splits like the `tokenizers` library with the same regexes, under each name."""

import json
import pathlib
import time

import pytest
import yaml
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import random_texts as texts
import text_lib as lib
import vocab_gguf as gguf
from waiting import SLOW

ENTRIES = yaml.safe_load(
    (pathlib.Path(__file__).parents[2] / "configs/pretokenizers.yaml").read_text()
)["pretokenizers"]
EXTRA = [
    "ἀβώ Ὗώ ᾼιῂ ῐΐῖΊ ῠῬ Ω K Å ℂℊ",
    "\u1f7d\u1fbe\u1fd3\u1fdb\u2126\u212a\u212b",
    "Ωmega Kelvin Ångström",
    "１２３ ４５６７ ٣٤٥",
    "IMGIMGABCZ <sentinel:12>",
    "don't WE'LL o'clock",
    "a\r\nb \n\n c   ",
    "x==y!=z",
    "中文，标点。　空格",
    "한국어 ไทย हिन्दी।",
]

# Regexes in the models' tokenizer.json whose time is quadratic in the digits of a number;
# pretokenizers.yaml has linear ones with equal matches. (index in the entry, regex)
PUBLISHED = {
    "cohere2moe": (0, r"\d{1,3}(?=(?:\d{3})*\b)"),
    "afmoe": (0, r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),
    "superbpe": (1, r"(?=(\d{3})+(?!\d))"),
}
NUMBERS = [
    a + "9876543210123"[:n] + z
    for n in range(1, 13)
    for a in ("", "a", " ", "_", "²", "x1 ")
    for z in ("", "b", ".", "_", "ⅷ", "٣", " 12345")
]


def trained(entry):
    tok = Tokenizer(models.BPE(ignore_merges=entry.get("ignore_merges", False)))
    split = list(entry["split"])
    if entry["names"][0] in PUBLISHED:
        at, split[at] = PUBLISHED[entry["names"][0]]
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(p), "isolated") for p in split),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.train_from_iterator(
        texts.CORPUS + EXTRA + NUMBERS,
        trainers.BpeTrainer(
            vocab_size=900,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tok


@pytest.mark.parametrize("entry", ENTRIES, ids=[e["names"][0] for e in ENTRIES])
def test_cuts_as_tokenizers_does(entry, tmp_path):
    want = trained(entry)
    merges = [
        m if isinstance(m, str) else " ".join(m)
        for m in json.loads(want.to_str())["model"]["merges"]
    ]
    tokens = [want.id_to_token(i) for i in range(want.get_vocab_size())]
    for name in entry["names"]:
        path = tmp_path / f"{name}.gguf"
        gguf.write(
            path,
            {
                "general.architecture": (gguf.STR, "llama"),
                "tokenizer.ggml.model": (gguf.STR, "gpt2"),
                "tokenizer.ggml.pre": (gguf.STR, name),
                "tokenizer.ggml.tokens": (gguf.ARR, gguf.STR, tokens),
                "tokenizer.ggml.token_type": (gguf.ARR, gguf.I32, [1] * len(tokens)),
                "tokenizer.ggml.merges": (gguf.ARR, gguf.STR, merges),
            },
        )
        with lib.Tokenizer(path) as got:
            for text in (
                EXTRA
                + NUMBERS * (entry["names"][0] in PUBLISHED)
                + (list(texts.texts(name, 300)) if name == entry["names"][0] else [])
            ):
                assert got.encode(text) == want.encode(text, add_special_tokens=False).ids, (
                    name,
                    text,
                )


@pytest.mark.parametrize("name", PUBLISHED)
def test_long_numbers(name, tmp_path):
    """Digits are split into groups of three from the end in linear time; a quadratic regex would
    take minutes."""
    path = tmp_path / "v.gguf"
    tokens = [chr(c) for c in range(33, 127)] + ["12", "123", "1234"]
    gguf.write(
        path,
        {
            "general.architecture": (gguf.STR, "llama"),
            "tokenizer.ggml.model": (gguf.STR, "gpt2"),
            "tokenizer.ggml.pre": (gguf.STR, name),
            "tokenizer.ggml.tokens": (gguf.ARR, gguf.STR, tokens),
            "tokenizer.ggml.token_type": (gguf.ARR, gguf.I32, [1] * len(tokens)),
            "tokenizer.ggml.merges": (gguf.ARR, gguf.STR, ["1 2", "12 3", "123 4"]),
        },
    )
    with lib.Tokenizer(path) as got:
        start = time.process_time()
        for n in (200_001, 200_002, 200_003):
            ids = got.encode("1" * (n % 3) + "123" * (n // 3))
            assert ids == [tokens.index("1")] * (n % 3) + [tokens.index("123")] * (n // 3)
        assert len(got.encode("7" * 200_000 + "a")) == 200_001
        assert time.process_time() - start < 5 * SLOW
