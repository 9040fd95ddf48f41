"""Selection of the llama.cpp that `make bench-peer` compares with: the newest source in the index, and the fastest build and flags that run."""

import json
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
    monkeypatch.setattr(
        peer, "builds", lambda isa: [("native", []), ("avx512, no amx", []), ("avx2", [])]
    )
    monkeypatch.setattr(peer, "build_one", lambda src, out, name, flags: None)
    return tmp_path


def test_the_newest_version_is_taken(index):
    builds, about = peer.build_peers("best")
    assert about == {
        "version": "llama.cpp of llama-cpp-python 0.10.2",
        "builds": ["native", "avx512, no amx"],
        "builds_that_died": {},
    }
    assert "0.10.2-native" in builds[0][1]
    assert peer.build_peers("best", "0.3.16")[1]["version"].endswith("0.3.16")


def test_without_an_index_the_newest_that_is_here(index, monkeypatch):
    def none():
        raise OSError("no network")

    monkeypatch.setattr(peer, "sdists", none)
    assert peer.build_peers("v3")[1]["version"].endswith("0.10.2")


def test_avx2_is_built_where_nothing_wider_builds(index, monkeypatch):
    monkeypatch.setattr(
        peer,
        "build_one",
        lambda src, out, name, flags: None if name == "avx2" else "does not build",
    )
    builds, about = peer.build_peers("best")
    assert [n for n, _ in builds] == ["avx2"] and set(about["builds_that_died"]) == {
        "native",
        "avx512, no amx",
    }


def program(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + text)
    (folder / name).chmod(0o755)


def answer(tps):
    return json.dumps([{"n_prompt": 0, "n_gen": 4, "n_depth": 0, "samples_ts": [tps]}])


def test_what_dies_is_named_and_the_fastest_of_the_rest_runs_on(tmp_path):
    log = tmp_path / "log"
    program(tmp_path / "a", "llama-bench", "kill -SEGV $$\n")
    # with repacking it crashes; without, flash attention is faster
    program(
        tmp_path / "b",
        "llama-bench",
        f"echo $* >> {log}\ncase \"$*\" in\n*'--repack 1'*) exit 3 ;;\n*'-fa 1'*) echo '{answer(30)}' ;;\n*) echo '{answer(20)}' ;;\nesac\n",
    )
    program(tmp_path / "c", "llama-bench", f"echo $* >> {log}\necho '{answer(25)}'\n")
    peers = [(n, str(tmp_path / n)) for n in "abc"]
    t = peer.Test("tg4", n=4)
    case = peer.Case("m", "Q4_0", lambda: "m", [t], [peer.I16])
    assert peer.measure_peer(case, "m", [t], peers, 1) == {"tg4": 30}
    assert case.rows["tg4"]["best"] == ("b", True)
    assert case.died == {
        ("a", True): "llama-bench ends with SIGSEGV",
        ("a", False): "llama-bench ends with SIGSEGV",
        ("b", True): "llama-bench ends with status 3",
    }
    log.write_text("")
    assert peer.measure_peer(case, "m", [t], peers, 1) == {"tg4": 30}
    assert len(log.read_text().splitlines()) == 1 and "-fa 1 --repack 0" in log.read_text()
