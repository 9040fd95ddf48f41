"""Tools through the chat. SmolLM2, whose template has no tool support, makes the required calls
with valid arguments. Templates with tool support are tested on a tiny model whose output is
forced.
"""

import json
import re

import openai
import pytest
import tiny_model

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of the next days",
            "parameters": CITY,
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
ASK = [{"role": "user", "content": "What is the weather like in Paris?"}]


@pytest.fixture(scope="module")
def client(smol):
    with openai.OpenAI(base_url=smol.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def fits(call):
    a = json.loads(call.function.arguments)
    return (
        (call.function.name == "weather" and len(a["city"]) <= 20 and 1 <= a["days"] <= 9)
        if call.function.name == "weather"
        else a == {}
    )


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_forced_calls_are_of_their_schema(client, choice):
    for params in ({"temperature": 0}, {"temperature": 1.2, "seed": 5}):
        r = client.chat.completions.create(
            model="smollm2",
            messages=ASK,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=120,
            **params,
        )
        m = r.choices[0].message
        assert (
            r.choices[0].finish_reason == "tool_calls"
            and m.content is None
            and len(m.tool_calls) == 1
            and fits(m.tool_calls[0])
        ), m
        assert m.tool_calls[0].id.startswith("call_") and (
            choice == "required" or m.tool_calls[0].function.name == "weather"
        )


def test_a_named_function_is_called_once(client):
    """Even if several calls are allowed: libraries that request a typed answer this way do not
    set parallel_tool_calls.
    """
    r = client.chat.completions.create(
        model="smollm2",
        messages=ASK,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=200,
        temperature=0,
    )
    assert r.choices[0].finish_reason == "tool_calls" and len(r.choices[0].message.tool_calls) == 1


def test_a_stream_of_a_call_is_the_whole(client):
    args = dict(
        model="smollm2",
        messages=ASK,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
        max_tokens=120,
        temperature=0,
    )
    whole = client.chat.completions.create(**args).choices[0].message.tool_calls[0].function
    name, arguments, finish, n = None, "", None, 0
    for chunk in client.chat.completions.create(**args, stream=True):
        for c in chunk.choices:
            finish = c.finish_reason or finish
            for t in c.delta.tool_calls or []:
                assert t.index == 0
                if t.function.name:
                    assert (
                        name is None
                        and t.id.startswith("call_")
                        and t.type == "function"
                        and t.function.arguments == ""
                    )
                    name = t.function.name
                arguments += t.function.arguments or ""
                n += 1
            assert not c.delta.content
    assert (name, arguments, finish) == (whole.name, whole.arguments, "tool_calls") and n > 3
    # and as the client assembles it
    with client.chat.completions.stream(**args) as s:
        s.until_done()
        assert (
            s.get_final_completion().choices[0].message.tool_calls[0].function.arguments
            == whole.arguments
        )


def test_results_of_tools_come_back(client):
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    r = client.chat.completions.create(
        model="smollm2",
        messages=ASK
        + [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "12:30"},
        ],
        tools=TOOLS,
        tool_choice="none",
        max_tokens=20,
        temperature=0,
    )
    assert r.choices[0].message.content and not r.choices[0].message.tool_calls


@pytest.mark.parametrize(
    "fields,param,word",
    [
        ({"tools": "f"}, "tools", "array"),
        ({"tools": [3]}, "tools", "tools[0]"),
        ({"tools": TOOLS + TOOLS[:1]}, "tools", "tools[2].function.name"),
        ({"tools": [{"type": "function", "function": {"name": 'x y"z'}}]}, "tools", 'x y"z'),
        (
            {"tools": [{"type": "function", "function": {"name": "a/b"}}]},
            "tools",
            "tools[0].function.name",
        ),
        ({"tools": [{"type": "function", "function": {"name": "n" * 257}}]}, "tools", "256"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "256"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
            "tools",
            "tools[0].function.strict",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]},
            "tools",
            "tools[0].function.description",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools",
            "tools[0].function.parameters",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "list"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": []},
                },
            },
            "tool_choice",
            "list",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "sometimes",
                        "tools": [{"type": "function", "function": {"name": "now"}}],
                    },
                },
            },
            "tool_choice",
            "mode",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "other"}}],
                    },
                },
            },
            "tool_choice",
            "allowed_tools",
        ),
        ({"reasoning_effort": 5}, "reasoning_effort", "string"),
    ],
)
def test_fields_of_tools_are_checked(tiny, fields, param, word):
    a = tiny.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 1, **fields})
    assert (
        a.status == 400
        and a.json()["error"]["param"] == param
        and word in a.json()["error"]["message"]
    ), a.text


@pytest.mark.parametrize(
    "fields",
    [
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "a.b-C_" + "9" * 250,
                        "strict": None,
                        "description": None,
                        "parameters": None,
                    },
                }
            ]
        },
        {"reasoning_effort": None},
        {"reasoning_effort": "low"},
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "now"}}],
                },
            },
        },
    ],
)
def test_what_tools_may_have(marked, fields):
    assert (
        marked.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 1, **fields}).status
        == 200
    )


def test_mistakes_in_tools_are_reported(smol):
    for extra, param in (
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {"properties": {"a": {"type": "wrong"}}},
                        },
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
    ):
        a = smol.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 4, **extra})
        assert a.status == 400 and a.json()["error"]["param"] == param, a.text
    assert "#/f/properties/a/type" in a.json()["error"]["message"]
    # a schema that does not compile, in a tool that is not strict: any object
    loose = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"properties": {"a": {"type": "wrong"}}}},
        }
    ]
    a = smol.post(
        "/v1/chat/completions",
        {
            "messages": ASK,
            "max_tokens": 100,
            "tools": loose,
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "temperature": 0,
        },
    )
    assert (
        a.status == 200
        and a.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    ), a.text


THINKS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}{{ tools | length }} <tool_call> arguments{% endif %}{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"


def test_reasoning_and_calls_of_a_template_that_has_both(serve, tmp_path):
    """A grammar of the request forces the output, so that the parser is tested."""
    folder = tiny_model.build(tmp_path, template=THINKS)
    with serve(
        folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "2",
        "--model-name",
        "tiny",
        "--context",
        "512",
    ) as s:
        with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as c:
            # the constraint applies after the reasoning, so the reasoning is free; its end is made
            # likely
            r = c.chat.completions.create(
                model="tiny",
                messages=ASK,
                max_tokens=30,
                temperature=0,
                extra_body={"guided_choice": ["yes"]},
            )
            m = r.choices[0].message
            assert (
                m.content in ("", "yes")
                and (m.content == "yes" or m.reasoning_content)
                and r.usage.completion_tokens_details.reasoning_tokens > 0
            )
            assert m.reasoning_content == m.reasoning
            streamed = "".join(
                getattr(x.choices[0].delta, "reasoning_content", None) or ""
                for x in c.chat.completions.create(
                    model="tiny",
                    messages=ASK,
                    max_tokens=30,
                    temperature=0,
                    stream=True,
                    extra_body={"guided_choice": ["yes"]},
                )
                if x.choices
            )
            assert streamed == m.reasoning_content


# a model whose words are chosen by a logit bias: each of these is one token
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
ANSWER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
FORMATS = {
    "json_schema": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": ANSWER, "strict": True},
    },
    "json_object": {"type": "json_object"},
}
WHERE = [
    {
        "type": "function",
        "function": {
            "name": "where",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "boolean"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }
]
TALKS = THINKS.replace("<think>\n{%", "{%")


@pytest.fixture(scope="module", params=["thinks", "talks"])
def marked(serve, tmp_path_factory, request):
    folder = tiny_model.build(
        tmp_path_factory.mktemp("marked") / "tiny",
        template={"thinks": THINKS, "talks": TALKS}[request.param],
        marks=MARKS,
    )
    with serve(
        folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "2",
        "--model-name",
        "tiny",
        "--context",
        "1024",
    ) as s:
        s.thinks = request.param == "thinks"
        yield s


def token(text):
    return tiny_model.vocabulary(MARKS).index(text)


def bias(*texts):
    """Bias these above all others, the first one most; the end of reasoning comes before them."""
    return {str(token(t)): 100 - 20 * i for i, t in enumerate(["</think>", *texts])}


def said(server, **fields):
    a = server.post(
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": ASK,
            "max_tokens": 150,
            "temperature": 0,
            "tools": WHERE,
            "parallel_tool_calls": False,
            **fields,
        },
    )
    assert a.status == 200, a.text
    return a.json()["choices"][0]


@pytest.mark.parametrize(
    "format",
    [{"response_format": f} for f in FORMATS.values()]
    + [
        {"guided_regex": '[{]"n": [1-9][}]'},
        {"guided_choice": ['{"n": 3}']},
        {"guided_grammar": 'root ::= "{" "\\"n\\": 7}"'},
    ],
)
def test_a_constrained_answer_or_a_call(marked, format):
    """With both in a request the model chooses: a call, or an answer that matches the
    constraint.
    """
    c = said(marked, logit_bias=bias("<tool_call>"), **format)
    assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, c
    assert c["message"]["tool_calls"][0]["function"]["name"] == "where" and json.loads(
        c["message"]["tool_calls"][0]["function"]["arguments"]
    ).keys() == {"x"}
    c = said(marked, logit_bias={**bias("{", "}"), str(token("<tool_call>")): -100}, **format)
    assert c["finish_reason"] == "stop" and "tool_calls" not in c["message"], c
    said_ = json.loads(c["message"]["content"])
    assert (
        said_ == {}
        if format.get("response_format") == FORMATS["json_object"]
        else 1 <= said_["n"] <= 9
    )
    c = said(marked, tool_choice="required", logit_bias=bias("{"), **format)  # required: a call
    assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, c


def test_an_answer_without_calls_is_held_to_its_schema(marked):
    c = said(
        marked,
        tool_choice="none",
        response_format=FORMATS["json_schema"],
        logit_bias=bias("<tool_call>"),
    )
    assert 1 <= json.loads(c["message"]["content"])["n"] <= 9, c


def test_stop_strings_are_for_the_answer(marked):
    """A stop string in the reasoning does not end the output."""
    only_a = {str(token("a")): 100}
    c = said(marked, tool_choice="none", logit_bias=only_a, stop=["aaa"], max_tokens=12)
    if marked.thinks:
        assert c["finish_reason"] == "length"
        assert c["message"]["reasoning_content"].strip() == "a" * 12
    else:
        assert c["finish_reason"] == "stop" and c["message"]["content"] == ""


def test_a_constraint_begins_after_the_reasoning(marked):
    """An optional tool changes nothing about that, in any dialect."""
    if not marked.thinks:
        pytest.skip("it does not think")
    messages = marked.post(
        "/v1/messages",
        {
            "model": "tiny",
            "max_tokens": 30,
            "temperature": 0,
            "messages": ASK,
            "tools": [{"name": "where", "input_schema": WHERE[0]["function"]["parameters"]}],
            "output_config": {"format": {"type": "json_schema", "schema": ANSWER}},
        },
    ).json()
    responses = marked.post(
        "/v1/responses",
        {
            "model": "tiny",
            "max_output_tokens": 30,
            "temperature": 0,
            "input": "Where?",
            "tools": [{"type": "function", **WHERE[0]["function"]}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": ANSWER}},
        },
    ).json()
    chat = said(marked, max_tokens=30, response_format=FORMATS["json_schema"])
    blocks = {b["type"]: b.get("thinking") or b["text"] for b in messages["content"]}
    assert (
        messages["stop_reason"] == "max_tokens"
        and blocks["thinking"][0] != "{"
        and not blocks.get("text")
    ), messages
    assert (
        responses["status"] == "incomplete"
        and responses["output"][0]["type"] == "reasoning"
        and responses["output"][0]["content"][0]["text"][0] != "{"
    ), responses
    assert (
        chat["finish_reason"] == "length"
        and chat["message"]["content"] == ""
        and chat["message"]["reasoning"][0] != "{"
    ), chat


def pieces_of(server, dialect, n, **fields):
    """Stream an answer of n tokens in a dialect; return its text, and its calls as name and
    arguments.
    """
    if dialect == "chat":
        a = server.post(
            "/v1/chat/completions",
            {
                "model": "tiny",
                "messages": ASK,
                "max_tokens": n,
                "temperature": 0,
                "tools": WHERE,
                "tool_choice": "required",
                "stream": True,
                **fields,
            },
        )
        deltas = [c["delta"] for f in a.frames() if f != "[DONE]" for c in json.loads(f)["choices"]]
        calls = [t for d in deltas for t in d.get("tool_calls", [])]
        return "".join(d.get("content") or "" for d in deltas), [
            (
                t["function"]["name"],
                "".join(x["function"]["arguments"] for x in calls if x["index"] == t["index"]),
            )
            for t in calls
            if t.get("id")
        ]
    a = server.post(
        "/v1/messages",
        {
            "model": "tiny",
            "messages": ASK,
            "max_tokens": n,
            "temperature": 0,
            "stream": True,
            "tool_choice": {"type": "any"},
            "tools": [{"name": "where", "input_schema": WHERE[0]["function"]["parameters"]}],
        },
    )
    events = [json.loads(f) for f in a.frames()]
    calls = [
        (e["index"], e["content_block"]["name"])
        for e in events
        if e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use"
    ]
    return "".join(
        e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta"
    ), [
        (
            name,
            "".join(
                e["delta"].get("partial_json", "")
                for e in events
                if e["type"] == "content_block_delta" and e["index"] == i
            ),
        )
        for i, name in calls
    ]


def test_what_is_left_of_a_call_that_is_cut_is_no_text(serve, tmp_path):
    """Marks of several tokens, truncated at each of them."""
    folder = tiny_model.build(tmp_path, template=TALKS)
    with serve(
        folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "2",
        "--model-name",
        "tiny",
        "--context",
        "1024",
    ) as s:
        for dialect in ("chat", "messages"):
            for n in range(1, 140, 1 if dialect == "chat" else 6):
                text, calls = pieces_of(s, dialect, n)
                assert text == "" and (calls or n < 40), (n, text, calls)
                assert all(
                    name == "where"
                    and any(
                        whole.startswith("".join(a.split()))
                        for whole in ('{"x":true}', '{"x":false}', "{}")
                    )
                    for name, a in calls
                ), (n, calls)
        # a stop string before the arguments
        text, calls = pieces_of(s, "chat", 100, stop=["arguments"])
        assert (text, calls) == ("", [("where", "{}")])


@pytest.mark.parametrize(
    "tools",
    [
        {"tools": WHERE},
        {"tools": WHERE, "tool_choice": "none"},
        {"tools": WHERE, "tool_choice": "required"},
    ],
)
def test_log_probabilities_are_of_the_content(marked, tools):
    """Marks, reasoning and calls have none, streamed or not; the tokens together are the
    content.
    """
    words = (
        bias("{", "}", "<tool_call>")
        if "tool_choice" in tools
        else {**bias("{", "}"), str(token("<tool_call>")): -100}
    )
    fields = {
        "model": "tiny",
        "messages": ASK,
        "max_tokens": 60,
        "temperature": 0.7,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 1,
        "guided_regex": '[{]"n": [1-9][}]',
        "logit_bias": words,
        **tools,
    }
    c = marked.post("/v1/chat/completions", fields).json()["choices"][0]
    places = c["logprobs"]["content"]
    assert bytes(b for p in places for b in p["bytes"]).decode() == (
        c["message"]["content"] or ""
    ), c
    assert bool(places) == (tools.get("tool_choice") != "required") and all(
        len(p["top_logprobs"]) == 1 for p in places
    )
    frames = [
        json.loads(f)["choices"][0]
        for f in marked.post("/v1/chat/completions", {**fields, "stream": True}).frames()
        if f != "[DONE]"
    ]
    assert [p for f in frames for p in (f["logprobs"] or {"content": []})["content"]] == places
    assert all(f["delta"].get("content") for f in frames if f["logprobs"]), frames


CODE = {
    "type": "custom",
    "custom": {
        "name": "code",
        "description": "Takes a code.",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "regex", "definition": '[A-C]{3}-"[0-9]{2}"\\n'},
        },
    },
}


def test_custom_tools_of_a_chat(client):
    """Calls with one string, complete and streamed; they come back as messages of the next turn."""
    args = dict(model="smollm2", messages=ASK, max_tokens=300, temperature=0, tools=[CODE, *TOOLS])
    for choice in ({"type": "custom", "custom": {"name": "code"}}, "required"):
        tools = [CODE] if choice == "required" else args["tools"]
        r = client.chat.completions.create(**{**args, "tools": tools}, tool_choice=choice)
        message = r.choices[0].message
        call = message.tool_calls[0]
        assert call.type == "custom" and call.custom.name == "code" and call.id.startswith("call_")
        assert re.fullmatch('[A-C]{3}-"[0-9]{2}"\n', call.custom.input)
        said, name = "", None
        for chunk in client.chat.completions.create(
            **{**args, "tools": tools}, tool_choice=choice, stream=True
        ):
            for d in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                if d.index:
                    continue
                custom = d.model_extra["custom"]
                name = name or custom.get("name")
                said += custom["input"]
        assert (name, said) == ("code", call.custom.input)
    back = [
        *ASK,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Done."},
    ]
    r = client.chat.completions.create(
        model="smollm2", messages=back, tools=[CODE], tool_choice="none", max_tokens=4
    )
    assert r.choices[0].message.content is not None


def test_integers_beyond_64_bits_keep_their_digits(serve, tmp_path):
    """In schemas of tools, in the history of calls and in the arguments of an answer."""
    big = 12345678901234567890
    template = (
        "{{ tools|tojson }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments|items %}{{ k }}={{ v|tojson }};"
        "{% endfor %}{% endfor %}{% endfor %}"
    )
    folder = tiny_model.build(tmp_path / "tiny", template=template, marks=MARKS)
    parameters = {"type": "object", "properties": {"a": {"const": big}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    call = {"name": "f", "arguments": json.dumps({"a": big})}
    messages = [
        *ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        },
    ]
    args = ("--arch", "generic", "-t", "1", "--model-name", "tiny", "--context", "2048")
    with serve(folder, *args) as s:
        body = {"model": "tiny", "messages": messages, "tools": tools}
        ids = s.post("/v1/tokenize", body).json()["tokens"]
        prompt = s.post("/v1/detokenize", {"model": "tiny", "tokens": ids}).json()["prompt"]
        assert f"a={big};" in prompt and f'"const": {big}' in prompt
        a = s.post("/v1/chat/completions", {**body, "tool_choice": "required", "max_tokens": 200})
        said = a.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(said) == {"a": big}
