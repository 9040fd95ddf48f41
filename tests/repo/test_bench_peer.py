"""Which llama.cpp `make bench-peer` compares with: the newest source of the index, in the best build that runs."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "bench"))
import peer  # noqa: E402


@pytest.fixture
def index(monkeypatch, tmp_path):
    for v in ("0.3.9", "0.3.16", "0.10.2"):
        (tmp_path / "peer" / f"llama_cpp_python-{v}" / "vendor" / "llama.cpp").mkdir(parents=True)
    monkeypatch.setattr(peer, "CACHE", str(tmp_path))
    monkeypatch.setattr(peer, "sdists", lambda: {v: "" for v in ("0.3.16", "0.10.2", "0.3.9")})
    monkeypatch.setattr(peer, "builds", lambda isa: [("native", []), ("avx512, no amx", []), ("avx2", [])])
    monkeypatch.setattr(peer, "build_one", lambda src, out, name, flags: None)
    return tmp_path


def test_the_newest_version_is_taken(index, monkeypatch):
    monkeypatch.setattr(peer, "trial", lambda bin, model, threads: None)
    bin, about = peer.build_peer("best", "model", 2)
    assert about == {"version": "llama.cpp of llama-cpp-python 0.10.2", "build": "native", "builds_that_died": {}}
    assert "0.10.2-native" in bin
    assert peer.build_peer("best", "model", 2, "0.3.16")[1]["version"].endswith("0.3.16")


def test_without_an_index_the_newest_that_is_here(index, monkeypatch):
    def none():
        raise OSError("no network")
    monkeypatch.setattr(peer, "sdists", none)
    monkeypatch.setattr(peer, "trial", lambda bin, model, threads: None)
    assert peer.build_peer("v3", "model", 2)[1]["version"].endswith("0.10.2")


def test_a_build_that_dies_is_named_and_the_next_one_taken(index, monkeypatch):
    bin = index / "peer" / "0.10.2-native" / "bin"
    bin.mkdir(parents=True)
    for name in ("llama-bench", "llama-batched-bench"):
        (bin / name).write_text("#!/bin/sh\nkill -SEGV $$\n")
        (bin / name).chmod(0o755)
        other = index / "peer" / "0.10.2-avx512-no-amx" / "bin"
        other.mkdir(parents=True, exist_ok=True)
        (other / name).write_text("#!/bin/sh\nexit 0\n")
        (other / name).chmod(0o755)
    got, about = peer.build_peer("best", "model", 2)
    assert got == str(other)
    assert about["build"] == "avx512, no amx" and about["builds_that_died"] == {"native": "llama-bench ends with SIGSEGV"}
