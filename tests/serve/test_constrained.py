"""Constraints through every route, on SmolLM2: the output matches, whatever the model prefers."""

import json
import re
import threading

import openai
import pydantic
import pytest

ASK = [{"role": "user", "content": "Invent a person. Answer as JSON with a name and an age."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(smol):
    with openai.OpenAI(base_url=smol.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def is_person(text):
    v = json.loads(text)
    return list(v) == ["name", "age"] and len(v["name"]) <= 40 and 0 <= v["age"] <= 150


def test_openais_response_formats(client):
    args = dict(model="smollm2", messages=ASK, max_tokens=120, temperature=0)
    r = client.chat.completions.create(
        **args,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON, "strict": True},
        },
    )
    assert is_person(r.choices[0].message.content) and r.choices[0].finish_reason == "stop"
    again = "".join(
        c.choices[0].delta.content or ""
        for c in client.chat.completions.create(
            **args,
            stream=True,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON},
            },
        )
        if c.choices
    )
    assert again == r.choices[0].message.content
    r = client.chat.completions.create(
        **{**args, "temperature": 1.3, "seed": 4}, response_format={"type": "json_object"}
    )
    assert r.choices[0].finish_reason == "length" or isinstance(
        json.loads(r.choices[0].message.content), dict
    )


def test_the_clients_own_parser(client):
    class Person(pydantic.BaseModel):
        name: str
        age: int
        mood: None | str = None

    r = client.chat.completions.parse(
        model="smollm2", messages=ASK, max_tokens=200, temperature=0, response_format=Person
    )
    assert r.choices[0].finish_reason == "length" or isinstance(r.choices[0].message.parsed, Person)


def test_choices_log_probabilities_and_penalties(client):
    r = client.chat.completions.create(
        model="smollm2",
        messages=ASK,
        max_tokens=80,
        temperature=1,
        seed=1,
        n=3,
        logprobs=True,
        top_logprobs=2,
        presence_penalty=1.5,
        extra_body={"guided_json": PERSON, "repetition_penalty": 1.2},
    )
    for c in r.choices:
        assert c.finish_reason == "length" or is_person(c.message.content)
        assert "".join(t.token for t in c.logprobs.content) == c.message.content
        # log probabilities are the model's: the most likely token may be one that is not allowed
        assert all(
            t.logprob <= 0 and t.logprob <= t.top_logprobs[0].logprob + 1e-6
            for t in c.logprobs.content
        )
    assert len({c.message.content for c in r.choices}) > 1


@pytest.mark.parametrize(
    "extra,fits",
    [
        ({"guided_regex": "[A-C]{3}-[0-9]{2}"}, "[A-C]{3}-[0-9]{2}"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"guided_grammar": 'root ::= "<" [a-z]{2,4} ">"'}, "<[a-z]{2,4}>"),
        ({"grammar": 'root ::= ("ab" | "cd")'}, "ab|cd"),
        ({"ebnf": 'root ::= ("ab" | "cd")'}, "ab|cd"),
        ({"structured_outputs": {"grammar": 'start: "a" /[0-9]{3}/'}}, "a[0-9]{3}"),
        ({"guided_grammar": '%llguidance {}\nstart: "x" "y"'}, "xy"),
        (
            {
                "guided_grammar": 'root ::= "abc"',
                "structured_outputs": {"grammar": 'root ::= "abc"'},
            },
            "abc",
        ),
        (
            {
                "structural_tag": {
                    "structures": [{"begin": "<n>", "schema": {"enum": [12, 34]}, "end": "</n>"}],
                    "triggers": ["<n"],
                },
                "logit_bias": {},
                "max_tokens": 30,
            },
            "([^<]|<(?!n))*(<n>(12|34)</n>([^<]|<(?!n))*)*",
        ),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "format": {
                        "type": "sequence",
                        "elements": [
                            {"type": "const_string", "value": "v="},
                            {
                                "type": "tag",
                                "begin": "[",
                                "content": {"type": "regex", "pattern": "[0-9]{2}"},
                                "end": "]",
                            },
                        ],
                    },
                }
            },
            r"v=\[[0-9]{2}\]",
        ),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"regex": "x{5}"}}, "x{5}"),
        (
            {
                "structured_outputs": {
                    "json": {
                        "type": "array",
                        "items": {"type": "boolean"},
                        "minItems": 2,
                        "maxItems": 2,
                    },
                    "disable_any_whitespace": True,
                }
            },
            r"\[(true|false),(true|false)\]",
        ),
        ({"json_schema": {"enum": ["a", "b"]}}, '"[ab]"'),
        (
            {
                "response_format": {
                    "type": "json_object",
                    "schema": {
                        "type": "object",
                        "properties": {"k": {"const": 1}},
                        "required": ["k"],
                    },
                }
            },
            r'\{\s*"k":\s*1\s*\}',
        ),
        ({"response_format": {"type": "regex", "value": "[0-9]{4}"}}, "[0-9]{4}"),
    ],
)
def test_other_servers_fields(smol, extra, fits):
    for path, body in (
        ("/v1/completions", {"prompt": "Say something: ", "max_tokens": 60}),
        ("/v1/chat/completions", {"messages": ASK, "max_tokens": 60}),
    ):
        a = smol.post(path, {"model": "smollm2", "temperature": 0.8, "seed": 2, **body, **extra})
        assert a.status == 200, a.text
        choice = a.json()["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert re.fullmatch(fits, text), text
        assert choice["finish_reason"] == "stop" or "structural_tag" in extra


def test_tgis_grammar(smol):
    for kind, value, fits in (
        ("regex", "[0-9]{3}", "[0-9]{3}"),
        ("json", PERSON, r"\{.*\}"),
        ("json_schema", {"name": "p", "schema": {"enum": [1, 2]}}, "[12]"),
    ):
        a = smol.post(
            "/generate",
            {
                "inputs": "A person: ",
                "parameters": {
                    "max_new_tokens": 100,
                    "grammar": {"type": kind, "value": value},
                    "details": True,
                },
            },
        )
        assert a.status == 200 and re.fullmatch(fits, a.json()["generated_text"], re.S), a.text
    a = smol.post(
        "/generate",
        {"inputs": "A", "parameters": {"grammar": {"type": "regex", "value": "a(?=b)"}}},
    )
    assert a.status == 422 and "look-around" in a.json()["error"]


@pytest.mark.parametrize(
    "extra,param,words",
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "x",
                        "schema": {"properties": {"a": {"type": "strng"}}},
                    },
                }
            },
            "response_format",
            "#/properties/a/type",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "x",
                        "strict": True,
                        "schema": {
                            "type": "object",
                            "properties": {"a": {"not": {"uniqueItems": True}}},
                        },
                    },
                }
            },
            "response_format",
            "#/properties/a/not",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {}}, "response_format", "type"),
        ({"guided_json": {"$ref": "http://elsewhere"}}, "guided_json", "$ref"),
        ({"guided_regex": "("}, "guided_regex", "byte"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "line 1"),
        ({"guided_choice": []}, "guided_choice", "choice"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "exclude"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural tag"),
        ({"structural_tag": {"format": {"type": "no"}}}, "structural_tag", "known type"),
        ({"guided_grammar": "root ::= x", "ebnf": "root ::= y"}, "ebnf", "exclude"),
    ],
)
def test_what_cannot_be_is_refused_by_path_and_keyword(smol, extra, param, words):
    a = smol.post("/v1/chat/completions", {"model": "smollm2", "messages": ASK, **extra})
    assert (
        a.status == 400
        and a.json()["error"]["param"] == param
        and words in a.json()["error"]["message"]
    ), a.text


def test_objects_are_open_or_closed_by_the_request(smol):
    """A closed object of one listed property cannot have two."""
    schema = {"properties": {"a": {"const": 1}}, "required": ["a"], "minProperties": 2}
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

    def of(strict, s):
        inner = {"name": "x", "strict": strict, "schema": s}
        return {"response_format": {"type": "json_schema", "json_schema": inner}}

    def only(s, **more):
        return {"structured_outputs": {"json": s, **more}}

    call = {"type": "function", "function": {"name": "f", "parameters": named, "strict": True}}
    for extra, status in (
        (of(False, schema), 400),
        (of(False, named), 200),
        (of(True, named), 400),
        (only(schema), 400),
        (only(named), 200),
        (only(named, disable_additional_properties=True), 400),
        (only(schema, disable_additional_properties=False), 400),
        (only(named, disable_additional_properties=False), 200),
        (only(schema, disable_additional_properties=1), 400),
        ({"tools": [call], "tool_choice": "required"}, 400),
    ):
        a = smol.post(
            "/v1/chat/completions", {"model": "smollm2", "messages": ASK, "max_tokens": 1, **extra}
        )
        assert a.status == status, (extra, a.text)


@pytest.mark.parametrize("rule", ["closed", "open"])
def test_objects_are_open_or_closed_by_the_server(serve, tiny_folder, rule):
    schema = {"properties": {"a": {"const": 1}}, "required": ["a"], "minProperties": 2}
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    options = "--arch", "generic", "-t", "1", "--seqs", "1", "--additional-properties", rule
    with serve(tiny_folder, *options) as s:
        for given in schema, named:
            for strict in False, True:
                inner = {"name": "x", "strict": strict, "schema": given}
                r = s.post(
                    "/v1/chat/completions",
                    {
                        "messages": [{"role": "user", "content": "a"}],
                        "max_tokens": 1,
                        "response_format": {"type": "json_schema", "json_schema": inner},
                    },
                )
                want = 200 if rule == "open" and not strict else 400
                assert r.status == want, (given, strict, r.text)


def test_requests_with_and_without_in_one_batch_are_as_alone(client):
    """A batch with different constraints: each output is what it is alone."""
    kinds = [
        {},
        {"guided_json": PERSON},
        {"guided_regex": "[a-z]{4,30}\\."},
        {"guided_choice": ["one", "two"]},
        {"guided_json": PERSON, "temperature": 1.0, "seed": 7},
        {"guided_grammar": "root ::= [a-z ]{5,40}"},
    ]

    def ask(extra):
        extra = dict(extra)
        args = {"temperature": extra.pop("temperature", 0), "seed": extra.pop("seed", 0)}
        return (
            client.chat.completions.create(
                model="smollm2", messages=ASK, max_tokens=40, **args, extra_body=extra
            )
            .choices[0]
            .message.content
        )

    alone, together = [ask(k) for k in kinds], [None] * len(kinds)
    threads = [
        threading.Thread(target=lambda i=i: together.__setitem__(i, ask(kinds[i])))
        for i in range(len(kinds))
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone
