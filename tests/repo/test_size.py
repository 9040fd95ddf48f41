"""Files, functions and conditions of templates stay small; the exceptions are listed."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES, FUNCTION_LINES, LINES_PER_IF = 700, 120, 4

# files that are one state machine or one list of similar declarations, which cannot be divided well
LONG_FILES = {
    "include/llmc.h",  # the public header
    "emu/core/shadow.c",  # the rules of one cell of shadow memory
    "emu/core/timeline.c",  # the state machine of launches
}
LONG_FUNCTIONS = {
    "ops/shapes.c op_shapes"  # one case per op
}


def sources():
    for top in ROOT.iterdir():
        if top.is_dir() and top.name != "tests" and not top.name.startswith((".", "build")):
            for path in sorted(top.rglob("*")):
                if path.suffix in (".c", ".h", ".in", ".head", ".cu") and path.is_file():
                    yield str(path.relative_to(ROOT)), path.read_text(errors="replace").split("\n")


def functions(lines):
    """Return (name, lines) of each function. A body starts with a brace in the first column, or at
    the end of a line that starts in the first column."""
    start = name = None
    for n, line in enumerate(lines):
        if line == "{" or re.match(r"[A-Za-z_$].*\)\s*(?:const\s*)?\{$", line):
            start = n
            back = n if line != "{" else n - 1
            while back > 0 and not re.match(r"[\w$]", lines[back]):
                back -= 1
            name = re.match(r"(?:[\w*]+\s+\*?)*?([\w${}]+)\s*\(", lines[back])
            if name and name[1] == "API":
                name = re.search(r"\((?:\w+, )?(\w+),", lines[back])
        elif line.startswith("}") and start is not None:
            yield name[1] if name else lines[back], n - start + 1
            start = None


def compare(found, listed):
    """Fails for a new exception, and for one that is no longer needed."""
    new, stale = sorted(set(found) - listed), sorted(listed - set(found))
    assert not new, "too long: " + ", ".join(f"{name} ({found[name]} lines)" for name in new)
    assert not stale, f"no longer too long, remove from the list: {', '.join(stale)}"


def test_files_are_short():
    compare(
        {path: len(lines) - 1 for path, lines in sources() if len(lines) - 1 > FILE_LINES},
        LONG_FILES,
    )


def test_functions_are_short():
    every = [(f"{path} {name}", n) for path, lines in sources() for name, n in functions(lines)]
    assert len(every) > 6000 and dict(every)["ops/shapes.c op_shapes"] > 300
    compare({name: n for name, n in every if n > FUNCTION_LINES}, LONG_FUNCTIONS)


def test_templates_have_few_conditions():
    """A template has fewer than one //@if per four lines."""
    bad = [
        f"{path}: {n} of {len(lines)} lines"
        for path, lines in sources()
        if path.startswith("templates/")
        and (n := sum("//@if" in line for line in lines)) * LINES_PER_IF > len(lines)
    ]
    assert not bad, "\n".join(bad)


def test_a_long_function_is_measured():
    body = ["static int", "long_one(int a,", "         int b)", "{", *["\ta++;"] * 200, "}"]
    assert list(functions(body)) == [("long_one", 202)]
    assert list(functions(["API(nvrtcResult, made, (int v))", "{", "}"])) == [("made", 2)]
