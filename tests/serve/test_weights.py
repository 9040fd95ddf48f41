"""Weights replaced in place: POST /v1/weights, and SGLang's name for it. Answers are those of a
server that was started with the new checkpoint.
"""

import os
import pathlib
import shutil
import threading

import numpy as np
import pytest

import quant_format_values as safetensors
import tiny_model

OPTIONS = ("-t", "1", "--seqs", "4", "--context", "128")
# options, and the golden model
KINDS = {
    "generic": (("--arch", "generic"), "llama-smol"),
    "packed": ((), "llama-smol"),
    "quantised": (("--quantize", "q8_0"), "gpt_oss-wide"),
}


def file_of(folder):
    (path,) = pathlib.Path(folder).glob("*.safetensors")
    return path


def rolled(old, new):
    """Copy a checkpoint with the rows of each matrix moved by one: other values, same shapes."""
    shutil.copytree(old, new)
    tensors = safetensors.read(file_of(new)).items()
    moved = {n: (t, np.roll(x, -1, 0) if x.ndim > 1 else x) for n, (t, x) in tensors}
    safetensors.write(file_of(new), moved)
    return new


def checkpoints(root, **kw):
    """A model, and the folder of new weights, which holds step-1 and step-2."""
    a = tiny_model.build(root / "a", **kw)
    rolled(a, root / "run" / "step-1")
    rolled(root / "run" / "step-1", root / "run" / "step-2")
    return a, root / "run"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return checkpoints(tmp_path_factory.mktemp("weights"))


PROMPT = "hello world, a prompt of more than one page of the cache: " + "x" * 40


def ask(s, n=8, **kw):
    body = {"prompt": PROMPT, "max_tokens": n, "temperature": 0, "ignore_eos": True, **kw}
    return s.post("/v1/completions", body)


def all_logprobs(s):
    """Log probabilities of all prompt tokens and of some new ones."""
    r = ask(s, echo=True, logprobs=5)
    assert r.status == 200, r.text
    return r.json()["choices"]


def version(s):
    return s.get("/v1/models").json()["data"][0]["weights"]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_new_server(serve, kind, tmp_path):
    own, base = KINDS[kind]
    a, run = checkpoints(tmp_path / "new", base=base)
    options = (*OPTIONS, *own, "--model-name", "m")
    want = []
    for folder in (a, run / "step-1", run / "step-2"):
        with serve(folder, *options) as s:
            want.append(all_logprobs(s))
    assert want[0] != want[1] != want[2]
    home = tmp_path / "run"
    shutil.copytree(run, home)
    with serve(a, *options, "--weights-dir", home) as s:
        assert version(s) == {"version": 0, "name": None}
        # twice, so that the prompt is in the prefix cache
        assert all_logprobs(s) == all_logprobs(s) == want[0]
        assert ask(s).json()["choices"][0]["text"] == ask(s).json()["choices"][0]["text"]
        r = s.post("/v1/weights", {"path": "step-1", "name": "first"})
        assert r.status == 200 and r.json()["version"] == 1, r.text
        assert version(s) == {"version": 1, "name": "first"}
        shutil.rmtree(home / "step-1")  # the checkpoint was copied
        fresh = ask(s).json()
        assert not (fresh["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
        assert all_logprobs(s) == want[1]
        again = ask(s).json()
        assert again["choices"] == fresh["choices"]
        # a file instead of a folder, by SGLang's names
        path = file_of(home / "step-2")
        r = s.post(
            "/update_weights_from_disk", {"model_path": str(path), "weight_version": "second"}
        )
        assert r.status == 200 and r.json()["success"] is True, r.text
        assert all_logprobs(s) == want[2] and version(s) == {"version": 2, "name": "second"}
        assert s.request("POST", "/reload").status == 200
        assert all_logprobs(s) == want[0] and version(s)["version"] == 0


def test_mistakes_leave_the_old_weights(serve, folders, tmp_path):
    a, run = folders
    path = file_of(run / "step-1")
    tensors = safetensors.read(path)
    home = tmp_path / "run"
    home.mkdir()
    first = next(n for n in tensors if "q_proj" in n)
    less = {n: t for n, t in tensors.items() if n != first}
    safetensors.write(home / "missing.safetensors", less)
    kind, x = tensors[first]
    turned = {**tensors, first: (kind, x.reshape(2 * len(x), -1))}
    safetensors.write(home / "shape.safetensors", turned)
    raw = path.read_bytes()
    (home / "cut.safetensors").write_bytes(raw[: len(raw) // 2])
    (home / "text.safetensors").write_text("no weights")
    os.symlink(path, home / "outside.safetensors")
    keys = tmp_path / "keys"
    keys.write_text("client client-key\n")
    with serve(
        a, *OPTIONS, "--arch=generic", "--weights-dir", home, "--api-key=own", "--keys", keys
    ) as s:

        def post(body, key="own", path="/v1/weights"):
            return s.request("POST", path, body, headers={"Authorization": "Bearer " + key})

        def text():
            r = post({"prompt": "hello", "max_tokens": 8, "temperature": 0}, path="/v1/completions")
            return r.json()["choices"][0]["text"]

        before = text()
        for name, word in (
            ("missing", first),
            ("shape", first),
            ("cut", "cut.safetensors"),
            ("text", "text.safetensors"),
        ):
            r = post({"path": name + ".safetensors"})
            assert r.status == 400, r.text
            message = r.json()["error"]["message"]
            assert word in message and "stay in force" in message, message
            r = post({"model_path": name + ".safetensors"}, path="/update_weights_from_disk")
            assert r.status == 400 and r.json()["success"] is False and word in r.json()["message"]
        for name in ("outside.safetensors", "nothing", "../a", str(path)):
            assert post({"path": name}).status == 404, name
        assert post({"path": "cut.safetensors"}, "client-key").status == 403
        assert post({"path": "cut.safetensors"}, "wrong").status == 401
        for body in (
            {},
            {"path": 5},
            {"path": "cut.safetensors", "in_flight": "keep"},
            {"path": "cut.safetensors", "name": "n" * 200},
        ):
            assert post(body).status == 400, body
        assert post({"path": "cut.safetensors", "model": "other"}).status == 404
        assert text() == before
    with serve(a, *OPTIONS, "--arch=generic") as s:
        r = s.post("/v1/weights", {"path": "x"})
        assert r.status == 403 and "--weights-dir" in r.json()["error"]["message"]


@pytest.mark.parametrize("in_flight", ["wait", "abort"])
def test_an_answer_comes_from_one_version(serve, folders, in_flight):
    a, run = folders
    with serve(a, *OPTIONS, "--arch=generic", "--weights-dir", run) as s:
        want = [ask(s, n=24).json()["choices"][0]["text"]]
        assert s.post("/v1/weights", {"path": "step-1"}).status == 200
        want.append(ask(s, n=24).json()["choices"][0]["text"])
        assert want[0] != want[1] and s.request("POST", "/reload").status == 200
        got, stop = [], threading.Event()

        def client():
            while not stop.is_set():
                got.append(ask(s, n=24))

        clients = [threading.Thread(target=client) for _ in range(6)]
        for t in clients:
            t.start()
        for step in ("step-1", "step-2", "step-1"):
            r = s.post("/v1/weights", {"path": step, "in_flight": in_flight})
            assert r.status == 200, r.text
            if step == "step-2":
                want.append(ask(s, n=24).json()["choices"][0]["text"])
        stop.set()
        for t in clients:
            t.join()
        assert len(got) >= 6
        for r in got:
            if r.status == 200:
                assert r.json()["choices"][0]["text"] in want, r.text
            else:
                assert in_flight == "abort" and r.status == 503, r.text
                assert "new weights" in r.json()["error"]["message"]
        assert any(r.status == 200 for r in got)
        assert ask(s, n=24).json()["choices"][0]["text"] == want[1]


def test_new_weights_are_not_evicted(serve, folders, tmp_path):
    """They are in memory only: they stay when another model needs memory; /sleep gives them up."""
    a, run = folders
    b = tiny_model.build(tmp_path / "b", padding=8)
    options = (*OPTIONS, "--arch=generic", "--weights-dir", run)

    def text(s, name):
        return ask(s, model=name)

    with serve(f"--model=a={a}", "--model", f"b={b}", *options) as s:
        before = text(s, "a").json()["choices"]
        assert text(s, "b").status == 200
        need = max(m["bytes"] for m in s.status()["models"])
    with serve(f"--model=a={a}", "--model", f"b={b}", *options, "--memory", need + 1000) as s:
        assert s.post("/v1/weights", {"path": "step-1", "model": "a"}).status == 200
        after = text(s, "a").json()["choices"]
        r = text(s, "b")
        assert r.status == 503 and r.json()["error"]["code"] == "model_too_large", r.text
        assert text(s, "a").json()["choices"] == after != before
        assert s.request("POST", "/sleep?model=a").status == 200
        assert text(s, "b").status == 200
        assert text(s, "a").json()["choices"] == before
