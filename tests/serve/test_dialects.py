"""Anthropic's and Ollama's dialects and OpenAI's responses, by their own clients, compared with
the chat of the same server. It is one file because its servers start once per module and take
longer than most tests.
"""

import datetime
import json
import pathlib
import re
import string
import sys

import pytest
import tiny_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "text"))
from grammar_cases import APPLY_PATCH  # noqa: E402
from waiting import HANG  # noqa: E402

MESSAGES = [{"role": "user", "content": "Say one word."}]


@pytest.fixture(scope="module")
def claude(smol):
    anthropic = pytest.importorskip("anthropic")
    return anthropic.Anthropic(base_url=smol.url, api_key="none", max_retries=0, timeout=HANG)


@pytest.fixture(scope="module")
def ollama(smol):
    return pytest.importorskip("ollama").Client(host=smol.url)


def openai_text(smol, messages, **fields):
    r = smol.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **fields}).json()
    return r["choices"][0]["message"]["content"], r["usage"]


def test_anthropic_message(smol, claude):
    want, usage = openai_text(
        smol, [{"role": "system", "content": "Be brief."}, *MESSAGES], max_tokens=12
    )
    m = claude.messages.create(
        model="smollm2",
        max_tokens=12,
        extra_body={"temperature": 0},
        system="Be brief.",
        messages=[{"role": "user", "content": [{"type": "text", "text": "Say one word."}]}],
    )
    assert m.type == "message" and m.role == "assistant" and m.content[0].text == want
    assert m.usage.input_tokens + m.usage.cache_read_input_tokens == usage["prompt_tokens"]
    assert m.stop_reason in ("end_turn", "max_tokens") and m.stop_sequence is None
    n = claude.messages.count_tokens(model="smollm2", system="Be brief.", messages=MESSAGES)
    assert n.input_tokens == usage["prompt_tokens"]


def test_anthropic_stream(smol, claude):
    want, usage = openai_text(smol, MESSAGES, max_tokens=20)
    with claude.messages.stream(
        model="smollm2", max_tokens=20, extra_body={"temperature": 0}, messages=MESSAGES
    ) as s:
        kinds = [e.type for e in s]
        final = s.get_final_message()
    assert final.content[0].text == want and final.usage.output_tokens == usage["completion_tokens"]
    assert (
        kinds[0] == "message_start"
        and kinds[-1] == "message_stop"
        and "content_block_delta" in kinds
    )


def test_anthropic_stop_sequence(smol, claude):
    want, _ = openai_text(smol, MESSAGES, max_tokens=30)
    word = want.split()[1] if len(want.split()) > 1 else want[-2:]
    m = claude.messages.create(
        model="smollm2",
        max_tokens=30,
        extra_body={"temperature": 0},
        stop_sequences=["\x01never", word],
        messages=MESSAGES,
    )
    assert (
        m.stop_reason == "stop_sequence"
        and m.stop_sequence == word
        and m.content[0].text == want[: want.index(word)]
    )


def test_ollama_without_a_content_type(smol):
    """Some Ollama clients send no content type. Requests that a web page could send without a
    preflight are refused: browsers add their origin.
    """
    body = json.dumps(
        {"model": "smollm2", "messages": MESSAGES, "stream": False, "options": {"num_predict": 2}}
    ).encode()
    head = (
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n"
        % len(body)
    )
    for more, status in (
        (b"", b"200"),
        (b"Origin: http://example.com\r\n", b"415"),
        (b"Sec-Fetch-Site: cross-site\r\n", b"415"),
        (b"Content-Type: text/plain\r\n", b"415"),
    ):
        with smol.connect(60) as c:
            c.sendall(head + more + b"\r\n" + body)
            assert c.recv(100).split()[1] == status, more


def test_anthropic_key(serve, tiny_folder):
    anthropic = pytest.importorskip("anthropic")
    with serve(tiny_folder, "--arch", "generic", "--api-key", "secret") as s:
        good = anthropic.Anthropic(base_url=s.url, api_key="secret", max_retries=0)
        name = s.get("/v1/models", headers={"x-api-key": "secret"}).json()["data"][0]["id"]
        assert good.messages.create(model=name, max_tokens=2, messages=MESSAGES).type == "message"
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=s.url, api_key="wrong", max_retries=0).messages.create(
                model=name, max_tokens=2, messages=MESSAGES
            )


def test_anthropic_models(tiny):
    """By Anthropic's client; without its header the same paths are OpenAI's, with llama.cpp's
    `meta`.
    """
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=tiny.url, api_key="none", max_retries=0, timeout=HANG)
    page = client.models.list()
    assert (
        [m.id for m in page] == ["tiny"]
        and page.has_more is False
        and page.first_id == page.last_id == "tiny"
    )
    m = client.models.retrieve("tiny")
    assert (m.type, m.display_name, m.max_input_tokens) == (
        "model",
        "tiny",
        255,
    ) and m.created_at.year > 2000
    with pytest.raises(anthropic.NotFoundError) as e:
        client.models.retrieve("claude")
    assert (
        e.value.body["error"]["type"] == "not_found_error"
        and "claude" in e.value.body["error"]["message"]
    )
    plain = tiny.get("/v1/models").json()
    assert plain["object"] == "list" and plain["data"] == [tiny.get("/v1/models/tiny").json()]
    meta = plain["data"][0]["meta"]
    assert (
        meta["n_vocab"] > 0
        and meta["n_params"] > 0
        and meta["size"] > 0
        and meta["n_ctx_train"] >= 256
    )
    assert tiny.get("/v1/models/claude").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "method,path,status",
    [
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages/count_tokens", 405),
        ("POST", "/api/pull", 404),
        ("GET", "/api/chat", 405),
    ],
)
def test_not_found_has_the_form_of_the_dialect(tiny, method, path, status):
    r = tiny.request(method, path)
    e = r.json()["error"]
    assert r.status == status
    if path.startswith("/api/"):
        assert path in e
    else:
        assert (
            r.json()["type"] == "error"
            and path in e["message"]
            and (status != 404 or e["type"] == "not_found_error")
        )


@pytest.mark.parametrize(
    "body,status,said",
    [
        ({"messages": MESSAGES}, 400, "max_tokens"),
        ({"max_tokens": 3}, 400, "messages"),
        ({"max_tokens": 3, "messages": []}, 400, "at least one"),
        ({"max_tokens": 3, "messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role"),
        (
            {"max_tokens": 3, "messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "messages.0.content.0",
        ),
        (
            {
                "max_tokens": 3,
                "messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}],
            },
            400,
            "text",
        ),
        (
            {"max_tokens": 3, "messages": [{"role": "user", "content": 7}]},
            400,
            "messages.0.content",
        ),
        ({"max_tokens": 3, "messages": ["x"]}, 400, "messages.0.role"),
        ({"max_tokens": 3, "messages": MESSAGES, "tools": [{"name": "f"}]}, 400, "tools.0"),
        ({"max_tokens": 3, "messages": MESSAGES, "tools": 3}, 400, "tools"),
        (
            {
                "max_tokens": 3,
                "messages": MESSAGES,
                "tools": [{"name": "f", "input_schema": {}}],
                "tool_choice": {"type": "maybe"},
            },
            400,
            "tool_choice",
        ),
        (
            {"max_tokens": 3, "messages": MESSAGES, "output_config": {"format": {"type": "json"}}},
            400,
            "output_config",
        ),
        (
            {
                "max_tokens": 3,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "a",
                                "content": [{"type": "image"}],
                            }
                        ],
                    }
                ],
            },
            400,
            "image",
        ),
        ({"max_tokens": 3, "messages": MESSAGES, "model": "claude"}, 404, "claude"),
        ({"max_tokens": 3, "messages": MESSAGES, "temperature": 7}, 400, "temperature"),
        ({"max_tokens": 0, "messages": MESSAGES}, 400, "max_tokens"),
        (
            {"max_tokens": 3, "messages": MESSAGES, "stop_sequences": "a"},
            400,
            "stop_sequences: expected an array",
        ),
        (
            {"max_tokens": 3, "messages": MESSAGES, "stop_sequences": ["a"] * 65},
            400,
            "'stop_sequences': array too long",
        ),
        (
            {"max_tokens": 3, "messages": MESSAGES, "stop_sequences": ["a", ""]},
            400,
            "'stop_sequences[1]'",
        ),
        ({"max_tokens": 3, "messages": MESSAGES, "thinking": {"type": "bogus"}}, 400, "thinking"),
        ({"max_tokens": 3, "messages": MESSAGES, "thinking": "on"}, 400, "thinking"),
        (
            {
                "max_tokens": 3,
                "messages": MESSAGES,
                "output_config": {"format": {"type": "json_schema", "schema": {"type": "wrong"}}},
            },
            400,
            "'output_config.format'",
        ),
        ([], 400, "object"),
    ],
)
def test_anthropic_refuses(tiny, body, status, said):
    r = tiny.post("/v1/messages", body)
    e = r.json()
    assert r.status == status and e["type"] == "error" and said in e["error"]["message"]
    assert e["error"]["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]


@pytest.mark.parametrize(
    "path,body",
    [
        ("/v1/messages", {"max_tokens": 2, "stop_sequences": [f"never{i}" for i in range(64)]}),
        (
            "/api/chat",
            {
                "stream": False,
                "options": {"num_predict": 2, "stop": [f"never{i}" for i in range(64)]},
            },
        ),
    ],
)
def test_more_stop_strings_than_openai_takes(tiny, path, body):
    assert tiny.post(path, {"messages": MESSAGES, **body}).status == 200
    r = tiny.post(
        "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "stop": ["a"] * 5}
    )
    assert r.status == 400 and "maximum length 4" in r.json()["error"]["message"]


def test_ollama_chat(smol, ollama):
    want, usage = openai_text(smol, MESSAGES, max_tokens=12)
    r = ollama.chat(
        model="smollm2:latest", messages=MESSAGES, options={"temperature": 0, "num_predict": 12}
    )
    assert (
        r.message.content == want
        and r.done
        and r.prompt_eval_count == usage["prompt_tokens"]
        and r.eval_count == usage["completion_tokens"]
    )
    parts = list(
        ollama.chat(
            model="smollm2",
            messages=MESSAGES,
            options={"temperature": 0, "num_predict": 12},
            stream=True,
        )
    )
    assert "".join(p.message.content for p in parts) == want and [p.done for p in parts] == [
        False
    ] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == r.done_reason and parts[-1].total_duration > 0


def test_ollama_generate(smol, ollama):
    want, _ = openai_text(
        smol, [{"role": "system", "content": "Be brief."}, *MESSAGES], max_tokens=10
    )
    assert (
        ollama.generate(
            model="smollm2",
            prompt="Say one word.",
            system="Be brief.",
            options={"temperature": 0, "num_predict": 10},
        ).response
        == want
    )
    plain = smol.post(
        "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    ).json()["choices"][0]["text"]
    parts = list(
        ollama.generate(
            model="smollm2",
            prompt="Once upon a time",
            raw=True,
            options={"temperature": 0, "num_predict": 8},
            stream=True,
        )
    )
    assert "".join(p.response for p in parts) == plain


def test_ollama_streams_by_default(tiny):
    r = tiny.post("/api/generate", {"prompt": "a b", "raw": True, "options": {"num_predict": 3}})
    assert r.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(x) for x in r.text.splitlines()]
    assert lines[-1]["done"] and lines[-1]["eval_count"] <= 3


@pytest.fixture(scope="module")
def small(tiny):
    return pytest.importorskip("ollama").Client(host=tiny.url)


def test_ollama_loads_without_a_prompt(tiny, small):
    """Ollama's command line does this before the first prompt."""
    for r in (
        small.generate(model="tiny"),
        small.generate(model="tiny", prompt="", system="x"),
        small.chat(model="tiny", messages=[]),
        small.chat(model="tiny"),
    ):
        assert r.done and r.done_reason == "load" and not r.eval_count
    lines = tiny.post("/api/chat", {"model": "tiny"}).text.splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["message"] == {
        "role": "assistant",
        "content": "",
    }


def test_ollama_logprobs(tiny, small):
    ask = {
        "model": "tiny",
        "prompt": "a b",
        "raw": True,
        "options": {"num_predict": 4, "temperature": 0, "seed": 1},
        "logprobs": True,
        "top_logprobs": 2,
    }
    r = small.generate(**ask)
    assert len(r.logprobs) == r.eval_count and all(
        x.logprob == x.top_logprobs[0].logprob and len(x.top_logprobs) == 2 for x in r.logprobs
    )
    parts = list(small.generate(**ask, stream=True))
    assert [x.token for p in parts for x in p.logprobs or []] == [x.token for x in r.logprobs]
    assert small.generate(**{**ask, "logprobs": False}).logprobs is None
    said = small.chat(
        model="tiny",
        messages=MESSAGES,
        options={"num_predict": 3, "typical_p": 0.9},
        think="low",
        logprobs=True,
    )
    assert len(said.logprobs) == said.eval_count


def test_ollama_lists_models(serve, tiny_folder):
    ollama = pytest.importorskip("ollama")
    with serve(
        tiny_folder, "--arch", "generic", "--model-name", "tiny", "--sleep-after", "600"
    ) as s:
        client = ollama.Client(host=s.url)
        listed, (runs,), shown = client.list().models[0], client.ps().models, client.show("tiny")
        assert (
            runs.model == "tiny"
            and runs.size > 0
            and runs.context_length > 0
            and runs.size_vram == 0
        )
        assert (
            0
            < (runs.expires_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
            < 601
        )
        assert (
            len(listed.digest) == 64
            and listed.digest == runs.digest
            and listed.details.quantization_level == shown.details.quantization_level == "F32"
        )
        assert "messages" in shown.template and shown.modified_at
        s.post("/sleep", {})
        assert client.ps().models == []


def test_ollama_models(ollama):
    names = [m.model for m in ollama.list().models]
    assert names == ["smollm2"]
    shown = ollama.show(names[0])
    assert (
        shown.capabilities == ["completion", "tools"]
        and shown.details.family == "llama"
        and shown.details.parameter_size == "135M"
    )


TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


def test_anthropic_tools(smol, claude):
    """A required call, complete and as a stream, and its result in the next turn."""
    ask = {
        "model": "smollm2",
        "max_tokens": 80,
        "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "extra_body": {"temperature": 0},
    }
    m = claude.messages.create(messages=[{"role": "user", "content": "Weather in Paris?"}], **ask)
    assert m.stop_reason == "tool_use" and [b.type for b in m.content] == ["tool_use"]
    call = m.content[0]
    assert (
        call.name == "weather"
        and call.id.startswith("toolu_")
        and set(call.input) == {"city", "days"}
        and 1 <= call.input["days"] <= 9
    )
    with claude.messages.stream(
        messages=[{"role": "user", "content": "Weather in Paris?"}], **ask
    ) as s:
        kinds = [e.type for e in s]
        streamed = s.get_final_message()
    assert (
        streamed.content[0].input == call.input
        and streamed.stop_reason == "tool_use"
        and "content_block_start" in kinds
    )
    back = [
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 31 degrees."},
                {"type": "text", "text": "And so?"},
            ],
        },
    ]
    n = claude.messages.count_tokens(model="smollm2", messages=back, tools=[TOOL]).input_tokens
    m = claude.messages.create(
        model="smollm2", max_tokens=8, messages=back, tools=[TOOL], tool_choice={"type": "none"}
    )
    assert m.stop_reason in ("max_tokens", "end_turn") and n > 40


SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 12},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["word", "n"],
    "additionalProperties": False,
}


def test_ollama_tools(smol, ollama):
    """Complete answer and stream report the same calls, if the model makes any; calls and
    results of earlier turns are accepted.
    """
    tool = {
        "type": "function",
        "function": {
            "name": TOOL["name"],
            "description": TOOL["description"],
            "parameters": TOOL["input_schema"],
        },
    }
    body = {
        "model": "smollm2",
        "messages": MESSAGES,
        "tools": [tool],
        "options": {"temperature": 0, "num_predict": 40},
    }
    r = smol.post("/api/chat", {**body, "stream": False}).json()
    assert r["done"] and r["message"]["role"] == "assistant"
    parts = [json.loads(x) for x in smol.post("/api/chat", body).text.splitlines()]
    assert "".join(p["message"]["content"] for p in parts) == r["message"]["content"]
    assert [c for p in parts for c in p["message"].get("tool_calls", [])] == r["message"].get(
        "tool_calls", []
    )
    told = ollama.chat(
        model="smollm2",
        messages=[
            *MESSAGES,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"function": {"name": "weather", "arguments": {"city": "Rome", "days": 1}}}
                ],
            },
            {"role": "tool", "content": "Sunny.", "tool_name": "weather"},
        ],
        tools=[tool],
        options={"num_predict": 4},
    )
    assert told.prompt_eval_count > r["prompt_eval_count"]


def test_answers_of_a_schema(smol, claude, ollama):
    said = ollama.chat(
        model="smollm2",
        messages=MESSAGES,
        format=SCHEMA,
        options={"temperature": 0, "num_predict": 60},
    ).message.content
    assert set(json.loads(said)) == {"word", "n"}
    assert (
        json.loads(
            ollama.generate(
                model="smollm2", prompt="Give JSON.", format=SCHEMA, options={"num_predict": 60}
            ).response
        )["n"]
        < 100
    )
    m = claude.messages.create(
        model="smollm2",
        max_tokens=60,
        messages=MESSAGES,
        extra_body={
            "temperature": 0,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    )
    assert json.loads(m.content[0].text).keys() == {"word", "n"}


@pytest.mark.parametrize(
    "path,body,status,said",
    [
        ("/api/chat", {"messages": MESSAGES, "tools": [{}]}, 400, "tools"),
        ("/api/chat", {"messages": MESSAGES, "tools": 3}, 400, "tools"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "x", "images": ["aa"]}]},
            400,
            "images",
        ),
        ("/api/chat", {"messages": MESSAGES, "options": 3}, 400, "options"),
        ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": 0}}, 400, "num_predict"),
        (
            "/api/chat",
            {"messages": MESSAGES, "options": {"temperature": "hot"}},
            400,
            "temperature",
        ),
        ("/api/chat", {"messages": MESSAGES, "stream": 1}, 400, "stream"),
        ("/api/chat", {"messages": MESSAGES, "model": "llama3"}, 404, "llama3"),
        ("/api/chat", {"messages": 3}, 400, "messages"),
        ("/api/chat", {"messages": MESSAGES, "think": "hard"}, 400, "think"),
        ("/api/chat", {"messages": MESSAGES, "think": 1}, 400, "think"),
        ("/api/chat", {"messages": MESSAGES, "logprobs": 1}, 400, "logprobs"),
        (
            "/api/chat",
            {"messages": MESSAGES, "logprobs": True, "top_logprobs": 99},
            400,
            "top_logprobs",
        ),
        ("/api/chat", {"messages": MESSAGES, "options": {"mirostat": 3}}, 400, "options.mirostat"),
        ("/api/chat", {"messages": MESSAGES, "options": {"tfs_z": 0.5}}, 400, "options.tfs_z"),
        (
            "/api/chat",
            {"messages": MESSAGES, "options": {"typical_p": 3}},
            400,
            "options.typical_p",
        ),
        ("/api/chat", {"messages": [], "model": "llama3"}, 404, "llama3"),
        ("/api/generate", {"prompt": 5}, 400, "prompt"),
        (
            "/api/chat",
            {"messages": MESSAGES, "options": {"stop": ["a"] * 65}},
            400,
            "'options.stop': array too long",
        ),
        (
            "/api/chat",
            {"messages": MESSAGES, "options": {"repeat_penalty": -1}},
            400,
            "'options.repeat_penalty'",
        ),
        ("/api/chat", {"messages": MESSAGES, "format": {"type": "wrong"}}, 400, "'format'"),
        ("/api/generate", {"prompt": "x", "format": "xml"}, 400, "format"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
        ("/api/show", {"model": "other"}, 404, "other"),
        ("/api/show", [], 400, "object"),
    ],
)
def test_ollama_refuses(tiny, path, body, status, said):
    r = tiny.post(path, body)
    assert r.status == status and said in r.json()["error"]


# ---- OpenAI's responses ----


@pytest.fixture(scope="module")
def responses(smol):
    import openai

    return openai.OpenAI(
        base_url=smol.url + "/v1", api_key="none", max_retries=0, timeout=HANG
    ).responses


def test_response(smol, responses):
    want, usage = openai_text(
        smol, [{"role": "system", "content": "Be brief."}, *MESSAGES], max_tokens=40
    )
    r = responses.create(
        model="smollm2",
        input="Say one word.",
        instructions="Be brief.",
        temperature=0,
        max_output_tokens=40,
    )
    assert (
        r.instructions == "Be brief."
        and r.tools == []
        and r.tool_choice == "auto"
        and r.text.format.type == "text"
    )
    assert r.output_text == want and r.status == (
        "completed" if usage["completion_tokens"] < 40 else "incomplete"
    )
    assert (r.usage.input_tokens, r.usage.output_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    cut = responses.create(
        model="smollm2",
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Say one word."}]},
        ],
        temperature=0,
        max_output_tokens=2,
    )
    assert (
        cut.status == "incomplete"
        and cut.incomplete_details.reason == "max_output_tokens"
        and want.startswith(cut.output_text)
    )


def test_response_events(smol, responses):
    want, _ = openai_text(smol, MESSAGES, max_tokens=40)
    events = list(
        responses.create(
            model="smollm2", input=MESSAGES, temperature=0, max_output_tokens=40, stream=True
        )
    )
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events if not e.type.endswith(".delta")]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert (
        kinds[4:7]
        == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
        and len(kinds) == 8
    )
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == want
    last = events[-1].response
    assert last.output_text == want and {e.item_id for e in events if hasattr(e, "item_id")} == {
        last.output[0].id
    }


def test_response_tools(smol, responses):
    tool = {
        "type": "function",
        "name": TOOL["name"],
        "description": TOOL["description"],
        "parameters": TOOL["input_schema"],
        "strict": True,
    }
    ask = {
        "model": "smollm2",
        "temperature": 0,
        "max_output_tokens": 80,
        "tools": [tool, {"type": "web_search"}],
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "name": "weather"},
    }
    r = responses.create(input="Weather in Paris?", **ask)
    assert [i.type for i in r.output] == ["function_call"]
    call = r.output[0]
    arguments = json.loads(call.arguments)
    assert call.name == "weather" and set(arguments) == {"city", "days"}
    assert [t.type for t in r.tools] == ["function", "web_search"] and r.tools[0].model_dump(
        exclude_none=True
    ) == tool
    assert (
        r.tool_choice.name == "weather"
        and r.parallel_tool_calls is False
        and r.max_output_tokens == 80
    )
    with responses.stream(input="Weather in Paris?", **ask) as s:
        kinds = [e.type for e in s]
        streamed = s.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    assert json.loads(streamed.output[0].arguments) == arguments
    back = [
        {"role": "user", "content": "Weather in Paris?"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."},
    ]
    assert (
        responses.create(
            model="smollm2", input=back, tools=[tool], tool_choice="none", max_output_tokens=4
        ).usage.output_tokens
        <= 4
    )


PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}


def test_custom_tools(smol, responses):
    """A call with one string: equal in the complete answer, in the events and in the item;
    both kinds of items are accepted in the next turn.
    """
    ask = {
        "model": "smollm2",
        "input": "Edit the file.",
        "temperature": 0,
        "max_output_tokens": 200,
        "tools": [PATCH],
        "tool_choice": {"type": "custom", "name": "apply_patch"},
    }
    r = responses.create(**ask)
    call = r.output[0]
    assert (
        [i.type for i in r.output] == ["custom_tool_call"]
        and call.name == "apply_patch"
        and call.id.startswith("ctc_")
        and call.input
    ), r
    assert r.tools[0].model_dump(exclude_none=True) == PATCH and r.tool_choice.name == "apply_patch"
    events = list(responses.create(stream=True, **ask))
    kinds = [e.type for e in events]
    assert [k for k in kinds if not k.endswith(".delta")] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response." + r.status,
    ]
    assert kinds.count("response.custom_tool_call_input.delta") > 1
    assert (
        "".join(e.delta for e in events if e.type.endswith(".delta"))
        == next(e.input for e in events if e.type.endswith("input.done"))
        == events[-1].response.output[0].input
        == call.input
    )
    back = [
        {"role": "user", "content": "Edit the file."},
        {
            "type": "custom_tool_call",
            "call_id": call.call_id,
            "name": call.name,
            "input": call.input,
        },
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."},
    ]
    r = responses.create(
        model="smollm2", input=back, tools=[PATCH], tool_choice="none", max_output_tokens=4
    )
    assert r.output[0].type == "message"


LINES = {
    "type": "custom",
    "name": "lines",
    "description": "Takes lines.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: (KEY "=" /"[^"]*"/ NL)~2\nKEY: /[a-c]/\nNL: "\\n"\n',
    },
}
CODE = {
    "type": "custom",
    "name": "code",
    "format": {"type": "grammar", "syntax": "regex", "definition": '[A-C]{3}-"[0-9]{2}"\\n'},
}


def test_the_text_of_a_custom_tool_is_of_its_grammar(smol, responses):
    for tool, fits in ((LINES, '([a-c]="[^"]*"\n){2}'), (CODE, '[A-C]{3}-"[0-9]{2}"\n')):
        for choice in ("required", {"type": "custom", "name": tool["name"]}):
            r = responses.create(
                model="smollm2",
                input="Go.",
                temperature=0.7,
                extra_body={"seed": 3},
                max_output_tokens=400,
                tools=[{"type": "web_search"}, tool],
                tool_choice=choice,
            )
            assert r.output and all(i.type == "custom_tool_call" for i in r.output)
            for call in r.output:
                assert (
                    re.fullmatch(fits, call.input)
                    if call.status == "completed"
                    else r.status == "incomplete"
                ), call
    assert any(
        re.fullmatch('[A-C]{3}-"[0-9]{2}"\n', i.input)
        for i in responses.create(
            model="smollm2",
            input="Go.",
            temperature=0,
            tools=[CODE],
            tool_choice={"type": "custom", "name": "code"},
        ).output
    )


def test_patches_of_codex_are_patches(smol, responses):
    """With the grammar that Codex sends, the output of a small model is at least the beginning
    of a patch.
    """
    tool = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH},
    }
    for seed in range(3):
        r = responses.create(
            model="smollm2",
            input="Delete the file a.txt and add b.txt.",
            temperature=1,
            extra_body={"seed": seed},
            max_output_tokens=120,
            tools=[tool],
            tool_choice={"type": "custom", "name": "apply_patch"},
        )
        lines = r.output[0].input.split("\n")
        assert lines[0] == "*** Begin Patch" and r.output[0].name == "apply_patch", r
        for line in lines[1:-1]:
            assert re.match(
                r"[-+ ]|@@($| .)|\*\*\* ((Add|Delete|Update) File: .|Move to: .|End of File$|End Patch$)",
                line,
            ), lines


@pytest.mark.parametrize(
    "format,words",
    [
        (
            {"type": "grammar", "syntax": "lark", "definition": "start: A\n%ignore / /\nA: /a/"},
            ["custom-a.format.definition", "lark, line 2", "%ignore"],
        ),
        (
            {"type": "grammar", "syntax": "lark", "definition": "start: a{b}"},
            ["lark, line 1", "templates"],
        ),
        (
            {"type": "grammar", "syntax": "lark", "definition": "start: /a(?=b)/"},
            ["lark, line 1", "look-around"],
        ),
        ({"type": "grammar", "syntax": "regex", "definition": "(a"}, ["byte 2"]),
        ({"type": "grammar", "syntax": "gbnf", "definition": "x"}, ["tools[1].format.syntax"]),
        ({"type": "grammar", "syntax": "lark"}, ["tools[1].format.definition"]),
        ({"type": "json"}, ["tools[1].format"]),
        ("lark", ["tools[1].format"]),
    ],
)
def test_a_grammar_that_cannot_be_kept_is_an_error(roomy, format, words):
    r = roomy.post(
        "/v1/responses",
        {
            "input": "x",
            "max_output_tokens": 4,
            "tools": [
                {"type": "web_search"},
                {"type": "custom", "name": "custom-a", "format": format},
            ],
        },
    )
    assert (
        r.status == 400
        and r.json()["error"]["param"] == "tools"
        and all(w in r.json()["error"]["message"] for w in words)
    ), r.json()
    for format in ({"type": "text"}, None):
        assert (
            roomy.post(
                "/v1/responses",
                {
                    "input": "x",
                    "max_output_tokens": 4,
                    "tools": [{"type": "custom", "name": "a", "format": format}],
                },
            ).status
            == 200
        )


def test_a_format_of_another_kind_is_ignored(roomy):
    """Tools of a chat may have a `format` of any kind. One of another form is ignored, and so
    is one next to other parameters than a string.
    """
    text, number = {"type": "string"}, {"type": "integer"}
    for properties in ({"a": text}, {"a": text, "b": text}, {"a": number}):
        tool = {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                },
            },
        }
        for format in (
            5,
            "x",
            [],
            {"definition": 5, "syntax": "lark"},
            {"type": "grammar", "definition": 5, "syntax": "lark"},
            {"type": "grammar", "definition": "a", "syntax": "gbnf"},
            {"type": "text", "definition": "start: (", "syntax": "lark"},
            {"type": "grammar", "definition": 'start: "x"', "syntax": "lark"},
        ):
            r = roomy.post(
                "/v1/chat/completions",
                {
                    "messages": [{"role": "user", "content": "x"}],
                    "max_tokens": 60,
                    "tools": [{**tool, "format": format}],
                    "tool_choice": "required",
                },
            )
            assert r.status == 200, (format, r.json())
            for call in r.json()["choices"][0]["message"].get("tool_calls", []):
                held = (
                    isinstance(format, dict)
                    and format.get("definition") == 'start: "x"'
                    and properties == {"a": text}
                )
                said = call["function"]["arguments"]
                assert not held or '{"a": "x"}'.startswith(said) or said == "{}", said


def test_custom_tools_with_a_nul_and_without_a_string(roomy):
    tool = {
        "type": "custom",
        "name": "a",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: /a\0/ | "b"'},
    }
    ask = {"input": "x", "max_output_tokens": 4, "tool_choice": "required"}
    assert roomy.post("/v1/responses", {**ask, "tools": [tool]}).status == 200
    assert (
        roomy.post(
            "/v1/responses",
            {
                **ask,
                "tools": [
                    {
                        "type": "function",
                        "name": "a",
                        "description": "a\0b",
                        "parameters": {"type": "object"},
                    }
                ],
            },
        ).status
        == 200
    )
    r = roomy.post("/v1/responses", {**ask, "tools": [{**tool, "description": 5}]})
    assert r.status == 400 and "tools[0].description" in r.json()["error"]["message"], r.json()


@pytest.fixture(scope="module")
def roomy(serve, tmp_path_factory):
    """A tiny model with a context that fits descriptions of tools."""
    with serve(
        tiny_model.build(tmp_path_factory.mktemp("roomy"), context=1024),
        "--arch",
        "generic",
        "-t",
        "1",
        "--model-name",
        "tiny",
    ) as s:
        yield s


def said(server, text, tools, **fields):
    """Return events and complete answer of a model that outputs exactly this, after one
    letter: a call that the model writes itself has no text before it.
    """
    ask = {
        "input": "x",
        "tools": tools,
        "guided_choice": [letter + text for letter in string.ascii_letters],
        "temperature": 0,
        "max_output_tokens": 400,
        "stream": True,
        **fields,
    }
    events = [json.loads(f) for f in server.post("/v1/responses", ask).frames()]
    whole = server.post("/v1/responses", {**ask, "stream": False}).json()
    bare = [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in whole["output"]]
    assert bare == [
        {k: v for k, v in i.items() if k not in ("id", "call_id")}
        for i in events[-1]["response"]["output"]
    ]
    return events, whole


@pytest.mark.parametrize(
    "arguments,want",
    [
        ('{"input": "a\\n\\"b\\" \\u00e9\\ud83d\\ude00\\\\ end"}', 'a\n"b" \u00e9\U0001f600\\ end'),
        ('{ "input" :"\u00fc", "more": "x"}', "\u00fc"),
        ('{"input": ""}', ""),
        ('{"text": "a"}', '{"text": "a"}'),
    ],
)
def test_the_input_of_a_custom_call_has_no_escapes(roomy, arguments, want):
    text = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>' % arguments
    events, whole = said(roomy, text, [{"type": "custom", "name": "f"}])
    assert [(i["type"], i["input"], i["status"]) for i in whole["output"][1:]] == [
        ("custom_tool_call", want, "completed")
    ]
    assert "".join(e["delta"] for e in events if e["type"].endswith("input.delta")) == want
    for most in range(40, 80, 7):  # cut anywhere, the output is a prefix
        events, whole = said(roomy, text, [{"type": "custom", "name": "f"}], max_output_tokens=most)
        for i in whole["output"][1:]:
            assert (
                want.startswith(i.get("input", ""))
                and i["status"] == ("incomplete" if i.get("input") != want else i["status"])
                and whole["status"] in ("incomplete", "completed")
            )


def test_items_before_the_cut_are_completed(roomy):
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    events, whole = said(roomy, "hm " + call + "\n" + call, tools)
    assert [i["status"] for i in whole["output"]] == ["completed"] * 3 and whole[
        "status"
    ] == "completed"
    events, whole = said(
        roomy, "hm " + call + "\n" + call, tools, max_output_tokens=len("hm " + call + call) - 20
    )
    assert [i["status"] for i in whole["output"]] == [
        "completed",
        "completed",
        "incomplete",
    ] and whole["status"] == "incomplete"
    assert [i["type"] for i in whole["output"]] == ["message", "function_call", "function_call"]


def test_names_of_tools_are_kept_whole(roomy):
    name = "n" * 200
    r = roomy.post(
        "/v1/responses",
        {
            "input": "x",
            "max_output_tokens": 300,
            "tools": [{"type": "function", "name": name, "parameters": {"type": "object"}}],
            "tool_choice": "required",
            "temperature": 0,
        },
    ).json()
    assert r["output"][0]["name"] == name, r


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "tools",
    [
        [],
        [
            {
                "type": "function",
                "name": "f",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}},
                    "required": ["a"],
                },
            }
        ],
        [{"type": "custom", "name": "f"}],
    ],
)
def test_what_is_cut_is_incomplete(roomy, tools, stream):
    r = roomy.post(
        "/v1/responses",
        {
            "input": "Say one word.",
            "max_output_tokens": 40,
            "temperature": 0,
            "stream": stream,
            **({"tools": tools, "tool_choice": "required"} if tools else {}),
        },
    )
    events = [json.loads(f) for f in r.frames()] if stream else []
    whole = events[-1]["response"] if stream else r.json()
    assert whole["status"] == "incomplete" and [i["status"] for i in whole["output"]] == [
        "incomplete"
    ], whole
    assert not stream or (
        events[-1]["type"] == "response.incomplete"
        and [e["item"] for e in events if e["type"] == "response.output_item.done"]
        == whole["output"]
    )


def test_response_logprobs(smol, responses):
    chat = smol.post(
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "temperature": 0,
            "max_tokens": 8,
            "logprobs": True,
            "top_logprobs": 2,
        },
    ).json()["choices"][0]
    ask = {
        "model": "smollm2",
        "input": "Say one word.",
        "temperature": 0,
        "max_output_tokens": 8,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    part = responses.create(**ask).output[0].content[0]
    assert (
        part.text == chat["message"]["content"]
        and [p.model_dump() for p in part.logprobs] == chat["logprobs"]["content"]
    )
    events = list(responses.create(stream=True, **ask))
    told = [p for e in events if e.type == "response.output_text.delta" for p in e.logprobs]
    assert [p.token for p in told] == [p.token for p in part.logprobs] and [
        t.token for t in told[0].top_logprobs
    ] == [t.token for t in part.logprobs[0].top_logprobs]
    assert (
        len(next(e.logprobs for e in events if e.type == "response.output_text.done")) == len(told)
        and events[-1].response.output[0].content[0].logprobs == part.logprobs
    )


THINKS = "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}\n{% endfor %}"


def test_reasoning_comes_back_to_the_template(serve, tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    user, result = (
        {"role": "user", "content": "hi"},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    )
    as_chat = [
        user,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "why\nnot",
            "tool_calls": [call],
        },
        result,
        {"role": "assistant", "content": "a", "reasoning_content": "so"},
        user,
    ]
    items = [
        user,
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "why"}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "not"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "of nothing that was said"}],
        },
        user,
    ]
    blocks = [
        user,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "why", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": "not", "signature": ""},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": ""},
                {"type": "text", "text": "a"},
            ],
        },
        user,
    ]
    with serve(
        tiny_model.build(tmp_path, template=THINKS),
        "--arch",
        "generic",
        "-t",
        "1",
        "--model-name",
        "tiny",
        "--context",
        "512",
    ) as s:
        want = s.post("/v1/tokenize", {"messages": as_chat}).json()["count"]
        without = s.post(
            "/v1/tokenize",
            {
                "messages": [
                    {k: v for k, v in m.items() if k != "reasoning_content"} for m in as_chat
                ]
            },
        ).json()["count"]
        r = s.post("/v1/responses", {"input": items, "max_output_tokens": 1}).json()
        assert r["usage"]["input_tokens"] == want > without + 20, r
        assert (
            s.post("/v1/messages/count_tokens", {"messages": blocks}).json()["input_tokens"] == want
        )


def test_response_of_a_schema(responses):
    r = responses.create(
        model="smollm2",
        input="Give JSON.",
        temperature=0,
        max_output_tokens=60,
        text={"format": {"type": "json_schema", "name": "word", "schema": SCHEMA, "strict": True}},
    )
    assert json.loads(r.output_text).keys() == {"word", "n"} and r.text.format.schema_ == SCHEMA


@pytest.mark.parametrize(
    "body,said",
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "item_reference"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "reads text only, but the request has images",
        ),
        ({"input": [{"role": "user"}]}, "content"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "output"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "tools": 3}, "tools"),
        ({"input": "x", "tools": [3]}, "tools[0]"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools"),
        ({"input": "x", "text": {"format": {}}}, "text.format"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a"}}}, "schema"),
        ({"input": "x", "temperature": 9}, "temperature"),
        ({"input": []}, "'input'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0]"),
        ({"input": "x", "max_output_tokens": 0}, "'max_output_tokens'"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "'text.format'"),
        (
            {
                "input": "x",
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "a",
                        "strict": True,
                        "schema": {"type": "array", "uniqueItems": True},
                    }
                },
            },
            "'text.format'",
        ),
        ({"input": "x", "instructions": 5}, "instructions"),
        ({"input": "x", "reasoning": "high"}, "reasoning"),
        ({"input": "x", "reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"input": "x", "text": 5}, "'text'"),
        ({"input": "x", "metadata": 5}, "metadata"),
        ({"input": "x", "include": "all"}, "include"),
        ({"input": "x", "top_logprobs": 99}, "top_logprobs"),
        (
            {"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f", "input": {}}]},
            "'input[0]'",
        ),
        ({"input": "x", "tools": [{"type": "web_search"}, {"type": "custom"}]}, "tools[1]"),
        (
            {"input": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": 3}]}]},
            "input[0]",
        ),
    ],
)
def test_response_refuses(tiny, body, said):
    r = tiny.post("/v1/responses", body)
    e = r.json()["error"]
    assert (
        r.status == 400
        and said in e["message"]
        and (said[0] != "'" or e["param"] == said.strip("'"))
    ), e


@pytest.mark.parametrize("t", [0.6, 0.1, 1, 0.7000000000000001, 1e-05, 1.9999999999999998])
def test_a_response_repeats_the_numbers_that_were_sent(tiny, t):
    r = tiny.post(
        "/v1/responses",
        {"input": "x", "max_output_tokens": 1, "temperature": t, "top_p": min(t, 1)},
    )
    assert r.status == 200 and (r.json()["temperature"], r.json()["top_p"]) == (t, min(t, 1))
