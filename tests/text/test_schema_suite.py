"""The JSON Schema test suite, run on llmc and on llguidance: which schemas compile and which instances they accept.

The suite comes with the source archive of the package jsonschema, which `make check-all` fetches; SCHEMA_SUITE names a folder with it (draft7/ and
draft2020-12/).
"""

import collections
import glob
import json
import os
import subprocess
import sys
import tarfile

import pytest
from llguidance import LLMatcher

import llmc
from test_grammar import Vocabulary

PACKAGE = "jsonschema==4.26.0"
PASSED, REFUSED = "passed", "not compiled"


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    if "SCHEMA_SUITE" in os.environ:
        return os.environ["SCHEMA_SUITE"]
    if "LLMC_CHECK_ALL" not in os.environ:
        pytest.skip("make check-all runs it")
    folder = tmp_path_factory.mktemp("suite")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-binary",
            "jsonschema",
            "--dest",
            folder,
            PACKAGE,
        ],
        check=True,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, [m for m in tar.getmembers() if "/json/tests/draft" in m.name])
    return next(folder.glob("*/json/tests"))


def groups(suite, draft):
    """(file, description, schema, [(instance, valid)])"""
    for path in sorted(glob.glob(os.path.join(suite, draft, "*.json"))):
        for g in json.load(open(path)):
            yield (
                os.path.basename(path),
                g["description"],
                g["schema"],
                [
                    (json.dumps(t["data"], separators=(",", ":"), ensure_ascii=False), t["valid"])
                    for t in g["tests"]
                ],
            )


def ours(v, single, schema, instances):
    """Returns for each instance whether it passed, was not compiled, or was wrong."""
    try:
        grammar = llmc.Grammar(v.tokenizer, "json_schema", schema, standard=True, strict=True)
    except llmc.Error:
        return None
    out = []
    with grammar:
        for text, valid in instances:
            with grammar.matcher() as m:
                took = True
                for b in text.encode():
                    if not m.allows(single[b]):
                        took = False
                        break
                    m.accept(single[b])
                out.append((took and m.may_end) == valid)
    return out


def theirs(v, single, schema, instances):
    try:
        rules = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    except Exception:  # noqa: BLE001 whatever it raises is a refusal
        return None
    if LLMatcher.validate_grammar(rules, v.judge):
        return None
    out = []
    for text, valid in instances:
        m = LLMatcher(v.judge, rules)
        ids = [single[b] for b in text.encode()]
        took = not m.is_error() and m.validate_tokens(ids) == len(ids)
        if took:
            m.consume_tokens(ids)
        out.append((took and m.is_accepting()) == valid)
    return out


@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_the_suite(suite, smollm2, draft, capsys):
    v = Vocabulary(smollm2, b"<|im_end|>")
    single = {t[0]: i for i, t in enumerate(v.tokens) if len(t) == 1}
    count = {"llmc": collections.Counter(), "llguidance": collections.Counter()}
    behind, wrong = [], []
    for file, about, schema, instances in groups(suite, draft):
        results = {
            "llmc": ours(v, single, schema, instances),
            "llguidance": theirs(v, single, schema, instances),
        }
        for who, r in results.items():
            for i, (text, valid) in enumerate(instances):
                count[who][
                    REFUSED
                    if r is None
                    else PASSED
                    if r[i]
                    else "wrongly taken"
                    if not valid
                    else "wrongly refused"
                ] += 1
        for i, (text, valid) in enumerate(instances):
            if (
                results["llguidance"]
                and results["llguidance"][i]
                and not (results["llmc"] and results["llmc"][i])
            ):
                behind.append(
                    f"{file}: {about}: {text[:60]} {'valid' if valid else 'not valid'}{'' if results['llmc'] else ' (not compiled)'}"
                )
            if results["llmc"] and not results["llmc"][i] and not valid:
                wrong.append(f"{file}: {about}: {text[:60]}")
    with capsys.disabled():
        print(
            f"\n{draft}: "
            + "; ".join(
                f"{who}: " + ", ".join(f"{n} {what}" for what, n in sorted(c.items()))
                for who, c in count.items()
            )
        )
        if os.environ.get("SCHEMA_SUITE_LIST"):
            print(*behind, "WRONGLY TAKEN", *wrong, sep="\n")
    assert count["llmc"][PASSED] >= count["llguidance"][PASSED], behind
    assert not wrong


OBJECT = {"type": "object"}
KINDS = [
    {"properties": {"kind": {"const": k}, "v": {"type": t}}, "required": ["kind"]}
    for k, t in (("a", "integer"), ("b", "string"))
]
CLOSED = {"properties": {"b": {"type": "integer"}}, "unevaluatedProperties": False}
# with `strict`: the word that an error names, or None if the keyword is enforced
STRICT = [
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, None),
    ({"type": "string", "oneOf": [{"minLength": 2}, {"maxLength": 4}]}, None),
    ({"oneOf": [True, True]}, "nothing matches"),
    ({"oneOf": [True, False]}, None),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, None),
    ({"oneOf": [{"type": "integer"}, {"type": ["string", "null"]}]}, None),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "nothing matches"),
    ({"oneOf": [{"const": 1}, {"enum": [2, "1"]}, {"type": "array"}]}, None),
    ({"oneOf": [{"enum": [1, "x"]}, {"type": "string"}]}, None),
    ({"type": "integer", "oneOf": [{"maximum": 3}, {"minimum": 3}]}, None),
    ({"type": "integer", "oneOf": [{"maximum": 3}, {"exclusiveMinimum": 3}]}, None),
    ({"type": "string", "oneOf": [{"maxLength": 1}, {"minLength": 2}]}, None),
    ({**OBJECT, "oneOf": KINDS}, None),
    ({"oneOf": KINDS}, None),
    ({**OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, None),
    ({**OBJECT, "oneOf": [{"required": ["a"]}, {"properties": {"a": False}}]}, None),
    (
        {
            **OBJECT,
            "oneOf": [
                {"required": ["a"]},
                {"properties": {"b": True}, "additionalProperties": False},
            ],
        },
        None,
    ),
    (
        {
            "$defs": {"k": {**OBJECT, **KINDS[0]}},
            "properties": {
                "x": {"oneOf": [{"$ref": "#/$defs/k"}, {"type": "null"}, {**OBJECT, **KINDS[1]}]}
            },
            "required": ["x"],
        },
        None,
    ),
    ({"oneOf": [{"anyOf": [{"type": "null"}, {"type": "array"}]}, {"type": "boolean"}]}, None),
    ({"allOf": [{"not": {"type": "null"}}]}, None),
    ({"not": {"contains": {"type": "null"}}}, None),
    ({"not": {"uniqueItems": True}}, "#/not"),
    ({**OBJECT, "allOf": [{"properties": {"a": True}}, {"unevaluatedProperties": False}]}, None),
    ({**OBJECT, "allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, None),
    ({**OBJECT, "properties": {"a": True}, "anyOf": [CLOSED, {"required": ["kind"]}]}, None),
    (
        {
            **OBJECT,
            "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b"]}],
            "unevaluatedProperties": {"type": "integer"},
        },
        None,
    ),
    ({"allOf": [{"prefixItems": [True]}, {"unevaluatedItems": False}]}, None),
    (
        {
            "type": "array",
            "allOf": [
                {"prefixItems": [{"type": "integer"}, True]},
                {"prefixItems": [{"minimum": 2}], "items": {"type": "string"}},
            ],
        },
        None,
    ),
    (
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}},
        None,
    ),
    ({**OBJECT, "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}}, None),
    ({**OBJECT, "patternProperties": {"^a": {"type": "integer"}, "^b": {"type": "string"}}}, None),
    ({**OBJECT, "properties": {"a": True}, "patternProperties": {"^a": {"type": "integer"}}}, None),
    ({**OBJECT, "patternProperties": {"^a": False}}, None),
    ({**OBJECT, "patternProperties": {"^a": {"type": "integer"}}, "required": ["a", "b"]}, None),
    (
        {
            "allOf": [
                {**OBJECT, "patternProperties": {"^a": True}},
                {"properties": {"b": True}, "additionalProperties": False},
            ]
        },
        "#/patternProperties",
    ),
    (
        {
            **OBJECT,
            "properties": {
                "v": {
                    "anyOf": [{"type": "null"}],
                    "allOf": [{"anyOf": [True], "unevaluatedProperties": False}],
                }
            },
        },
        "/unevaluatedProperties",
    ),
]
VALUES = [
    None,
    True,
    0,
    1,
    1.0,
    2,
    2.5,
    3,
    4,
    "",
    "1",
    "x",
    "foo",
    [],
    [1],
    [2],
    [3, "x"],
    [2, 2],
    ["x"],
    {},
    *(
        {**a, **b}
        for a in (
            {"kind": "a"},
            {"kind": "b"},
            {"a": 1},
            {"a": "x"},
            {"ab": 1},
            {"x": {"kind": "a"}},
        )
        for b in ({}, {"v": 1}, {"v": "x"}, {"b": 1}, {"b": 1, "kind": 1}, {"b": "x"})
    ),
]


def test_nothing_is_taken_that_another_validator_refuses(smollm2):
    import jsonschema

    v = Vocabulary(smollm2, b"<|im_end|>")
    single = {t[0]: i for i, t in enumerate(v.tokens) if len(t) == 1}
    for schema, error in STRICT:
        judge = (
            jsonschema.Draft7Validator
            if isinstance(schema.get("items"), list)
            else jsonschema.Draft202012Validator
        )(schema)
        instances = [(json.dumps(x, separators=(",", ":")), judge.is_valid(x)) for x in VALUES]
        try:
            grammar = llmc.Grammar(v.tokenizer, "json_schema", schema, standard=True, strict=True)
        except llmc.Error as e:
            assert error and error in str(e), (schema, e)
            continue
        grammar.close()
        assert not error, schema
        right = ours(v, single, schema, instances)
        taken = [text for (text, valid), r in zip(instances, right) if r == valid]
        assert all(r or valid for (_, valid), r in zip(instances, right)), (
            schema,
            [t for (t, valid), r in zip(instances, right) if not r and not valid],
        )
        assert taken or not any(valid for _, valid in instances), schema
