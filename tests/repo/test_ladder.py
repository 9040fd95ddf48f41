"""The module order of docs/design.md holds: a module includes, and is linked with, only modules below it."""

import os
import re
import subprocess
from collections import defaultdict

LADDER = re.compile(r"## The ladder\n.*?```\n(.*?)```", re.S)
# modules outside the library are checked by their includes only
BUILD = os.environ.get("BUILD", "build")


def ladder():
    """Rows of modules from the top; a row's text starts two blanks after its last module."""
    text = LADDER.search(open("docs/design.md").read())[1]
    rows = []
    for line in text.strip().split("\n"):
        names = re.match(r"\S+(?: \| \S+)*", line)[0].split(" | ") if line[0] != " " else []
        if names:
            rows.append([r.rstrip("/") for r in names])
    return rows


ROWS = ladder()
MODULES = {name: depth for depth, row in enumerate(ROWS) for name in row}


def module_of(path):
    """The module of a path: its longest prefix in the list."""
    at = os.path.dirname(path)
    while at and at not in MODULES:
        at = os.path.dirname(at)
    return at or None


def below(upper, lower):
    return upper == lower or MODULES[upper] < MODULES[lower]


def sources():
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c", "*.h", "*.def"],
        capture_output=True,
        text=True,
    ).stdout.split()
    out = out or [
        os.path.join(d, f)[2:]
        for d, _, names in os.walk(".")
        for f in names
        if f.endswith((".c", ".h", ".def"))
    ]
    return [f for f in out if os.path.exists(f) and not f.startswith(("tests/", "build"))]


def test_every_source_is_in_a_module():
    assert len(ROWS) > 8 and {"base", "ops", "plan", "compiler", "runtime", "serve"} <= set(MODULES)
    for module in MODULES:
        assert os.path.isdir(module), module
    for path in sources():
        assert module_of(path), path


def test_devices_are_reached_through_their_table():
    """Only a device's own folder includes its headers; other code calls runtime/device.h."""
    for path in sources():
        for device in re.findall(
            r'#\s*include\s*"(runtime/(?:cpu|cuda))/', open(path, errors="replace").read()
        ):
            assert path.startswith((device, "emu/")), f"{path} includes a header of {device}"


def test_no_include_points_up():
    bad = []
    for path in sources():
        me = module_of(path)
        for n, line in enumerate(open(path, errors="replace"), 1):
            inc = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not inc:
                continue
            name = inc[1]
            sibling = os.path.normpath(os.path.join(os.path.dirname(path), name))
            at = next(
                (
                    p
                    for p in (sibling, name, "include/" + name, "templates/" + name)
                    if os.path.exists(p)
                ),
                None,
            )
            if not at:
                bad.append(f"{path}:{n}: includes {name}, which does not exist")
            elif not below(me, module_of(at)):
                bad.append(f"{path}:{n}: {me}/ includes {at}")
    assert not bad, "\n".join(bad)


def nm(*args):
    return subprocess.run(["nm", *args], capture_output=True, text=True, check=True).stdout


def test_no_symbol_points_up():
    """Linking a module's objects with those of the modules below it leaves no symbol of the library undefined."""
    objects = [
        p
        for p in (f"{BUILD}/{path[:-2]}.o" for path in sources() if path.endswith(".c"))
        if os.path.exists(p)
    ]
    objects.append(f"{BUILD}/embed.o")
    assert len(objects) > 100, "make all first"

    def module(obj):
        return "base" if obj.endswith("/embed.o") else module_of(obj[len(BUILD) + 1 :])

    defined, needed = {}, defaultdict(list)
    for obj in objects:
        for line in nm("-g", obj).split("\n"):
            kind, _, name = line.strip().rpartition(" ")
            if kind.endswith("U"):
                needed[obj].append(name)
            elif name:
                defined[name] = obj
    bad = [
        f"{obj}: {name} of {defined[name]}"
        for obj, names in needed.items()
        for name in names
        if name in defined and not below(module(obj), module(defined[name]))
    ]
    assert not bad, "\n".join(sorted(bad))


def test_examples_include_only_the_public_header():
    for path in sources():
        if path.startswith(("examples/", "bindings/")):
            assert set(re.findall(r'#include "([^"]+)"', open(path).read())) <= {"llmc.h"}, path


def test_pages_on_adding_name_files_that_exist():
    pages = sorted(f for f in os.listdir("docs") if f.startswith("adding-"))
    assert pages
    for page in pages:
        text = open(f"docs/{page}").read()
        assert text.count("\n") <= 60, page
        named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text)
        assert named, f"{page} names no file"
        for path in named:
            assert os.path.exists(path), f"{page}: {path}"
