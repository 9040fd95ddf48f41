"""A name has one meaning, a helper exists once, and formatters and linters find nothing to change."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# names fixed by external interfaces: the driver's ABI is declared in runtime/ and in the emulator
FOREIGN = re.compile(r"CU|nvrtc|Nvrtc|Nccl|llmc_|mbar_t$")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
# the attribute between the name of a vector type and its semicolon
ATTRIBUTE = re.compile(r"\s*__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
# calls of one function: accessors that give the same value another type
SHORT = 42


def sources():
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c", "*.h"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [f for f in out.split("\n") if f and not f.startswith(("tests/", "templates/"))]


def code(path):
    return ATTRIBUTE.sub("", COMMENT.sub(" ", (ROOT / path).read_text()))


def typedefs(text):
    for m in re.finditer(r"^\s*typedef\s+(?:struct|union|enum)\b[^;{]*\{", text, re.M):
        depth, at = 1, m.end()
        while depth and at < len(text):
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        name = re.match(r"\s*(?:__attribute__\(\(.*?\)\)\s*)?(\w+)", text[at:])
        if name:
            yield name[1]
    for m in re.finditer(r"^\s*typedef\s+[^;{}()]*?\b(\w+)\s*;", text, re.M):
        yield m[1]
    for m in re.finditer(r"^\s*typedef\s+[^;{}]*?\(\*?(\w+)\)\s*\(", text, re.M):
        yield m[1]


def test_no_type_name_means_two_things():
    where = defaultdict(set)
    for path in sources():
        for name in typedefs(code(path)):
            where[name].add(path)
    # a struct may be forward declared where its header is not included
    bad = []
    for name, paths in sorted(where.items()):
        if len(paths) > 1 and not FOREIGN.match(name):
            defined = [
                p
                for p in paths
                if re.search(
                    rf"(?:\}}|\))\s*{name}\s*;|struct {name} \{{|typedef (?!struct|union|enum)[\w ]*\b{name};",
                    code(p),
                )
            ]
            if len(defined) > 1:
                bad.append(f"{name}: {' '.join(sorted(defined))}")
    assert not bad, "\n".join(bad)


def functions(text):
    """Name and body of each static function, with its parameters numbered."""
    for m in re.finditer(r"^static (?:inline )?[\w ]+\**\n(\w+)\(([^)]*)\)\n\{\n", text, re.M):
        end = text.find("\n}\n", m.end() - 1)
        body = f"({m[2]}) {text[m.end() : end]}"
        for k, name in enumerate(re.findall(r"(\w+)(?:\[[^]]*\])*(?:,|$)", m[2])):
            body = re.sub(rf"(?<![\w.>]){name}\b", f"${k}", body)
        yield m[1], re.sub(r"\s+", " ", body)


def test_no_helper_exists_twice():
    where = defaultdict(set)
    for path in sources():
        if not path.startswith("emu/"):
            for name, body in functions(code(path)):
                if len(body) > SHORT:
                    where[body].add((name, path))
    bad = [
        " ".join(f"{path}:{name}" for name, path in sorted(places))
        for places in where.values()
        if len({path for _, path in places}) > 1
    ]
    assert not bad, "\n".join(sorted(bad))


def test_every_template_is_in_a_folder_of_its_topic():
    for path in (ROOT / "templates").rglob("*"):
        if path.is_file() and path.name != "README.md":
            parts = path.relative_to(ROOT / "templates").parts
            assert len(parts) == (2 if parts[0] == "common" else 3), path
            assert parts[0] in ("common", "cpu", "cuda"), path


def test_formatters_change_nothing():
    r = subprocess.run(
        [sys.executable, ROOT / "tools/format.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert r.returncode == 0, r.stderr


def test_linters_find_nothing():
    r = subprocess.run([BIN / "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout
    scripts = subprocess.run(
        ["git", "ls-files", "*.sh", ".ci/run"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    r = subprocess.run([BIN / "shellcheck", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout
