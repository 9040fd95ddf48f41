"""The word check finds banned wording in each kind of file, and accepts plain English."""

import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools"))
import words  # noqa: E402

RULES, ALLOWED = words.read_rules(words.DATA.read_text())


def found(path, text, allowed=None):
    return [(line, rule) for line, rule, _, _ in words.findings(path, text, RULES, allowed or {})]


@pytest.mark.parametrize(
    "path, text, expected",
    [
        ("base/x.c", "/* Free the page. Nobody\n * reads it. */\n", [(1, "nobody")]),
        ("base/x.c", "int x; /* a page in\n\t * front of it */\n", [(1, "front")]),
        ("base/x.c", "int x;\n// Those that wait\n", [(2, "start")]),
        ("base/x.c", "// Pages. The thread\n// of the caller knows them.\n", [(2, "know")]),
        (
            "base/x.c",
            'error_set(err, E, "the model lies "\n "behind the plan");\n',
            [(2, "behind")],
        ),
        ("base/x.c", '#include "tell me"\nchar c = \'"\', *s = "told";\n', []),
        ("templates/x.cu.in", "//@arg x told f32\n//@ told of it\nint x;\n", [(2, "tell")]),
        ("templates/x.h", "/* Walk over the tiles. */\n", [(1, "walk")]),
        ("base/x.h", "/* Walk over the list. */\n", []),
        ("tests/unit/test_x.c", "static void\nit_says_no(void **state)\n{\n", [(2, "say")]),
        (
            "tests/x.py",
            '"""Whose page it is."""\ndef test_nobody_waits():\n    """One page a layer."""\n    return "told"\n',
            [(1, "start"), (2, "nobody"), (3, "per")],
        ),
        (
            "tools/x.py",
            'a.add_argument("-x", help="tokens a second")  # of the page\n',
            [(1, "per"), (1, "start")],
        ),
        ("tools/x.sh", "#!/bin/sh\necho 'a # told'\nx=1 # who waits\n", [(3, "start"), (3, "who")]),
        ("Makefile", "all: ## the pages, beside each other\n", [(1, "beside")]),
        ("configs/x.yaml", "# Mixtures of Qwen\na: '# told'\n", [(1, "mixture")]),
        ("docs/x.md", "# Pages\n\n- It is told `who`.\n\n```\nnobody\n```\n", [(3, "tell")]),
        ("docs/x.md", "| a | b |\n|---|---|\n| fine | ask for it |\n", [(3, "ask")]),
        ("docs/x.md", "[told](behind.md) <!-- nobody -->\n", [(1, "tell")]),
        ("docs/x.md", "word " * 35 + "end.\n", [(1, "long")]),
        ("docs/x.md", "word " * 20 + "\nend. " + "word " * 34 + "end.\n", []),
        (
            "serve/pages/assets/x.html",
            "<p title='x'>Nobody</p>\n<script>// told\n</script>\n",
            [(1, "nobody")],
        ),
        ("serve/pages/assets/x.js", "// A page a model\n", [(1, "per")]),
        ("cli/llmc.1", ".TP\n.B told\nbits a weight\n", [(2, "tell"), (3, "per")]),
        (
            "serve/pages/assets/openapi.json",
            '{"info": {"title": "who",\n"description": "who asks"}}\n',
            [(2, "ask"), (2, "who")],
        ),
        ("tests/golden/x.json", '{"description": "who asks"}\n', []),
    ],
)
def test_banned_wording_is_found_with_its_line(path, text, expected):
    assert found(path, text) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "Return the dot product of a row and a column.",
        "Run several replicas behind a reverse proxy.",
        "The pages take place in memory; compute in place.",
        "Users who need speed pass --threads.",
        "A mixture-of-experts model has one router per layer.",
        "Copy a page, store a row, load a tile, and return a token.",
        "It takes a step as a list; x is a row.",
        "The server is turned on. The URL scheme is https.",
    ],
)
def test_plain_english_passes(sentence):
    assert found("docs/x.md", sentence + "\n") == []
    assert found("templates/x.c", f"/* {sentence} */\n") == []


def test_an_exception_covers_its_line_only():
    text = "The client is told.\n\nThe server is told.\n"
    assert found("docs/x.md", text, {"docs/x.md": ["The client"]}) == [(3, "tell")]


@pytest.mark.parametrize(
    "text",
    [
        "find x\n",
        "rule a\nfind (\n",
        "rule a\nhint b\n",
        "rule a\nin page\nfind x\nhint y\n",
        "allow a | b\n",
        "rule a\nfond x\nhint y\n",
    ],
)
def test_a_mistake_in_the_data_file_is_an_error(text):
    with pytest.raises(words.Mistake):
        words.read_rules(text)


def test_each_exception_is_still_needed():
    """An exception must be removed when its file or line is gone or has no finding any more."""
    for path, fragments in ALLOWED.items():
        text = (words.ROOT / path).read_text()
        lines = text.split("\n")
        bad = [lines[line - 1] for line, *_ in words.findings(path, text, RULES, {})]
        for fragment in fragments:
            assert any(fragment in line for line in bad), f"{path}: {fragment}"


def test_the_tree_has_no_banned_wording():
    """Comments, documents, messages and test names: tools/words.py finds nothing."""
    bad = []
    for path in words.tracked([]):
        if words.reader_of(path) is not None:
            text = (words.ROOT / path).read_text(encoding="utf-8", errors="replace")
            bad += [
                f"{path}:{line}: {found} [{rule}]: {hint}"
                for line, rule, found, hint in words.findings(path, text, RULES, ALLOWED)
            ]
    assert not bad, "\n".join(bad)
