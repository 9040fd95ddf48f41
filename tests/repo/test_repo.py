"""Properties of the repository itself."""

import csv
import glob
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FAMILY = re.compile(r"llama|qwen|mistral|gemma|deepseek|glm|bloom|baichuan", re.I)
# values in file formats: the rope type in config.json and GGUF, tokenizer model names in GGUF, the class in tokenizer_config.json, model_type in an .flm; a dialect of the server
ALLOWED = re.compile(
    r'[oO]llama|OLLAMA|llama_cpp|LLAMA_CPP|"llamacpp"|"llama3"|"deepseek_yarn"|SCALE_LLAMA3|"llama"|\bllama3\b|llama-bpe|"tokenizer\.ggml|llama\.cpp|llama-gguf-split|gpt2, gemma4, llama, t5 and bert|"gemma4"|"ChatGLMTokenizer"|"chatglm"'
)


def files(*patterns):
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        capture_output=True,
        text=True,
    ).stdout.split()
    if not out:  # an exported tree without git history
        for top in (
            "include",
            "serve",
            "api",
            "compiler",
            "runtime",
            "text",
            "ref",
            "plan",
            "ops",
            "formats",
            "base",
            "docs",
            "cli",
        ):
            out += [os.path.join(d, f) for d, _, fs in os.walk(top) for f in fs]
    return [f for f in out if os.path.exists(f)]


def test_no_c_code_names_a_family():
    bad = []
    for path in files(
        "include", "serve", "api", "compiler", "runtime", "text", "ref", "plan", "ops"
    ):
        if not path.endswith((".c", ".h", ".def")):
            continue
        for n, line in enumerate(open(path), 1):
            if FAMILY.search(ALLOWED.sub("", line)):
                bad.append(f"{path}:{n}: {line.strip()}")
    assert not bad, "\n".join(bad)


def test_the_command_line_uses_the_public_header_and_base_only():
    for path in files("cli"):
        if path.endswith((".c", ".h")):
            for inc in re.findall(r'#include "([^"]+)"', open(path).read()):
                assert inc == "llmc.h" or inc.startswith(("cli/", "base/")), (path, inc)


def test_the_server_sits_on_the_public_header():
    """serve/ includes only llmc.h and base/, and calls only public functions of the modules between
    these."""
    for path in files("serve"):
        if path.endswith((".c", ".h")):
            for inc in re.findall(r'#include "([^"]+)"', open(path).read()):
                assert inc == "llmc.h" or inc.startswith(("base/", "serve/")), (path, inc)
    build = os.environ.get("LLMC_TEST_BUILD", "build")

    def symbols(kind, *modules):
        objects = [f"{build}/{f[:-2]}.o" for f in files(*modules) if f.endswith(".c")]
        out = subprocess.run(
            ["nm", "-g", kind, *(f for f in objects if os.path.exists(f))],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return {line.split()[-1] for line in out.split("\n") if " " in line}

    modules = ("api", "compiler", "formats", "ops", "plan", "ref", "runtime", "text")
    used = symbols("-u", "serve") & symbols("--defined-only", *modules)
    assert used and all(name.startswith("llmc_") for name in used), used


def test_json_is_parsed_by_json_parse():
    """Only json_parse is called, because jansson's own parser corrupts memory when an allocation
    fails."""
    call = re.compile(r"\bjson_load(?:s|b|f|fd|_file|_callback)\b")
    for path in files():
        if path.endswith((".c", ".h")) and not path.startswith(("tests/", "base/json")):
            assert not call.search(open(path).read()), path


def test_timed_waits_do_not_depend_on_the_date():
    """Waits use the monotonic clock: if the date is set back during a wait, the wait would become
    longer by that time."""
    for path in files("base/*.c", "runtime/*.c", "serve/*.c", "api/*.c", "hub/*.c"):
        source = (ROOT / path).read_text()
        if "pthread_cond_timedwait" in source:
            assert "clock_after(" in source, path
        # the date may be used for time stamps and to seed random numbers
        if "CLOCK_REALTIME" in source:
            assert os.path.basename(path) in ("access_log.c", "trace.c", "random.c"), path


def test_the_library_never_prints_or_exits():
    call = re.compile(
        r"\b(printf|puts|putchar|perror|exit|_exit|abort|assert|signal|setlocale|atexit)\s*\("
    )
    bad = []
    for path in files(
        "serve", "api", "base", "formats", "ops", "plan", "compiler", "runtime", "text", "ref"
    ):
        if path.endswith(".c"):
            text = re.sub(
                r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), open(path).read(), flags=re.S
            )
            for n, line in enumerate(text.split("\n"), 1):
                if call.search(re.sub(r'"(\\.|[^"\\])*"', '""', line)):
                    bad.append(f"{path}:{n}: {line.strip()}")
    assert not bad, "\n".join(bad)


def anchors(path):
    """Return the anchors that GitHub generates for a page's headings."""
    text = re.sub(r"^```.*?^```", "", open(path).read(), flags=re.S | re.M)
    names = (
        re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-")
        for h in re.findall(r"^#+ (.*)", text, re.M)
    )
    return set(names)


def test_links_in_documents_lead_somewhere():
    for path in files("*.md", "docs/*.md"):
        if path.endswith(".md"):
            for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", open(path).read()):
                to = os.path.join(os.path.dirname(path), link) if link else path
                assert os.path.exists(to), (path, link)
                assert not anchor or anchor in anchors(to), (path, link, anchor)


def test_tables_of_results_have_as_many_fields_in_each_row():
    for path in files("tests/bench/results/*.csv"):
        with open(path, newline="") as f:
            assert len({len(row) for row in csv.reader(f)}) == 1, path


def test_every_op_has_its_reference_and_its_line():
    ops = re.findall(r"^OP\((\w+),", open("ops/ops.def").read(), re.M)
    ref = "".join(open(f).read() for f in files("ref") if f.endswith(".c"))
    ranks = open("tests/unit/test_comm.c").read()
    golden, everywhere = (
        open("tests/golden/ops.txt").read(),
        open("tests/cuda/test_cuda_ops.py").read(),
    )
    for op in ops:
        assert f"\nref_{op}(const RefCall" in ref, op
        # communication ops are plain additions and copies, which tests/unit/test_comm.c spells out; per-channel keys are covered by what transformers computes
        assert (
            f"case {op} " in golden
            or (op == "kv_quantize_page" and glob.glob("tests/golden/kv/*.int4c.*"))
            or re.search(rf'\(\s*"{op}"', everywhere)
            or f"ref_find(OP_{op})" in ranks
        ), f"{op} has no oracle from another project"
        kernel = [
            t
            for d in ("cpu", "cuda")
            for _, _, names in os.walk(f"templates/{d}")
            for t in names
            if re.sub(r"(_decode|_mixed)?(_sm90|_sm80)?\.cu?\.in$", "", t) == op
        ]
        tests = "".join(
            open(f).read() for f in files("tests/kernels", "tests/cuda") if f.endswith(".py")
        )
        assert not kernel or re.search(rf"[\"']{op}(_decode|_mixed)?[\"']", tests), (
            f"no test runs the kernels of {op}"
        )
    for f in sorted(glob.glob("templates/cpu/*/*.c.in")):
        name = re.sub(r"(_decode|_mixed)?\.c\.in$", "", os.path.basename(f))
        assert name in ops, f"{f} is no op's template"


def test_kernels_let_the_next_one_come_when_they_have_waited():
    """PDL_LAUNCH directly follows PDL_WAIT; templates/cuda/ptx/ptx.h explains why."""
    for path in sorted((ROOT / "templates").rglob("*")):
        if path.suffix in (".h", ".in", ".cu", ".head"):
            lines = path.read_text().splitlines()
            for before, line in zip(lines, lines[1:]):
                if line.strip() == "PDL_LAUNCH();":
                    assert before.strip() == "PDL_WAIT();", path


def test_the_check_of_a_gpu_runs_tests_that_exist():
    sys.path.append(str(ROOT / "tests" / "gpu"))
    import gpu_check

    assert [
        n
        for n in (*gpu_check.KERNELS, "test_conformance.py")
        if not (ROOT / "tests" / "cuda" / n).is_file()
    ] == []
    assert [
        n for n in gpu_check.GOLDEN if not (ROOT / "tests" / "golden" / "models" / n).is_dir()
    ] == []


def committed(path):
    """A file of the last commit; without git history, of the tree."""
    p = subprocess.run(["git", "show", f"HEAD:{path}"], capture_output=True, text=True)
    return p.stdout if p.returncode == 0 else (ROOT / path).read_text()


def test_the_hints_of_sampling_options_are_committed():
    """make writes the file, so the one in the tree is always right."""
    sys.path.insert(0, str(ROOT / "tools"))
    import sampling_options

    rows = sampling_options.read(committed("include/llmc.h"))
    assert len(rows) > 20
    made = committed("bindings/python/llmc/_sampling.py")
    assert made == sampling_options.hints(rows), "run make and commit the file"
