#!/usr/bin/env python3
"""Write the tables of flags, routes and request fields in docs/serving.md.

tools/serving_doc.py [--check] [--fields]      --check: exit 1 if the page is out of date
                                               --fields: only that table, which make writes

Flags come from `llmc serve --help` (LLMC is the path of the binary), routes from serve/http/routes.def, and their
descriptions from the OpenAPI document, fields from tools/request_fields.py."""

import glob
import json
import os
import re
import subprocess
import sys

import request_fields

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
PAGE = os.path.join(ROOT, "docs", "serving.md")
OPTION = re.compile(r"^ +(?:-(\w), )?--([\w-]+)(?: (\S+))? +(\S.*)$")
ROUTE = re.compile(r'^ROUTE\("(\w+)", +"([^"]+)", +\w+, +\w+, +([^)]+)\)', re.M)
ORDER = ["OpenAI", "Anthropic", "Ollama", "llama.cpp", "TGI", "Text", "Batches", "Server"]
# routes that the OpenAPI document omits
PAGES = {
    "/docs": "The OpenAPI document, for browsers as a page",
    "/openapi.json": "The OpenAPI document",
    "/chat": "The chat page",
    "/status": "The status page",
}


def below(folder, name):
    """The only file of that name below a folder of the tree."""
    (path,) = glob.glob(os.path.join(ROOT, folder, "**", name), recursive=True)
    return path


def cell(text):
    return text.replace("|", "\\|")


def flags():
    text = subprocess.run(
        [LLMC, "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    out = []
    for line in text.split("\nexamples:")[0].split("\n")[4:]:
        option = OPTION.match(line)
        if option:
            short, name, value, meaning = option.groups()
            shown = f"`--{name}{' ' + value if value else ''}`" + (f", `-{short}`" if short else "")
            out.append(f"| {cell(shown)} | {cell(meaning)} |")
        elif re.match(r"\w+.*:$", line):
            out += ["", f"### {line[:-1]}", "", "| option | meaning |", "|---|---|"]
        elif line.strip():
            sys.exit(f"serving_doc.py: cannot read this line of llmc serve --help: {line!r}")
    return "\n".join(out).strip()


def routes():
    with open(below("serve", "routes.def"), encoding="utf-8") as f:
        rows = ROUTE.findall(f.read())
    with open(below("serve", "openapi.json"), encoding="utf-8") as f:
        paths = json.load(f)["paths"]
    groups = {}
    for method, path, flag in rows:
        if path == "/page/":
            continue
        shown = path
        if "RT_PREFIX" in flag:
            shown = next(
                p for p in paths if p.startswith(path + "{") and method.lower() in paths[p]
            )
        about = paths.get(shown, {}).get(method.lower())
        group = about["tags"][0] if about else "Server"
        text = about["summary"] if about else PAGES[path]
        key = (
            "no"
            if "RT_OPEN" in flag
            else "not with `--open-probes`"
            if "RT_PROBE" in flag
            else "yes"
        )
        row = f"| `{method} {shown}` | {cell(text)} | {key} |"
        if row not in groups.setdefault(group, []):
            groups[group].append(row)
    out = []
    for group in ORDER:
        out += [
            "",
            f"### {group}",
            "",
            "| route | purpose | needs a key |",
            "|---|---|---|",
            *groups.pop(group),
        ]
    if groups:
        sys.exit(f"serving_doc.py: add the tags {', '.join(groups)} to ORDER")
    return "\n".join(out).strip()


def chunks(names):
    """Lists of up to 12 names as text."""
    return [", ".join(f"`{n}`" for n in names[i : i + 12]) for i in range(0, len(names), 12)]


def fields():
    """Fields with the same routes and note share a line."""
    names = {
        route: paths[0] if route != "TGI" else "/generate"
        for route, (_, paths) in request_fields.ROUTES.items()
    }
    rows = request_fields.read()
    out = ["### Read", "", "| fields | routes |", "|---|---|"]
    groups = {}
    for name in sorted({f.name for f in rows if f.state == "done"}):
        routes = tuple(
            r for r in names for f in rows if (f.name, f.state) == (name, "done") and r in f.routes
        )
        groups.setdefault(routes, []).append(name)
    for routes, some in groups.items():
        for line in chunks(some):
            out.append(f"| {line} | {', '.join(f'`{names[r]}`' for r in routes)} |")
    for state, title, note in (
        ("ignored", "Ignored: they cannot change the answer", "reason"),
        ("refused", "Refused with a 400", "what the error advises"),
    ):
        groups = {}
        for f in rows:
            if f.state == state:
                groups.setdefault((f.routes, f.note, tuple(f.harmless)), []).append(f)
        out += ["", f"### {title}", ""]
        columns = ["fields", "routes", note, "allowed values"][: 3 + (state == "refused")]
        out += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for (routes, text, values), some in groups.items():
            cells = [", ".join(f"`{names[r]}`" for r in routes), cell(text)]
            if state == "refused":
                cells.append(", ".join(f"`{v}`" for v in values))
            for line in chunks([f.name for f in some]):
                out.append(f"| {' | '.join([line, *cells])} |")
    return "\n".join(out)


def main():
    with open(PAGE, encoding="utf-8") as f:
        old = new = f.read()
    tables = {"flags": flags, "routes": routes, "fields": fields}
    for name, make in tables.items():
        if "--fields" in sys.argv and name != "fields":
            continue
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        if not mark.search(new):
            sys.exit(f"docs/serving.md has no <!-- {name} --> ... <!-- end -->")
        text = make()
        new = mark.sub(lambda m, text=text: m[1] + text + "\n" + m[2], new)
    if new == old:
        return
    if "--check" in sys.argv:
        sys.exit("docs/serving.md differs from the options and routes: run tools/serving_doc.py")
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(new)


main()
