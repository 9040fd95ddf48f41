"""The table of request fields (serve/fields.def): it has every field of the published schemas, and
the server treats each as the table specifies.

The schemas of OpenAI, Anthropic and Ollama come from their Python packages, TGI's from
huggingface_hub; request_fields.json has the names in the sources of vLLM (including those that it
has dropped), SGLang, llama.cpp, TGI and Ollama.
"""

import dataclasses
import importlib
import json
import os
import sys
import typing

import pytest
from server_process import HERE, ROOT

sys.path.insert(0, os.path.join(ROOT, "tools"))
import request_fields  # noqa: E402

ROWS = request_fields.read()
TABLE = {(r, f.name): f for f in ROWS for r in f.routes}
NAMES = {name: route for route, (name, _) in request_fields.ROUTES.items()}

HELLO = [{"role": "user", "content": "hello"}]
BODIES = {
    "CHAT": {"messages": HELLO, "max_tokens": 3, "temperature": 0},
    "COMPLETIONS": {"prompt": "hello", "max_tokens": 3, "temperature": 0},
    "RESPONSES": {"input": "hello", "max_output_tokens": 3, "temperature": 0},
    "EMBEDDINGS": {"input": "hello"},
    "MESSAGES": {"messages": HELLO, "max_tokens": 3, "temperature": 0},
    "OLLAMA_CHAT": {
        "messages": HELLO,
        "stream": False,
        "options": {"num_predict": 3, "temperature": 0},
    },
    "OLLAMA_GENERATE": {
        "prompt": "hello",
        "stream": False,
        "options": {"num_predict": 3, "temperature": 0},
    },
    "OLLAMA_EMBED": {"input": "hello"},
    "LCPP": {"prompt": "hello", "n_predict": 3, "temperature": 0, "seed": 1},
    "TGI": {"inputs": "hello", "parameters": {"max_new_tokens": 3}},
}
GENERATING = [r for r in BODIES if r not in ("EMBEDDINGS", "OLLAMA_EMBED")]


def typed(module, name):
    return sorted(typing.get_type_hints(getattr(importlib.import_module(module), name)))


def published():
    """Yield (source, route, names)."""
    with open(os.path.join(HERE, "request_fields.json"), encoding="utf-8") as f:
        for source, routes in json.load(f).items():
            for name, fields in routes.items():
                yield source, NAMES[name], fields
    for route, module, name in [
        ("CHAT", "openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming"),
        ("COMPLETIONS", "openai.types.completion_create_params", "CompletionCreateParamsStreaming"),
        ("EMBEDDINGS", "openai.types.embedding_create_params", "EmbeddingCreateParams"),
        (
            "RESPONSES",
            "openai.types.responses.response_create_params",
            "ResponseCreateParamsStreaming",
        ),
        ("RESPONSES", "openai.types.responses.input_token_count_params", "InputTokenCountParams"),
        ("MESSAGES", "anthropic.types.message_create_params", "MessageCreateParamsStreaming"),
        ("MESSAGES", "anthropic.types.beta.message_create_params", "MessageCreateParamsStreaming"),
        ("MESSAGES", "anthropic.types.message_count_tokens_params", "MessageCountTokensParams"),
        (
            "MESSAGES",
            "anthropic.types.beta.message_count_tokens_params",
            "MessageCountTokensParams",
        ),
    ]:
        yield module.split(".")[0] + ": " + name, route, typed(module, name)
    import ollama._types as o

    for route, name in [
        ("OLLAMA_CHAT", "ChatRequest"),
        ("OLLAMA_GENERATE", "GenerateRequest"),
        ("OLLAMA_EMBED", "EmbedRequest"),
    ]:
        yield "ollama: " + name, route, sorted(getattr(o, name).model_fields)
    for route in ("OLLAMA_CHAT", "OLLAMA_GENERATE"):
        yield "ollama: Options", route, ["options." + n for n in o.Options.model_fields]
    from huggingface_hub.inference._generated import types as hub

    def of(name):
        return [f.name for f in dataclasses.fields(getattr(hub, name))]

    yield "huggingface_hub", "CHAT", of("ChatCompletionInput")
    yield "huggingface_hub", "TGI", of("TextGenerationInput")
    parameters = of("TextGenerationInputGenerateParameters")
    yield "huggingface_hub", "TGI", ["parameters." + n for n in parameters]


def test_every_published_field_has_a_row():
    missing = [
        (source, route, n)
        for source, route, names in published()
        for n in names
        if (route, n) not in TABLE
    ]
    assert missing == []


def test_a_field_has_one_row_per_route():
    keys = [(r, f.name) for f in ROWS for r in f.routes]
    assert sorted(k for k in set(keys) if keys.count(k) > 1) == []
    assert {r for f in ROWS for r in f.routes} == set(request_fields.ROUTES)


def body_with(route, name, value):
    """The body of a route with a field, whose name may be a path."""
    body = json.loads(json.dumps(BODIES[route]))
    *path, last = name.split(".")
    if path == ["stream_options"]:
        body["stream"] = True
    at = body
    for key in path:
        at = at.setdefault(key, {})
    at[last] = value
    return body


def ask(server, route, body):
    return server.post(request_fields.ROUTES[route][1][0], body)


def error_text(r):
    error = r.json()["error"]
    return error if isinstance(error, str) else error["message"]


def harmless(word):
    return json.loads(word) if word in ("true", "false") or word.lstrip("-").isdigit() else word


@pytest.mark.parametrize("route", BODIES)
def test_refused_fields_get_a_400_with_advice(tiny, route):
    for f in ROWS:
        if f.state != "refused" or route not in f.routes:
            continue
        r = ask(tiny, route, body_with(route, f.name, {"a": 1}))
        assert r.status == 400, f.name
        assert f.name in error_text(r) and f.note in error_text(r) and f.note.endswith(".")
        if route in ("CHAT", "COMPLETIONS", "RESPONSES", "EMBEDDINGS"):
            error = r.json()["error"]
            assert (error["param"], error["code"]) == (f.name, "unsupported_parameter")
        for value in [None, "", [], {}, *map(harmless, f.harmless)]:
            r = ask(tiny, route, body_with(route, f.name, value))
            if route in GENERATING:
                assert r.status == 200, (f.name, value, r.text)
            else:
                assert "not supported by this server" not in r.text, (f.name, value)


def answer_of(route, r):
    """The answer without what differs between equal requests."""
    assert r.status == 200, r.text
    if "data:" in r.text:
        frames = [json.loads(f) for f in r.frames() if f != "[DONE]"]
        return [f["choices"] for f in frames]
    out = r.json()
    for key in (
        *("id", "created", "created_at", "completed_at", "timings", "usage"),
        *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"),
    ):
        out.pop(key, None)
    for item in out.get("output", []):
        item.pop("id", None)
    return out


@pytest.mark.parametrize("route", GENERATING)
def test_ignored_fields_do_not_change_the_answer(tiny, route):
    names = [f.name for f in ROWS if f.state == "ignored" and route in f.routes]
    for stream in {n.startswith("stream_options.") for n in names}:
        some = [n for n in names if n.startswith("stream_options.") == stream]
        plain = body_with(route, "stream_options.include_usage", False) if stream else BODIES[route]
        want = answer_of(route, ask(tiny, route, plain))
        for value in (True, 7, "a word", {"a": [1]}, None):
            body = json.loads(json.dumps(plain))
            for n in some:
                *path, last = n.split(".")
                at = body
                for key in path:
                    at = at.setdefault(key, {})
                at[last] = value
            assert answer_of(route, ask(tiny, route, body)) == want, (some, value)


@pytest.mark.parametrize("route", BODIES)
def test_done_fields_are_read(tiny, route):
    """A field that is read refuses some value of a wrong type; a field that is not read takes
    any."""
    for f in ROWS:
        if f.state == "done" and route in f.routes:
            said = {
                ask(tiny, route, body_with(route, f.name, value)).status
                for value in ({"llmc": [1]}, 3.5, "\0", [[]], False)
            }
            assert said & {400, 404, 422}, f.name
