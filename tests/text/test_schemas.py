"""Schemas against the jsonschema package: with `strict`, a grammar accepts what jsonschema accepts and nothing else.

Instances are written with keys in the order of the schema. Grammar(None, ...) has the 256 bytes as tokens, so no model is needed.
"""

import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unicodedata

import jsonschema
import pytest

import llmc
from waiting import HANG

ROOT = pathlib.Path(__file__).resolve().parents[2]

VALIDATOR = jsonschema.Draft202012Validator


def accepts(grammar, value):
    text = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
    return grammar.match(text)[0]


def check(schema, values, **options):
    draft = VALIDATOR if '"dependencies"' not in json.dumps(schema) else jsonschema.Draft7Validator
    oracle = draft(schema, format_checker=VALIDATOR.FORMAT_CHECKER)
    try:
        g = llmc.Grammar(None, "json_schema", schema, standard=True, strict=True, **options)
    except llmc.Error as e:
        assert "nothing matches" in str(e) and not any(map(oracle.is_valid, values)), (schema, e)
        return
    with g:
        for v in values:
            assert accepts(g, v) == oracle.is_valid(v), (schema, v)


VALUES = [
    None,
    [1, 2, 3],
    [2, "a"],
    [1, "a", None],
    True,
    False,
    0,
    1,
    5,
    10,
    -3,
    2.5,
    "",
    "a",
    "abc",
    "ab1",
    [],
    [1],
    [1, 1],
    {},
]
VALUES += [{"a": 1}, {"a": "x", "b": 2}, {"b": 2}, {"c": None}, {"a": 1, "c": 3}]
OBJECT = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}}
SCHEMAS = [
    # all other keywords filter enum and const
    *(
        {"enum": [1, 5, 10, "a", "abc", [], [1], {}, {"a": 1}, None], **more}
        for more in (
            {"maximum": 5},
            {"multipleOf": 5},
            {"maxLength": 1},
            {"pattern": "^ab"},
            {"minItems": 1},
            {"required": ["a"]},
            {"allOf": [{"type": "string"}, {"maxLength": 1}]},
            {"not": {"const": 5}},
            {"properties": {"a": {"type": "string"}}},
            {"if": {"type": "string"}, "then": {"minLength": 2}},
        )
    ),
    {"allOf": [{"enum": [1, 5, 10]}, {"maximum": 5}]},
    {"$ref": "#/$defs/e", "$defs": {"e": {"enum": ["a", "abc"]}}, "minLength": 2},
    # negations and conditions
    {"not": {"type": "string"}},
    {"not": {"enum": ["a", 5, None]}},
    {"type": "string", "not": {"pattern": "^a"}},
    {"type": ["number", "string"], "not": {"minimum": 5}},
    {"type": "object", "not": {"required": ["a"]}, "properties": {"a": {}, "b": {}, "c": {}}},
    {**OBJECT, "dependentRequired": {"a": ["b"]}},
    {**OBJECT, "dependentSchemas": {"a": {"properties": {"c": {"type": "null"}}}}},
    {**OBJECT, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {
        **OBJECT,
        "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        "then": {"required": ["c"]},
        "else": {"maxProperties": 2},
    },
    {"oneOf": [{"type": "string"}, {"maxLength": 2}]},
    {**OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    # objects
    {"type": "object", "patternProperties": {"^[ab]": {"type": "integer"}}},
    {
        "type": "object",
        "properties": {"a": {"maximum": 3}},
        "patternProperties": {"^[ab]": {"type": "integer"}},
        "additionalProperties": {"type": "null"},
    },
    {"type": "object", "propertyNames": {"enum": ["a", "c"]}},
    {**OBJECT, "maxProperties": 1},
    {**OBJECT, "minProperties": 2},
    {**OBJECT, "minProperties": 1, "maxProperties": 2, "required": ["a"]},
    # arrays
    {"type": "array", "items": {"enum": [1, "a", None]}, "uniqueItems": True},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "contains": {"type": "integer"}},
    {"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}},
    {"type": "object", "propertyNames": {"pattern": "^[a-b]$"}, "properties": {"a": {}, "c": {}}},
    # merges
    {"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b"}]},
    {"allOf": [{"type": "string", "help": "x"}, {"help": "y", "minLength": 2}]},
    {**OBJECT, "allOf": [{"required": ["c"]}, {"required": ["c", "a"]}]},
    {"type": "object", "allOf": [{"dependentRequired": {"a": ["c"]}}, {"required": ["a"]}]},
    # look-aheads at the beginning of an expression
    {"type": "string", "pattern": "^(?!ab)[a-c]+"},
    {"type": "string", "pattern": "^(?=.*c)(?!abc$)[a-c]"},
    {"type": "object", "patternProperties": {"^(?!a)": {"type": "integer"}, "^[ab]": {}}},
    {"type": "object", "patternProperties": {f"^(?!{c})": {"not": {"const": c}} for c in "abc"}},
    {"type": "object", "propertyNames": {"pattern": "^(?![bc]$)"}},
    {"type": "string", "pattern": "^$|(^[a-z]+$)"},
    {"type": "string", "pattern": "(^a$)|(^ab)"},
    {"type": "integer", "multipleOf": 5, "minimum": 1},
    {"type": "number", "multipleOf": 2.5},
]


# negations of each keyword, and what is made of them
A, B = {"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}
NEGATED = [
    {"properties": {"a": {"minimum": 2}}, "required": ["a"]},
    {"patternProperties": {"^[ab]": {"type": "integer"}}},
    {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": False},
    {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"pattern": "^[ab]$"}},
    {"propertyNames": {"not": {"const": "a"}}},
    {"propertyNames": False},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"maxProperties": 1}}},
    {"dependencies": {"a": ["c"], "b": {"required": ["a"]}}},
    {"minProperties": 1, "maxProperties": 1},
    {"items": {"type": "integer"}},
    {"prefixItems": [{"const": 1}, {"type": "string"}]},
    {"prefixItems": [{"const": 1}], "items": {"type": "string"}},
    {"contains": {"type": "string"}},
    {"contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
    {"oneOf": [{"type": "integer"}, {"minimum": 3}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"type": "array"}]},
    {"anyOf": [{"type": "string"}, {"maximum": 4}]},
    {"allOf": [A, B]},
    {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": "object"}},
    {"not": {"type": "array", "maxItems": 1}},
    {"const": [1, 1]},
    {"const": {"a": 1}},
    {"enum": [[1], {"a": "x", "b": 2}, {}, 5, "a"]},
    {"multipleOf": 2},
    {"multipleOf": 2.5},
    {"type": "integer"},
    {"format": "no such format"},
    {"type": "string", "format": "ipv4"},
]
SCHEMAS += [
    s
    for n in NEGATED
    for s in (
        {"not": n},
        {"not": n, "type": ["object", "array"], "properties": {"a": {"type": "integer"}}},
        {"oneOf": [n, {"type": ["object", "number"]}]},
        {
            "if": n,
            "then": {"minProperties": 1, "minItems": 1, "minLength": 1},
            "else": {"type": ["array", "string", "object"]},
        },
    )
] + [
    {"allOf": [{"not": {"propertyNames": {"not": {"const": c}}}} for c in "ab"]},
    {"allOf": [{"not": {"multipleOf": n}} for n in (2, 3)], "type": "integer", "minimum": 1},
    {"allOf": [{"multipleOf": 2.5}, {"multipleOf": 2}]},
    {"oneOf": [A, B]},
    {"oneOf": [{"maxProperties": 2, "dependentRequired": {"b": ["b", "a"]}}, {"maxProperties": 2}]},
    {
        "not": {"propertyNames": {"pattern": "^[ab]*$"}},
        "type": "object",
        "properties": {"a": {}, "c": {}},
    },
    # counts of items
    *(
        {"contains": {"type": "integer"}, **more}
        for more in (
            {"maxItems": 1},
            {"minItems": 2},
            {"minContains": 2},
            {"minContains": 0},
            {"maxContains": 1},
            {"minContains": 1, "maxContains": 1, "maxItems": 3},
            {"maxContains": 0},
            {"prefixItems": [{"type": "string"}, True]},
            {"items": {"type": ["string", "integer"]}, "minItems": 2},
            {"allOf": [{"contains": {"type": "string"}}]},
            {"unevaluatedItems": False},
            {"unevaluatedItems": {"type": "null"}, "prefixItems": [True]},
        )
    ),
    {"uniqueItems": True, "prefixItems": [{"enum": [1, 2]}, {"enum": [1, "a"]}], "items": False},
    {"uniqueItems": True, "items": {"enum": [1, 2, 3]}, "contains": {"const": 2}},
    # unevaluated members
    {"unevaluatedProperties": {"type": "string"}, "not": {"enum": [{"a": 1}]}},
    {"unevaluatedProperties": False, "if": A, "then": B, "else": {"properties": {"c": {}}}},
    {"unevaluatedProperties": False, "if": {"required": ["a"], **A}},
    {"unevaluatedProperties": False, "dependentSchemas": {"a": {"properties": {"a": {}, "c": {}}}}},
    {
        "unevaluatedItems": False,
        "prefixItems": [True],
        "allOf": [{"prefixItems": [True, {"type": "string"}]}],
    },
    {
        "unevaluatedItems": False,
        "anyOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [True, True]}],
    },
    {"unevaluatedItems": False, "if": {"prefixItems": [{"const": 1}]}, "else": {"items": True}},
    {"unevaluatedItems": False, "$ref": "#/$defs/p", "$defs": {"p": {"prefixItems": [True]}}},
    {"unevaluatedItems": {"type": "null"}, "enum": [[1], [None]], "dependentSchemas": {"a": {}}},
    # a schema that contains itself, negated
    {
        "not": {"$ref": "#/$defs/r"},
        "$defs": {"r": {"items": {"$ref": "#/$defs/r"}, "type": ["array", "integer"]}},
    },
    {"items": {"not": {"items": {"type": "integer"}}}},
]
VALUES += [
    [1, 1, "a"],
    [[1]],
    [[1], ["a"], 5],
    {"a": 1, "b": "x"},
    {"b": "x", "c": 1},
    {"a": {"a": 1}},
    {"d": 1},
    {"a": 1, "b": 1, "c": 1},
]
VALUES += [
    {"a": 1, "d": 1},
    ["a"],
    [None],
    [1, None],
    ["a", 1],
    [2],
    [2, 1],
    2,
    3,
    4,
    7.5,
    {"a": "ab"},
    "1.2.3.4",
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:70])
def test_values_are_accepted_as_by_jsonschema(schema):
    check(schema, VALUES)


@pytest.mark.parametrize("strict", [False, True])
def test_too_many_look_aheads_of_keys_are_an_error(strict):
    """Each combination of regexes that a key matches and regexes that it does not match is a
    separate language."""
    ahead = {f"^(?!{c})(?!d)(?!e)": {} for c in "abcde"}  # 5 ** 5 combinations
    schema = {"type": "object", "patternProperties": ahead}
    with pytest.raises(llmc.Error, match="in 3125 ways, at most 64 are supported"):
        llmc.Grammar(None, "json_schema", schema, standard=True, strict=strict)


@pytest.mark.parametrize(
    "pattern,low,high",
    [
        ("^abc", 0, 2),
        ("^a", 0, 0),
        ("^[A-Z]{2}[0-9]{2}[A-Z0-9]{1,30}$", 0, 5),
        ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 1, 6),
        ("^(a|bc)*$", 2, 5),
        ("^([a-z][0-9])+$", 3, 5),
        ("foo", 2, 5),
        ("^[a-z]+@[a-z]+$", 0, 6),
        ("a$", 3, None),
        ("^/[^\\0]+$", 0, None),
        ("^/[^\0]+$", 0, None),
    ],
)
def test_pattern_and_length_hold_together(pattern, low, high):
    schema = {"type": "string", "pattern": pattern, "minLength": low}
    if high is not None:
        schema["maxLength"] = high
    oracle = VALIDATOR(schema)
    rng = random.Random(pattern)
    letters = "abcfoA0-1@"
    strings = ["".join(rng.choice(letters) for _ in range(rng.randint(0, 8))) for _ in range(3000)]
    strings += ["".join(x) for n in range(5) for x in itertools.product("abf0o", repeat=n)]
    strings += [
        "foo",
        "xfoox",
        "a-b",
        "a-",
        "bca",
        "a1b2",
        "AB12C",
        "a@b",
        "abcabc@abc",
        "/a/b",
        "/",
    ]
    try:
        g = llmc.Grammar(None, "json_schema", schema, strict=True)
    except llmc.Error as e:
        assert "nothing matches" in str(e) and not any(map(oracle.is_valid, strings))
        return
    with g:
        for s in strings:
            assert accepts(g, s) == oracle.is_valid(s), s
            # every allowed prefix must have a completion
        assert any(accepts(g, s) for s in strings) or high is not None


BIG = 12345678901234567890


@pytest.mark.parametrize(
    "schema,good,bad",
    [
        ({"const": BIG}, [BIG], [BIG + 1, str(BIG)]),
        ({"type": "integer", "const": BIG}, [BIG], [1]),
        ({"type": "integer", "enum": [BIG, 1]}, [BIG, 1], [2, BIG - 1]),
        ({"type": "integer", "maximum": BIG}, [BIG, 0, -BIG * 10], [BIG + 1, BIG * 10]),
        ({"type": "integer", "minimum": BIG}, [BIG, BIG * 10], [BIG - 1, 0]),
        ({"enum": [BIG, "a"], "type": "string"}, ["a"], [BIG]),
    ],
    ids=lambda x: json.dumps(x)[:50],
)
def test_integers_beyond_64_bits_keep_their_digits(schema, good, bad):
    oracle = VALIDATOR(schema)
    with llmc.Grammar(None, "json_schema", schema, strict=True) as g:
        for v in good + bad:
            assert accepts(g, v) == oracle.is_valid(v) == (v in good), v


def test_an_allowed_prefix_can_always_be_completed():
    """Random walks through the automaton with a counter never end in a dead end."""
    rng = random.Random(3)
    for schema in (
        {"type": "string", "pattern": "^[a-z](-[a-z]{2})*$", "minLength": 4, "maxLength": 9},
        {"type": "string", "pattern": "^(ab|cde)+$", "minLength": 7, "maxLength": 8},
        {"type": "string", "format": "date-time", "maxLength": 22},
        {"type": "string", "pattern": "foo", "maxLength": 6},
    ):
        oracle = VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER)
        with llmc.Grammar(None, "json_schema", schema, strict=True, compact=True) as g:
            for _ in range(40):
                with g.matcher() as m:
                    out = b""
                    while not m.ended:
                        mask = m.mask()
                        byte = [b for b in range(0x20, 0x7F) if mask[b // 8] >> b % 8 & 1]
                        assert byte, (schema, out)
                        b = rng.choice(byte)
                        m.accept(b)
                        out += bytes([b])
                assert oracle.is_valid(json.loads(out)), (schema, out)


@pytest.mark.parametrize(
    "number",
    ["1234567890123456789", "18446744073709551615", "9" * 308, "-" + "7" * 300, "0." + "3" * 300],
)
def test_numbers_keep_their_digits(number):
    kinds = [("json_schema", {"type": "number"}), ("json", "")]
    if "." not in number:
        kinds += [("json_schema", {"type": "integer"})]
        if number[0] != "-":
            kinds += [("json_schema", {"type": "integer", "minimum": 1})]
    for kind, schema in kinds:
        text = f'{{"a": {number}}}' if kind == "json" else number
        with llmc.Grammar(None, kind, schema) as g:
            assert g.match(text) == (True, len(text))
            assert not g.match(text.replace(number, "1" * 500))[0]


# accepted and rejected by the format checker of jsonschema 4.26.0 with fqdn 1.6.0, rfc3986-validator 0.1.1, rfc3339-validator 0.1.4 and isoduration 20.11.0
FORMATS = {
    "uri": (
        ["http://h:80/p?q=1#f", "mailto:x@y.z", "a:", "http://[::1]:8/", "http://[v1.a]/"],
        ["http://h:abc/p", "//a", "http://a b", "http://a/%zz", "x://é", "http://[1.2.3.4]"],
    ),
    "uri-reference": (
        ["a/b", "", "#x", "?q", "/a//b", "a:b", "./1:b", "//[::]/"],
        ["://", "1:b", "//a@b@c/", "\\\\x", "a b", "//h:9x"],
    ),
    "email": (["a@b", "x@[127.0.0.1]", '"a b"@c.d', "x@[IPv6:::1]"], ["a", "a@@b", "a b@c"]),
    "hostname": (["a", "1.2", "A.B-c.d", "x" * 63], ["-a", "a-", "a_b", "x" * 64, ".", "a..b"]),
    "time": (
        ["12:00:00Z", "12:00:00z", "12:00:00.5-01:30", "00:00:00.1234567890123Z"],
        ["23:59:60Z", "12:00:00+24:00", "1:00:00Z", "12:00:00", "24:00:00Z"],
    ),
    "date-time": (
        ["2024-01-01T00:00:00Z", "2024-01-01t00:00:00.123456789012345z"],
        ["2024-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "2024-01-01 00:00:00Z"],
    ),
    "date": (
        ["2024-02-29", "0001-01-01", "2000-02-29"],
        ["2023-02-29", "1900-02-29", "2024-13-01"],
    ),
    "ipv6": (
        ["::", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4"],
        ["1::2::3", "12345::", "::1%eth0", "1:2:3:4:5:6:7", "::1.2.3.4.5"],
    ),
    "ipv4": (["1.2.3.4", "0.0.0.0"], ["256.1.1.1", "01.2.3.4", "1.2.3"]),
    "json-pointer": (["", "/a", "/~0~1"], ["a", "/~2"]),
    "unknown": (["anything"], []),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name):
    good, bad = FORMATS[name]
    with llmc.Grammar(None, "json_schema", {"type": "string", "format": name}, strict=True) as g:
        for s in good:
            assert accepts(g, s), s
        for s in bad:
            assert not accepts(g, s), s
    limit = sorted(map(len, good))[len(good) // 2]
    short = {"type": "string", "format": name, "maxLength": limit}
    with llmc.Grammar(None, "json_schema", short, strict=True) as g:
        for s in good:
            assert accepts(g, s) == (len(s) <= limit), s


def test_white_space_is_that_of_ecma_262():
    """The set is WhiteSpace and LineTerminator of ECMA-262, sections 12.2 and 12.3."""
    white = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"
    white += "".join(chr(c) for c in range(0x2000, 0x200B))
    with (
        llmc.Grammar(None, "json_schema", {"type": "string", "pattern": r"^\S+$"}) as no,
        llmc.Grammar(None, "json_schema", {"type": "string", "pattern": r"^[\s]+$"}) as yes,
    ):
        for c in white + "\u0085\u200b\u180ea":
            text = json.dumps(c) if c < " " else json.dumps(c, ensure_ascii=False)
            assert yes.match(text)[0] == (c in white), hex(ord(c))
            assert no.match(text)[0] == (c not in white), hex(ord(c))


NODE = {"$ref": "#/$defs/n"}
RECURSIVE = [
    {"allOf": [{"type": "object", "properties": {"c": NODE}}, {"properties": {"c": NODE}}]},
    {
        "allOf": [
            {"type": "object", "additionalProperties": NODE},
            {"additionalProperties": NODE, "maxProperties": 1},
        ]
    },
    {
        "allOf": [
            {"type": "object", "properties": {"c": {"type": "array", "items": NODE}}},
            {"properties": {"d": {"type": "string"}}},
        ]
    },
]


@pytest.mark.parametrize("node", RECURSIVE, ids=["property", "additional", "items"])
def test_recursive_schemas_are_merged(node):
    values = [{}, {"c": {}}, {"c": {"c": {"c": {}}}}, {"c": 1}, {"c": {"c": 1}}, {"c": [{}]}]
    values += [{"c": [{"c": [], "d": "x"}], "d": "y"}, {"c": [{"d": 1}]}, {"d": 1}]
    check({"$defs": {"n": node}, "$ref": "#/$defs/n"}, values)


REF = {"$ref": "#/$defs/n"}


@pytest.mark.parametrize(
    "node",
    [
        {"type": "object", "properties": {"c": {"allOf": [REF]}}},
        {"type": "object", "properties": {"c": {"allOf": [REF, {"title": "x"}]}}},
        {"type": "object", "properties": {"c": {"anyOf": [REF, {"type": "null"}], "title": "x"}}},
        {"type": "object", "properties": {"c": {"type": "array", "items": {"allOf": [REF]}}}},
        {"type": "object", "additionalProperties": {"allOf": [REF, {"maxProperties": 1}]}},
    ],
    ids=lambda s: json.dumps(s)[:60],
)
def test_a_schema_contains_itself_through_other_keywords(node):
    values = [{}, {"c": {}}, {"c": {"c": {"c": {}}}}, {"c": None}, {"c": {"c": None}}, {"c": 1}]
    values += [{"c": [{"c": []}]}, {"c": [{"c": [{}, {"c": 1}]}]}, {"d": {"d": {}, "e": {}}}]
    check({"$defs": {"n": node}, "$ref": "#/$defs/n"}, values)


MERGED = [
    {**OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]},
    {**OBJECT, "anyOf": [{"required": ["a"]}, {"properties": {"d": {"type": "integer"}}}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {}, "c": {"type": "null"}}, "required": ["c"]},
        ],
        "unevaluatedProperties": False,
    },
    {**OBJECT, "dependentRequired": {"a": ["b"]}, "additionalProperties": False},
]


@pytest.mark.parametrize("schema", MERGED, ids=lambda s: json.dumps(s)[:60])
def test_members_of_several_schemas_are_in_any_order(schema):
    members = [("a", 1), ("b", "x"), ("c", None), ("d", 2), ("d", "y")]
    values = [dict(some) for n in range(5) for some in itertools.permutations(members, n)]
    check(schema, values)
    # a member must not occur twice
    with llmc.Grammar(None, "json_schema", schema, standard=True) as g:
        assert not g.match('{"c": null, "a": 1, "b": "x", "a": 1}')[0]
        assert g.match('{"c": null, "a": 1, "b": "x", "a"')[1] <= len(
            '{"c": null, "a": 1, "b": "x", "a'
        )


def test_a_walk_through_members_in_any_order_can_end():
    """A comma is allowed only if another member can follow; a required member that nothing matches
    is a dead end.
    """
    rng = random.Random(5)
    deep = {"type": "string", "pattern": "^a$", "allOf": [{"minLength": 2}]}
    for schema in (
        *MERGED,
        {**OBJECT, "anyOf": [{"required": ["a"]}, {"required": ["d"], "properties": {"d": deep}}]},
    ):
        oracle = VALIDATOR(schema)
        with llmc.Grammar(None, "json_schema", schema, compact=True) as g:
            for _ in range(40):
                with g.matcher() as m:
                    out = b""
                    while not m.ended:
                        mask = m.mask()
                        byte = [b for b in range(0x20, 0x7F) if mask[b // 8] >> b % 8 & 1]
                        assert byte, (schema, out)
                        close = [b for b in byte if b in b'"]}']
                        b = rng.choice(close if close and rng.random() < 0.6 else byte)
                        m.accept(b)
                        out += bytes([b])
                assert oracle.is_valid(json.loads(out)), (schema, out)


def test_a_trigger_begins_a_tag_that_starts_with_it():
    """The output is free text without a trigger, followed by a tag, like xgrammar's structural
    tags; the oracle is Python's re."""
    tags = [
        {"begin": "<a>", "part": {"regex": "[0-9]+"}, "end": "</a>"},
        {"begin": "<ab>", "part": {"schema": {"enum": ["x"]}}, "end": ";"},
        {"begin": "{{", "part": {"text": "y"}, "end": "}}"},
    ]
    tag = r'(<a>[0-9]+</a>|<ab>"x";|\{\{y\}\})'
    free = r"((?!<a|\{\{)[\s\S])*"
    for more, regex in (
        ({}, f"{free}({tag}{free})*"),
        ({"at_least_one": True}, f"{free}({tag}{free})+"),
        ({"stop_after_first": True}, f"{free}|{free}{tag}"),
        ({"at_least_one": True, "stop_after_first": True}, f"{free}{tag}"),
    ):
        part = {"triggered": {"triggers": ["<a", "{{"], "tags": tags, **more}}
        rng = random.Random(1)
        pieces = ["<a>", "12", "</a>", '<ab>"x";', "{{y}}", "{", "<", "text ", "a", "<a", "{{"]
        with llmc.Grammar(None, "parts", part) as g:
            for _ in range(3000):
                s = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 6)))
                assert g.match(s)[0] == bool(re.fullmatch(regex, s)), (more, s)


# (schema, whether unlisted properties are allowed with auto); each lists `a`
OBJECTS = [
    ({"properties": {"a": {"type": "integer"}}}, False),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {}}}, True),
    ({"$schema": "", "properties": {"a": {}}, "additionalProperties": False}, False),
    ({"properties": {"a": {}}, "additionalProperties": True}, True),
    ({"$defs": {"$schema": {}}, "properties": {"a": {}}}, False),
    ({"$schema": None, "properties": {"a": {}}}, False),
    ({"$schema": {}, "properties": {"a": {}}}, False),
    ({"$schema": "", "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {}}}}}, True),
]


@pytest.mark.parametrize(("schema", "opens"), OBJECTS)
def test_objects_without_additional_properties_follow_the_option(schema, opens):
    """The option decides only cases that the schema does not decide: the grammar never accepts what
    jsonschema rejects."""
    standard = jsonschema.Draft202012Validator(schema)
    for text in ("{}", '{"a": 1}', '{"a": 1, "b": 2}', '{"b": 2}'):
        valid = standard.is_valid(json.loads(text))
        others = '"b"' in text
        for additional, allowed in {"auto": opens, "closed": False, "open": True}.items():
            explicit = schema.get("additionalProperties")
            allowed = allowed if explicit is None else explicit
            with llmc.Grammar(None, "json_schema", schema, additional=additional) as g:
                assert g.match(text)[0] == (valid and (allowed or not others)), (additional, text)
            part = {"grammar": json.dumps(schema), "kind": "json_schema", "additional": additional}
            with llmc.Grammar(None, "parts", part, additional="closed") as g:
                assert g.match(text)[0] == (valid and (allowed or not others)), (additional, text)


@pytest.mark.parametrize("more", [{}, {"$schema": ""}, {"items": False}, {"items": True}])
def test_arrays_with_listed_items_follow_the_option(more):
    schema = {"type": "array", "prefixItems": [{"type": "integer"}], **more}
    for additional in "auto", "closed", "open":
        opens = additional == "open" or (additional == "auto" and "$schema" in more)
        with llmc.Grammar(None, "json_schema", schema, additional=additional) as g:
            for text in "[1]", "[1, 2]":
                want = text == "[1]" or more.get("items", opens)
                assert g.match(text)[0] == want, (additional, text)


def test_an_unknown_rule_of_additional_properties_is_an_error():
    with pytest.raises(ValueError, match="did you mean 'open'"):
        llmc.Grammar(None, "json_schema", {}, additional="opens")
    with pytest.raises(llmc.Error, match="'additional' is"):
        llmc.Grammar(None, "parts", {"grammar": "{}", "kind": "json_schema", "additional": "no"})


def test_a_file_is_checked_from_the_command_line(tmp_path):
    schema, lark, good, bad = (tmp_path / n for n in ("s.json", "g.lark", "good", "bad"))
    schema.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    lark.write_text('start: "a" "b"+')
    good.write_text('{"id": 12}')
    bad.write_text('{"id": "x"}')

    def run(*args):
        return subprocess.run(
            [str(ROOT / "build/llmc"), "run", *map(str, args)], capture_output=True, text=True
        )

    assert run("--schema", schema, "--check", good).returncode == 0
    more = tmp_path / "more"
    more.write_text('{"id": 12, "x": 1}')
    assert run("--schema", schema, "--check", more).returncode == 3
    opened = ("--additional-properties", "open")
    assert run("--schema", schema, *opened, "--check", more).returncode == 0
    for wrong in (("--schema", schema, *opened[:1], "no"), ("--grammar", lark, *opened)):
        r = run(*wrong, "--check", more)
        assert r.returncode == 1 and "--additional-properties" in r.stderr
    r = run("--schema", schema, "--check", bad)
    assert r.returncode == 3 and "byte 7 " in r.stderr
    good.write_text("abb")
    bad.write_text("a")
    assert run("--grammar", lark, "--check", good).returncode == 0
    r = run("--grammar", lark, "--check", bad)
    assert r.returncode == 3 and "ends after 1 bytes" in r.stderr
    assert run("--check", good).returncode == 1


LONG_REGEX = """
import resource, sys
import llmc
now = 1024 * int(next(x for x in open("/proc/self/status") if x[:7] == "VmSize:").split()[1])
resource.setrlimit(resource.RLIMIT_AS, (now + 2**30,) * 2)
llmc.Grammar(None, "regex", sys.argv[1] * 300000)
"""


@pytest.mark.parametrize("part", [r"\pL", r"\P{L}", r"\s", r"[\pL\pN]"])
def test_a_long_regular_expression_has_bounded_memory(part):
    """The few bytes of this regular expression expand to hundreds of ranges."""
    env = dict(os.environ, PYTHONPATH=str(ROOT / "bindings/python"))
    run = [sys.executable, "-c", LONG_REGEX, part]
    r = subprocess.run(run, capture_output=True, text=True, env=env)
    assert "classes of the grammar have more than 1048576 ranges" in r.stderr, r.stderr[-500:]


def general(*names):
    return lambda category: category.startswith(names)


@pytest.mark.parametrize(
    "pattern,holds",
    [
        (r"^\p{L}$", general("L")),
        (r"^\P{L}$", lambda c: c[0] != "L"),
        (r"^\pN$", general("N")),
        (r"^\p{LC}$", general("Lu", "Ll", "Lt")),
        (r"^\p{gc=Zs}$", general("Zs")),
        (r"^[\p{Nd}\p{Punctuation}]$", general("Nd", "P")),
        (r"^[^\p{Uppercase_Letter}_]$", lambda c: c not in ("Lu", "Pc")),
    ],
)
def test_general_categories_are_those_of_unicode(pattern, holds):
    # newer versions of Python have more characters
    old = unicodedata.ucd_3_2_0
    known = [c for c in range(0x20, 0x110000) if old.category(chr(c)) not in ("Cn", "Cs")]
    sample = random.Random(pattern).sample(known, 400) + list(range(0xA0, 0x180))
    with llmc.Grammar(None, "json_schema", {"pattern": pattern, "type": "string"}) as g:
        for c in map(chr, sample):
            category = unicodedata.category(c)
            if category == "Pc" and "_" in pattern and c != "_":
                category = "Po"
            if c not in '"\\\x7f':
                assert accepts(g, c) == holds(category), (pattern, hex(ord(c)))


@pytest.mark.parametrize(
    "pattern", ["(?i)^ab$", "(?i)x|y", "^a(?i:b)c$", "^(?i:[a-c]+)$", "(?s)^.$", "(?is)^a.b$"]
)
def test_inline_flags_are_those_of_python(pattern):
    texts = ["ab", "AB", "aB", "Ab", "abc", "ABc", "aBc", "aBC", "X", "y", "Y", "\n", "a\nB"]
    if pattern == "(?is)^a.b$":
        with pytest.raises(llmc.Error, match="inline flags"):
            llmc.Grammar(None, "json_schema", {"type": "string", "pattern": pattern})
        return
    check({"type": "string", "pattern": pattern}, texts)


def test_properties_that_are_unknown_are_errors():
    for name in ("Script=Xx", "Script=", "", "Xx", "^Lu", "l u"):
        with pytest.raises(llmc.Error, match="Unicode property"):
            llmc.Grammar(None, "regex", rf"\p{{{name}}}")


PART = {
    "$id": "http://x/p.json",
    "type": "integer",
    "$defs": {"k": {"$anchor": "k", "type": "null"}},
}
PART["properties"] = {"a": {"$ref": "#/$defs/k"}}
NAMED = [
    {
        "$id": "http://x/a/b.json",
        "$defs": {"p": PART},
        "anyOf": [{"$ref": ref}, {"type": "boolean"}],
    }
    for ref in (
        "/p.json",
        "../p.json",
        "http://x/p.json#",
        "../p.json#k",
        "/p.json#/$defs/k",
        "./../a/../p.json",
    )
]
NAMED += [
    {"$defs": {"n": {"$dynamicAnchor": "n", "type": "integer"}}, "items": {"$dynamicRef": "#n"}},
    {"$dynamicAnchor": "n", "type": ["array", "null"], "items": {"$dynamicRef": "#n"}},
    {"$dynamicRef": "#/$defs/n", "minimum": 4, "$defs": {"n": {"type": "integer"}}},
    {"$id": "urn:x:y", "$defs": {"n": {"$anchor": "n", "type": "integer"}}, "$ref": "urn:x:y#n"},
    {
        "$id": "http://x/a",
        "$defs": {"b": {"$id": "b", "$ref": "c"}, "c": {"$id": "c", "type": "null"}},
        "items": {"$ref": "b"},
    },
    {"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n", "minItems": 1}},
    {"$dynamicAnchor": "n", "maxItems": 1, "items": {"not": {"$dynamicRef": "#n"}}},
]


@pytest.mark.parametrize("schema", NAMED, ids=lambda s: json.dumps(s)[:70])
def test_references_by_identifier_are_those_of_jsonschema(schema):
    check({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, VALUES)


@pytest.mark.parametrize("where", ["$id of a part", "$ref"])
def test_long_identifiers_do_not_match_others(where):
    long = "a" * 5000
    part = {"$id": long if where[1] == "i" else long[:900], "type": "integer"}
    schema = {"$id": "http://x/", "$defs": {"p": part}, "$ref": long}
    with pytest.raises(llmc.Error, match="outside"):
        llmc.Grammar(None, "json_schema", schema)


@pytest.mark.parametrize("ref", ["q.json", "http://y/p.json", "#k", "p.json#j", "//x/q.json"])
def test_references_out_of_the_document_are_errors(ref):
    schema = {"$id": "http://x/a.json", "$defs": {"p": PART}, "$ref": ref}
    with pytest.raises(llmc.Error, match=r"#/\$ref: .* (outside|does not exist)"):
        llmc.Grammar(None, "json_schema", schema)


@pytest.mark.parametrize(
    "name,some,others",
    [
        ("Script=Greek", "αΩἀ", "aя\u0301"),
        ("sc=Latin", "azéǅ", "αя1"),
        ("scx=Hiragana", "あー", "ア"),
        ("Script=Han", "漢字\U00020000", "あa"),
        ("Alphabetic", "aα漢", "1 -"),
        ("White_Space", " \u00a0\u2003", "a_"),
    ],
)
def test_scripts_and_binary_properties(name, some, others):
    """The characters are those of Scripts.txt, ScriptExtensions.txt and PropList.txt."""
    with (
        llmc.Grammar(None, "regex", rf"\p{{{name}}}+") as yes,
        llmc.Grammar(None, "regex", rf"\P{{{name}}}+") as no,
    ):
        for c in some + others:
            assert yes.match(c)[0] == (c in some), c
            assert no.match(c)[0] == (c in others), c


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bab\b",
        r"^\w+\b$",
        r"\B",
        r"^\B",
        r"\b",
        r"a\Bb",
        r"^(\ba|b\B)+$",
        r"(a|\b)-(b|\b)",
        r"^(?:\b|-)a*\b(-|_)",
        r"\b$",
        r"\b\B",
        r"[\b]",
    ],
)
def test_word_boundaries_are_those_of_python(pattern):
    oracle = re.compile(pattern, re.ASCII)
    with (
        llmc.Grammar(None, "json_schema", {"type": "string", "pattern": pattern})
        if pattern != (r"\b\B")
        else contextlib.nullcontext() as g
    ):
        for n in range(1, 6):  # \B matches "" in ECMA-262 alone
            for x in itertools.product("ab-_", repeat=n):
                found = bool(oracle.search("".join(x)))
                assert (accepts(g, "".join(x)) if g else False) == found, x


def chain(keyword):
    """Each of nine schemas has the next one a hundred times."""
    parts = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 100} for i in range(8)}
    return {**parts, "a8": {"type": "string"}}


LETTERS = "".join(chr(0x4E00 + i) for i in range(3500))
WIDE = {f"p{i}": {"type": "integer"} for i in range(300)}
# the work grows as a power of the size, or in each use of a part
LARGE = {
    "alternatives of a negation": {"not": {"not": {"$ref": "#/$defs/a0"}}, "$defs": chain("anyOf")},
    "parts of a negation": {"not": {"not": {"$ref": "#/$defs/a0"}}, "$defs": chain("allOf")},
    "required members": {
        "type": "object",
        "properties": WIDE,
        "additionalProperties": True,
        "allOf": [{"not": {"propertyNames": {"pattern": f"^q{k}"}}} for k in range(5)],
    },
    "excluded numbers": {"not": {"enum": list(range(50000))}},
    "values of an array": {"uniqueItems": True, "items": {"enum": list(map(str, range(50000)))}},
    "merged members": {"properties": WIDE, "allOf": [{"minProperties": 0}] * 15000},
    "a long base": {
        "$id": f"http://x/{'a' * 300000}/",
        "properties": {f"p{i}": {"$id": f"r{i}"} for i in range(10000)},
        "items": {"$ref": "#/properties/p1"},
    },
    "anchors": {
        "$defs": {f"d{i}": {"$anchor": f"z{i}"} for i in range(3000)},
        "properties": {f"p{i}": {"$ref": f"#z{i}"} for i in range(3000)},
    },
    "classes of characters": {"not": {"pattern": f"^{LETTERS}$"}},
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_the_work_for_a_schema_is_bounded(tmp_path, name, strict):
    """The schema compiles or is an error, in less than 2 GiB."""
    call = "import llmc, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))"
    call += f"\ntry: llmc.Grammar(None, 'json_schema', open(sys.argv[1]).read(), strict={strict})"
    call += "\nexcept llmc.Error as e: assert 'out of memory' not in str(e)"
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(LARGE[name]))
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(llmc.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", call, str(path)], check=True, timeout=HANG, env=env)


def test_booleans_are_listed_values():
    schema = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}
    check(schema, [[], [True], [False, True], [True, True], [True, False, True], [1]])
    check({**schema, "minItems": 2}, [[], [True], [False, True], [True, False]])
