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
    """Return the module of a path: the longest prefix of the path that is in the list."""
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
    """The headers of a device are included only in the device's own folder; other code calls
    runtime/device.h."""
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


def built_objects():
    objects = [
        p
        for p in (f"{BUILD}/{path[:-2]}.o" for path in sources() if path.endswith(".c"))
        if os.path.exists(p)
    ]
    assert len(objects) > 100, "make all first"
    return objects


def symbols(objects):
    """Return {name: object that defines it} and {object: names that it needs}."""
    defined, needed = {}, defaultdict(list)
    for line in nm("-g", "-A", *objects).split("\n"):
        obj, _, rest = line.rpartition(":")
        kind, _, name = rest.strip().rpartition(" ")
        if kind.endswith("U"):
            needed[obj].append(name)
        elif name:
            defined[name] = obj
    return defined, needed


def module_of_object(obj):
    return "base" if obj.endswith("/embed.o") else module_of(obj[len(BUILD) + 1 :])


def test_no_symbol_points_up():
    """Linking a module's objects with those of the modules below it leaves no symbol of the library undefined."""
    defined, needed = symbols([*built_objects(), f"{BUILD}/embed.o"])
    bad = [
        f"{obj}: {name} of {defined[name]}"
        for obj, names in needed.items()
        for name in names
        if name in defined and not below(module_of_object(obj), module_of_object(defined[name]))
    ]
    assert not bad, "\n".join(sorted(bad))


def circles(graph):
    """Return the groups of nodes that reach each other (Tarjan's algorithm), each as a sorted
    tuple."""
    index, low, stack, out = {}, {}, [], set()

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in graph.get(v, ()):
            if w not in index:
                visit(w)
            if w in stack:
                low[v] = min(low[v], low[w])
        if low[v] == index[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                out.add(tuple(sorted(stack[at:])))
            del stack[at:]

    for v in list(graph):
        if v not in index:
            visit(v)
    return out


def test_circles_are_found():
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"]}) == {("b", "c")}


def test_no_circle_of_includes():
    """No two C files include each other's headers, directly or through other files."""
    units = {path[:-2] for path in sources() if path.endswith(".c")}
    graph = {}
    for unit in units:
        named = re.findall(r'^\s*#\s*include\s*"([^"]+)\.h"', open(f"{unit}.c").read(), re.M)
        near = [os.path.normpath(os.path.join(os.path.dirname(unit), n)) for n in named]
        graph[unit] = {n for n in [*named, *near] if n in units and n != unit}
    assert sum(map(len, graph.values())) > 500
    assert not circles(graph)


# Files of a module that call each other, each with the reason
CIRCLES = {
    # a schema holds schemas: each keyword's file calls the one that reads any schema
    "grammar: grammar_open json_grammar schema schema_array schema_check schema_conditions schema_disjoint schema_members schema_merge schema_not schema_object schema_ref schema_scalar structural_tags",
    # a page moves between memory, host and prefix cache: each side frees pages of the others
    "runtime/kv: kv kv_host prefix_cache",
    # a session of rank 0 leads those of other ranks, which are sessions
    "runtime: forward ranks session",
    # a request passes from its connection to a model and its events come back
    "serve: chat_images generation load_report status connection connection_answer connection_list http metrics trace worker_pool catalogue model_engine model_manager model_memory models",
    # expressions call filters, tests and methods, which evaluate expressions
    "text/jinja: eval filters jinja methods string tests",
    # added tokens split a string, and each part is encoded by the model of the tokenizer
    "text: bpe break_special charsmap encode icetk normalize pretok tokenizer unigram wordpiece",
}


def test_no_circle_of_files():
    """Within a module no two files need functions of each other, directly or through other files."""
    defined, needed = symbols(built_objects())
    graph = {
        obj: {
            defined[n]
            for n in names
            if defined.get(n, obj) != obj and module_of_object(obj) == module_of_object(defined[n])
        }
        for obj, names in needed.items()
    }
    found = {
        f"{os.path.commonpath(c)[len(BUILD) + 1 :]}: "
        + " ".join(os.path.basename(o)[:-2] for o in c)
        for c in circles(graph)
    }
    assert found == CIRCLES, (sorted(found - CIRCLES), sorted(CIRCLES - found))


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
