"""Arguments of calls in every format: parameter kinds, names that are no identifiers, and values that contain markers of the format.

A writer in Python produces calls from the rows of configs/formats/calls.yaml. The parser must return the arguments that were written, whole and cut at every
byte. The grammar must accept what jsonschema accepts and reject what it rejects.
"""

import ctypes as C
import json
import pathlib

import jsonschema
import pytest
import yaml

import text_lib
from small_tokenizer import CONFIG, SMALL
from test_calls import LIB, Reader

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = [
    row
    for row in yaml.safe_load((ROOT / "configs/formats/calls.yaml").read_text())
    if row.get("body")
]
DEFS = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "m": {
        "type": "object",
        "properties": {"k": {"type": "integer"}, "user id": {"type": "string"}},
        "required": ["k"],
        "additionalProperties": False,
    },
}
NULL = {"type": "null"}
# name, schema of the parameter, values that fit, values that do not
KINDS = [
    ("string", {"type": "string"}, ["12345", "true", '{"a": 1}', "a\nb", 'x "y" \\ z'], []),
    ("optional string", {"anyOf": [{"type": "string"}, NULL]}, ["12345", "true", None], []),
    ("list of types", {"type": ["string", "null"]}, ["[1]", "false", None], []),
    ("oneOf", {"oneOf": [{"type": "string"}, NULL]}, ["1e5", None], []),
    ("nullable", {"type": "string", "nullable": True}, ["007", None], []),
    ("$ref to a string", {"$ref": "#/$defs/s"}, ["12345", "null"], []),
    ("allOf", {"allOf": [{"$ref": "#/$defs/s"}]}, ["12345", "{}"], []),
    ("enum", {"enum": ["red", 'r e"d', "1"]}, ["red", 'r e"d', "1"], ["blue"]),
    ("const", {"const": "fixed"}, ["fixed"], ["other"]),
    ("pattern", {"type": "string", "pattern": "^[0-9]{3}$"}, ["123"], ["12", "x23"]),
    ("maxLength", {"type": "string", "maxLength": 3}, ["", "abc"], ["abcd"]),
    ("format", {"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "now"]),
    ("integer", {"type": "integer"}, [3, -7, 1234567890123456789], ["x"]),
    ("optional integer", {"anyOf": [{"type": "integer"}, NULL]}, [3, None], ["x", True]),
    ("$ref to an integer", {"$ref": "#/$defs/i"}, [3], ["x"]),
    ("constant number", {"const": 3}, [3], ["x", 4]),
    ("numbers", {"enum": [1, 2.5, None]}, [1, 2.5, None], ["x", 3]),
    ("boolean", {"type": "boolean"}, [True, False], ["yes", 1]),
    ("bounds", {"type": "integer", "minimum": 5, "maximum": 17}, [5, 17], [4, 18]),
    ("model", {"$ref": "#/$defs/m"}, [{"k": 1}, {"k": 2, "user id": "a, b"}], ["x", {"j": 1}]),
    ("optional model", {"anyOf": [{"$ref": "#/$defs/m"}, NULL]}, [{"k": 1}, None], ["x", []]),
    ("list", {"type": "array", "items": {"$ref": "#/$defs/m"}}, [[], [{"k": 1}]], ["x", ["x"]]),
    ("strings", {"type": "array", "items": {"type": "string"}}, [["a", "b, c]"], []], ["x", [1]]),
    ("string or number", {"type": ["string", "number"]}, [1.5, "abc"], [True]),
    ("object", {"type": "object"}, [{}, {"a": [1, "b", {"c": None}]}], ["x", 1]),
    ("any value", {}, [3, {"k": [1]}, True], []),
]
NAMES = ["city", "-A", "x.y", "$filter", "城市", "user id", "@type", "a/b", "größe", "a:b", "p=q"]


def template(row):
    return "{# " + " ".join(row["detect"]) + " #}"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    made = {}

    def make(row):
        if row["name"] not in made:
            folder = tmp_path_factory.mktemp("tokenizer")
            (folder / "tokenizer.json").write_text(json.dumps(SMALL))
            config = {**CONFIG, "chat_template": template(row)}
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            made[row["name"]] = text_lib.Tokenizer(folder)
        return made[row["name"]]

    yield make
    for t in made.values():
        t.close()


def tool(parameters, required=None):
    schema = {
        "type": "object",
        "properties": parameters,
        "required": list(parameters) if required is None else required,
        "$defs": DEFS,
    }
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


def python(value):
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ", ".join(map(python, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python(k)}: {python(v)}" for k, v in value.items()) + "}"
    return repr(value)


def marked(value, quote):
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, list):
        return "[" + ",".join(marked(v, quote) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{marked(v, quote)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def write(row, arguments):
    """Return a call of f in the format of this row."""
    clean = lambda s: (s or "").replace("{}", "")  # the test's tokenizer has no suffix
    open_, close, end = (clean(row.get(k)) for k in ("open", "close", "name_end"))
    first, last = map(clean, row.get("section", ["", ""]))
    keys, body = row.get("keys"), row["body"]
    pair = [clean(x) for x in row.get("pair", [])]
    as_json = json.dumps(arguments, ensure_ascii=False)
    call = f'{{"{keys[0]}": "f", "{keys[1]}": {as_json}}}' if keys else f'{{"f": {as_json}}}'
    if body == "json":
        return first + open_ + call + close + last
    if body == "array":
        return (first or open_) + "[" + call + "]" + close
    name = ("call000000" + row["name_from"] if row.get("name_from") else "") + "f"
    name += row["number"] + "0" if row.get("number") else ""
    if body == "named":
        return first + open_ + name + end + as_json + close + last
    if body == "pairs":
        inner = ""
        for k, v in arguments.items():
            raw = v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
            middle = pair[3] if len(pair) > 3 and not isinstance(v, str) else pair[1]
            inner += pair[0] + k + middle + raw + pair[2]
        return first + open_ + name + end + inner + close + last
    value = (lambda v: marked(v, row["quote"])) if row.get("quote") else python
    inner = pair[2].join(k + pair[1] + value(v) for k, v in arguments.items())
    return first + open_ + name + end + inner + ("}" if "{" in end else ")") + close + last


def rules(tokenizer, tools):
    r = Reader(tokenizer, "", tools)
    buf, need, err = C.create_string_buffer(1 << 18), C.c_size_t(), text_lib.Error()
    rc = LIB.llmc_calls_rules(r.h, None, 1, buf, len(buf), C.byref(need), C.byref(err))
    LIB.llmc_calls_close(r.h)
    assert rc == 0, err.text
    return buf.value.decode()


def accepts(grammar, ids):
    with grammar.matcher() as m:
        for token in ids:
            if not m.allows(token):
                return False
            m.accept(token)
        return m.may_end


def distinct(row, schema, value):
    """Return whether the format distinguishes the value from a string of the same spelling."""
    if row["body"] != "pairs" or len(row["pair"]) > 3 or isinstance(value, str):
        return True
    types = [schema.get("type")] if isinstance(schema.get("type"), str) else schema.get("type", [])
    return "string" not in types


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_arguments_are_read_as_written_and_forced_by_their_schema(
    tokenizers, smollm2_tokenizer, row
):
    import llmc

    t = tokenizers(row)
    for kind, schema, good, bad in KINDS:
        tools = tool({"x": schema})
        valid = jsonschema.Draft202012Validator(
            {**schema, "$defs": DEFS}, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        with llmc.Grammar(smollm2_tokenizer, "parts", rules(t, tools), strict=True) as g:
            for value in good:
                assert valid.is_valid(value) or schema.get("nullable")
                said = write(row, {"x": value})
                assert Reader(t, "", tools).read([said.encode()])[2] == [("f", {"x": value})], kind
                assert accepts(g, smollm2_tokenizer.encode(said, special=0)), (kind, said)
            for value in bad:
                assert not valid.is_valid(value)
                if distinct(row, schema, value):
                    said = write(row, {"x": value})
                    assert not accepts(g, smollm2_tokenizer.encode(said, special=0)), (kind, said)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_names_of_arguments_may_be_any_string(tokenizers, smollm2_tokenizer, row):
    import llmc

    t = tokenizers(row)
    tools = tool({n: {"type": "string" if i % 2 else "integer"} for i, n in enumerate(NAMES)})
    arguments = {n: f"v{i}, ({n})" if i % 2 else i for i, n in enumerate(NAMES)}
    said = write(row, arguments)
    assert Reader(t, "", tools).read([said.encode()])[2] == [("f", arguments)]
    with llmc.Grammar(smollm2_tokenizer, "parts", rules(t, tools), strict=True) as g:
        assert accepts(g, smollm2_tokenizer.encode(said, special=0)), said
    data = said.encode()
    for at in range(1, len(data)):
        got = Reader(t, "", tools)
        assert got.read([data[:at], data[at:]])[2] == [("f", arguments)], data[:at]


def marks_of(row):
    marks = [row.get("open"), row.get("close"), row.get("quote"), row.get("name_end")]
    marks += row.get("pair", [])
    return [m.replace("{}", "").strip() for m in marks if m and len(m.strip()) > 1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_markers_inside_values_do_not_end_them(tokenizers, row):
    t = tokenizers(row)
    tools = tool({"x": {"type": "string"}, "y": {"type": "integer"}})
    for mark in marks_of(row):
        for value in (f"a {mark} b", f"<a>\n{mark}\nb", f"{mark}x{mark} y"):
            arguments = {"x": value, "y": 3}
            data = write(row, arguments).encode()
            assert Reader(t, "", tools).read([data])[2] == [("f", arguments)], data
            for at in range(1, len(data)):
                got = Reader(t, "", tools).read([data[:at], data[at:]])
                assert got[2] == [("f", arguments)], (data[:at], data[at:])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_parameters_may_be_defined_by_reference_and_alternatives(
    tokenizers, smollm2_tokenizer, row
):
    """The whole parameters object may be $ref, allOf or anyOf; the parser and the grammar resolve it."""
    import llmc

    t = tokenizers(row)
    args = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a"],
    }
    for parameters in (
        {"$ref": "#/$defs/args", "$defs": {"args": args}},
        {"$ref": "#args", "$defs": {"x": {"$defs": {"y": {**args, "$anchor": "args"}}}}},
        {"$id": "http://a/b", "$ref": "http://a/b#/$defs/args", "$defs": {"args": args}},
        {"$id": "http://a/b", "$ref": "c", "$defs": {"args": {"$id": "/c", **args}}},
        {"$dynamicRef": "#n", "$defs": {"args": {"$dynamicAnchor": "n", **args}}},
        {"allOf": [args, {"required": ["b"]}]},
        {"anyOf": [args, {"type": "object", "properties": {"c": {"type": "null"}}}]},
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        said = write(row, {"a": "12", "b": 7})
        assert Reader(t, "", tools).read([said.encode()])[2] == [("f", {"a": "12", "b": 7})]
        with llmc.Grammar(smollm2_tokenizer, "parts", rules(t, tools), strict=True) as g:
            assert accepts(g, smollm2_tokenizer.encode(said, special=0)), said


def test_a_string_that_a_format_cannot_write_is_named_under_strict(tokenizers, smollm2_tokenizer):
    import llmc

    row = next(r for r in ROWS if r["name"] == "qwen3-coder")
    tools = tool({"x": {"enum": ["ok", "a\n</parameter>\nb"]}})
    text = rules(tokenizers(row), tools)
    with pytest.raises(llmc.Error, match=r"properties/x/enum: the string"):
        llmc.Grammar(smollm2_tokenizer, "parts", text, strict=True)
    with llmc.Grammar(smollm2_tokenizer, "parts", text) as g:
        assert accepts(g, smollm2_tokenizer.encode(write(row, {"x": "ok"}), special=0))
