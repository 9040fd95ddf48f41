"""LangChain, instructor, pydantic-ai, LiteLLM and OpenAI's agents, unmodified (clients.py). They are many packages, so `make check-all` alone installs and runs them."""
import os
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="module")
def python():
    if "LLMC_CHECK_ALL" not in os.environ:
        pytest.skip("make check-all runs these")
    venv = subprocess.run([os.path.join(HERE, "..", "..", "tools", "venv.sh"), "clients"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return os.path.join(venv, "bin", "python")


@pytest.mark.parametrize("name", ["langchain", "instructor", "pydantic_ai", "litellm", "openai_agents"])
def test_a_library_on_top(smol, python, name):
    r = subprocess.run([python, os.path.join(HERE, "clients.py"), smol.url, "smollm2", name], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr
