"""The rows of LLMC_SAMPLING_OPTIONS in include/llmc.h."""

import collections
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "include", "llmc.h")
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


def read(path=HEADER):
    """Return the rows."""
    with open(path, encoding="utf-8") as f:
        table = re.search(r"#define LLMC_SAMPLING_OPTIONS\(X\)((?:.*\\\n)+.*\n)", f.read())[1]
    rows = re.split(r"\bX\(", table.replace("\\\n", "\n"))[1:]
    return [Option(*map(value, TOKEN.findall(row.strip().removesuffix(")")))) for row in rows]


def in_http(option):
    """Is it a field of requests?"""
    return option.http_least <= option.http_most
