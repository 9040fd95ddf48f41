"""SIGKILL at random moments while files are written: packed weights, prefix pages, a quantised
model, an artifact, the journal of a batch, a download. The next run finds no half-written file: it gives the
same result as a run without a kill.

LLMC_KILLS sets the number of kills per test.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import tiny_model
from test_batches import ended, line, lines_of, start
from waiting import HANG

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from hub_server import Hub, Repo

KILLS = int(os.environ.get("LLMC_KILLS", 200 if os.environ.get("LLMC_CHECK_ALL") else 4))
RUN = ("--tokens", "1,5,9,7", "-n", "4", "--ignore-eos", "--temperature", "0", "-t", "1", "--json")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("kills") / "tiny", context=1024)


def command(binary, args, **env):
    return subprocess.Popen(
        [binary, *map(str, args)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def whole(binary, args, **env):
    """Run to the end; returns output and duration."""
    before = time.monotonic()
    p = command(binary, args, **env)
    out, err = p.communicate(timeout=HANG)
    assert p.returncode == 0, err
    return out, time.monotonic() - before


def killed(binary, args, seconds, pick, **env):
    """Run and kill after a random time below `seconds`."""
    p = command(binary, args, **env)
    time.sleep(pick.uniform(0, seconds))
    os.killpg(p.pid, signal.SIGKILL)
    p.communicate(timeout=HANG)


def tree(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and ".tmp." not in p.name
    }


def test_packed_weights(llmc_binary, model, tmp_path):
    """The kernels are built before, so that most kills are in the packing and its cache."""
    pick = random.Random(1)
    cache = tmp_path / "cache"
    args = ["run", model, *RUN, "--arch", "generic"]
    want = json.loads(whole(llmc_binary, args, LLMC_CACHE=str(cache))[0])["tokens"]
    packed = [*args, "--cache-packed"]
    _, seconds = whole(llmc_binary, packed, LLMC_CACHE=str(tmp_path / "other"))
    for _ in range(KILLS):
        for f in (cache / "weights").rglob("packed"):
            f.unlink()
        killed(llmc_binary, packed, min(seconds, 0.5), pick, LLMC_CACHE=str(cache))
        out, _ = whole(llmc_binary, packed, LLMC_CACHE=str(cache))
        assert json.loads(out)["tokens"] == want
    # a killed process leaves a file as large as the weights, which the next one deletes
    (cache / "weights/another-model").mkdir()
    (cache / "weights/another-model/packed.tmp.1.abcdef").write_bytes(b"x")
    for f in (cache / "weights").rglob("packed"):
        f.with_name("packed.tmp.1.abcdef").write_bytes(b"x")
        f.unlink()
    whole(llmc_binary, packed, LLMC_CACHE=str(cache))
    assert not list((cache / "weights").rglob("packed.tmp.*"))


def test_an_artifact(llmc_binary, model, tmp_path):
    pick = random.Random(2)
    args = ["compile", model, "--arch", "generic,v3", "-q", "-o"]
    _, seconds = whole(llmc_binary, [*args, tmp_path / "whole"])
    want = tree(tmp_path / "whole")
    for i in range(KILLS):
        out = tmp_path / f"out{i}"
        killed(llmc_binary, [*args, out], seconds, pick)
        half = tree(out) if out.exists() else {}
        assert half.items() <= want.items(), "a half-written file has the name of a whole one"
        for plan in out.glob("plan-*.json"):
            files = {k["file"] for k in json.loads(plan.read_text())["kernel"]}
            assert files <= half.keys(), "a plan without its kernels"
        whole(llmc_binary, [*args, out])
        assert tree(out) == want


def test_a_quantised_model(llmc_binary, model, tmp_path):
    pick = random.Random(3)
    args = ["quantize", model, "-t", "1", "-q", "--method", "nearest", "--type", "q8_0"]

    def to(out):
        return [*args[:2], out, *args[2:]]

    _, seconds = whole(llmc_binary, to(tmp_path / "whole.gguf"))
    want = (tmp_path / "whole.gguf").read_bytes()
    for i in range(KILLS):
        out = tmp_path / f"out{i}.gguf"
        killed(llmc_binary, to(out), seconds, pick)
        if out.exists():
            assert out.read_bytes() == want
            out.unlink()  # it is not overwritten
        whole(llmc_binary, to(out))
        assert out.read_bytes() == want


def test_prefix_pages(serve, model, tmp_path):
    """Answers after a kill are those of a server without pages on disk."""
    pick = random.Random(4)
    options = ("--arch", "generic", "-t", "1", "--context", "1024", "--model-name", "tiny")
    prompts = [" ".join(pick.choice("abcdefgh") for _ in range(120)) for _ in range(6)]

    def answer(s, prompt):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        r = s.post("/v1/completions", body)
        assert r.status == 200, r.text
        return r.json()["choices"][0]["text"]

    with serve(model, *options) as s:
        want = {p: answer(s, p) for p in prompts}
        assert s.stop()[0] == 0
    for _ in range(KILLS):
        with serve(model, *options, "--prefix-dir", tmp_path / "pages") as s:
            for p in pick.sample(prompts, pick.randrange(1, 4)):
                assert answer(s, p) == want[p]
            time.sleep(pick.uniform(0, 0.05))
            s.process.kill()
            s.process.wait()
    with serve(model, *options, "--prefix-dir", tmp_path / "pages") as s:
        assert {p: answer(s, p) for p in prompts} == want
        assert "damaged" not in open(s.log).read()
        assert s.stop()[0] == 0


def test_the_journal_of_a_batch(fake, tmp_path):
    """Each line has one answer, however often the server was killed."""
    pick = random.Random(5)
    store, names = tmp_path / "store", [str(i) for i in range(40)]
    with fake(step_ms=1, batch_dir=store) as s:
        batch = start(s, [line(n, max_tokens=20) for n in names])
        s.process.kill()
        s.process.wait()
    for _ in range(KILLS):
        with fake(step_ms=1, batch_dir=store) as s:
            time.sleep(pick.uniform(0, 0.15))
            s.process.kill()
            s.process.wait()
    with fake(step_ms=0, batch_dir=store) as s:
        last = ended(s, batch)
        assert last["status"] == "completed", last
        assert last["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        lines = lines_of(s, last["output_file_id"])
        assert sorted(x["custom_id"] for x in lines) == sorted(names)
        assert all(x["response"]["status_code"] == 200 for x in lines)
        assert s.stop()[0] == 0


def test_a_download(llmc_binary, tmp_path):
    """A file that has its name is whole; the next pull resumes and leaves no other file."""
    pick = random.Random(6)
    repo = Repo({"config.json": "{}", "model.safetensors": pick.randbytes(3 << 20)})
    hub = Hub()
    hub.repos["org/m"] = repo
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": ""}
    args = ("pull", "hf:org/m")
    cache = tmp_path / "hf" / "hub"

    def named():
        return {f.name: f.read_bytes() for f in cache.glob("models--*/snapshots/*/*")}

    try:
        _, seconds = whole(llmc_binary, args, **env)
        want = tree(cache)
        for _ in range(KILLS):
            whole(llmc_binary, ("rm", "hf:org/m"), **env)
            killed(llmc_binary, args, seconds, pick, **env)
            assert named().items() <= repo.files.items(), "half a file has the name of a whole one"
            whole(llmc_binary, args, **env)
            assert named() == repo.files and tree(cache) == want
    finally:
        hub.close()
