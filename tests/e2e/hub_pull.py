"""A hub on this machine, for tests of llmc pull"""

import os
import sys

import pytest

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from hub_server import Hub, Repo

GGUF = open("tests/golden/gguf/llama-q4_0.gguf", "rb").read()
BIG = bytes(range(256)) * 4000  # 1 MB, more than the buffers of a socket
SHA = "a" * 40


@pytest.fixture
def hub():
    h = Hub()
    yield h
    h.close()


@pytest.fixture
def env(hub, tmp_path, monkeypatch):
    """Environment of commands: this hub, an empty cache, no settings of the user."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def pull(llmc, name, code=0, **kw):
    """Pull and return (path, files below the snapshot or next to the file)."""
    llmc("pull", name, code=code, **kw)
    return llmc.out.strip()


def files(path):
    top = path if os.path.isdir(path) else path[: path.index(SHA) + len(SHA)]
    return sorted(
        os.path.relpath(os.path.join(d, f), top) for d, _, names in os.walk(top) for f in names
    )


def model(**more):
    """A folder as Hugging Face has them; None removes a file"""
    out = {"config.json": "{}", "model.safetensors": BIG, "tokenizer.json": "{ }", "README.md": "#"}
    out.update(more)
    return Repo({k: v for k, v in out.items() if v is not None})
