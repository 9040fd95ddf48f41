"""OpenAI's interface through OpenAI's own client, on a tiny model.

It is one file because its server starts once per module.
"""

import asyncio
import json
import subprocess

import openai
import pytest
import tiny_model

CHAT = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def client(tiny):
    with openai.OpenAI(base_url=tiny.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def test_tokens_beyond_the_tokenizer_are_without_text(serve, tmp_path, llmc_binary):
    n = len(tiny_model.vocabulary())
    folder = tiny_model.build(tmp_path, padding=8)
    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "2", "--model-name", "tiny") as s:
        body = {
            "model": "tiny",
            "prompt": [264, n + 1, 269],
            "max_tokens": 3,
            "temperature": 0,
            "logit_bias": {str(n + 2): 100},
        }
        a = s.post("/v1/completions", body)
        assert (
            a.status == 200
            and a.json()["choices"][0]["text"] == ""
            and a.json()["usage"]["completion_tokens"] == 3
        ), a.text
        a = s.post("/v1/completions", {**body, "logprobs": 2})
        assert a.status == 200 and a.json()["choices"][0]["logprobs"]["tokens"] == [""] * 3, a.text
        a = s.post(
            "/generate", {"inputs": "hello", "parameters": {"max_new_tokens": 4, "details": True}}
        )
        assert a.status == 200 and len(a.json()["details"]["tokens"]) == 4, a.text
    p = subprocess.run(
        [
            llmc_binary,
            "run",
            folder,
            "--arch",
            "generic",
            "-t",
            "1",
            "--tokens",
            f"264,{n + 1}",
            "-n",
            "5",
            "--json",
        ],
        capture_output=True,
    )
    assert p.returncode == 0, p.stderr


def test_a_model_without_a_chat_template(serve, tmp_path, llmc_binary):
    folder = tiny_model.build(tmp_path, template=None)
    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "2", "--model-name", "tiny") as s:
        a = s.post("/v1/chat/completions", {"model": "tiny", "messages": CHAT})
        assert (
            a.status == 400
            and a.json()["error"]["message"]
            == "This model has no chat template: use /v1/completions, or pass 'chat_template'."
        )
        assert (
            s.post("/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 1}).status
            == 200
        )


def test_models(client):
    models = client.models.list().data
    assert (
        [m.id for m in models] == ["tiny"]
        and models[0].object == "model"
        and models[0].created > 1.7e9
    )
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("other")
    assert e.value.code == "model_not_found"


def test_completion(client):
    r = client.completions.create(model="tiny", prompt="hello world", max_tokens=7, temperature=0)
    assert (
        r.object == "text_completion"
        and r.id.startswith("cmpl-")
        and r.model == "tiny"
        and len(r.choices) == 1
    )
    assert (
        r.choices[0].finish_reason == "length"
        and r.choices[0].logprobs is None
        and r.choices[0].text
    )
    assert (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens) == (2, 7, 9)
    assert (
        client.completions.create(
            model="tiny", prompt="hello world", temperature=0
        ).usage.completion_tokens
        == 16
    )


def test_greedy_equals_the_command_line(client, llmc_binary, tiny_folder):
    p = subprocess.run(
        [
            llmc_binary,
            "run",
            tiny_folder,
            "--arch",
            "generic",
            "-t",
            "1",
            "--tokens",
            "264,269",
            "-n",
            "24",
            "--json",
        ],
        capture_output=True,
        check=True,
    )
    r = client.completions.create(model="tiny", prompt=[264, 269], max_tokens=24, temperature=0)
    assert r.choices[0].text == json.loads(p.stdout)["text"]


def test_a_prompt_has_four_forms(client):
    ids = [264, 269]
    one = (
        client.completions.create(model="tiny", prompt="hello world", max_tokens=3, temperature=0)
        .choices[0]
        .text
    )
    assert (
        client.completions.create(model="tiny", prompt=ids, max_tokens=3, temperature=0)
        .choices[0]
        .text
        == one
    )
    several = client.completions.create(
        model="tiny", prompt=["hello", "hello world"], max_tokens=3, temperature=0, n=2
    )
    assert [c.index for c in several.choices] == [0, 1, 2, 3] and several.choices[
        2
    ].text == several.choices[3].text == one
    assert several.usage.prompt_tokens == 3 and several.usage.completion_tokens == 12
    lists = client.completions.create(
        model="tiny", prompt=[ids, [264]], max_tokens=3, temperature=0
    )
    assert [c.text for c in lists.choices] == [one, several.choices[0].text]


def test_stream_equals_the_whole(client):
    args = dict(model="tiny", prompt="hello world", max_tokens=24, temperature=0.9, seed=5, n=2)
    whole = client.completions.create(**args)
    texts, finish, usage = ["", ""], {}, None
    for chunk in client.completions.create(
        **args, stream=True, stream_options={"include_usage": True}
    ):
        assert chunk.object == "text_completion"
        if chunk.usage:
            usage = chunk.usage
            assert chunk.choices == []
        for c in chunk.choices:
            texts[c.index] += c.text
            finish[c.index] = c.finish_reason or finish.get(c.index)
    assert texts == [c.text for c in whole.choices] and finish == {
        c.index: c.finish_reason for c in whole.choices
    }
    assert usage.completion_tokens == whole.usage.completion_tokens and usage.prompt_tokens == 2


def test_seeds(client):
    def text(seed):
        return (
            client.completions.create(
                model="tiny", prompt="a", max_tokens=20, seed=seed, extra_body={"ignore_eos": True}
            )
            .choices[0]
            .text
        )

    assert text(1) == text(1) != text(2)
    free = {
        client.completions.create(
            model="tiny", prompt="a", max_tokens=20, extra_body={"ignore_eos": True}
        )
        .choices[0]
        .text
        for _ in range(3)
    }
    assert len(free) > 1, "without a seed, answers differ"


def test_completion_logprobs_and_echo(client):
    r = client.completions.create(
        model="tiny", prompt="hello world", max_tokens=3, temperature=0, logprobs=3, echo=True
    )
    lp = r.choices[0].logprobs
    assert (
        len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 5
    )
    assert (
        lp.tokens[:2] == ["hello", " world"]
        and lp.token_logprobs[0] is None
        and lp.top_logprobs[0] is None
    )
    assert all(x <= 0 for x in lp.token_logprobs[1:]) and lp.text_offset[:3] == [0, 5, 11]
    assert r.choices[0].text.startswith("hello world")
    for place, x in zip(lp.top_logprobs[2:], lp.token_logprobs[2:]):
        assert 3 <= len(place) <= 4 and max(place.values()) == pytest.approx(x), (
            "greedy took the likeliest"
        )
    # scoring only, as evaluation harnesses do
    score = client.completions.create(
        model="tiny", prompt="hello world", max_tokens=0, logprobs=1, echo=True
    )
    assert score.choices[0].text == "hello world" and score.usage.completion_tokens == 0
    assert score.choices[0].logprobs.token_logprobs[1] == pytest.approx(lp.token_logprobs[1])


def test_logit_bias_and_stop(client):
    args = dict(model="tiny", prompt="hello world", max_tokens=8, temperature=0)
    x = client.completions.create(**args, logit_bias={"264": 100})
    assert x.choices[0].text == "hello" * 8
    r = client.completions.create(**args, logit_bias={"264": 100}, stop=["lohe"])
    assert r.choices[0].text == "hel" and r.choices[0].finish_reason == "stop"
    streamed = list(
        client.completions.create(**args, logit_bias={"264": 100}, stop="lohello", stream=True)
    )
    assert (
        "".join(c.choices[0].text for c in streamed) == "hel"
        and streamed[-1].choices[0].finish_reason == "stop"
    )
    token = client.completions.create(
        **args, logit_bias={"264": 100}, extra_body={"stop_token_ids": [264]}
    )
    assert token.choices[0].text == "" and token.choices[0].finish_reason == "stop"
    least = client.completions.create(
        **args,
        logit_bias={"264": 100, "269": 50},
        extra_body={"stop_token_ids": [264], "min_tokens": 3},
    )
    assert least.choices[0].text == " world" * 3


def test_best_of(client):
    r = client.completions.create(
        model="tiny", prompt="hello", max_tokens=4, n=1, best_of=4, seed=3
    )
    assert len(r.choices) == 1
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(model="tiny", prompt="hello", n=3, best_of=2)
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(model="tiny", prompt="hello", best_of=2, stream=True)


def test_answers_of_broken_bytes_are_valid_text(client):
    """The model outputs incomplete UTF-8 only."""
    bias = {str(i): -100 for i in list(range(0, 99)) + list(range(261, 270))}
    r = client.completions.create(
        model="tiny",
        prompt="hello",
        max_tokens=30,
        temperature=1,
        seed=1,
        logit_bias={**bias, "253": 100},
    )
    assert set(r.choices[0].text) == {"\ufffd"}
    parts = [
        c.choices[0].text
        for c in client.completions.create(
            model="tiny",
            prompt="hello",
            max_tokens=30,
            temperature=0,
            logit_bias={"253": 100},
            stream=True,
        )
    ]
    assert set("".join(parts)) == {"\ufffd"}


def test_chat(client):
    r = client.chat.completions.create(
        model="tiny", messages=CHAT, max_completion_tokens=5, temperature=0
    )
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-")
    m = r.choices[0].message
    assert (
        m.role == "assistant"
        and m.content
        and m.refusal is None
        and r.choices[0].finish_reason == "length"
    )
    old = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=5, temperature=0)
    assert old.choices[0].message.content == m.content
    parts = client.chat.completions.create(
        model="tiny",
        max_tokens=5,
        temperature=0,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello world"}]}],
    )
    assert parts.choices[0].message.content == m.content


def test_chat_goes_to_the_end_of_the_context(client, tiny):
    r = client.chat.completions.create(
        model="tiny", messages=CHAT, temperature=0, extra_body={"ignore_eos": True}
    )
    assert r.usage.total_tokens == 256 and r.choices[0].finish_reason == "length"


def test_chat_stream(client):
    args = dict(
        model="tiny", messages=CHAT, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
    )
    whole = client.chat.completions.create(**args)
    chunks = list(
        client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True})
    )
    assert (
        chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    )
    assert len({c.id for c in chunks}) == 1 and all(
        c.object == "chat.completion.chunk" for c in chunks
    )
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        == whole.choices[0].message.content
    )
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert (
        chunks[-2].choices[0].finish_reason == "length"
        and chunks[-2].choices[0].delta.content is None
    )
    streamed = [
        t
        for c in chunks
        if c.choices and c.choices[0].logprobs
        for t in c.choices[0].logprobs.content
    ]
    assert [t.model_dump() for t in streamed] == [
        t.model_dump() for t in whole.choices[0].logprobs.content
    ] and len(streamed) == 12
    for t in streamed:
        assert len(t.top_logprobs) == 2 and t.logprob == pytest.approx(t.top_logprobs[0].logprob)
        assert bytes(t.bytes).decode("utf-8", "replace") == t.token


def test_chat_n(client):
    r = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=6, n=4, seed=1)
    assert [c.index for c in r.choices] == [0, 1, 2, 3] and len(
        {c.message.content for c in r.choices}
    ) > 1
    streamed = ["", "", "", ""]
    for chunk in client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=6, n=4, seed=1, stream=True
    ):
        for c in chunk.choices:
            streamed[c.index] += c.delta.content or ""
    assert streamed == [c.message.content for c in r.choices]


def test_template_sees_tools_roles_and_variables(client, tiny):
    def prompt(**body):
        return tiny.post("/chat_tokenize", {"model": "tiny", **body}).json()["templated_text"]

    tools = [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    ]
    assert '"weather"' in prompt(messages=CHAT, tools=tools) and "weather" not in prompt(
        messages=CHAT, tools=tools, tool_choice="none"
    )
    assert "<|im_start|>system\nbe brief" in prompt(
        messages=[{"role": "developer", "content": "be brief"}, *CHAT]
    )
    assert prompt(messages=CHAT, chat_template_kwargs={"mood": "glad"}).endswith(
        "assistant\n(glad)"
    )
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 42}'}}
        ],
    }
    assert "[f 42]" in prompt(
        messages=[*CHAT, call, {"role": "tool", "tool_call_id": "1", "content": "7"}]
    )
    assert prompt(
        messages=[*CHAT, {"role": "assistant", "content": "Well, "}],
        continue_final_message=True,
        add_generation_prompt=False,
    ).endswith("Well,")
    r = client.chat.completions.create(model="tiny", messages=CHAT, tools=tools, max_tokens=3)
    assert r.choices[0].message.tool_calls is None


def test_the_model_may_be_left_out_and_the_answer_without_bound(tiny):
    r = tiny.post(
        "/v1/completions",
        {
            "prompt": ["hello world", "hello"],
            "max_tokens": -1,
            "temperature": 0,
            "ignore_eos": True,
        },
    ).json()
    assert (
        r["model"] == "tiny"
        and r["usage"]["total_tokens"] == 512
        and r["usage"]["prompt_tokens"] == 3
    )
    for key in ("max_tokens", "max_completion_tokens"):
        r = tiny.post(
            "/v1/chat/completions",
            {"messages": CHAT, key: -1, "temperature": 0, "ignore_eos": True},
        ).json()
        assert r["usage"]["total_tokens"] == 256 and r["choices"][0]["finish_reason"] == "length"
    assert tiny.post("/v1/completions", {"prompt": "hello", "max_tokens": -2}).status == 400


UNSUPPORTED = [
    ("modalities", ["text", "audio"]),
    ("function_call", "auto"),
    ("functions", [{"name": "f"}]),
]


@pytest.mark.parametrize("field,value", UNSUPPORTED)
def test_what_would_change_the_answer_is_not_passed_over(tiny, field, value):
    for path, body in (
        ("/v1/chat/completions", {"messages": CHAT}),
        ("/v1/completions", {"prompt": "hello"}),
    ):
        r = tiny.post(path, {**body, "max_tokens": 1, field: value})
        e = r.json()["error"]
        assert r.status == 400 and e["param"] == field and e["code"] == "unsupported_parameter", (
            r.text
        )
        for nothing in (
            None,
            *{"modalities": [["text"]], "function_call": ["none"], "functions": [[]]}.get(
                field, []
            ),
        ):
            assert tiny.post(path, {**body, "max_tokens": 1, field: nothing}).status == 200


# no tools; concatenates the content to a string
PLAIN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
ASKS = "{% for m in messages %}{{ m.role }}:{% if m.content is none %}calls {{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %} {% endfor %}"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def tool_loop(client, **args):
    """Send back the client's own objects after a call, with null content as the protocol has
    it.
    """
    from openai.types.chat import ChatCompletionMessage

    said = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        }
    )
    messages = [
        {"role": "user", "content": "hi"},
        said,
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    return client.chat.completions.create(model="tiny", messages=messages, max_tokens=1, **args)


def test_a_template_without_tools(serve, tmp_path):
    folder = tiny_model.build(tmp_path, template=PLAIN)
    with (
        serve(folder, "--arch", "generic", "-t", "1", "--seqs", "2", "--model-name", "tiny") as s,
        openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as c,
    ):
        assert tool_loop(c, tools=TOOLS, tool_choice="none").choices and tool_loop(c).choices, (
            "null is no text that could be added to"
        )
        body = {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"a": 1}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            ],
            "tools": TOOLS,
        }
        text = s.post("/chat_tokenize", body).json()["templated_text"]
        assert (
            text.startswith("<|im_start|>system\nBe brief.\n\n")
            and '{"name":"weather","parameters":{"type":"object"}}' in text
        ), "told in the system message"
        assert (
            '<tool_call>\n{"name": "weather", "arguments": {"a":1}}\n</tool_call>' in text
            and "<tool_response>\nsunny\n</tool_response>" in text
        ), text


def test_the_tool_loop_of_a_client(serve, client, tmp_path):
    assert tool_loop(client, tools=TOOLS).choices
    folder = tiny_model.build(tmp_path, template=ASKS)
    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "2", "--model-name", "tiny") as s:
        call = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        }
        r = s.post("/chat_tokenize", {"messages": [*CHAT, call]})
        assert r.json()["templated_text"] == "user:hello world assistant:calls f ", (
            "a template that asks for null gets it"
        )


def test_template_variables_replace_nothing(tiny):
    for key in ("messages", "tools", "add_generation_prompt"):
        r = tiny.post("/v1/chat/completions", {"messages": CHAT, "chat_template_kwargs": {key: []}})
        assert r.status == 400 and r.json()["error"]["param"] == "chat_template_kwargs", r.text


def test_large_integers_stay_numbers(tiny):
    def prompt(mood):
        return tiny.post(
            "/chat_tokenize",
            b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"mood": %s}}'
            % mood,
        ).json()["templated_text"]

    assert "(18446744073709551615" in prompt(
        b"18446744073709551615"
    ) or "(1.8446744073709552e+19)" in prompt(b"18446744073709551615")
    assert "$u64" in prompt(b'{"$u64": "5"}') and "'5'" in prompt(b'{"$u64": "5"}')


@pytest.mark.parametrize(
    "body,param,words",
    [
        (dict(messages=[]), "messages", "at least one message"),
        (dict(messages="hi"), "messages", "a string"),
        (dict(), "messages", "Missing"),
        (dict(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "robot"),
        (dict(messages=[{"role": "user"}]), "messages[0].content", "null"),
        (
            dict(
                messages=[
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            ),
            "messages[0].content[0]",
            "The model 'tiny' reads text only, but the request has images (1).",
        ),
        (dict(messages=[{"role": "user", "content": "refuse me"}]), "messages", "not this message"),
        (dict(messages=CHAT, tools=[], tool_choice="required"), "tool_choice", "no tools"),
        (
            dict(messages=CHAT, tool_choice={"type": "function", "function": {"name": "f"}}),
            "tool_choice",
            "no tool 'f'",
        ),
        (dict(messages=CHAT, tools=[{"type": "web"}]), "tools", "function"),
        (dict(messages=CHAT, temperature=2.5), "temperature", "maximum"),
        (dict(messages=CHAT, temperature="hot"), "temperature", "a string"),
        (dict(messages=CHAT, top_p=-0.1), "top_p", "minimum"),
        (dict(messages=CHAT, n=129), "n", "maximum"),
        (dict(messages=CHAT, n=0), "n", "minimum"),
        (dict(messages=CHAT, presence_penalty=3), "presence_penalty", "maximum"),
        (dict(messages=CHAT, top_logprobs=3), "top_logprobs", "logprobs"),
        (dict(messages=CHAT, logprobs=True, top_logprobs=21), "top_logprobs", "maximum"),
        (dict(messages=CHAT, logit_bias={"9999": 1}), "logit_bias", "9999"),
        (dict(messages=CHAT, logit_bias={"1": 101}), "logit_bias", "-100 to 100"),
        (dict(messages=CHAT, stop=["a"] * 5), "stop", "maximum length 4"),
        (dict(messages=CHAT, stop=[""]), "stop", "not empty"),
        (dict(messages=CHAT, stream_options={"include_usage": True}), "stream_options", "stream"),
        (dict(messages=CHAT, max_tokens=0), "max_tokens", "minimum"),
        (dict(messages=CHAT, max_tokens=5000), "messages", "maximum context length is 256"),
        (
            dict(messages=[{"role": "user", "content": "z" * 400}]),
            "messages",
            "maximum context length",
        ),
        (dict(messages=CHAT, seed="x"), "seed", "integer"),
        (dict(messages=CHAT, stream="yes"), "stream", "boolean"),
    ],
)
def test_chat_refusals(tiny, body, param, words):
    r = tiny.post("/v1/chat/completions", {"model": "tiny", **body})
    e = r.json()["error"]
    assert (
        r.status == 400
        and set(e) == {"message", "type", "param", "code"}
        and e["type"] == "invalid_request_error"
    )
    assert e["param"] == param and words in e["message"], e


@pytest.mark.parametrize(
    "body,param",
    [
        (dict(), "prompt"),
        (dict(prompt=[]), "prompt"),
        (dict(prompt=5), "prompt"),
        (dict(prompt=[1.5]), "prompt"),
        (dict(prompt=["a", 1]), "prompt"),
        (dict(prompt=[270]), "prompt"),
        (dict(prompt=[-1]), "prompt"),
        (dict(prompt=[[]]), "prompt"),
        (dict(prompt=[True]), "prompt"),
        (dict(prompt={"a": 1}), "prompt"),
        (dict(prompt=["a"] * 200), "prompt"),
        (dict(prompt="a", logprobs=6), "logprobs"),
        (dict(prompt="a", suffix="b"), "suffix"),
        (dict(prompt="a", best_of=21), "best_of"),
        (dict(prompt="a", max_tokens=-2), "max_tokens"),
        (dict(prompt="a", echo=1), "echo"),
        (dict(prompt="a", min_tokens=17), "min_tokens"),
        (dict(prompt="a", stop_token_ids=[999]), "stop_token_ids"),
        (dict(prompt="a", max_tokens=2**40), "max_tokens"),
        (dict(prompt="a", max_tokens=2**63), "max_tokens"),
        (dict(prompt="a", model=7), "model"),
        (dict(prompt=""), "prompt"),
    ],
)
def test_completion_refusals(tiny, body, param):
    r = tiny.post("/v1/completions", {"model": "tiny", **body})
    e = r.json()["error"]
    assert r.status == 400 and e["param"] == param and e["type"] == "invalid_request_error", e


def test_the_longest_prompt_fits_and_one_more_does_not(tiny):
    def post(n, new):
        return tiny.post(
            "/v1/completions",
            {
                "model": "tiny",
                "prompt": [5 + i % 200 for i in range(n)],
                "max_tokens": new,
                "ignore_eos": True,
            },
        )

    assert post(250, 6).json()["usage"]["total_tokens"] == 256
    for n, new in ((250, 7), (251, 6), (256, 1), (257, 1), (10000, 1)):
        r = post(n, new)
        assert r.status == 400 and r.json()["error"]["code"] == "context_length_exceeded", (n, new)


def test_errors_arrive_as_the_clients_exceptions(client, serve, tiny_folder):
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="other", prompt="a")
    assert e.value.status_code == 404 and e.value.body["param"] == "model"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="a", temperature=9)
    assert e.value.response.headers["x-request-id"]


def test_async_client(tiny):
    async def main():
        async with openai.AsyncOpenAI(
            base_url=tiny.url + "/v1", api_key="none", max_retries=0
        ) as c:

            async def one(i):
                if i % 2:
                    stream = await c.chat.completions.create(
                        model="tiny", messages=CHAT, max_tokens=8, temperature=0, stream=True
                    )
                    return "".join(
                        [p.choices[0].delta.content or "" async for p in stream if p.choices]
                    )
                r = await c.chat.completions.create(
                    model="tiny", messages=CHAT, max_tokens=8, temperature=0
                )
                return r.choices[0].message.content

            return await asyncio.gather(*(one(i) for i in range(24)))

    answers = asyncio.run(main())
    assert len(set(answers)) == 1 and len(answers) == 24


def test_tokens_and_text(tiny):
    r = tiny.post(
        "/v1/tokenize", {"model": "tiny", "prompt": "hello world é", "return_token_strs": True}
    ).json()
    assert (
        r["count"] == len(r["tokens"]) == 5
        and r["max_model_len"] == 256
        and r["token_strs"][:2] == ["hello", " world"]
    )
    assert tiny.post("/v1/detokenize", {"tokens": r["tokens"]}).json() == {
        "prompt": "hello world é",
        "content": "hello world é",
    }
    assert tiny.post("/detokenize", {"tokens": [264]}).json() == {
        "prompt": "hello",
        "content": "hello",
    }
    chat = tiny.post("/v1/tokenize", {"messages": CHAT}).json()
    assert chat["tokens"][0] == 3
    assert tiny.post("/tokenize", {"content": "hello world é"}).json() == {
        "tokens": r["tokens"][-5:]
    }  # llama.cpp's form
    pieces = tiny.post(
        "/tokenize", {"content": "é", "with_pieces": True, "add_special": False}
    ).json()["tokens"]
    assert (
        b"".join(
            p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"])
            for p in pieces
        )
        == "é".encode()
    )
    assert (
        tiny.post("/tokenize", {"content": 3}).status == 400
        and tiny.post("/tokenize", {"content": "a", "with_pieces": 3}).status == 400
    )
    for body in ({}, {"prompt": 5}, []):
        assert tiny.post("/v1/tokenize", body).status == 400
    for body in ({}, {"tokens": [9999]}, {"tokens": ["a"]}):
        assert tiny.post("/v1/detokenize", body).status == 400


def test_adapters_by_scale_are_refused(tiny):
    """llama.cpp's request form; an answer of the base model would be wrong."""
    r = tiny.post(
        "/v1/completions", {"prompt": "a", "max_tokens": 1, "lora": [{"id": 0, "scale": 0.5}]}
    )
    assert r.status == 400 and "'model'" in r.json()["error"]["message"]
    assert tiny.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "lora": []}).status == 200
