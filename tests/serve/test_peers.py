"""Requests and errors of other servers' clients: documents of Anthropic's, counts of OpenAI's
responses, llama.cpp's properties and slots, and the words of errors.
"""

import json

import pytest
from waiting import HANG

HELLO = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def claude(tiny):
    anthropic = pytest.importorskip("anthropic")
    return anthropic.Anthropic(base_url=tiny.url, api_key="none", max_retries=0, timeout=HANG)


@pytest.fixture(scope="module")
def openai_client(tiny):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=tiny.url + "/v1", api_key="none", max_retries=0, timeout=HANG)


# ---- counts ----


def test_tokens_of_a_response(tiny, openai_client):
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
    for body in (
        {"input": "hello"},
        {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"input": "hello", "instructions": "Be brief.", "tools": tools},
    ):
        n = openai_client.responses.input_tokens.count(model="tiny", **body)
        whole = openai_client.responses.create(model="tiny", max_output_tokens=1, **body)
        assert n.object == "response.input_tokens"
        assert n.input_tokens == whole.usage.input_tokens
    for bad, param in (
        ({}, "input"),
        ({"input": "a", "previous_response_id": "x"}, "previous_response_id"),
        ({"input": [{"role": "forbidden", "content": "x"}]}, "input"),
    ):
        r = tiny.post("/v1/responses/input_tokens", bad)
        assert r.status == 400 and r.json()["error"]["param"].startswith(param), r.text


# ---- documents ----


def text_block(text):
    return {"type": "text", "text": text}


def document(source, **more):
    return {"type": "document", "source": source, **more}


DOCUMENTS = [
    (document({"type": "text", "media_type": "text/plain", "data": "the body"}), "the body"),
    (
        document(
            {"type": "text", "media_type": "text/plain", "data": "x\n"},
            title="A title",
            context="about it",
            citations={"enabled": False},
            cache_control={"type": "ephemeral"},
        ),
        "A title\nabout it\nx\n",
    ),
    (document({"type": "content", "content": "whole"}, title=None), "whole"),
    (document({"type": "content", "content": [text_block("a"), text_block("b")]}), "a\nb"),
    (
        {
            "type": "search_result",
            "source": "https://a.b",
            "title": "Found",
            "content": [text_block("it")],
        },
        "Found\nhttps://a.b\nit",
    ),
]


@pytest.mark.parametrize("block, text", DOCUMENTS)
def test_documents_are_text(claude, block, text):
    """A document block gives the same prompt as a block of plain text with the same contents."""

    def ask(first):
        messages = [{"role": "user", "content": [first, text_block("Which?")]}]
        m = claude.messages.create(
            model="tiny", max_tokens=8, messages=messages, extra_body={"temperature": 0}
        )
        n = claude.messages.count_tokens(model="tiny", messages=messages).input_tokens
        with claude.messages.stream(
            model="tiny", max_tokens=8, messages=messages, extra_body={"temperature": 0}
        ) as s:
            streamed = s.get_final_message().content
        texts = [[b.text for b in blocks] for blocks in (m.content, streamed)]
        assert texts[0] == texts[1]
        return texts[0], n

    assert ask(block) == ask(text_block(text))


def test_documents_in_results_of_tools(tiny):
    def count(content):
        use = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": content}
        messages = [
            *HELLO,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        r = tiny.post("/v1/messages/count_tokens", {"model": "tiny", "messages": messages})
        assert r.status == 200, r.text
        return r.json()["input_tokens"]

    for block, text in DOCUMENTS:
        assert count([block, text_block("z")]) == count([text_block(text), text_block("z")])


@pytest.mark.parametrize(
    "block, words",
    [
        (document({"type": "base64", "media_type": "application/pdf", "data": "AA=="}), "base64"),
        (document({"type": "url", "url": "https://a.b"}), "url"),
        (document({"type": "file", "file_id": "x"}), "file"),
        (document({"type": "text", "media_type": "text/html", "data": "x"}), "text/plain"),
        (document({"type": "text", "media_type": "text/plain"}), "data"),
        (document({"type": "content", "content": [{"type": "image"}]}), "type 'text'"),
        (document({}), "type"),
        (document({"type": "content", "content": "x"}, title=3), "title"),
        (document({"type": "content", "content": "x"}, citations={"enabled": True}), "citations"),
        ({"type": "search_result", "source": "a", "title": "b", "content": 3}, "array"),
    ],
)
def test_documents_that_are_not_text(tiny, block, words):
    for content in ([block], [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]):
        r = tiny.post(
            "/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": content}]}
        )
        error = r.json()["error"]
        assert r.status == 400 and error["type"] == "invalid_request_error"
        assert words in error["message"] and error["message"].startswith("messages.0.content.0")


# ---- llama.cpp ----


def test_props_and_slots(tiny):
    props = tiny.get("/props").json()
    info = tiny.get("/info").json()
    assert props["default_generation_settings"]["n_ctx"] == info["max_total_tokens"]
    assert props["model_alias"] == "tiny" and props["total_slots"] == 8
    assert props["chat_template"] == tiny.post("/api/show", {"model": "tiny"}).json()["template"]
    assert props["bos_token"] == "<s>" and props["eos_token"] == "</s>"
    params = props["default_generation_settings"]["params"]
    # the defaults are those of llama.cpp's own route
    assert params["temperature"] == 0.8 and params["top_k"] == 40 and params["min_p"] == 0.05
    assert params["dry_penalty_last_n"] == -1 and params["xtc_threshold"] == 0.1
    used = tiny.post("/completion", {"prompt": "a", "n_predict": 1}).json()["generation_settings"]
    unlike = {"n_predict", "seed"}
    assert {k: used[k] for k in params if k not in unlike} == {
        k: v for k, v in params.items() if k not in unlike
    }
    tiny.idle()
    slots = tiny.get("/slots").json()
    assert [s["id"] for s in slots] == list(range(8))
    assert all(s["n_ctx"] == info["max_total_tokens"] for s in slots)
    assert not any(s["is_processing"] for s in slots)
    assert tiny.post("/props", {}).status == 501
    assert tiny.post("/slots", {}).status == 405


def test_slots_of_running_requests(tiny):
    """A request that runs occupies a slot."""
    with tiny.connect() as c:
        body = json.dumps(
            {"prompt": "a", "max_tokens": -1, "ignore_eos": True, "n": 3, "stream": True}
        )
        c.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body.encode())
        )
        c.recv(1)
        busy = [s["is_processing"] for s in tiny.get("/slots").json()]
        assert busy[:3] in ([True] * 3, [False] * 3) and not any(busy[3:])


# ---- errors ----


def test_errors_in_the_words_of_anthropic(tiny, claude):
    import anthropic

    long = [{"role": "user", "content": "hello " * 2000}]
    most = tiny.get("/info").json()["max_total_tokens"]
    with pytest.raises(anthropic.BadRequestError) as e:
        claude.messages.create(model="tiny", max_tokens=4, messages=long)
    message = e.value.body["error"]["message"]
    assert e.value.body["type"] == "error" and e.value.type == "invalid_request_error"
    assert message.startswith("prompt is too long: ")
    assert message.endswith("maximum") and " tokens > " in message
    n = claude.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    with pytest.raises(anthropic.BadRequestError) as e:
        claude.messages.create(model="tiny", max_tokens=most, messages=HELLO)
    assert e.value.body["error"]["message"] == (
        f"input length and `max_tokens` exceed context limit: {n} + {most} > {most}, "
        "decrease input length or `max_tokens` and try again"
    )
    with pytest.raises(anthropic.NotFoundError) as e:
        claude.messages.create(model="nosuch", max_tokens=1, messages=HELLO)
    assert e.value.type == "not_found_error"
    assert e.value.body["error"]["message"].startswith("model: ")
    for body, start in (
        ({"messages": HELLO}, "max_tokens: Field required"),
        ({"messages": HELLO, "max_tokens": "x"}, "max_tokens: Input should be a valid integer"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens: "),
        ({"messages": HELLO, "max_tokens": 1, "temperature": 9}, "temperature: "),
        ({"messages": HELLO, "max_tokens": 1, "top_k": "x"}, "top_k: "),
        ({"messages": HELLO, "max_tokens": 1, "stop_sequences": [""]}, "stop_sequences: "),
        ({"messages": HELLO, "max_tokens": 1, "tool_choice": {"type": "x"}}, "tool_choice: "),
        ({"messages": [], "max_tokens": 1}, "messages: at least one message is required"),
        ({"messages": HELLO, "max_tokens": 1, "mcp_servers": [{}, {}]}, "mcp_servers: "),
    ):
        r = tiny.post("/v1/messages", body)
        error = r.json()["error"]
        assert r.status == 400 and set(error) == {"type", "message"}
        assert error["message"].startswith(start), error
        assert r.json()["request_id"]


def test_errors_in_the_words_of_ollama(tiny):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=tiny.url)
    with pytest.raises(ollama.ResponseError) as e:
        client.chat("nosuch", messages=HELLO)
    assert (e.value.status_code, e.value.error) == (404, "model 'nosuch' not found")
    with pytest.raises(ollama.ResponseError) as e:
        client.generate("tiny", prompt="hello " * 2000)
    assert e.value.status_code == 400
    assert e.value.error.startswith("the input length exceeds the context length")
    for body, word in (
        ({"messages": HELLO, "options": {"top_k": "x"}}, "options.top_k"),
        ({"messages": HELLO, "options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"messages": HELLO, "format": 3}, "format"),
        ({"messages": 3}, "messages"),
    ):
        r = tiny.post("/api/chat", body)
        assert r.status == 400 and set(r.json()) == {"error"} and word in r.json()["error"]


def test_a_wrong_key_in_the_words_of_anthropic(serve, tiny_folder):
    anthropic = pytest.importorskip("anthropic")
    with serve(tiny_folder, "-t", "1", "--api-key", "right", "--model-name", "tiny") as s:
        client = anthropic.Anthropic(base_url=s.url, api_key="wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as e:
            client.messages.create(model="tiny", max_tokens=1, messages=HELLO)
        assert e.value.type == "authentication_error"
        assert e.value.body["error"]["message"].startswith("invalid x-api-key")


def test_numbers_beyond_the_range(tiny):
    """The limit is named, not a value that has lost its last digits."""
    for seed, words in (
        (-(2**63) - 1, "the value is less than the minimum of -9223372036854775808"),
        (2**63, "the value is greater than the maximum of 9223372036854775807"),
    ):
        r = tiny.post("/v1/completions", b'{"prompt": "a", "seed": %d}' % seed)
        assert r.status == 400 and words in r.json()["error"]["message"], r.text
