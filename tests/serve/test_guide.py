"""docs/serving.md says what is so: its examples are run, its options are those of the command."""
import os
import re
import subprocess
import sys

import pytest

GUIDE = open(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "serving.md")).read()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, re.S)
CURL = [b for kind, b in BLOCKS if kind == "sh" and b.startswith("curl")]
PYTHON = [b for kind, b in BLOCKS if kind == "python"]


def fitted(text, server):
    return text.replace("http://127.0.0.1:8000", server.url).replace("MODEL", "tiny")


@pytest.mark.parametrize("i", range(len(CURL)))
def test_curl_examples(tiny, i):
    p = subprocess.run(["sh", "-c", fitted(CURL[i], tiny).replace("curl ", "curl -sS -f -m 20 ")], capture_output=True, text=True)
    assert p.returncode == 0 and p.stdout, p.stderr
    assert '"error' not in p.stdout


@pytest.mark.parametrize("i", range(len(PYTHON)))
def test_python_examples(tiny, i):
    p = subprocess.run([sys.executable, "-c", fitted(PYTHON[i], tiny)], capture_output=True, timeout=300, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert p.returncode == 0 and p.stdout.strip(), p.stderr


def test_every_option_and_route_is_told(llmc_binary):
    text = subprocess.run([llmc_binary, "serve", "--help"], capture_output=True, text=True).stdout
    options = re.findall(r"--([a-z-]+)", text.split("examples:")[0])
    assert len(options) > 40 and [o for o in options if f"`--{o}" not in GUIDE] == []
    told = set(re.findall(r"--([a-z][a-z-]+)", GUIDE))
    assert sorted(told - set(options)) == []
    routes = re.findall(r'ROUTE\("(GET|POST|DELETE)", +"([^"]+)"', open("serve/routes.def").read())
    assert [p for _, p in routes if p not in ("/page/", "/detokenize") and p.rstrip("/") not in GUIDE] == []


def test_the_yaml_example_is_taken(llmc_binary, tiny_folder, tmp_path):
    example = next(b for kind, b in BLOCKS if kind == "yaml" and "model:" in b)
    (tmp_path / "serve.yaml").write_text(example.replace("SmolLM2-135M-Instruct.Q4_1.gguf", "no-such-model.gguf"))
    p = subprocess.run([llmc_binary, "serve", "--config", tmp_path / "serve.yaml"], capture_output=True, text=True)
    assert p.returncode == 1 and "no-such-model.gguf" in p.stderr and "no such setting" not in p.stderr
