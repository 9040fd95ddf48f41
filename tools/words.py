#!/usr/bin/env python3
"""Report wording that docs/style.md bans, in comments, documents, messages and test names.

    tools/words.py [--list] [--count] [--rules] [PATH ...]

Without paths: every tracked file. --list prints each finding (the default), --count prints the
number of findings per module, --rules prints the rules. Rules and exceptions are in
tools/words.txt. Exit status 1 if anything is found, 2 if the data file has an error."""

import argparse
import html
import json
import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tools" / "words.txt"
KINDS = ("comment", "doc", "string", "name")
LONGEST = 35  # words of a sentence in a document
C_LIKE = (".c", ".h", ".cu", ".in", ".head", ".def")
# data, not prose
SKIPPED = re.compile(
    r"tests/(?:golden/(?:(?!README|[\w-]+\.(?:py|sh)$))|fuzz/corpus|fuzz/\w+\.dict|text/templates|bench/results"
    r"|gpu/results)|configs/texts/|LICENSE|tools/words\.txt|.*\.(?:json|csv|svg|bin)$"
)
OPENAPI = "openapi.json"


class Mistake(Exception):
    """A line of the data file that cannot be parsed."""


class Rule:
    def __init__(self, name):
        self.name, self.find, self.keep, self.hint = name, [], [], ""
        self.kinds, self.under, self.excluded = KINDS, (), ()

    def covers(self, kind, path):
        return (
            kind in self.kinds
            and (not self.under or below(path, self.under))
            and not below(path, self.excluded)
        )

    def matches(self, text):
        """Spans of the text that the rule bans."""
        kept = None
        for regex in self.find:
            for m in regex.finditer(text):
                if kept is None:
                    kept = [k.span() for r in self.keep for k in r.finditer(text)]
                if not any(a <= m.start() and m.end() <= b for a, b in kept):
                    yield m


def below(path, folders):
    return any(path == f or path.startswith(f + "/") for f in folders)


def read_rules(text):
    """Rules and {file: [fragment, ...]} of the data file."""
    rules, allowed = [], {}
    for n, line in enumerate(text.split("\n"), 1):
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if not word or word.startswith("#"):
            continue
        if word == "rule" and rest:
            rules.append(Rule(rest))
        elif word == "allow":
            parts = [p.strip() for p in rest.split(" | ")]
            if len(parts) != 3 or not all(parts):
                raise Mistake(f"line {n}: expected `allow FILE | FRAGMENT | REASON`")
            allowed.setdefault(parts[0], []).append(parts[1])
        elif not rules or not rest:
            raise Mistake(f"line {n}: {line.strip()!r} belongs to no rule")
        elif word in ("find", "keep"):
            try:
                getattr(rules[-1], word).append(re.compile(rest, re.I | re.M))
            except re.error as e:
                raise Mistake(f"line {n}: {e}") from None
        elif word == "in":
            rules[-1].kinds = tuple(rest.split())
            if not set(rules[-1].kinds) <= set(KINDS):
                raise Mistake(f"line {n}: kinds are {', '.join(KINDS)}")
        elif word == "under":
            rules[-1].under = tuple(rest.split())
        elif word == "except":
            rules[-1].excluded = tuple(rest.split())
        elif word == "hint":
            rules[-1].hint = rest
        else:
            raise Mistake(f"line {n}: unknown word {word!r}")
    for r in rules:
        if not r.find or not r.hint:
            raise Mistake(f"rule {r.name} lacks `find` or `hint`")
    return rules, allowed


# --- extraction: each unit is (kind, [(line, text), ...]) ------------------------------------------

C_TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\[^'\n]+|[^'\\\n])'", re.S)
STAR = re.compile(r"^[ \t]*\*+ ?")
C_TEST = re.compile(r"^(\w+)\(void \*\*\w+\)|^(?:BENCH_)?TEST\((\w+)\)", re.M)


def line_starts(text):
    starts = [0]
    for m in re.finditer("\n", text):
        starts.append(m.end())
    return starts


def is_message(text):
    """Two words of two letters and more, with a blank between them: prose, not a key or a format."""
    return len(re.findall(r"(?<![%\\])\b[A-Za-z]{2,}\b", text)) >= 2 and " " in text.strip()


def c_units(path, text):
    starts = line_starts(text)
    strings = not path.startswith("tests/")
    units, lines_before, literal = [], None, None
    for m in C_TOKEN.finditer(text):
        token, line = m.group(), bisect_right(starts, m.start())
        if token.startswith("/*"):
            body = token[2:-2].split("\n")
            units.append(
                (
                    "comment",
                    [
                        (line + i, STAR.sub("", b) if i else b.lstrip("*"))
                        for i, b in enumerate(body)
                    ],
                )
            )
        elif token.startswith("//"):
            if token.startswith("//@") and not token.startswith("//@ "):
                continue
            alone = not text[starts[line - 1] : m.start()].strip()
            entry = (line, token.lstrip("/@ "))
            if alone and lines_before and lines_before[-1][0] == line - 1:
                lines_before.append(entry)
            else:
                unit = ("comment", [entry])
                units.append(unit)
                lines_before = unit[1] if alone else None
        elif token[0] == '"' and strings:
            if text.rfind("#include", starts[line - 1], m.start()) >= 0:
                continue
            entry = (line, re.sub(r"\\[nt]", " ", token[1:-1]).replace('\\"', '"'))
            if literal and not text[literal[1] : m.start()].strip():
                literal[0].append(entry)
                literal = (literal[0], m.end())
            else:
                literal = ([entry], m.end())
                units.append(("string", literal[0]))
    if path.startswith("tests/unit/"):
        for m in C_TEST.finditer(text):
            units.append(
                ("name", [(bisect_right(starts, m.start()), (m[1] or m[2]).replace("_", " "))])
            )
    return [u for u in units if u[0] != "string" or is_message(" ".join(t for _, t in u[1]))]


PY_TOKEN = re.compile(
    r"#[^\n]*|(?:\b[rbfRBF]{1,2})?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')",
    re.S,
)
PY_TEST = re.compile(r"^ *(?:async )?def test_(\w+)", re.M)


def python_units(path, text):
    """Comments, docstrings, help of options, names of tests."""
    starts, units, last = line_starts(text), [], None
    for m in PY_TOKEN.finditer(text):
        token, line = m.group(), bisect_right(starts, m.start())
        ahead = text[starts[line - 1] : m.start()]
        if token[0] == "#":
            if token.startswith("#!"):
                continue
            entry = (line, re.sub(r"\s*# noqa.*", "", token).lstrip("# "))
            if not ahead.strip() and last and last[-1][0] == line - 1:
                last.append(entry)
            else:
                unit = ("comment", [entry])
                units.append(unit)
                last = unit[1] if not ahead.strip() else None
        elif not ahead.strip() and re.search(
            r"(?:^|:|\))[ \t]*(?:#[^\n]*)?\s*$", text[: m.start()][-200:]
        ):
            body = re.sub(r"^\w*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token).split("\n")
            units.append(("comment", [(line + i, t) for i, t in enumerate(body)]))
        elif ahead.endswith("help="):
            units.append(("string", [(line, token.strip("rbf\"'"))]))
    for m in PY_TEST.finditer(text):
        units.append(("name", [(bisect_right(starts, m.start(1)), m[1].replace("_", " "))]))
    return units


def hash_units(path, text):
    """Comments of shell, Makefile, YAML: # at the start of a line, or after blanks outside quotes."""
    units, last = [], None
    for n, line in enumerate(text.split("\n"), 1):
        m = re.match(r"(?:[^#'\"]|'[^']*'|\"(?:\\.|[^\"\\])*\")*?(?<![^\s])#+ ?(.*)", line)
        if not m or line.startswith("#!") or m[1].startswith("shellcheck "):
            last = None
            continue
        alone = line.lstrip().startswith("#")
        if alone and last:
            last.append((n, m[1]))
        else:
            unit = ("comment", [(n, m[1])])
            units.append(unit)
            last = unit[1] if alone else None
    return units


def markdown_units(path, text):
    units, paragraph, fence = [], [], False

    def flush():
        nonlocal paragraph
        if paragraph:
            units.append(("doc", paragraph))
        paragraph = []

    for n, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if re.match(r"(?:```|~~~)", bare):
            fence = not fence
            flush()
        elif fence or not bare or (line.startswith("    ") and not paragraph):
            flush()
        elif bare.startswith("|"):
            flush()
            for cell in re.split(r"(?<!\\)\|", bare.strip("|")):
                if cell.strip(" -:"):
                    units.append(("doc", [(n, cell.strip())]))
        else:
            if re.match(r"(?:[-*+]|\d+\.) |#+ |<!--", bare):
                flush()
            paragraph.append((n, re.sub(r"^(?:[-*+]|\d+\.|#+) +", "", bare)))
            if bare.startswith(("#", "<!--")):
                flush()
    flush()
    return units


def blank_code(lines):
    """The lines of a paragraph without inline code, link targets and HTML comments."""
    whole = "\n".join(t for _, t in lines)
    whole = re.sub(r"<!--.*?-->", " ", whole, flags=re.S)
    whole = re.sub(r"\]\([^)\s]*\)", "]", whole)
    whole = re.sub(
        r"(`+)(?:(?!\1).)+?\1",
        lambda m: "`" + "\n" * m.group().count("\n") + "`",
        whole,
        flags=re.S,
    )
    return list(zip((n for n, _ in lines), whole.split("\n")))


def html_units(path, text):
    keep_lines = lambda m: "\n" * m.group().count("\n")  # noqa: E731
    bare = re.sub(r"<!--.*?-->|<(script|style)\b.*?</\1>", keep_lines, text, flags=re.S)
    spoken = [
        (n, m)
        for n, line in enumerate(bare.split("\n"), 1)
        for m in re.findall(r'(?:title|placeholder|aria-label|alt)="([^"]*)"', line)
    ]
    bare = re.sub(r"<[^>]*>", keep_lines, bare, flags=re.S)
    spoken += [
        (n, html.unescape(line).strip())
        for n, line in enumerate(bare.split("\n"), 1)
        if line.strip()
    ]
    return [("string", [s]) for s in spoken]


def script_units(path, text):
    return [u for u in c_units("serve/" + path, text)]


def roff_units(path, text):
    lines = []
    for n, line in enumerate(text.split("\n"), 1):
        line = re.sub(r"^\.[A-Z]+ ?", "", re.sub(r'^\.\\".*', "", line))
        lines.append((n, re.sub(r"\\f[A-Z]|\\", "", line)))
    return [("string", [entry]) for entry in lines if entry[1].strip()]


def openapi_units(path, text):
    """Summaries and descriptions; the line is that of the first occurrence."""
    units, pending = [], [json.loads(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            for k in ("summary", "description"):
                if isinstance(node.get(k), str):
                    at = text.find(json.dumps(node[k], ensure_ascii=False)[1:40])
                    units.append(("string", [(text.count("\n", 0, max(at, 0)) + 1, node[k])]))
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return units


def reader_of(path):
    name = os.path.basename(path)
    if name == OPENAPI:
        return openapi_units
    if SKIPPED.match(path):
        return None
    if path.endswith(C_LIKE):
        return c_units if not path.endswith("llmc.pc.in") else hash_units
    if path.endswith(".py"):
        return python_units
    if path.endswith(".md"):
        return markdown_units
    if path.endswith(".html"):
        return html_units
    if path.endswith(".js"):
        return script_units
    if path.endswith(".1"):
        return roff_units
    if path.endswith((".sh", ".mk", ".yaml", ".yml", ".conf", ".cfg", ".service")) or name in (
        "Makefile",
        "Containerfile",
    ):
        return hash_units
    return None


def units_of(path, text):
    reader = reader_of(path)
    return reader(path, text) if reader else []


# --- checking ------------------------------------------------------------------------------------

SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.!?](?=[\"')\]*]*(?:\s|$))|\0")


def long_sentences(text):
    """Yield (offset, number of words) of each sentence over LONGEST words. The end of the text ends a
    sentence too."""
    start = 0
    for end in [m.end() for m in SENTENCE_END.finditer(text)] + [len(text)]:
        words = [w for w in text[start:end].split() if re.search(r"[\w`]", w)]
        if len(words) > LONGEST:
            yield start + len(text[start:end]) - len(text[start:end].lstrip()), len(words)
        start = end


def findings(path, text, rules, allowed):
    """(line, rule, matched, hint) for a file."""
    by_kind, found = {}, []
    for kind, body in units_of(path, text):
        if kind == "doc":
            body = blank_code(body)
        by_kind.setdefault(kind, []).append([(n, t.strip()) for n, t in body if t.strip()])
    for kind, units in by_kind.items():
        # join all units of a kind to one string, with a line for each; a NUL before each line end
        # prevents matches across two units
        starts, numbers, joined, at = [], [], [], 0
        for body in units:
            for n, t in body:
                starts.append(at)
                numbers.append(n)
                joined.append(t + " ")
                at += len(t) + 1
            joined.append("\0\n")
            at += 2
        whole = "".join(joined)

        def line_of(offset, starts=starts, numbers=numbers):
            return numbers[bisect_right(starts, offset) - 1]

        for rule in rules:
            if rule.covers(kind, path):
                found += [
                    (line_of(m.start()), rule.name, m.group(), rule.hint)
                    for m in rule.matches(whole)
                ]
        if kind == "doc":
            found += [
                (line_of(at), "long", f"{n} words", f"split the sentence (at most {LONGEST})")
                for at, n in long_sentences(whole)
            ]
    lines = text.split("\n")
    for line, *rest in sorted(found):
        if not any(f in lines[line - 1] for f in allowed.get(path, ())):
            yield (line, *rest)


def tracked(paths):
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    out = [f for f in out if f]
    if not out:  # an exported tree
        for top in paths or ["."]:
            top = Path(ROOT, top)
            files = (
                [top] if top.is_file() else (Path(d, f) for d, _, fs in os.walk(top) for f in fs)
            )
            out += [os.path.relpath(f, ROOT) for f in files]
    return sorted(f for f in set(out) if os.path.isfile(ROOT / f))


def module_of(path):
    parts = path.split("/")
    if len(parts) == 1:
        return "."
    deep = {"tests": 2, "templates": 2, "runtime": 2, "compiler": 2, "serve": 2, "docs": 1}.get(
        parts[0], 1
    )
    return "/".join(parts[: min(deep, len(parts) - 1)])


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("paths", nargs="*", help="files and folders; without any: all tracked files")
    args.add_argument("--list", action="store_true", help="print each finding (the default)")
    args.add_argument(
        "--count", action="store_true", help="print the number of findings per module"
    )
    args.add_argument("--rules", action="store_true", help="print the rules")
    args = args.parse_args()
    try:
        rules, allowed = read_rules(DATA.read_text(encoding="utf-8"))
    except Mistake as e:
        print(f"{DATA.name}: {e}", file=sys.stderr)
        return 2
    if args.rules:
        for r in rules:
            print(f"{r.name:16} {r.hint}")
        return 0
    paths = [os.path.relpath(Path(p).resolve(), ROOT) for p in args.paths]
    modules, by_rule = Counter(), Counter()
    for path in tracked(paths):
        if reader_of(path) is None:
            continue
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        for line, name, matched, hint in findings(path, text, rules, allowed):
            modules[module_of(path), name == "long"] += 1
            by_rule[name] += 1
            if args.list or not args.count:
                print(f"{path}:{line}: {matched!r} [{name}]: {hint}")
    if args.count:
        print(f"{'module':24} {'words':>7} {'long':>7}")
        for m in sorted({m for m, _ in modules}):
            print(f"{m:24} {modules[m, False]:7} {modules[m, True]:7}")
        print("\n" + "\n".join(f"{n:24} {c:7}" for n, c in by_rule.most_common()))
    total = sum(by_rule.values())
    print(f"words: {total} finding{'s' if total != 1 else ''}", file=sys.stderr)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
