"""Chat templates against jinja2: our own, which use every construct, and those of real models where present."""

import os
import pathlib

import jinja2
import pytest

import conversations
import text_lib as lib
import template_oracle as oracle

DATA = os.environ.get("LLMC_TEST_DATA")
CACHE = os.environ.get("LLMC_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc"
)
OWN = sorted((pathlib.Path(__file__).parent / "templates").glob("*.jinja"))
REAL = sorted(pathlib.Path(DATA, "chat-templates").glob("*.jinja")) if DATA else []
# two of llama.cpp's templates are omitted: one writes a generator as JSON, which jinja2 refuses; in
# the other, Python escapes the strings that are appended to a |safe string
PEER = (
    [
        p
        for p in sorted(
            pathlib.Path(CACHE, "peer").glob(
                "llama_cpp_python-*/vendor/llama.cpp/models/templates/*.jinja"
            )
        )
        if p.stem not in ("llama-cpp-deepseek-r1", "meetkai-functionary-medium-v3.1")
    ]
    if os.environ.get("LLMC_CHECK_ALL")
    else []
)


def both_agree(chat, source, messages, options):
    try:
        want = oracle.render(source, messages, **options)
    except (jinja2.exceptions.TemplateError, TypeError, AttributeError, RecursionError) as e:
        with pytest.raises(lib.LlmcError) as caught:
            chat(source, messages, **options)
        assert caught.value.status == lib.E_INPUT
        if type(e) is jinja2.exceptions.TemplateError:  # the template has called raise_exception
            assert str(e) in caught.value.text
    else:
        assert chat(source, messages, **options) == want


@pytest.mark.parametrize("path", OWN + REAL + PEER, ids=[p.stem for p in OWN + REAL + PEER])
def test_template(path, chat):
    source = path.read_text()
    for name, messages in conversations.LISTS.items():
        for options in conversations.OPTIONS:
            both_agree(chat, source, messages, options)


def test_the_own_templates_are_there():
    assert len(OWN) >= 10


def test_integers_beyond_64_bits_keep_their_digits(chat):
    source = (
        "{% for m in messages %}{{ m.n }}|{{ m.n|tojson }}|{{ m|tojson }}|{{ m.l }}{% endfor %}"
        "{{ tools|tojson(indent=2) }}"
    )
    tools = [{"maximum": 18446744073709551615}]
    messages = [
        {"role": "user", "content": "x", "n": 12345678901234567890, "l": [-(10**30), {"a": 10**19}]}
    ]
    both_agree(chat, source, messages, {"tools": tools})
