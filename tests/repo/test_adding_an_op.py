"""docs/adding-an-op.md is true: its example is named by exactly its files, and a new op that changes these files and no others works."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/kernels"))
import expand as E  # noqa: E402
import harness as H  # noqa: E402

BUILD = Path(os.environ.get("BUILD", "build"))
CC = [os.environ.get("LLMC_CC") or "gcc", "-std=gnu11", "-O0", "-I.", "-Iinclude", "-Itemplates"]
CC += ["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wmissing-prototypes", "-Werror"]
LIBS = ["-lyaml", "-ljansson", "-lpcre2-8", "-lutf8proc", "-lm", "-lpthread", "-ldl"]
PAGE = (ROOT / "docs/adding-an-op.md").read_text()
EXAMPLE = re.search(r"<!-- example: `(\w+)` -->", PAGE)[1]
TABLE = re.findall(r"^\| `([\w./]+)` \|", PAGE, re.M)

# y = min(x * x, limit): each edit is (file, text before it, new text)
EDITS = [
    (
        "ops/ops.def",
        "OP(clamp, 0,\n",
        'OP(toy, 0,\n   SAME(x) OUT(y), "width limit",\n   SPLIT(width), 0,\n   "y = min(x^2, limit)")\n\n',
    ),
    (
        "ops/shapes.c",
        "\tcase OP_clamp:\n",
        '\tcase OP_toy:\n\t\tMUST(attr_num(a, n, "limit") > 0, "limit > 0");\n'
        "\t\tSET(toy, .x = act(width), .y = act(width));\n\t\tbreak;\n",
    ),
    (
        "compiler/build/build_heads.c",
        "\tOp *o = OP(b, clamp, .x = x, .y = y);\n",
        '\tOp *squared = OP(b, toy, .x = x, .y = x);\n\top_set_int(b->g, squared, "width", width);\n'
        '\top_set_num(b->g, squared, "limit", 1);\n',
    ),
    (
        "ref/ref_norm.c",
        "void\nref_clamp(const RefCall *c)\n",
        'void\nref_toy(const RefCall *c)\n{\n\tint64_t n = ref_rows(c, ARG(toy, y)) * step_int(c->step, "width");\n'
        '\tfloat limit = (float)step_num(c->step, "limit");\n\tconst float *x = ref_f32(c, ARG(toy, x));\n'
        "\tfloat *y = ref_f32(c, ARG(toy, y));\n\n\tfor (int64_t i = 0; i < n; i++)\n"
        "\t\ty[i] = fminf(x[i] * x[i], limit);\n}\n\n",
    ),
]
TEMPLATES = [
    (
        "templates/cpu/elementwise/clamp.c.in",
        "vf_max(least, vf_min(share_get(x + i, n), most))",
        "vf_min(share_get(x + i, n) * share_get(x + i, n), most)",
    ),
    (
        "templates/cuda/elementwise/clamp.cu.in",
        "fmaxf(-(${LIMIT}), fminf(x[i], ${LIMIT}))",
        "fminf(x[i] * x[i], ${LIMIT})",
    ),
]


def named_by():
    """Files outside tests/ that name the example; its test is one more row of the table."""
    name = re.compile(
        rf"\b(?:OP_|ref_){EXAMPLE}\b|\b(?:OP|ARG|SET)\((?:b, )?{EXAMPLE}\b|^//@op {EXAMPLE}$", re.M
    )
    paths = [
        p
        for d in ROOT.iterdir()
        if d.is_dir() and d.name != "tests" and not d.name.startswith((".", "build"))
        for p in d.rglob("*")
        if p.suffix in (".c", ".h", ".def", ".in", ".head") and p.is_file()
    ]
    return {str(p.relative_to(ROOT)) for p in paths if name.search(p.read_text(errors="replace"))}


def test_the_page_lists_the_files_of_its_example():
    assert int(re.search(r"(\d+) files", PAGE)[1]) == len(TABLE) == len(set(TABLE))
    tests = {f for f in TABLE if f.startswith("tests/")}
    assert len(tests) == 1 and named_by() | tests == set(TABLE)
    for test in tests:
        assert f'"{EXAMPLE}"' in (ROOT / test).read_text(), test


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources with the new op."""
    top = tmp_path_factory.mktemp("toy") / "tree"
    for d in "base formats ops plan ref compiler include templates tests/kernels".split():
        shutil.copytree(ROOT / d, top / d, ignore=shutil.ignore_patterns("__pycache__"))
    for path, before, text in EDITS:
        old = (top / path).read_text()
        assert old.count(before) == 1, (path, before)
        (top / path).write_text(old.replace(before, text + before))
    for path, body, new in TEMPLATES:
        old = (top / path).read_text()
        assert old.count(body) == 1, (path, body)
        text = old.replace(body, new).replace(f"//@op {EXAMPLE}", "//@op toy")
        text = re.sub(r",\s*least = [^;]*;", ";", text)
        (top / path.replace(EXAMPLE, "toy")).write_text(text)
    return top


def test_the_new_op_changes_the_files_of_the_page():
    changed = {e[0] for e in EDITS} | {t[0] for t in TEMPLATES}
    assert changed == {f for f in TABLE if not f.startswith("tests/")}


def compile_in(tree, source, *flags):
    out = tree / (source[:-2].replace("/", "+") + ".o")
    r = subprocess.run(
        [*CC, *flags, "-c", source, "-o", str(out)], cwd=tree, capture_output=True, text=True
    )
    return out, r.stderr


def symbols(objects):
    """name -> object that defines it; object -> names that it needs"""
    out = subprocess.run(
        ["nm", "-g", "-A", *map(str, objects)], capture_output=True, text=True, check=True
    ).stdout
    defined, needed = {}, defaultdict(set)
    for line in out.split("\n"):
        if line:
            obj, rest = line.rsplit(":", 1)
            words = rest.split()
            if words[-2] == "U":
                needed[obj].add(words[-1])
            else:
                defined[words[-1]] = obj
    return defined, needed


def program(tree, name):
    """Builds tests/kernels/<name>.c in the copy. Objects that do not depend on a changed file are those of the build."""
    built = [
        o
        for d in "base formats ops plan ref compiler".split()
        for o in (ROOT / BUILD / d).rglob("*.o")
    ]
    built.append(ROOT / BUILD / "embed.o")
    defined, needed = symbols(built)
    main, errors = compile_in(tree, f"tests/kernels/{name}.c")
    assert not errors, errors
    todo, used = set(symbols([main])[1][str(main)]), set()
    while todo:
        obj = defined.get(todo.pop())
        if obj and obj not in used:
            used.add(obj)
            todo |= needed[obj]
    changed = {e[0] for e in EDITS}
    stale = sorted(
        o
        for o in used
        if Path(o).with_suffix(".d").exists()
        and changed & set(Path(o).with_suffix(".d").read_text().replace("\\\n", " ").split())
    )
    assert stale and len(stale) < len(used)
    names = [str(Path(o).relative_to(ROOT / BUILD).with_suffix(".c")) for o in stale]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda s: compile_in(tree, s), names))
    assert not any(e for _, e in objects), "\n".join(e for _, e in objects)
    out = tree / name
    kept = sorted(used - set(stale))
    subprocess.run(
        [CC[0], str(main), *(str(o) for o, _ in objects), *kept, *LIBS, "-o", str(out)], check=True
    )
    return out


ROWS = dict(pos=[5, 0, 2], tok=[3, 0, 11], out_row=[1, 2])
WIDTH, LIMIT = 37, 0.75


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(7).standard_normal((3, WIDTH)).astype(np.float32)


def test_a_new_op_runs_on_the_reference(tree, x):
    run = program(tree, "reference")
    ints = lambda a: np.ascontiguousarray(a, np.int32).tobytes()
    data = ints(ROWS["pos"]) + ints(ROWS["tok"]) + ints(ROWS["out_row"]) + ints([-1] * 3)
    data += np.int64(x.size).tobytes() + x.tobytes()
    r = subprocess.run(
        [str(run), "toy", "3", "2", f"width={WIDTH}", f"limit={LIMIT}"],
        input=data,
        capture_output=True,
    )
    assert r.returncode == 0, r.stderr
    y = np.frombuffer(r.stdout, np.float32).reshape(x.shape)
    assert np.array_equal(y, np.minimum(x * x, np.float32(LIMIT)))


def test_a_new_op_has_its_kernels(tree, x, monkeypatch):
    run = program(tree, "expand")
    monkeypatch.setattr(E, "tool", lambda name="expand": run)
    params = dict(WIDTH=WIDTH, LIMIT=LIMIT)
    for target in H.TARGETS[:2]:
        made = E.expand(f"cpu-{target}", str(tree / "templates/cpu/elementwise/toy.c.in"), params)
        kernel = H.Kernel(H.compiled("toy", target, made["text"]), made)
        for parts in (1, 3):
            y = H.aligned(x.shape)
            source = H.aligned(x.shape)
            source[...] = x
            kernel.call(H.make_step(**ROWS), [source, y], parts)
            assert np.array_equal(y, np.minimum(x * x, np.float32(LIMIT))), (target, parts)
    made = E.expand("cuda-sm_90a", str(tree / "templates/cuda/elementwise/toy.cu.in"), params)
    assert "fminf(x[i] * x[i]" in made["text"] and [a["name"] for a in made["arg"]] == ["x", "y"]


def test_a_new_op_is_built_and_sharded(tree):
    for source in ("compiler/build/build_heads.c", "compiler/shard/shard.c"):
        _, errors = compile_in(tree, source, "-fsyntax-only")
        assert not errors, errors


def test_the_compiler_misses_an_op_without_shapes(tree):
    """The check of the other files by compiling them would notice a switch that lacks the op."""
    source = (tree / "ops/shapes.c").read_text()
    (tree / "ops/lacking.c").write_text(source.replace(EDITS[1][2], ""))
    _, errors = compile_in(tree, "ops/lacking.c", "-fsyntax-only")
    assert "OP_toy" in errors, errors
