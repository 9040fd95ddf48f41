"""Pages keep their format, and the files and names in them exist."""

import glob
import os
import re
import subprocess
import sys

import pytest

INTERNALS = sorted(glob.glob("docs/internals/*.md"))


@pytest.mark.parametrize("page", INTERNALS)
def test_a_contract_begins_with_its_invariant_and_ends_with_its_test(page):
    lines = open(page).read().rstrip("\n").split("\n")
    assert len(lines) <= 60
    assert re.match(r"# \S", lines[0]) and lines[1] == "" and lines[2].startswith("**Invariant.** ")
    last = re.match(r"\*\*Test\.\*\* (.+)\.$", lines[-1])
    assert last, "the last line names the test"
    files = re.findall(r"`(tests/[\w./]+)`", last[1])
    assert files
    source = "".join(open(f).read() for f in files)
    for name in re.findall(r"`(\w+)`", last[1]):
        assert re.search(
            rf"^(?:def {name}\(|{name}\(void|(?:BENCH_)?TEST\({name}\))", source, re.M
        ), name


def test_every_contract_is_listed():
    text = open("docs/design.md").read()
    assert [p for p in INTERNALS if f"({p[5:]})" not in text] == []
    assert len(text.split("\n")) <= 150


def test_only_the_list_of_devices_names_a_device():
    """Code accesses a device through its table of functions, and only one line of one file lists
    these tables."""
    found = []
    tops = ("runtime", "api", "quant", "compiler", "plan", "serve", "cli")
    for folder, _, names in (step for top in tops for step in os.walk(top)):
        if folder.startswith(("runtime/cpu", "runtime/cuda")):
            continue
        for name in sorted(names):
            if name.endswith((".c", ".h")):
                text = re.sub(
                    r"/\*.*?\*/|//[^\n]*", "", open(f"{folder}/{name}").read(), flags=re.S
                )
                found += [
                    f"{folder}/{name}: {line.strip()}"
                    for line in text.split("\n")
                    if re.search(r"runtime/(?:cpu|cuda)/|\b(?:cpu|cuda)_device\b", line)
                ]
    assert len(found) == 2 and all(f.startswith("runtime/device.c: ") for f in found), "\n".join(
        found
    )


def test_the_readme_is_short_and_its_figures_are_those_of_the_result_files():
    assert open("README.md").read().count("\n") <= 120
    p = subprocess.run(
        [sys.executable, "tools/speed_doc.py", "--check"], capture_output=True, text=True
    )
    assert p.returncode == 0, p.stderr


def test_every_environment_variable_is_listed():
    """docs/environment.md lists exactly the variables that the library and the command read."""
    page = open("docs/environment.md").read()
    read = set()
    for top in (
        "api",
        "base",
        "cli",
        "compiler",
        "formats",
        "grammar",
        "hub",
        "quant",
        "runtime",
        "serve",
        "text",
    ):
        for folder, _, names in os.walk(top):
            for name in names:
                if name.endswith(".c"):
                    text = open(f"{folder}/{name}").read()
                    read |= set(re.findall(r'getenv\("(\w+)"\)', text))
                    read |= set(re.findall(r'(?:open_below|variable)\("(\w+)"', text))
    listed = set(re.findall(r"`([A-Z][A-Z_]+)`", page.split("The emulator")[0]))
    assert len(read) > 15 and sorted(read - listed) == []
    other = {
        "LLMC_LIBRARY",
        "LLMC_SERVE_PORT",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_ROOT",
        "SLURM_NTASKS",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
    }
    assert sorted(listed - read - other) == []


ADDING = sorted(glob.glob("docs/adding-*.md"))
WRITTEN_BY_MAKE = ("bindings/python/llmc/_sampling.py",)


def code_of(path):
    """Return the text of a source file without comments."""
    text = open(path, errors="replace").read()
    if path.endswith((".c", ".h", ".in", ".cu", ".head", ".def")):
        return re.sub(r"/\*.*?\*/|//(?!@)[^\n]*", " ", text, flags=re.S)
    return re.sub(r"(?m)(?:^|\s)#.*", " ", text) if path.endswith((".py", ".yaml", ".sh")) else text


@pytest.fixture(scope="module")
def sources():
    """Return {path: text} of all files that are neither tests, documents nor data, and of the
    OpenAPI document."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    prose = ("tests/", "docs/")
    return {
        f: code_of(f)
        for f in out
        if f
        and os.path.isfile(f)
        and not f.startswith(prose)
        and f not in WRITTEN_BY_MAKE
        and (not f.endswith((".md", ".json", ".1")) or f.endswith("/openapi.json"))
    }


def examples():
    """Yield (page, marker, count, files) of each table of files below a marker."""
    for page in ADDING:
        text = open(page).read()
        sections = re.split(r"<!-- (example|matches): `([^`]+)`(?: also `([^`]+)`)? -->", text)
        assert len(sections) > 1, f"{page} has no example"
        for i in range(1, len(sections), 4):
            kind, name, also, after = sections[i : i + 4]
            table = re.search(r"^\| file \|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", after, re.M)
            files = re.findall(r"^\| `([^`]+)` \|", table[1], re.M)
            assert len(files) == table[1].count("\n"), f"{page}: a row of the table names no file"
            count = re.findall(r"\b(\d+)\s+files\b", sections[i - 1])[-1]
            yield pytest.param(kind, name, also, int(count), files, id=f"{page[5:-3]}-{name[:20]}")


@pytest.mark.parametrize("kind, name, also, count, files", examples())
def test_a_page_on_adding_lists_the_files_that_name_its_example(
    kind, name, also, count, files, sources
):
    """The table lists every source file that names the example, and the number in the text is that of its rows."""
    assert len(files) == count
    for path in files:
        assert os.path.isfile(path), path
    if kind == "matches":
        regex = name
    elif re.search(
        rf"^OP\({name},", sources["ops/ops.def"], re.M
    ):  # the name of this op is also a common word
        regex = rf"\b(?:OP_|ref_){name}\b|//@op {name}\b|\b(?:OP|SET)\((?:b, )?{name}\b"
    else:
        regex = rf"(?i)(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])"
    named = {f for f, text in sources.items() if re.search(regex, text)}
    listed = {f for f in files if not f.startswith("tests/") and f != also}
    assert sorted(named - listed) == [], "files that the page does not list"
    assert sorted(listed - named) == [], "files that do not name the example"


def test_pages_are_wrapped():
    """At most 100 columns, except for tables, code, and lines that contain a link or one long token."""
    bad = []
    for page in sorted(
        [
            "README.md",
            "CONTRIBUTING.md",
            "templates/README.md",
            *glob.glob("docs/**/*.md", recursive=True),
        ]
    ):
        fence = False
        for n, line in enumerate(open(page).read().split("\n"), 1):
            fence ^= line.strip().startswith("```")
            free = (
                fence
                or line.strip().startswith("|")
                or "](" in line
                or line.startswith(("**Test.**", "<!-- matches:"))
            )
            if len(line) > 100 and not free and len(line.split()) > 1:
                bad.append(f"{page}:{n}")
    assert not bad, "\n".join(bad)


def test_paths_in_pages_exist():
    """A path in backquotes below a folder of the tree names a file or folder."""
    tops = {
        d
        for d in os.listdir(".")
        if os.path.isdir(d) and not d.startswith((".", "build", "generated"))
    }
    bad = []
    for page in ["README.md", "CONTRIBUTING.md", *glob.glob("docs/**/*.md", recursive=True)]:
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", open(page).read()):
            if path.split("/")[0] in tops and not os.path.exists(path):
                bad.append(f"{page}: {path}")
    assert not bad, "\n".join(bad)
