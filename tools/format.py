#!/usr/bin/env python3
"""Format the tree: C, headers and kernel templates by clang-format, Python by ruff.

    tools/format.py            rewrite unformatted files
    tools/format.py --check    report it and exit 1
    tools/format.py FILE...    only these files

Templates are C with lines of //@ and names in ${}: both pass through clang-format as comments and identifiers. Tables (*.def) are laid out by hand.
build/formatted holds digests of C files that were found formatted; clang-format does not read those again."""

import argparse
import functools
import hashlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
TEMPLATE = (".c.in", ".cu.in", ".cu", ".head")
NAME = re.compile(r"\$\{([A-Z0-9_]+)\}")


def files():
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted(
        f for f in out.split("\n") if f and (ROOT / f).is_file() and not (ROOT / f).is_symlink()
    )


# an X-macro list, which applies its one parameter to each row: a table
TABLE = re.compile(
    r"^#define \w+\((?:[^)\n]*[ ,])?([A-Z])(?:,[^)\n]*)?\)[^\n]*\\\n(?:[^\n]*\\\n)*[^\n]*\n", re.M
)


def clang_format(text, name):
    """Format with clang-format, except tables (X macros), which are laid out by hand."""
    tables = []

    def keep(m):
        if not re.search(rf"\b{m[1]}\(", m[0].split("\n", 1)[1]):
            return m[0]
        tables.append(m[0])
        return f"#define qZT{len(tables) - 1}Z\n"

    text = laid_out(TABLE.sub(keep, text), name)
    return re.sub(r"#define qZT(\d+)Z\n", lambda m: tables[int(m[1])], text)


def laid_out(text, name):
    r = subprocess.run(
        [BIN / "clang-format", f"--assume-filename={name}"],
        input=text,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if r.returncode:
        raise SystemExit(f"{name}: {r.stderr}")
    return r.stdout


CONDITION = {"//@if": "#if", "//@else": "#else", "//@end": "#endif"}
KERNEL = r'(?:extern "C" )?__global__ void'
BOUNDS = re.compile(rf"^({KERNEL})\n(?=__launch_bounds__)", re.M)
ENTRY = re.compile(
    rf"^({KERNEL}(?: __launch_bounds__\([^\n]*?\))?)\s+(?=\$?\{{?\w+\}}?\w*\(const llmc_)", re.M
)
SPLIT = re.compile(r"^[ \t]+(?=\$\{SYMBOL\}\w*\(const llmc_)", re.M)


def formatted_template(text, name):
    """Replace conditions by preprocessor conditions, other //@ lines by pragmas, and ${NAME} by an identifier of the same length, so that lines break
    correctly."""
    marks = {m[0]: f"qZ{m[1]}Z" for m in NAME.finditer(text)}
    lines = []

    def directive(m):
        lines.append(m[0])
        word = CONDITION.get(m[0].split(" ")[0], "#pragma")
        return f"{word} {'// ' if word in ('#else', '#endif') else ''}qZ{len(lines) - 1}Z"

    if "qZ" in text:
        raise SystemExit(f"{name}: holds a name with qZ")
    text = re.sub(r"^//@.*$", directive, text, flags=re.M)
    for mark in sorted(marks, key=len, reverse=True):
        text = text.replace(mark, marks[mark])
    text = clang_format(text, name)
    for mark in sorted(marks, key=lambda m: len(marks[m]), reverse=True):
        text = text.replace(marks[mark], mark)
    text = re.sub(
        r"^[ \t]*#[ \t]*(?:if|else|endif|pragma)[ \t]+(?://[ \t]*)?qZ(\d+)Z.*$",
        lambda m: lines[int(m[1])],
        text,
        flags=re.M,
    )
    if "qZ" in text:
        raise SystemExit(f"{name}: a line of //@ stands where none can")
    return SPLIT.sub("", ENTRY.sub(r"\1\n", BOUNDS.sub(r"\1 ", text)))


def formatted(path):
    """The formatted text of a file."""
    text = (ROOT / path).read_text()
    template = path.startswith("templates/") or path.endswith(TEMPLATE)
    cuda = "templates/cuda/" in path or path.endswith((".cu", ".cu.in"))
    name = (
        os.path.join(os.path.dirname(path), "x.cu")
        if cuda
        else os.path.join(os.path.dirname(path), "x.h")
    )
    for _ in range(4):
        after = formatted_template(text, name) if template else clang_format(text, path)
        if after == text:
            break
        text = after
    return text


FORMATTED = ROOT / "build" / "formatted"


@functools.cache
def rules():
    """This program, the styles and clang-format."""
    st = (BIN / "clang-format").stat()
    own = [Path(__file__), *(ROOT / f for f in files() if f.endswith(".clang-format"))]
    return b"".join(p.read_bytes() for p in own) + f"{st.st_size} {st.st_mtime_ns}".encode()


def digest(path):
    return hashlib.sha256(rules() + f"{path}\0".encode() + (ROOT / path).read_bytes()).hexdigest()


def known():
    try:
        return set(FORMATTED.read_text().split())
    except OSError:
        return set()


def remember(digests):
    FORMATTED.parent.mkdir(exist_ok=True)
    new = FORMATTED.with_suffix(f".{os.getpid()}")
    new.write_text("\n".join(sorted(digests)) + "\n")
    new.replace(FORMATTED)


def is_c(path):
    return path.endswith((".c", ".h", *TEMPLATE)) and not path.startswith("tests/fuzz/corpus/")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--check", action="store_true")
    args.add_argument("file", nargs="*")
    a = args.parse_args()
    todo = [os.path.relpath(os.path.abspath(f), ROOT) for f in a.file] or files()
    bad = []
    done, sources = known(), {f: digest(f) for f in todo if is_c(f)}
    good = done & set(sources.values())
    sources = [f for f in sources if sources[f] not in done]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, text in zip(sources, pool.map(formatted, sources)):
            if text != (ROOT / path).read_text():
                bad.append(path)
                if not a.check:
                    (ROOT / path).write_text(text)
            else:
                good.add(digest(path))
    remember(good if not a.file else done | good)
    python = [f for f in todo if f.endswith(".py")]
    if python:
        r = subprocess.run(
            [BIN / "ruff", "format", "--quiet", *(["--check"] if a.check else []), *python],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if r.returncode and not a.check:
            raise SystemExit(r.stdout + r.stderr)
        bad += [f"{r.stdout}{r.stderr}".strip() or "Python files"] if r.returncode else []
    if a.check and bad:
        sys.exit("not formatted (make format):\n" + "\n".join(bad))


if __name__ == "__main__":
    main()
