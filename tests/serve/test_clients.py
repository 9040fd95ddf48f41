"""LangChain, instructor, pydantic-ai, LlamaIndex, LiteLLM and OpenAI's agents, unmodified
(clients.py). They are many packages, so only `make check-all` installs and runs them.
"""

import os
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


def environment(name):
    return subprocess.run(
        [os.path.join(HERE, "..", "..", "tools", "venv.sh"), name],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


@pytest.mark.parametrize(
    "name", ["langchain", "instructor", "pydantic_ai", "llama_index", "litellm", "openai_agents"]
)
def test_a_library_on_top(smol, name):
    if "LLMC_CHECK_ALL" not in os.environ:
        pytest.skip("make check-all runs these")
    python = os.path.join(
        environment("llamaindex" if name == "llama_index" else "clients"), "bin", "python"
    )
    r = subprocess.run(
        [python, os.path.join(HERE, "clients.py"), smol.url, "smollm2", name],
        capture_output=True,
        text=True,
    )
    assert r.returncode == 0, r.stdout + r.stderr
