"""llmc eval: perplexity, KL divergence and agreement against numpy, from the logits of both
models."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))
import tiny_model  # noqa: E402
from waiting import HANG  # noqa: E402

TEXT = "It was a bright cold day in April, and the clocks were striking. " * 6
ARGS = ["--arch", "generic", "-t", "2"]


def add_noise(path, rng):
    with open(path, "rb") as f:
        data = bytearray(f.read())
    size = int.from_bytes(data[:8], "little")
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__" and len(t["shape"]) == 2:
            a, e = (8 + size + i for i in t["data_offsets"])
            if t["dtype"] == "BF16":
                v = (np.frombuffer(data[a:e], "<u2").astype("<u4") << 16).view("<f4")
                data[a:e] = (
                    ((v + rng.normal(0, 0.2 * v.std(), v.shape)).astype("<f4").view("<u4") >> 16)
                    .astype("<u2")
                    .tobytes()
                )
            else:
                v = np.frombuffer(data[a:e], {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
                data[a:e] = (v + rng.normal(0, 0.2 * v.std(), v.shape)).astype(v.dtype).tobytes()
    with open(path, "wb") as f:
        f.write(data)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder, and a copy with noise added to its matrices."""
    root = tmp_path_factory.mktemp("eval")
    a = tiny_model.build(root / "a")
    b = str(root / "b")
    shutil.copytree(a, b)
    rng = np.random.default_rng(1)
    for name in os.listdir(b):
        if name.endswith(".safetensors"):
            add_noise(os.path.join(b, name), rng)
    text = root / "text.txt"
    text.write_text(TEXT)
    return a, b, str(text), root


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_figures_are_those_of_the_logits(llmc, models, tmp_path):
    copy, ref, text, _ = models
    window = 40
    ids = llmc.json("tokenize", ref, "--file", text, "--no-special")["ids"]
    r = llmc.json("eval", copy, "--reference", ref, "--text", text, "--window", window, *ARGS)
    n = len(ids) // window
    assert r["windows"] == n > 3 and r["tokens"] == n * (window - 1)
    nll, other, kl, same = [], [], [], []
    for i in range(n):
        tok = ids[i * window : (i + 1) * window]
        logits = []
        for m in (copy, ref):
            llmc(
                "run",
                m,
                "--tokens",
                ",".join(map(str, tok)),
                "-n",
                "1",
                "--logits",
                tmp_path / "l.npy",
                *ARGS,
            )
            logits.append(log_softmax(np.load(tmp_path / "l.npy"))[:-1])
        q, p = logits
        at = np.arange(window - 1), np.array(tok[1:])
        nll.append(-q[at].mean())
        other.append(-p[at].mean())
        kl.append((np.exp(p) * (p - q)).sum(-1))
        same.append((p.argmax(-1) == q.argmax(-1)).mean())
    means = np.array([k.mean() for k in kl])
    half = (
        {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}[n]
        * means.std(ddof=1)
        / n**0.5
    )
    assert r["perplexity"]["mean"] == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)
    assert r["reference_perplexity"]["mean"] == pytest.approx(np.exp(np.mean(other)), rel=1e-5)
    assert r["log_ratio"]["mean"] == pytest.approx(np.mean(nll) - np.mean(other), abs=1e-5)
    assert r["kl"]["mean"] == pytest.approx(means.mean(), rel=1e-4) and means.mean() > 1e-3
    assert r["kl"]["high"] - r["kl"]["mean"] == pytest.approx(half, rel=1e-3)
    assert r["agreement"]["mean"] == pytest.approx(np.mean(same))
    every = np.sort(np.concatenate(kl))
    assert r["kl_99"] == pytest.approx(every[int(0.99 * len(every))], rel=1e-3) and r[
        "kl_max"
    ] == pytest.approx(every[-1], rel=1e-3)


def test_a_model_is_no_distance_from_itself_whatever_the_threads_and_chunks(llmc, models):
    _, ref, text, _ = models
    r = llmc.json("eval", ref, "--reference", ref, "--text", text, "--window", 33, *ARGS)
    assert r["kl_max"] == 0 and r["agreement"]["mean"] == 1 and r["log_ratio"]["mean"] == 0
    alone = llmc.json(
        "eval", ref, "--text", text, "--window", 33, "--arch", "generic", "-t", "1", "--chunk", "7"
    )
    assert alone["perplexity"] == r["perplexity"] and "kl" not in alone
    one = llmc.json("eval", ref, "--text", text, "--window", 33, "--windows", 1, *ARGS)
    assert one["windows"] == 1 and one["perplexity"]["low"] is None


def test_the_text_that_comes_along_and_the_plot(llmc, models, tmp_path):
    copy, ref, _, _ = models
    plot = tmp_path / "kl.svg"
    llmc("eval", copy, "--reference", ref, "--window", 64, "--windows", 3, "--plot", plot, *ARGS)
    assert (
        re.search(r"^KL divergence, nats +\d+\.\d+ +\d", llmc.out, re.M)
        and "3 windows of 64" in llmc.out
    )
    root = xml.etree.ElementTree.parse(plot).getroot()
    assert root.tag.endswith("svg") and any(e.tag.endswith("polyline") for e in root)
    assert "window 3 of 3" not in llmc.err, "progress is for terminals"


def test_mistakes_are_sentences(llmc, models, tmp_path):
    copy, ref, text, root = models
    short = tmp_path / "short.txt"
    short.write_text("hello")
    llmc("eval", ref, "--text", short, *ARGS, code=1)
    assert "fewer than a window" in llmc.err
    llmc("eval", ref, "--plot", tmp_path / "x.svg", code=1)
    assert "--reference" in llmc.err
    llmc("eval", ref, "--window", 1, code=1)
    other = tiny_model.build(root / "other", padding=8)
    llmc("eval", other, "--reference", ref, "--text", text, "--window", 32, *ARGS, code=1)
    assert "must have the model's vocabulary" in llmc.err
    llmc(
        "eval",
        copy,
        "--reference",
        ref,
        "--text",
        text,
        "--window",
        32,
        "--plot",
        tmp_path / "no" / "such.svg",
        *ARGS,
        code=2,
    )
    assert "cannot write" in llmc.err


def test_an_interrupt_ends_it(llmc, models):
    _, ref, _, _ = models
    terminal, errors = pty.openpty()
    p = subprocess.Popen(
        [llmc.path, "eval", ref, "--window", "16", *ARGS], stdout=subprocess.PIPE, stderr=errors
    )
    os.close(errors)
    err = b""
    with contextlib.suppress(OSError):  # the end of a terminal's output
        while part := os.read(terminal, 4096):
            if b"window" not in err and b"window" in err + part:
                p.send_signal(signal.SIGINT)
            err += part
    out, _ = p.communicate(timeout=HANG)
    os.close(terminal)
    assert p.returncode == 130 and b"stopped after" in err and not out
