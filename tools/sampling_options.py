#!/usr/bin/env python3
"""The rows of LLMC_SAMPLING_OPTIONS in include/llmc.h, and what is made of them: properties of the
OpenAPI document, and bindings/python/llmc/_sampling.py, which make writes by this script."""

import collections
import json
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "include", "llmc.h")
HINTS = os.path.join(ROOT, "bindings", "python", "llmc", "_sampling.py")
# the columns of the table, as its comment describes them
Option = collections.namedtuple(
    "Option",
    "kind name rule least most http_least http_most openai llama_cpp ollama alias hf gguf text note http_note",
)
TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s,]+)')


def value(token):
    string, word = token
    if not word:
        return string
    if word == "NULL":
        return None
    word = {"INT32_MAX": "2147483647"}.get(word, word)
    try:
        return float(word)
    except ValueError:
        return word


def read(header=None):
    """Return the rows of the text of a header, by default of include/llmc.h."""
    if header is None:
        with open(HEADER, encoding="utf-8") as f:
            header = f.read()
    table = re.search(r"#define LLMC_SAMPLING_OPTIONS\(X\)((?:.*\\\n)+.*\n)", header)[1]
    rows = re.split(r"\bX\(", table.replace("\\\n", "\n"))[1:]
    return [Option(*map(value, TOKEN.findall(row.strip().removesuffix(")")))) for row in rows]


def in_http(option):
    """Is it a field of requests?"""
    return option.http_least <= option.http_most


def description(option):
    note = option.note if option.http_note is None else option.http_note
    text = option.text + note
    word = re.match(r"\w*", text)[0]
    return (text if "_" in word else text[0].upper() + text[1:]) + "."


def schema(option, server):
    """The schema of a field, with the default of this server's dialects."""
    kind = {"FLOAT": "number", "INT": "integer", "BOOL": "boolean"}[option.kind]
    plain = {"FLOAT": lambda x: int(x) if x == int(x) else x, "INT": int, "BOOL": bool}[option.kind]
    default = getattr(option, server)
    out = {"type": kind}
    if option.kind != "BOOL":
        above = option.rule == "ABOVE_0"
        out["exclusiveMinimum" if above else "minimum"] = plain(option.http_least)
        if option.http_most < 1e6:
            out["maximum"] = plain(option.http_most)
    if option.rule != "PART_0" or default != 0:  # 0 would be another value than none
        out["default"] = plain(default)
    return out | {"description": description(option)}


def properties(mark):
    """The properties that stand for a mark "DEFAULTS NAMES" of the document: the server whose
    defaults apply; own: names in llmc.h, all: other names, too."""
    server, names = mark.split()
    out = {}
    for option in filter(in_http, read()):
        out[option.name] = schema(option, server)
        if option.alias and names == "all":
            about = f"Another name of {option.name}."
            out[option.alias] = schema(option, server) | {"description": about}
    return out


def expand(node):
    """Replace each property x-sampling by those of the options."""
    if isinstance(node, list):
        return [expand(n) for n in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, inner in node.items():
        out |= properties(inner) if key == "x-sampling" else {key: expand(inner)}
    return out


def openapi(text):
    """The OpenAPI document that the server sends, from serve/pages/assets/openapi.json."""
    with open(HEADER, encoding="utf-8") as f:
        letters = "".join(re.findall(r'^\tX\((\w), "\w+"\)', f.read(), re.M))
    text = text.replace("LLMC_SAMPLER_LETTERS", letters)
    return json.dumps(expand(json.loads(text)), indent=1, ensure_ascii=False) + "\n"


def hints(options):
    """The type hints of the Python binding."""
    kinds = {"FLOAT": "float", "INT": "int", "BOOL": "bool"}
    return '''"""Type hints of sampling options. Made by tools/sampling_options.py from include/llmc.h."""

from __future__ import annotations

from typing import TypedDict


class SamplingOptions(TypedDict, total=False):
    """The sampling options of llmc_params."""

''' + "".join(f"    {o.name}: {kinds[o.kind]}\n" for o in options)


def main():
    new = hints(read())
    with open(HINTS, encoding="utf-8") as f:
        if f.read() == new:
            return
    with open(HINTS, "w", encoding="utf-8") as f:
        f.write(new)


if __name__ == "__main__":
    main()
