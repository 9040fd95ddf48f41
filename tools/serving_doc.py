#!/usr/bin/env python3
"""Write the tables of flags and routes in docs/serving.md.

tools/serving_doc.py [--check]      --check: exit 1 if the page is out of date

Flags come from `llmc serve --help` (LLMC is the path of the binary), routes from serve/http/routes.def, and their
descriptions from the OpenAPI document."""

import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
PAGE = os.path.join(ROOT, "docs", "serving.md")
OPTION = re.compile(r"^ +(?:-(\w), )?--([\w-]+)(?: (\S+))? +(\S.*)$")
ROUTE = re.compile(r'^ROUTE\("(\w+)", +"([^"]+)", +\w+, +\w+, +([^)]+)\)', re.M)
ORDER = ["OpenAI", "Anthropic", "Ollama", "TGI", "Text", "Batches", "Server"]
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


def main():
    with open(PAGE, encoding="utf-8") as f:
        old = new = f.read()
    for name, make in (("flags", flags), ("routes", routes)):
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        if not mark.search(new):
            sys.exit(f"docs/serving.md has no <!-- {name} --> ... <!-- end -->")
        text = make()
        new = mark.sub(lambda m, text=text: m[1] + text + "\n" + m[2], new)
    if sys.argv[1:] == ["--check"]:
        if new != old:
            sys.exit(
                "docs/serving.md differs from the options and routes: run tools/serving_doc.py"
            )
        return
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(new)


main()
