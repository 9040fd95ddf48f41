"""Seeded random Unicode strings for corner cases of tokenizers."""

import random
import unicodedata

SCRIPTS = [
    (0x20, 0x7F),
    (0xA0, 0x180),
    (0x370, 0x400),
    (0x400, 0x500),
    (0x5D0, 0x5EB),
    (0x620, 0x650),
    (0x905, 0x940),
    (0xE01, 0xE30),
    (0x1100, 0x1200),
    (0x1E00, 0x1F00),
    (0x2000, 0x2070),
    (0x20A0, 0x20C0),
    (0x2100, 0x2190),
    (0x2460, 0x2500),
    (0x3000, 0x30FF),
    (0x4E00, 0x4F00),
    (0xAC00, 0xAD00),
    (0xFB00, 0xFB07),
    (0xFF00, 0xFFEF),
    (0x1F300, 0x1F640),
    (0x1D400, 0x1D500),
]
WORDS = [
    "Hello",
    "world",
    "the",
    "I'm",
    "don't",
    "WE'LL",
    "'S",
    "tokens",
    "1234567",
    "3.14",
    "foo_bar",
    "==",
    "...",
    "!?",
    "naïve",
    "Ärger",
    "straße",
    "нещо",
    "世界",
    "こんにちは",
    "한국어",
    "हिन्दी",
    "ไทย",
    "🦙",
    "👩‍👩‍👧",
    "🇩🇪",
    "e\u0301",
    "ﬁ",
    "①",
    "½",
    "Å",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\u180e",
    "\ufeff",
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<0x41>",
    "[MASK]",
    "▁",
    "▁a",
    "Ġ",
    "http://x.y/z?a=b&c=d",
    "x" * 30,
]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n ", "", "", "", "\u2003"]


def stable(ch):
    """Return whether a character is assigned in every version of Unicode that the oracles may have
    been built with."""
    return unicodedata.category(ch) not in ("Cn", "Cs", "Co") and ch not in "\u180e"


ALPHABET = [chr(c) for lo, hi in SCRIPTS for c in range(lo, hi) if stable(chr(c))]


def one(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(12)))
    if kind == 1:
        return "".join(
            chr(
                rng.choice(
                    [rng.randrange(32, 127), rng.randrange(0, 32), rng.randrange(160, 0x250)]
                )
            )
            for _ in range(rng.randrange(20))
        )
    if kind == 2:
        return "".join(rng.choice(SPACES + ["a", "1", "."]) for _ in range(rng.randrange(12)))
    return "".join(
        rng.choice(SPACES) + rng.choice(WORDS + [rng.choice(ALPHABET)])
        for _ in range(rng.randrange(14))
    ) + rng.choice(SPACES)


def texts(seed, n):
    rng = random.Random(seed)
    fixed = [
        "",
        " ",
        "  ",
        "\n",
        "a",
        " a",
        "a ",
        " a ",
        "\0",
        "a\0b",
        "\u2581",
        "<s>",
        " <s> ",
        "x<s>y",
        "<s><s>",
        "\u0301",
        "🦙" * 3,
        "'s",
        "ſ's",
    ]
    return fixed + [one(rng) for _ in range(n)]


CORPUS = [one(random.Random(1000 + i)) for i in range(1500)] + [
    "The quick brown fox jumps over the lazy dog. I'm sure they'll be fine, 1234 times!",
    "Tokenization of text: don't panic; it's the 3rd of May 2024 and we've got 99 problems.",
    "for (int i = 0; i < n; i++) { sum += a[i]; }\n\treturn sum;",
] * 20
