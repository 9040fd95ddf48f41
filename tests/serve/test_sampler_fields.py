"""llama.cpp's samplers over HTTP: every field reaches the sampler with its value, under each of its
names, and values out of range are refused by name. The oracle is the Python binding, whose samplers
tests/unit/test_samplers.c compares with their definitions."""

import pytest
import tiny_model
from openapi_schema_validator import OAS31Validator

import llmc

PROMPT = "abcabcabdabcabc"
# few tokens are likely, so they repeat
BIAS = {tiny_model.vocabulary().index(c): 6 for c in "abcd"}
FIELDS = [
    dict(repetition_penalty=1.5, repeat_last_n=6),
    dict(presence_penalty=1.5, repeat_last_n=-1),
    dict(dry_multiplier=4.0),
    dict(dry_multiplier=4.0, dry_base=3.0, dry_allowed_length=1),
    dict(dry_multiplier=4.0, dry_penalty_last_n=5),
    dict(dry_multiplier=4.0, dry_sequence_breakers=["c", "da"]),
    dict(dry_multiplier=4.0, dry_sequence_breakers=[]),
    dict(xtc_probability=1.0, xtc_threshold=0.01),
    dict(xtc_probability=0.6),
    dict(top_n_sigma=1.0),
    dict(dynatemp_range=0.9),
    dict(dynatemp_range=0.9, dynatemp_exponent=3.0),
    dict(mirostat=1, mirostat_tau=2.0),
    dict(mirostat=2, mirostat_tau=1.0, mirostat_eta=0.5),
    dict(top_p=0.2, min_keep=5),
    dict(samplers=["top_k", "temperature"], top_k=3, temperature=2.0),
    dict(samplers=["temp", "top-k", "min_p"], top_k=3, temperature=2.0, min_p=0.3),
    dict(samplers="px", top_p=0.6, xtc_probability=0.9),
    dict(samplers="ki", top_k=12),
    dict(samplers="d", dry_multiplier=4.0),
]


@pytest.fixture(scope="module")
def engine(tiny_folder):
    with llmc.open(str(tiny_folder), arch="generic") as m, m.engine(context=256, seqs=2) as e:
        yield e


def wanted(engine, **fields):
    settings = {"temperature": 1.0, "seed": 7, "max_tokens": 48, "ignore_eos": True}
    settings |= {"logit_bias": BIAS, **fields}
    return engine.submit(engine.model.tokenizer.encode(PROMPT), **settings).wait()["text"]


def served(tiny, **fields):
    body = {"model": "tiny", "prompt": PROMPT, "seed": 7, "max_tokens": 48, "ignore_eos": True}
    body["logit_bias"] = {str(k): v for k, v in BIAS.items()}
    r = tiny.post("/v1/completions", {**body, **fields})
    assert r.status == 200, r.json()
    return r.json()["choices"][0]["text"]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda f: "-".join(f))
def test_fields_reach_the_sampler(tiny, engine, fields):
    assert served(tiny, **fields) == wanted(engine, **fields) != wanted(engine)


def test_other_names_and_values_that_disable(tiny, engine):
    plain = wanted(engine)
    assert served(tiny, repeat_penalty=1.5) == wanted(engine, repetition_penalty=1.5) != plain
    for off in (
        dict(repeat_penalty=1.5, frequency_penalty=1, repeat_last_n=0),
        dict(dry_multiplier=4, dry_penalty_last_n=0),
        dict(dry_multiplier=0, dry_base=0),
        dict(xtc_probability=1, xtc_threshold=0.51),
        dict(xtc_probability=0, xtc_threshold=0.01),
        dict(top_n_sigma=-1),
        dict(top_n_sigma=0),
        dict(dynatemp_range=0, dynatemp_exponent=2),
        dict(mirostat=0, mirostat_tau=1),
    ):
        assert served(tiny, **off) == plain, off
    # a sampler that is not in the order is off, also temperature
    assert served(tiny, samplers="", top_k=1, temperature=0) == wanted(engine, samplers="")
    assert served(tiny, samplers=[], top_k=1) == wanted(engine, samplers=[], top_k=1)
    assert served(tiny, samplers=[], top_k=1) == served(tiny, samplers="", top_k=1)
    assert served(tiny, samplers=None, top_k=1) == served(tiny, top_k=1)
    assert served(tiny, samplers="p", top_p=0) == served(tiny, temperature=0)
    assert served(tiny, samplers="kt", top_k=5) == served(tiny, samplers=["top_k", "temp"], top_k=5)
    # zero is a value where it is not the default
    best = served(tiny, temperature=0)
    assert served(tiny, mirostat=2, mirostat_tau=0, mirostat_eta=0) == best
    assert served(tiny, xtc_probability=1, xtc_threshold=0) != wanted(engine, xtc_probability=1)


def test_ollama_s_options(tiny, engine):
    def ollama(**options):
        r = tiny.post(
            "/api/generate",
            {
                "model": "tiny",
                "prompt": PROMPT,
                "raw": True,
                "stream": False,
                "options": {
                    "temperature": 1,
                    "top_k": 0,
                    "top_p": 1,
                    "seed": 7,
                    "num_predict": 48,
                    "ignore_eos": True,
                    **options,
                },
            },
        )
        assert r.status == 200, r.json()
        return r.json()["response"]

    def without_bias(**fields):
        return wanted(engine, logit_bias={}, **fields)

    assert ollama() == without_bias()
    for theirs, ours in (
        (dict(mirostat=2, mirostat_tau=1, mirostat_eta=0.5),) * 2,
        (dict(repeat_penalty=1.5, repeat_last_n=6), dict(repetition_penalty=1.5, repeat_last_n=6)),
        (dict(repeat_penalty=1.5), dict(repetition_penalty=1.5, repeat_last_n=64)),
        (dict(presence_penalty=1), dict(presence_penalty=1, repeat_last_n=64)),
    ):
        assert ollama(**theirs) == without_bias(**ours) != without_bias()


def test_biases_as_a_list_of_pairs(tiny, engine):
    """llama.cpp's form: an id or a string, whose tokens get the value; false forbids them."""
    ids = {c: i for c, i in zip("abcd", BIAS)}
    plain = served(tiny)
    assert served(tiny, logit_bias=[[i, 6] for i in BIAS]) == plain
    assert served(tiny, logit_bias=[["abcd", 6]]) == plain
    assert served(tiny, logit_bias=[["ab", 6], [ids["c"], 6], ["d", 6]]) == plain
    assert served(tiny, logit_bias=[]) == wanted(engine, logit_bias={})
    want = wanted(engine, logit_bias={**BIAS, ids["a"]: float("-inf")})
    assert served(tiny, logit_bias=[["bcd", 6], ["a", False]]) == want
    for bad in ([[3]], [3], [[-1, 2]], [[10**6, 1]], [[3, "x"]], [["a", 101]], [["a", True]]):
        r = tiny.post("/v1/completions", {"model": "tiny", "prompt": "x", "logit_bias": bad})
        assert r.status == 400 and r.json()["error"]["param"] == "logit_bias", r.json()
    for many in ([["ab" * 600, 1]], [["x" * 300000, 1]], [["a" * 600, 1], ["b" * 600, 1]]):
        r = tiny.post("/v1/completions", {"model": "tiny", "prompt": "x", "logit_bias": many})
        e = r.json()["error"]
        assert r.status == 400 and e["param"] == "logit_bias" and "at most 1024" in e["message"], e


def test_log_probabilities_of_the_whole_vocabulary_are_refused_by_name(tiny):
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "max_tokens": 1}
    for path, body, field in (
        ("/v1/completions", {"prompt": "x"}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x"}, "logprobs"),
        ("/v1/chat/completions", chat, "prompt_logprobs"),
        ("/v1/chat/completions", chat, "top_logprobs"),
    ):
        r = tiny.post(path, {"model": "tiny", **body, field: -1})
        e = r.json()["error"]
        assert r.status == 400 and e["param"] == field and "whole vocabulary" in e["message"], e


@pytest.mark.parametrize(
    "field,value,said",
    [
        ("repeat_last_n", -2, "-1"),
        ("repeat_last_n", 1.5, "integer"),
        ("repeat_penalty", 101, "100"),
        ("repeat_penalty", 0, "greater than 0"),
        ("dry_multiplier", -1, "0"),
        ("dry_base", "x", "a string"),
        ("dry_allowed_length", 0, "1"),
        ("dry_penalty_last_n", -2, "-1"),
        ("dry_sequence_breakers", "x", "array of strings"),
        ("dry_sequence_breakers", [3], "dry_sequence_breakers[0]"),
        ("dry_sequence_breakers", [""], "not empty"),
        ("dry_sequence_breakers", ["a"] * 65, "maximum length 64"),
        ("xtc_probability", 1.01, "1"),
        ("xtc_threshold", -0.1, "0"),
        ("top_n_sigma", -1.5, "-1"),
        ("dynatemp_range", 101, "100"),
        ("dynatemp_exponent", -1, "0"),
        ("mirostat", 3, "2"),
        ("mirostat", True, "integer"),
        ("mirostat_tau", -1, "0"),
        ("mirostat_eta", 101, "100"),
        ("min_keep", -1, "0"),
        ("repetition_penalty", 1e-60, "greater than 0"),  # 0 as a float
        ("samplers", 3, "an integer"),
        ("samplers", ["top_k", 3], "samplers[1]"),
        ("samplers", ["top_k", "topp"], "no sampler is called 'topp'"),
        ("samplers", "kz", "no sampler is called 'kz'"),
        ("samplers", "k" * 33, "at most 32"),
        ("samplers", "k\0t", "NUL"),
        ("samplers", ["top_k\0", "temperature"], "NUL"),
        ("samplers", "\0", "NUL"),
    ],
)
def test_values_out_of_range(tiny, field, value, said):
    for path, more in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
    ):
        if path == "/v1/responses" and field == "repeat_penalty":
            continue  # OpenAI's dialect of responses has the other name
        r = tiny.post(path, {"model": "tiny", **more, field: value})
        e = r.json()["error"]
        assert r.status == 400 and e["param"] == field, e
        assert f"'{field}" in e["message"] and said in e["message"], e


BODIES = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/api/generate": {"prompt": "a", "stream": False, "options": {"num_predict": 1}},
}


@pytest.mark.parametrize("path", BODIES)
def test_the_document_has_the_ranges_of_the_fields(tiny, path):
    """A value is answered exactly if the schema of its field in the OpenAPI document allows it."""
    doc = tiny.get("/openapi.json").json()
    schema = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = schema.get("allOf", [schema])[0]
    if "$ref" in schema:
        schema = doc["components"]["schemas"][schema["$ref"].split("/")[-1]]
    options = schema["properties"].get("options", schema)["properties"]
    names = {k for k, v in options.items() if "minimum" in v or "exclusiveMinimum" in v}
    assert {"temperature", "top_k", "min_p", "repetition_penalty", "mirostat_eta"} <= names
    for name in sorted(names & set(llmc.SamplingParams.__annotations__)):
        s = options[name]
        ends = [s[k] for k in ("minimum", "exclusiveMinimum", "maximum") if k in s]
        for value in {x for end in ends for x in (end - 1, end, end + 1)}:
            body = {"model": "tiny", **BODIES[path]}
            if "options" in body:
                body["options"] = body["options"] | {name: value}
            else:
                body[name] = value
            want = 200 if OAS31Validator(s).is_valid(value) else 400
            r = tiny.post(path, body)
            assert r.status == want, (name, value, r.text)
