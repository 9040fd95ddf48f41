"""Schemas with instances, for tests/text/test_grammar.py: each enforced keyword, in forms that other engines got wrong."""


def closed(properties, required=None, **more):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


LIST = {
    "$defs": {
        "node": closed(
            {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            }
        )
    },
    "$ref": "#/$defs/node",
}
TREE = {
    "$defs": {
        "n": closed(
            {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}}
        )
    },
    "$ref": "#/$defs/n",
}
RECORD = closed(
    {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "kind": {"enum": ["alpha", "beta", "gamma", "alphabet"]},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "note": {"type": "string", "maxLength": 20},
    }
)
TEXT = '"' + "hello world " * 6 + '"'

CASES = [
    (
        "record",
        RECORD,
        [
            {
                "name": 'Ünï "q" \\ x',
                "age": 42,
                "tags": ["a", "bé"],
                "kind": "alphabet",
                "code": "ABC-1234",
                "note": "short text",
            }
        ],
    ),
    (
        "optional",
        closed(
            {
                "a": {"type": "integer"},
                "b": {"type": "boolean"},
                "c": {"type": "null"},
                "d": {"type": "string"},
            },
            ["c"],
        ),
        [{"c": None}, {"a": 1, "c": None, "d": "x"}, {"b": True, "c": None}],
    ),
    (
        "other keys",
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "nick": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": {"type": "integer"},
        },
        [{"name": "x", "nick": "y", "namer": 3, "other": 4}],
    ),
    (
        "any object",
        {"type": "object"},
        [{"a": [1, 2.5, -3e10, {"b": None, "c": True}], "d": "é\n"}],
    ),
    ("anything", {}, [{"a": [1, "x"]}, "null", '"s"']),
    (
        "anyOf",
        {
            "anyOf": [
                {"type": "string", "maxLength": 5},
                {"type": "integer"},
                closed({"x": {"type": "number"}}),
            ]
        },
        ['"abcde"', "-12", {"x": 1500.0}],
    ),
    ("list", LIST, [{"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}}]),
    (
        "tree",
        TREE,
        [
            {
                "name": "r",
                "kids": [
                    {"name": "a", "kids": []},
                    {"name": "b", "kids": [{"name": "c", "kids": []}]},
                ],
            }
        ],
    ),
    ("lengths", {"type": "string", "minLength": 3, "maxLength": 50}, ['"hello world é"']),
    ("minLength", {"type": "string", "minLength": 40}, [TEXT]),
    ("maxLength", {"type": "string", "maxLength": 2000}, [TEXT]),
    (
        "items",
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
        [[1, 2], [1, 2, 3, 4]],
    ),
    (
        "maxItems",
        {"type": "array", "items": {"type": "integer"}, "minItems": 0, "maxItems": 100},
        [[], [1, 2, 3]],
    ),
    (
        "prefixItems",
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "items": {"type": "boolean"},
            "minItems": 2,
        },
        [[1, "a"], [1, "a", True, False]],
    ),
    (
        "prefixItems alone",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        [[], [1], [1, "a"]],
    ),
    (
        "long enum",
        {"enum": [f"value-{i}-{i * 7919 % 1000}" for i in range(3000)]},
        ['"value-1234-46"'],
    ),
    (
        "mixed enum",
        {"enum": [1, "one", None, True, {"a": [1, 2]}, 1.5]},
        ["1", '"one"', "null", "true", {"a": [1, 2]}, "1.5"],
    ),
    (
        "const",
        closed({"k": {"const": 'fixed "v"'}, "n": {"const": 3}}),
        [{"k": 'fixed "v"', "n": 3}],
    ),
    ("pattern", {"type": "string", "pattern": "^[a-z]+(-[a-z0-9]{1,4})*$"}, ['"abc-12-x9"']),
    ("pattern within", {"type": "string", "pattern": "ab+c"}, ['"xxabbcyy"']),
    ("pattern of escapes", {"type": "string", "pattern": '^"[^\\n]*\\\\x$'}, ['"\\"ab\\\\x"']),
    (
        "allOf",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}}, "required": ["b"]},
            ]
        },
        [{"a": 1, "b": "x"}],
    ),
    ("types", {"type": ["string", "null", "integer"]}, ['"x"', "null", "-7"]),
    (
        "patternProperties",
        {
            "type": "object",
            "patternProperties": {"^x_[a-z]+$": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{"x_a": 1, "x_bc": 2}],
    ),
    (
        "mapping",
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
        [{"a": [1.5], "b": []}],
    ),
    ("empty", closed({}), [{}]),
    ("multipleOf", {"type": "integer", "multipleOf": 7}, ["14", "-21", "0"]),
    ("date", {"type": "string", "format": "date"}, ['"2024-02-29"']),
    ("time", {"type": "string", "format": "time"}, ['"12:30:00Z"']),
    ("date-time", {"type": "string", "format": "date-time"}, ['"2024-01-31T12:30:00+01:00"']),
    ("uuid", {"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"']),
    ("ipv4", {"type": "string", "format": "ipv4"}, ['"192.168.0.255"']),
]
for low, high in [
    (0, 9),
    (1, 100),
    (-5, 5),
    (10, 12345),
    (None, 7),
    (3, None),
    (-120, -3),
    (None, -1),
    (0, None),
]:
    bounds = {k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}
    inside = [
        x
        for x in (low, high, 0, 5, 50, -4, 99, 100, -100)
        if x is not None and (low is None or x >= low) and (high is None or x <= high)
    ]
    CASES.append(
        (f"integer {low}..{high}", {"type": "integer", **bounds}, [str(x) for x in inside])
    )
for bounds in (
    {"minimum": 0, "maximum": 1},
    {"minimum": -1.5, "maximum": 2.25},
    {"exclusiveMinimum": 0},
    {"minimum": 0.5},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
):
    CASES.append((f"number {bounds}", {"type": "number", **bounds}, ["0.75"]))

# (name, Lark grammar, matching strings); the first is the grammar that Codex sends for its patches
APPLY_PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCH = """*** Begin Patch
*** Add File: src/a.c
+int
+
+main(void) { return 0; }
*** Delete File: old name.txt
*** Update File: b.py
*** Move to: c/b.py
@@ def f(x):
-    return "é"
+    return 'x'
 # kept
@@
+end
*** End of File
*** End Patch
"""
LARK = [
    ("apply_patch", APPLY_PATCH, [PATCH, PATCH.rstrip()]),
    (
        "math",
        'start: expr\nexpr: term (SP ADD SP term)* -> add\n| term\nterm: factor (SP MUL SP factor)* -> mul\n| factor\nfactor: INT\nSP: " "\nADD: "+"\nMUL: "*"\n%import common.INT',
        ["4 + 4 * 123", "7"],
    ),
    (
        "left recursion",
        'start: list\nlist: list "," item | item\nitem: /[a-c]{2}/ | "(" list ")"',
        ["ab,(ca,bb),aa"],
    ),
    (
        "repetition",
        'start: X~2..3 "-" [Y] ("q"i)~2\nX: "ab" | "cd"\nY: /[0-9]/~4',
        ["abcd-qQ", "ababcd-1234QQ"],
    ),
    (
        "imports",
        'start: CNAME "=" (NUMBER | WORD) (";" CNAME "=" SIGNED_INT)*\n%import common (CNAME, WORD)\n%import common.SIGNED_INT\n%import common.NUMBER',
        ["a_b=4.5e3;c=-12", "x=ab"],
    ),
]
