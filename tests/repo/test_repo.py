"""Promises about the repository itself."""
import os
import re
import subprocess

FAMILY = re.compile(r"llama|qwen|mistral|gemma|deepseek|glm|bloom|baichuan", re.I)
# values of file formats: the rope type of config.json and GGUF, tokenizer model names of GGUF
ALLOWED = re.compile(r'"llama3"|SCALE_LLAMA3|"llama"|\bllama3\b|llama-bpe|"tokenizer\.ggml|llama\.cpp|llama-gguf-split|gpt2, llama and t5')


def files(*patterns):
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], capture_output=True, text=True).stdout.split()
    if not out:  # an exported tree without its history
        for top in ("api", "compiler", "runtime", "ref", "docs", "cli"):
            out += [os.path.join(d, f) for d, _, fs in os.walk(top) for f in fs]
    return [f for f in out if os.path.exists(f)]


def test_no_c_code_names_a_family():
    bad = []
    for path in files("api", "compiler", "runtime", "ref"):
        if not path.endswith((".c", ".h", ".def")):
            continue
        for n, line in enumerate(open(path), 1):
            if FAMILY.search(ALLOWED.sub("", line)):
                bad.append(f"{path}:{n}: {line.strip()}")
    assert not bad, "\n".join(bad)


def test_the_command_line_uses_the_public_header_only():
    for path in files("cli"):
        if path.endswith((".c", ".h")):
            for inc in re.findall(r'#include "([^"]+)"', open(path).read()):
                assert inc == "llmc.h" or inc.startswith("cli/"), (path, inc)


def test_the_library_never_prints_or_exits():
    call = re.compile(r"\b(printf|puts|putchar|perror|exit|_exit|abort|assert|signal|setlocale|atexit)\s*\(")
    bad = []
    for path in files("api", "base", "formats", "compiler", "runtime", "ref"):
        if path.endswith(".c"):
            text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), open(path).read(), flags=re.S)
            for n, line in enumerate(text.split("\n"), 1):
                if call.search(re.sub(r'"(\\.|[^"\\])*"', '""', line)):
                    bad.append(f"{path}:{n}: {line.strip()}")
    assert not bad, "\n".join(bad)


def test_links_in_documents_lead_somewhere():
    for path in files("*.md", "docs/*.md"):
        if path.endswith(".md"):
            for link in re.findall(r"\]\(([^)#:\s]+)\)", open(path).read()):
                assert os.path.exists(os.path.join(os.path.dirname(path), link)), (path, link)


def test_every_op_has_its_reference_and_its_line():
    ops = re.findall(r"^OP\((\w+),", open("compiler/ops.def").read(), re.M)
    ref = "".join(open(f).read() for f in files("ref") if f.endswith((".c", ".h")))
    tests = "".join(open(f).read() for f in files("tests") if f.endswith((".c", ".py")))
    for op in ops:
        assert re.search(rf"\bref_{op}\b|OP\(", ref), op
        assert re.search(rf"\b{op}\b", tests), f"no test speaks of {op}"
    for f in os.listdir("templates/cpu"):
        name = re.sub(r"(_decode|_mixed)?\.c\.in$", "", f)
        assert name in ops, f"{f} is no op's template"
