"""Files next to a tokenizer in a model folder: the settings of each and their precedence."""

import json

import pytest
from small_tokenizer import SMALL

import text_lib as lib


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(SMALL))

    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return write


def opened(path, text="a", flags=lib.ADD_SPECIAL):
    with lib.Tokenizer(path) as tok:
        return tok.encode(text, flags)


def chat(path, **options):
    with lib.Tokenizer(path) as tok:
        return tok.chat([{"role": "user", "content": "hi"}], **options)


def test_without_config(folder):
    assert opened(folder()) == [3]
    with pytest.raises(lib.LlmcError, match="no chat template"):
        chat(folder())


def test_marks_at_the_ends(folder):
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "add_bos_token": True,
        "add_eos_token": True,
    }
    assert opened(folder(tokenizer_config__json=config)) == [1, 3, 2]
    assert opened(folder(tokenizer_config__json={**config, "add_eos_token": False})) == [1, 3]
    assert opened(folder(tokenizer_config__json={**config, "bos_token": None})) == [3, 2]


def test_the_tokenizer_json_goes_first(folder):
    post = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
    }
    path = folder(
        tokenizer__json={**SMALL, "post_processor": post},
        tokenizer_config__json={"bos_token": "<s>", "add_bos_token": True},
    )
    assert opened(path) == [2, 3]


def test_templates(folder):
    config = {"bos_token": "<s>", "chat_template": "config {{ bos_token }}{{ eos_token }}"}
    assert chat(folder(tokenizer_config__json=config)) == "config <s>"
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools {{ tools | length }}"},
    ]
    path = folder(tokenizer_config__json={**config, "chat_template": named})
    assert chat(path) == "plain"
    assert chat(path, tools=[{"a": 1}]) == "tools 1"
    assert chat(folder(chat_template__json={"chat_template": "json"})) == "json"
    assert chat(folder(chat_template__jinja="jinja {{ messages[0].content }}")) == "jinja hi"


def test_options_and_messages_must_be_json(folder):
    path = folder(tokenizer_config__json={"chat_template": "x"})
    with lib.Tokenizer(path) as tok:
        assert tok.chat_json("[]", None) == "x"
        for messages, options, words in [
            ("{", None, "messages: line 1"),
            ("{}", None, "messages: not an array"),
            ("[]", "{", "options: line 1"),
            ("[]", "[]", "options: not an object"),
        ]:
            with pytest.raises(lib.LlmcError, match=words):
                tok.chat_json(messages, options)


def test_invalid_utf8_becomes_replacement_characters(folder):
    with lib.Tokenizer(folder()) as tok:
        assert tok.encode(b"a\xff\xe4\xbda") == tok.encode("a\ufffd\ufffda")
