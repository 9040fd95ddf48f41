"""The sampling advice of a model is the default of run --chat, chat and serve. The files are
written here; the fields that count are those that vLLM takes from generation_config.json, and
typical_p."""

import json
import os
import re
import subprocess
import sys

import pytest
import tiny_model

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
from test_import import GGUF_KEYS, gguf, gguf_tensors  # noqa: E402

ADVICE = {
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "top_k": 20,
    "repetition_penalty": 1.1,
    "eos_token_id": 2,
    "transformers_version": "4.40.0",
}
USED = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    folder = tiny_model.build(tmp_path_factory.mktemp("advised") / "tiny")
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(ADVICE, f)
    return folder


WANT = {k: ADVICE[k] for k in USED if k in ADVICE}


def line(values):
    return ", ".join(f"{k} {v:g}" for k, v in values.items())


def llmc(binary, *args, **more):
    return subprocess.run(
        [binary, *map(str, args)], capture_output=True, text=True, check=True, **more
    )


RUN = ("--arch", "generic", "-t", "1", "-n", "12")


def test_run_and_chat_take_the_advice(advised, llmc_binary):
    want = WANT
    run = ("run", advised, "--prompt", "hello", "--chat", "--ignore-eos", "--seed", "3", *RUN)
    a = llmc(llmc_binary, *run)
    assert (
        f"llmc: sampling as the model advises (generation_config.json): {line(want)}\n" in a.stderr
    )
    spelled = [x for k, v in want.items() for x in ("--" + k.replace("_", "-"), v)]
    assert a.stdout == llmc(llmc_binary, *run, "--sampling", "neutral", *spelled).stdout
    greedy = llmc(llmc_binary, *run, "--sampling", "neutral")
    assert greedy.stdout != a.stdout and "advises" not in greedy.stderr
    # options that were given stay, also those with the value of a default
    b = llmc(llmc_binary, *run, "--temperature", "0", "--repetition-penalty", "1")
    assert b.stdout == greedy.stdout and "temperature" not in b.stderr
    # without --chat the prompt is continued greedily, unless --sampling model is given
    plain = [x for x in run if x != "--chat"]
    assert "advises" not in llmc(llmc_binary, *plain).stderr
    assert "advises" in llmc(llmc_binary, *plain, "--sampling", "model").stderr
    chat = ("chat", advised, "--ignore-eos", *RUN)
    c = llmc(llmc_binary, *chat, "--seed", "3", input="hello\n")
    assert line(want) in c.stderr and c.stdout.strip("> \n") == a.stdout.strip()
    quiet = llmc(llmc_binary, *chat, "--quiet", input="hello\n")
    assert quiet.stderr == ""


def test_a_chat_has_a_fresh_seed_that_can_be_repeated(advised, llmc_binary):
    chat = ("chat", advised, "--ignore-eos", "--temperature", "5", *RUN)
    a, b = (llmc(llmc_binary, *chat, input="hello\n") for _ in range(2))
    seeds = [re.search(r"; seed (\d+)$", x.stderr, re.M)[1] for x in (a, b)]
    assert seeds[0] != seeds[1] and a.stdout != b.stdout
    assert llmc(llmc_binary, *chat, "--seed", seeds[0], input="hello\n").stdout == a.stdout


@pytest.mark.parametrize(
    "config, want",
    [
        ({"do_sample": True}, "temperature 1"),
        ({"do_sample": True, "top_p": 0.8}, "temperature 1, top_p 0.8"),
        ({"temperature": 0.7, "max_length": 20}, "temperature 0.7"),
        ({"do_sample": False, "temperature": 0.7}, None),
        ({"eos_token_id": 2}, None),
        ({"do_sample": True, "temperature": "hot", "top_k": 7}, "temperature 1, top_k 7"),
        ({"top_p": 1.5, "min_p": 0.05}, "min_p 0.05"),
        ({"repetition_penalty": 0, "top_k": 7}, "top_k 7"),
        ({"repetition_penalty": 1e-60, "top_k": 7}, "top_k 7"),  # 0 as a float
    ],
)
def test_what_counts_as_advice(config, want, llmc_binary, tmp_path):
    folder = tiny_model.build(tmp_path / "tiny")
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(config, f)
    p = llmc(llmc_binary, "run", folder, "--prompt", "a", "--sampling", "model", *RUN)
    got = re.search(r"advises \(generation_config.json\): (.*)", p.stderr)
    assert (got[1] if got else None) == want


def test_the_advice_of_a_gguf(llmc_binary, tmp_path):
    keys = {
        "temp": (0.7, "temperature"),
        "top_k": (20, "top_k"),
        "top_p": (0.8, "top_p"),
        "min_p": (0.05, "min_p"),
        "penalty_repeat": (1.05, "repetition_penalty"),
        "penalty_last_n": (64, "repeat_last_n"),
        "xtc_probability": (0.5, "xtc_probability"),
        "xtc_threshold": (0.2, "xtc_threshold"),
        "mirostat": (2, "mirostat"),
        "mirostat_tau": (4.5, "mirostat_tau"),
        "mirostat_eta": (0.2, "mirostat_eta"),
    }
    path = gguf(
        tmp_path / "m.gguf",
        GGUF_KEYS | {f"general.sampling.{k}": v for k, (v, _) in keys.items()},
        gguf_tensors(),
    )
    run = ("run", path, "--tokens", "1,2,3", *RUN)
    p = llmc(llmc_binary, *run, "--sampling", "model")
    (text,) = re.findall(r"advises \(GGUF\): (.*)", p.stderr)
    assert dict(x.rsplit(" ", 1) for x in text.split(", ")) == {
        k: f"{v:g}" for v, k in keys.values()
    }
    assert "advises" not in llmc(llmc_binary, *run).stderr


def test_a_server_fills_in_what_a_request_omits(serve, advised):
    want = WANT
    ask = {"prompt": "hello", "max_tokens": 12, "seed": 5, "ignore_eos": True}
    messages = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12}
    options = {"seed": 5, "num_predict": 12}

    def text(s, **fields):
        return s.post("/v1/completions", {**ask, **fields}).json()["choices"][0]["text"]

    def ollama(s, **more):
        body = {"prompt": "hello", "raw": True, "stream": False, "options": options | more}
        return s.post("/api/generate", body).json()["response"]

    with serve(advised, *RUN[:4], "--seqs", "2") as s:
        assert text(s) == text(s, **want)
        assert text(s) != text(s, temperature=0, repetition_penalty=1)
        assert text(s, temperature=0) == text(s, **(want | {"temperature": 0}))
        assert ollama(s) == ollama(
            s,
            repeat_last_n=64,
            repeat_penalty=want["repetition_penalty"],
            **{k: want[k] for k in USED[:3]},
        )
        r = s.post("/v1/responses", {"input": "hello", "max_output_tokens": 4}).json()
        got = (r["temperature"], r["top_p"])
        assert got == pytest.approx((want["temperature"], want["top_p"]))
        assert s.post("/v1/messages", {**messages, "model": "tiny"}).status == 200
        props = s.get("/props").json()["default_generation_settings"]["params"]
        shown = [props[k] for k in (*USED[:3], "repeat_penalty")]
        assert shown == pytest.approx([want[k] for k in (*USED[:3], "repetition_penalty")])
        advised_text = text(s)
    with serve(advised, *RUN[:4], "--seqs", "2", "--sampling", "neutral") as s:
        assert text(s) == text(s, temperature=1, top_p=1, top_k=0, repetition_penalty=1)
        assert text(s) != advised_text and text(s, **want) == advised_text
        assert ollama(s) == ollama(s, temperature=0.8, top_k=40, top_p=0.9, repeat_last_n=64)
        r = s.post("/v1/responses", {"input": "hello", "max_output_tokens": 4}).json()
        assert (r["temperature"], r["top_p"]) == (1, 1)


def test_a_wrong_word_is_refused(advised, llmc_binary):
    for c in ("run", "chat", "serve"):
        p = subprocess.run(
            [llmc_binary, c, advised, "--sampling", "mine"], capture_output=True, text=True
        )
        assert p.returncode == 1 and "--sampling mine: expected model or neutral" in p.stderr
