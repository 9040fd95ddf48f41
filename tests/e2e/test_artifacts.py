"""Artifacts and the cache of kernels. The same input gives the same bytes; folders can be moved;
damage is repaired with one message; an incomplete file is never used."""

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from small_disk import small_disk
from waiting import HANG

MODEL = """llmc: 1
name: artifact-test
family: llama
vocab_size: 64
max_positions: 128
n_layers: 1
hidden: 32
attention: {n_heads: 2, n_kv_heads: 1, head_dim: 16}
ffn: {width: 32}
norm: {eps: 1.0e-6}
text: {bos: 1, eos: [2]}
"""
RUN = [
    "--random-weights",
    "--tokens",
    "1,5,9",
    "-n",
    "4",
    "--ignore-eos",
    "--temperature",
    "0",
    "-t",
    "1",
    "--arch",
    "generic",
]
CC = os.environ.get("LLMC_CC") or "gcc"
NO_COMPILER = {"LLMC_CC": "/nowhere/cc"}
TRUST = "--trust-artifact"  # for folders that were built with another cache


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Environment with its own cache, and the fastest kernel build, since speed is not tested
    here."""
    old = {k: os.environ.get(k) for k in ("LLMC_KERNEL_CFLAGS", "LLMC_CACHE")}
    d = tmp_path_factory.mktemp("home")
    os.environ.update(LLMC_KERNEL_CFLAGS="-O1", LLMC_CACHE=str(d / "cache"))
    yield d
    for k, v in old.items():
        os.environ.pop(k) if v is None else os.environ.__setitem__(k, v)


@pytest.fixture(scope="module")
def model(home):
    (home / "m.yaml").write_text(MODEL)
    return home / "m.yaml"


@pytest.fixture(scope="module")
def shipped(llmc, model, home):
    llmc("compile", model, "-o", home / "shipped", "--arch", "generic", "--aot", "-q")
    return home / "shipped"


@pytest.fixture(scope="module")
def tokens(llmc, shipped):
    """Tokens that every run must generate."""
    return llmc.json("run", shipped, *RUN)["tokens"]


def tree(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(Path(folder).rglob("*"))
        if p.is_file()
    }


def notices(text):
    """Lines that are neither progress nor the closing summary."""
    return [
        x
        for x in text.splitlines()
        if x and not x.startswith(("compiling ", "compiled ", "llmc: loaded", "llmc: context"))
    ]


def copy(folder, to):
    shutil.copytree(folder, to)
    return to


def objects(folder):
    return sorted(Path(folder).rglob("*.so"))


def locales():
    names = (
        subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout.split()
        if shutil.which("locale")
        else []
    )
    return next((n for n in names if n.startswith(("de_", "fr_", "ru_", "tr_"))), "C.UTF-8")


def test_the_same_bytes_anywhere(llmc, model, home, tmp_path):
    places = [
        ("one", {"LC_ALL": "C", "HOME": "/nonexistent", "TZ": "UTC"}, 0o022, "/"),
        (
            "two/deep er",
            {"LC_ALL": locales(), "HOME": str(tmp_path), "TZ": "Asia/Tokyo"},
            0o077,
            str(tmp_path),
        ),
    ]
    made = []
    for name, env, mask, cwd in places:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "m.yaml").write_text(MODEL)
        old = os.umask(mask)
        try:
            llmc(
                "compile",
                folder / "m.yaml" if cwd == "/" else os.path.relpath(folder / "m.yaml", cwd),
                "-o",
                folder / "out",
                "--arch",
                "generic,v3",
                env=env,
                cwd=cwd,
            )
        finally:
            os.umask(old)
        made.append(tree(folder / "out"))
    assert made[0] == made[1]
    assert {"plan-cpu-generic.json", "plan-cpu-v3.json", "model.yaml"} <= set(made[0])
    for p in (tmp_path / "one" / "out").rglob("*"):
        assert p.is_dir() or str(tmp_path).encode() not in p.read_bytes(), f"{p} holds a path"
    # compiling again leaves the files alone
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "one" / "out").rglob("*.c")}
    llmc(
        "compile",
        tmp_path / "one" / "m.yaml",
        "-o",
        tmp_path / "one" / "out",
        "--arch",
        "generic,v3",
    )
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "one" / "out").rglob("*.c")}


def test_a_moved_artifact_runs_without_compiler_or_cache(llmc, shipped, tokens, tmp_path):
    moved = copy(shipped, tmp_path / "else where")
    env = dict(
        NO_COMPILER, HOME=str(tmp_path), LLMC_CACHE=str(tmp_path / "cache"), LC_ALL="C", PATH=""
    )
    r = llmc.json("run", moved, *RUN, TRUST, env=env, cwd="/")
    assert r["tokens"] == tokens
    assert notices(llmc.err) == [] and "compil" not in llmc.err
    assert objects(tmp_path / "cache") == []
    assert tree(moved) == tree(shipped), "running wrote into the artifact"


def test_shipped_kernels_are_used_on_a_better_processor(llmc, shipped, tokens, tmp_path):
    """If an artifact has no plan for this processor, but built kernels for an older one, these are
    used, without a compiler and without written files. One message reports it."""
    best, folder = (
        llmc.json("doctor")["processor"]["best_target"].removeprefix("cpu-"),
        copy(shipped, tmp_path / "a"),
    )
    if best == "generic":
        pytest.skip("this processor runs generic code only")
    run = [x for x in RUN if x not in ("--arch", "generic")] + [TRUST]
    before = tree(folder)
    assert (
        llmc.json("run", folder, *run, env=dict(NO_COMPILER, LLMC_CACHE=str(tmp_path / "cache")))[
            "tokens"
        ]
        == tokens
    )
    output = notices(llmc.err)
    assert (
        len(output) == 1
        and f"no plan for cpu-{best}" in output[0]
        and "cpu-generic" in output[0]
        and f"--arch {best} --aot" in output[0]
    ), llmc.err
    assert (
        f"with vectors of {8 if best in ('v3', 'vnni') else 16} elements instead of 4" in output[0]
    )
    assert tree(folder) == before
    assert llmc.json("plan", folder)["target"] == "cpu-generic"
    # a plan for this processor without built kernels, and no compiler
    llmc("compile", folder / "model.yaml", "-o", folder, "--arch", best, "-q")
    assert (
        llmc.json("run", folder, *run, env=dict(NO_COMPILER, LLMC_CACHE=str(tmp_path / "cache")))[
            "tokens"
        ]
        == tokens
    )
    output = notices(llmc.err)
    assert (
        len(output) == 2
        and f"no plan for cpu-{best} with built kernels" in output[0]
        and "cpu-generic" in output[0]
    ), llmc.err
    assert "/nowhere/cc" in output[1], "why not this processor's"
    (folder / f"plan-cpu-{best}.json").unlink()
    # another description, or a folder without built kernels: compiled for this processor as usual
    shutil.rmtree(folder / "aot")
    llmc("run", folder, *run, env=dict(NO_COMPILER, LLMC_CACHE=str(tmp_path / "cache")), code=2)
    assert f"no plan for cpu-{best}: compiling it from model.yaml" in llmc.err


def test_a_full_cache_disk(llmc, model, tokens, tmp_path):
    """If the cache's disk is full, kernels are compiled in $TMPDIR and held in memory. The last
    disks have free blocks, but no inode for what the compiler writes into its folder."""
    (tmp_path / "tmp").mkdir()

    def run(command, cache):
        p = subprocess.run(
            [*command, llmc.path, "run", str(model), *RUN, "--json"],
            env=dict(os.environ, LLMC_CACHE=str(cache), TMPDIR=str(tmp_path / "tmp")),
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert p.returncode == 0, p.stderr
        assert json.loads(p.stdout)["tokens"] == tokens
        assert list((tmp_path / "tmp").iterdir()) == []

    run([], tmp_path / "large")
    n = len(list((tmp_path / "large" / "models").rglob("*"))) + 1
    disks = ["size=96k", "size=2m", *(f"size=100m,nr_inodes={n + k}" for k in (5, 6, 7))]
    for disk in disks:
        cache = tmp_path / disk
        cache.mkdir(mode=0o700)
        command = small_disk(cache, options=disk)
        if not command:
            pytest.skip("the kernel allows no mount")
        run(command, cache)


EVIL = """
#include <stdlib.h>
__attribute__((constructor)) static void llmc_test_evil(void) { abort(); }
"""


def test_changed_kernels_do_not_run(llmc, shipped, tokens, tmp_path):
    """A kernel, a header that shadows a system header, a plan: none runs without the option."""
    env = {"LLMC_CACHE": str(tmp_path / "cache")}

    def changed(name, change):
        folder = copy(shipped, tmp_path / name)
        shutil.rmtree(folder / "aot")
        change(folder)
        return folder

    def add(folder):
        kernel = next((folder / "kernels").glob("embed*.c"))
        kernel.write_text(kernel.read_text() + EVIL)

    def splice(folder):
        """The compiler ends the comment at the spliced characters."""
        kernel = next((folder / "kernels").glob("embed*.c"))
        kernel.write_text(
            kernel.read_text().replace(
                "/* generated from ", "/* generated from *\\\n/" + EVIL + "/*", 1
            )
        )

    def shadow(folder):
        (folder / "kernels" / "stdint.h").write_text("#include_next <stdint.h>\n" + EVIL)

    def plan(folder):
        f = folder / "plan-cpu-generic.json"
        f.write_text(re.sub(r'"eps":[^,}]+', '"eps":0.5', f.read_text()))

    for change, name in (
        (add, "kernels/embed"),
        (splice, "kernels/embed"),
        (shadow, "kernels/stdint.h"),
        (plan, "plan-cpu"),
    ):
        folder = changed(change.__name__, change)
        before = tree(folder)
        if before == tree(changed(change.__name__ + "-not", lambda f: None)):
            pytest.fail(f"{change.__name__} has changed nothing")
        llmc("run", folder, *RUN, env=env, code=1)
        assert name in llmc.err and "--trust-artifact" in llmc.err, llmc.err
        assert tree(folder) == before
    # the option runs it, which ends in abort()
    llmc("run", tmp_path / "add", *RUN, TRUST, env=env, code=-6)
    # unchanged text runs, and the next start finds the record instead of compiling
    same = changed("same", lambda f: None)
    assert llmc.json("run", same, *RUN, env=env)["tokens"] == tokens
    assert len(list((tmp_path / "cache" / "trusted").iterdir())) == 1
    assert llmc.json("run", same, *RUN, env=env)["tokens"] == tokens


def trust(folder, cache):
    """The trust record of a compile that wrote these sources, from its description in
    docs/internals/artifacts.md."""
    plan = json.loads((folder / "plan-cpu-generic.json").read_text())
    used = {"model.yaml", "plan-cpu-generic.json", *(k["file"] for k in plan["kernel"])}
    for f in (folder / "kernels").rglob("*.h"):
        used.add(str(f.relative_to(folder)))
    total = hashlib.sha256(b"sources\0")
    for name in sorted(used, key=str.encode):
        data = (folder / name).read_bytes()
        total.update(name.encode() + b"\0" + struct.pack("<Q", len(data)) + data)
    key, text = total.hexdigest().encode(), b"anything"
    cache.mkdir(parents=True, mode=0o700)
    (cache / key.decode()).write_bytes(
        text + key + hashlib.sha256(text + key).hexdigest().encode() + b"llmc sl1"
    )


def test_a_folder_of_the_own_compile_runs_whatever_its_text(llmc, shipped, tokens, tmp_path):
    """Text of an older llmc differs from what this one makes: the record of the compile is enough. A
    record is for the exact contents."""
    env = {"LLMC_CACHE": str(tmp_path / "cache")}
    folder = copy(shipped, tmp_path / "a")
    shutil.rmtree(folder / "aot")
    kernel = next((folder / "kernels").glob("embed*.c"))
    kernel.write_text(kernel.read_text() + "/* as an older llmc wrote it */\n")
    llmc("run", folder, *RUN, env=env, code=1)
    trust(folder, tmp_path / "cache" / "trusted")
    assert llmc.json("run", folder, *RUN, env=env)["tokens"] == tokens
    kernel.write_text(kernel.read_text() + "\n")
    llmc("run", folder, *RUN, env=env, code=1)


def test_built_kernels_of_others_are_compiled_again(llmc, shipped, tokens, model, tmp_path):
    """Built kernels without a trust record are compiled again even if the manifest matches, because code in
    their objects would run."""
    env = {"LLMC_CACHE": str(tmp_path / "cache")}
    folder = copy(shipped, tmp_path / "a")
    (folder / "aot" / "cpu-generic" / "other").write_text("x")
    assert llmc.json("run", folder, *RUN, env=env)["tokens"] == tokens
    assert "not built by you" in llmc.err and "compiling" in llmc.err
    assert llmc.json("run", folder, *RUN, TRUST, env=env)["tokens"] == tokens
    assert notices(llmc.err) == []
    # the own compile records what it builds, at any place
    own = tmp_path / "own"
    llmc("compile", model, "-o", own, "--arch", "generic", "--aot", "-q", env=env)
    own = own.rename(tmp_path / "moved")
    assert llmc.json("run", own, *RUN, env=dict(env, **NO_COMPILER))["tokens"] == tokens
    assert notices(llmc.err) == []
    # a compile into a folder of others does not record what it has not built
    llmc("compile", folder / "model.yaml", "-o", folder, "--arch", "generic", "-q", env=env)
    assert llmc.json("run", folder, *RUN, env=env)["tokens"] == tokens
    assert "not built by you" in llmc.err
    (folder / "kernels" / "stdint.h").write_text("")
    llmc("compile", folder / "model.yaml", "-o", folder, "--arch", "generic", "-q", env=env)
    llmc("run", folder, *RUN, env=env, code=1)
    assert "kernels/stdint.h" in llmc.err
    # neither does a run that writes into it
    llmc("run", model, *RUN, "--artifact", folder, env=env, code=1)
    assert "kernels/stdint.h" in llmc.err


def damage(kind, folder):
    so = [p for p in objects(folder) if "embed" in p.name or folder.name == "kernels"][0]
    data = so.read_bytes()
    if kind == "truncated":
        so.write_bytes(data[: len(data) // 2])
    elif kind == "flipped":
        so.write_bytes(data[:700] + bytes([data[700] ^ 1]) + data[701:])
    elif kind == "empty":
        so.write_bytes(b"")
    elif kind == "missing":
        so.unlink()
    elif kind == "not-elf":
        so.write_bytes(b"#!/bin/sh\n" * 200)
    elif kind == "other-kernel":
        other = [p for p in objects(folder) if p != so][0]
        so.write_bytes(other.read_bytes())
    elif kind == "writable":
        so.chmod(0o777)


DAMAGE = ["truncated", "flipped", "empty", "missing", "not-elf", "writable", "other-kernel"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", [*DAMAGE, "no-manifest", "bad-manifest", "source"])
def test_a_damaged_shipped_kernel_heals_with_one_line(llmc, shipped, tokens, tmp_path, kind):
    folder = copy(shipped, tmp_path / "a")
    manifest = next(folder.rglob("manifest.json"))
    if kind == "no-manifest":
        manifest.unlink()
    elif kind == "bad-manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif kind == "source":  # the plan's kernel, edited by hand without changing the function
        src = next((folder / "kernels").glob("embed*.c"))
        src.write_text(src.read_text() + "/* edited */\n")
    else:
        damage(kind, folder)
    assert llmc.json("run", folder, *RUN)["tokens"] == tokens
    output = notices(llmc.err)
    assert len(output) == 1 and "compiled here" in output[0], llmc.err
    # built kernels went to the cache, so the next run compiles nothing
    assert llmc.json("run", folder, *RUN)["tokens"] == tokens
    assert "compiling" not in llmc.err


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [k for k in DAMAGE if k != "writable"])
def test_a_damaged_cache_heals(llmc, model, home, tokens, tmp_path, kind):
    env = {"LLMC_CACHE": str(tmp_path / "cache")}
    seed = home / "seed"
    if not seed.exists():  # filled once, copied for each kind of damage
        assert llmc.json("run", model, *RUN, env={"LLMC_CACHE": str(seed)})["tokens"] == tokens
    shutil.copytree(seed, tmp_path / "cache")
    n = len(objects(tmp_path / "cache"))
    assert n > 0
    damage(kind, next(p.parent for p in objects(tmp_path / "cache")))
    assert llmc.json("run", model, *RUN, env=env)["tokens"] == tokens
    assert "compiling 1 kernel " in llmc.err
    assert len(notices(llmc.err)) == (kind != "missing"), llmc.err
    assert (
        llmc.json("run", model, *RUN, env=dict(env, LLMC_KERNEL_CFLAGS="-O1"))["tokens"] == tokens
    )
    assert "compiling" not in llmc.err and notices(llmc.err) == []


def test_a_cache_that_takes_no_files(llmc, model, tokens, tmp_path):
    """With an unwritable cache the model runs from memory, with one message that names the variable
    to set, and leaves no files."""
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "tmp").mkdir()
    env = {"LLMC_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    assert llmc.json("run", model, *RUN, "--cache-packed", env=env)["tokens"] == tokens
    assert [line for line in llmc.err.splitlines() if "LLMC_CACHE" in line] == notices(llmc.err)[
        :1
    ], llmc.err
    assert len(notices(llmc.err)) == 1 and "not kept for the next run" in llmc.err
    assert list((tmp_path / "tmp").iterdir()) == []


def test_two_processes_may_build_the_same_kernels(llmc, model, tokens, tmp_path):
    env = dict(os.environ, LLMC_CACHE=str(tmp_path / "cache"))
    cmd = [llmc.path, "run", str(model), *RUN, "--show-tokens"]
    both = [
        subprocess.Popen(cmd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outs = [p.communicate(timeout=HANG) for p in both]
    assert [p.returncode for p in both] == [0, 0], outs
    assert outs[0][0] == outs[1][0] and outs[0][0].split()
    left = [p.name for p in (tmp_path / "cache").rglob("*") if p.is_file() and "tmp" in p.name]
    assert left == []
    # everything is intact again: nothing is compiled
    llmc("run", model, *RUN, env=env)
    assert "compiling" not in llmc.err and notices(llmc.err) == []


KILLER = """#!/bin/sh
# A compiler; with KILL set its first object is half written, then llmc dies the hard way.
case "$*" in *--version*) exec %(cc)s "$@" ;; esac
[ -n "$KILL" ] || exec %(cc)s "$@"
prev=
for x in "$@"; do [ "$prev" = -o ] && out=$x; prev=$x; done
%(cc)s "$@" || exit 1
size=$(wc -c < "$out")
head -c $((size / 2)) "$out" > "$out.half"
mv "$out.half" "$out"
kill -9 $PPID
""" % {"cc": CC}


def test_killed_while_writing(llmc, model, tokens, tmp_path):
    cc = tmp_path / "cc"
    cc.write_text(KILLER)
    cc.chmod(0o755)
    env = {"LLMC_CACHE": str(tmp_path / "cache"), "LLMC_CC": str(cc)}
    p = subprocess.run(
        [llmc.path, "run", str(model), *RUN],
        env=dict(os.environ, KILL="1", **env),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == -9
    assert llmc.json("run", model, *RUN, env=env)["tokens"] == tokens
    # killed at any moment while the artifact's folder is written: the existing files are complete
    half = tmp_path / "half"
    p = subprocess.run(
        [llmc.path, "compile", str(model), "-o", str(half), "--arch", "generic", "--aot"],
        env=dict(os.environ, KILL="1", **env),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == -9
    llmc("compile", model, "-o", half, "--arch", "generic", "--aot", env=env)
    assert llmc.json("run", half, *RUN, TRUST, env=NO_COMPILER)["tokens"] == tokens


OLD = """#!/bin/sh
# A compiler from before these flags
for x in "$@"; do case "$x" in %(flag)s*) echo "cc: error: unrecognized command-line option '$x'" >&2; exit 1 ;; esac; done
exec %(cc)s "$@"
"""
# targets that a compiler may be too old for, and the target used instead
BEFORE = {
    "cpu-amx": ("-mamx-", "cpu-v4"),
    "cpu-v4": ("-mavx512", None),
    "cpu-vnni": ("-mavxvnni", "cpu-v3"),
    "cpu-v3": ("-mavx2", "cpu-generic"),
}


def test_a_compiler_older_than_the_processor(llmc, model, tmp_path):
    best = llmc.json("doctor")["processor"]["best_target"]
    if best not in BEFORE:
        pytest.skip(f"every compiler knows the flags of {best}")
    flag, then = BEFORE[best]
    cc = tmp_path / "cc"
    cc.write_text(OLD % {"flag": flag, "cc": CC})
    cc.chmod(0o755)
    env = {"LLMC_CACHE": str(tmp_path / "cache"), "LLMC_CC": str(cc)}
    run = [x for x in RUN if x not in ("--arch", "generic")]
    for _ in range(2):  # the second run reads the cache
        got = llmc.json("run", model, *run, env=env)
        lines = [x for x in llmc.err.splitlines() if "slower" in x]
        assert len(lines) == 1 and flag in lines[0] and "LLMC_CC" in lines[0], llmc.err
        used = re.search(r"using cpu-(\w+),", lines[0])[1]
        assert then in (None, f"cpu-{used}")
    assert got["tokens"] == llmc.json("run", model, *run, "--arch", used, env=env)["tokens"]
    # an explicit --arch is honoured, or refused with the reason
    llmc("run", model, *run, "--arch", best.removeprefix("cpu-"), env=env, code=2)
    assert "unrecognized command-line option" in llmc.err


def test_a_missing_compiler_is_a_sentence(llmc, model, shipped, tmp_path):
    env = dict(NO_COMPILER, LLMC_CACHE=str(tmp_path / "cache"))
    llmc("run", model, *RUN, env=env, code=2)
    assert "/nowhere/cc" in llmc.err
    folder = copy(shipped, tmp_path / "a")
    damage("truncated", folder)
    llmc("run", folder, *RUN, env=env, code=2)
    assert "/nowhere/cc" in llmc.err


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format":99}'])
def test_a_broken_plan_is_made_again_or_refused(llmc, shipped, tokens, tmp_path, text):
    folder = copy(shipped, tmp_path / "a")
    (folder / "plan-cpu-generic.json").write_text(text)
    p = subprocess.run(
        [llmc.path, "run", str(folder), *RUN, "--json"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    if p.returncode == 0:
        assert (
            f'"tokens":{str(tokens).replace(" ", "")}' in p.stdout
            and "again from model.yaml" in notices(p.stderr)[0]
        ), p.stderr
    else:
        assert p.returncode in (1, 2) and "plan" in p.stderr, p.stderr
