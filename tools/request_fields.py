"""The table of request fields, serve/fields.def with the rows of LLMC_SAMPLING_OPTIONS, for tools/serving_doc.py and tests."""

import collections
import os
import re

import sampling_options

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
with open(os.path.join(ROOT, "serve", "field_routes.def"), encoding="utf-8") as f:
    # set of routes: (name in request_fields.json of the tests, paths)
    ROUTES = {
        name: (key, paths.split())
        for name, key, paths in re.findall(r'^ROUTES\((\w+), "(\w+)", "([^"]+)"\)$', f.read(), re.M)
    }
TEXT = r'"((?:[^"\\]|\\.)*)"'
ROW = re.compile(
    rf"^(DONE|COPIED|MADE|ALIAS|IGNORED|REFUSED)\(([A-Z_ |]+), {TEXT}(?:, {TEXT})?(?:, {TEXT})?\)$"
)

Field = collections.namedtuple("Field", "state routes name harmless note")


def read():
    """Return the rows. Rows that the server reads have the state "done"."""
    out = []
    with open(os.path.join(ROOT, "serve", "fields.def"), encoding="utf-8") as f:
        text = f.read()
    for line in re.sub(r"/\*.*?\*/", "", text, flags=re.S).split("\n"):
        if not line.strip():
            continue
        m = ROW.match(line)
        if not m:
            raise SystemExit(f"serve/fields.def: cannot read this row: {line}")
        state, routes, name, a, b = m.groups()
        text = ((b if state == "REFUSED" else a) or "").replace('\\"', '"')
        out.append(
            Field(
                {"IGNORED": "ignored", "REFUSED": "refused"}.get(state, "done"),
                tuple(routes.split(" | ")),
                name,
                a.split("|") if state == "REFUSED" and a else [],
                text if state in ("IGNORED", "REFUSED") else "",
            )
        )
    for option in filter(sampling_options.in_http, sampling_options.read()):
        name, alias = option.name, option.alias
        out.append(Field("done", ("CHAT", "COMPLETIONS", "RESPONSES", "LCPP"), name, [], ""))
        if alias:
            out.append(Field("done", ("CHAT", "COMPLETIONS", "LCPP"), alias, [], ""))
        for n in {name, alias or name}:
            routes = ("OLLAMA_CHAT", "OLLAMA_GENERATE")
            out.append(Field("done", routes, "options." + n, [], ""))
    return out
