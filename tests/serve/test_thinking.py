"""The budget of the reasoning. A logit bias makes a tiny model think for ever, unless the server
ends it: after exactly as many tokens as the request allows, by the end mark of the format, with
grammars, in streams, batches and with draft tokens, under each client's name of the field."""

import json

import pytest
import tiny_model

import llmc

MARKS = ["<think>", "</think>"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"
)
ASK = [{"role": "user", "content": "hello"}]


def token(text):
    return tiny_model.vocabulary(MARKS).index(text)


ONLY_A = {str(token("a")): 100}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model.build(
        tmp_path_factory.mktemp("thinks") / "tiny", template=TEMPLATE, marks=MARKS
    )


@pytest.fixture(scope="module")
def server(folder, serve):
    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "4", "--model-name", "tiny") as s:
        yield s


def chat(server, **fields):
    body = {"model": "tiny", "messages": ASK, "max_tokens": 40, "temperature": 0, **fields}
    r = server.post("/v1/chat/completions", {"logit_bias": ONLY_A, **body})
    assert r.status == 200, r.text
    return r


def message(server, **fields):
    return chat(server, **fields).json()["choices"][0]["message"]


NAMES = [
    lambda n: {"thinking_token_budget": n},
    lambda n: {"thinking_budget_tokens": n},
    lambda n: {"reasoning_budget_tokens": n},
    lambda n: {"reasoning": {"max_tokens": n}},
    lambda n: {"reasoning": {"max_tokens": n}, "thinking_token_budget": n},
]


@pytest.mark.parametrize("name", NAMES, ids=lambda f: "-".join(f(1)))
def test_the_budget_ends_the_reasoning(server, name):
    for n in (0, 1, 5, 17):
        m = message(server, **name(n))
        # the mark is one token; the template's newline is part of the prompt
        assert m.get("reasoning_content", "") == "a" * n and m["content"] == "a" * (39 - n), m
    for fields in (name(-1), name(None), {}, name(40)):
        m = message(server, **fields)
        assert m["reasoning_content"] == "a" * 40 and m["content"] == "", m


@pytest.mark.parametrize("field", [{"separate_reasoning": False}, {"reasoning_format": "none"}])
def test_reasoning_stays_in_the_text(server, field):
    """The raw output: the template has written the opening mark, the model the end mark."""
    raw = "a" * 5 + "</think>" + "a" * 34
    for n in (1, 2):
        for choice in chat(server, thinking_token_budget=5, n=n, **field).json()["choices"]:
            assert choice["message"]["content"] == raw
            assert "reasoning_content" not in choice["message"]
    text = chat(server, thinking_token_budget=5, stream=True, **field).text
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in text.split("\n")
        if line.startswith("data: {")
    ]
    assert "".join(d.get("content") or "" for d in deltas) == raw
    # a grammar still begins after the reasoning
    held = message(server, thinking_token_budget=5, regex="[0-9]{2}", logit_bias={}, **field)
    thought, answer = held["content"].split("</think>")
    assert len(answer) == 2 and answer.isdigit()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "tiny", "messages": ASK, "tools": [tool], **field}
    r = server.post("/v1/chat/completions", body)
    assert r.status == 400 and r.json()["error"]["param"] == next(iter(field))
    for plain in ({"separate_reasoning": True}, {"reasoning_format": "deepseek"}, {}):
        assert message(server, thinking_token_budget=5, **plain)["reasoning_content"] == "a" * 5


def test_reasoning_that_the_output_opens(folder):
    """Bad words make the model write one opening mark, or one after each end mark."""
    think, end, a = token("<think>"), token("</think>"), token("a")
    bias = {think: 100, a: 80, end: -100}
    with llmc.open(folder, arch="generic") as m, m.engine(context=128) as e:

        def run(budget, *bad, **more):
            return e.submit(
                m.tokenizer.encode("x"),
                max_tokens=12,
                thinking=MARKS,
                thinking_budget=budget,
                logit_bias=bias,
                bad_words=[[think, think], [a, think], *bad],
                **more,
            ).wait()["tokens"]

        for more in ({}, {"speculate": 8}, {"temperature": 0.5, "seed": 3}):
            assert run(4, [end, think], **more) == [think, *[a] * 4, end, *[a] * 6]
            assert run(0, [end, think], **more) == [think, end, *[a] * 10]
            # the budget is that of the whole output
            assert run(3, **more) == [think, *[a] * 3, end, *[think, end] * 3, think]
            assert run(100, **more) == [think, *[a] * 11]


def test_streams_and_other_dialects(server):
    frames = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in chat(server, thinking_token_budget=6, stream=True).text.split("\n")
        if line.startswith("data: {")
    ]
    assert "".join(f.get("reasoning_content") or "" for f in frames) == "a" * 6
    assert "".join(f.get("content") or "" for f in frames) == "a" * 33
    r = server.post(
        "/v1/messages",
        {
            "model": "tiny",
            "messages": ASK,
            "max_tokens": 40,
            "temperature": 0,
            "thinking": {"type": "enabled", "budget_tokens": 7},
        },
    ).json()
    # this API has no logit bias: the words are the model's own
    thought = r["content"][0]
    assert thought["type"] == "thinking" and r["usage"]["output_tokens"] == 40
    again = chat(server, thinking_token_budget=7, logit_bias={}).json()["choices"][0]
    assert again["message"]["reasoning_content"] == thought["thinking"]
    assert again["message"]["content"] == r["content"][1]["text"]
    r = server.post(
        "/v1/responses",
        {
            "model": "tiny",
            "input": "hello",
            "max_output_tokens": 40,
            "logit_bias": ONLY_A,
            "temperature": 0,
            "reasoning": {"max_tokens": 9},
        },
    ).json()
    assert [o["type"] for o in r["output"]] == ["reasoning", "message"]
    assert r["output"][0]["content"][0]["text"] == "a" * 9
    assert r["output"][1]["content"][0]["text"] == "a" * 30


def test_a_prompt_that_is_no_chat(server):
    body = {
        "model": "tiny",
        "prompt": "user: hello\n<think>\n",
        "max_tokens": 12,
        "temperature": 0,
        "logit_bias": ONLY_A,
        "skip_special_tokens": False,
    }
    r = server.post("/v1/completions", {**body, "thinking_token_budget": 5})
    assert r.json()["choices"][0]["text"] == "a" * 5 + "</think>" + "a" * 6
    r = server.post("/v1/completions", {**body, "prompt": ["a", "b"], "thinking_token_budget": 5})
    assert r.status == 400 and r.json()["error"]["param"] == "thinking_token_budget"


def test_a_grammar_applies_after_the_forced_end(server):
    for n in (0, 3, 11):
        m = message(server, thinking_token_budget=n, guided_choice=["yes"])
        assert m.get("reasoning_content", "") == "a" * n and m["content"] == "yes"
        m = message(server, thinking_token_budget=n, guided_regex="(ab){3}", n=3)
        assert m.get("reasoning_content", "") == "a" * n and m["content"] == "ababab"


def test_the_answer_without_the_reasoning(server):
    for hide in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        r = chat(server, thinking_token_budget=6, **hide).json()
        m = r["choices"][0]["message"]
        assert "reasoning_content" not in m and "reasoning" not in m and m["content"] == "a" * 33
        assert r["usage"]["completion_tokens"] == 40
        assert r["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 6
        text = chat(server, thinking_token_budget=6, stream=True, **hide).text
        assert "reasoning" not in text
    for shown in ({"include_reasoning": True}, {"reasoning": {"exclude": False}}):
        assert message(server, thinking_token_budget=6, **shown)["reasoning_content"] == "a" * 6


@pytest.mark.parametrize(
    "fields,param",
    [
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": "x"}, "thinking_token_budget"),
        ({"reasoning": {"max_tokens": 1.5}}, "reasoning.max_tokens"),
        ({"reasoning": 3}, "reasoning"),
        ({"include_reasoning": 1}, "include_reasoning"),
        ({"thinking_token_budget": 3, "reasoning": {"max_tokens": 4}}, "reasoning.max_tokens"),
    ],
)
def test_wrong_values(server, fields, param):
    r = server.post("/v1/chat/completions", {"model": "tiny", "messages": ASK, **fields})
    e = r.json()["error"]
    assert r.status == 400 and e["param"] == param and param in e["message"], e


def test_marks_of_several_tokens(folder):
    """A mark that the model writes in other tokens than the tokenizer ends the reasoning too."""
    with llmc.open(folder, arch="generic") as m, m.engine(context=128) as e:
        t = m.tokenizer

        def text(mark, budget, rule, **more):
            r = e.submit(
                t.encode("x"),
                max_tokens=16,
                ignore_eos=True,
                thinking=["", mark],
                thinking_budget=budget,
                grammar=llmc.Grammar(t, "regex", rule),
                **more,
            )
            return r.wait()["text"]

        assert len(t.encode("world!")) > 1 and len(t.encode(" hello")) < 6
        # forced: two tokens at least
        a = {token("a"): 100}
        assert text("world!", 3, "[a-z!]*", logit_bias=a)[:9] == "aaaworld!"
        # written as single letters, it is found, and nothing is forced
        letters = {i: -100 for i in range(len(t)) if len(t.decode([i])) > 1}
        got = text("hello", 5, "hello[xy]*", logit_bias=letters)
        assert got[:5] == "hello" and set(got[5:]) <= set("xy") and len(got) == 16
    with pytest.raises(llmc.Error, match="thinking must be two strings"):
        with llmc.open(folder, arch="generic") as m, m.session(context=64) as s:
            s.run("x", max_tokens=1, thinking=["<think>", ""], thinking_budget=1)
