#!/usr/bin/env python3
"""Sequences per second of CPU time of encoders on one thread: llmc, llama.cpp's llama-embedding,
and torch (transformers), alternating. CPU time also works on a machine that does other work.

    tests/bench/embed_peer.py LLAMA_CPP/bin [--rounds 5] [--models bge-small,bert-base] [--types f32,bf16,q8_0] [--cells 128x1,128x32,512x1,512x32] [--out FILE]

Random weights with the widths of bge-small and BERT base. llmc and torch are timed in this process
around the forward pass of token ids, llmc with the copy of all rows. llama-embedding is a process
per measurement: the CPU time of more steps less that of one. In a cell of several sequences its
result is the faster one of two ways: one step per sequence, and one step for all. Needs torch and
transformers; run with their Python."""

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# without this folder, because transformers looks for a package `kernels` and would find kernels.py
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != HERE]
sys.path[:0] = [os.path.join(ROOT, "bindings", "python"), os.path.join(ROOT, "tests", "golden")]
import weights  # noqa: E402

spec = importlib.util.spec_from_file_location("machine", os.path.join(HERE, "machine.py"))
machine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(machine)

MODELS = {"bge-small": (384, 1536), "bert-base": (768, 3072)}
TORCH = {"f32": "float32", "bf16": "bfloat16", "q8_0": None}
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))


def config(name):
    hidden, width = MODELS[name]
    return dict(
        model_type="bert",
        architectures=["BertModel"],
        vocab_size=30522,
        hidden_size=hidden,
        intermediate_size=width,
        num_hidden_layers=12,
        num_attention_heads=12,
        hidden_act="gelu",
        max_position_embeddings=512,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        pad_token_id=0,
    )


def build(folder, name):
    import torch
    import transformers

    torch.manual_seed(1)
    model = transformers.BertModel(
        transformers.BertConfig(**config(name)), add_pooling_layer=False
    ).eval()
    model.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + [f"w{i}" for i in range(4, 30522)]
    made = weights.bert_tokenizer({w: i for i, w in enumerate(words)}) | dict(
        version="1.0",
        added_tokens=[weights.special_token(i, w) for i, w in enumerate(words[:4])],
        post_processor=dict(type="BertProcessing", sep=["[SEP]", 3], cls=["[CLS]", 2]),
    )
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(made, f)
    os.makedirs(os.path.join(folder, "1_Pooling"))
    with open(os.path.join(folder, "1_Pooling", "config.json"), "w") as f:
        json.dump(dict(pooling_mode_mean_tokens=True), f)
    return model


def texts(length, batch):
    rng = np.random.default_rng(length)
    return rng.integers(4, 30522, (batch, length - 2))


@contextlib.contextmanager
def our_rate(model, ids, batch):
    """Return a function that measures sequences per second of CPU time."""
    n = len(ids[0])
    with model.session(context=n, chunk=n * batch, seqs=batch, threads=1) as s:
        seqs = [s.seq() for _ in ids]

        def run():
            at = time.process_time()
            s.forward([(q, t, n) for q, t in zip(seqs, ids)])
            return batch / (time.process_time() - at)

        run()
        yield run


def torch_rate(model, ids):
    import torch

    with torch.inference_mode():
        at = time.process_time()
        y = model(torch.tensor(ids)).last_hidden_state
        y.mean(1)
        return len(ids) / (time.process_time() - at)


def llama_seconds(tool, gguf, words, batch):
    """Return the CPU time of a process that embeds these strings, `batch` per step."""
    size = str((words.shape[1] + 2) * batch)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write("\n".join(" ".join(f"w{i}" for i in t) for t in words))
        f.flush()
        command = [tool, "-m", gguf, "-f", f.name, "-c", size, "-b", size, "-ub", size]
        command += ["-np", str(max(batch, 2)), "-t", "1", "--pooling", "mean", "-lv", "4"]
        with tempfile.TemporaryFile() as out:
            p = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(p.pid, 0)
            p.returncode = status
            out.seek(0)
            text = out.read().decode(errors="replace")
    steps = re.findall(r"batch_decode: n_tokens = (\d+), n_seq = (\d+)", text)
    done = sum(int(n) for _, n in steps)
    if status or done != len(words):
        sys.exit(f"llama-embedding: {status}, {done} of {len(words)} strings\n{text[-2000:]}")
    return usage.ru_utime


def llama_rate(tool, gguf, words, batch):
    """Return the sequences per second of CPU time, with `batch` sequences per step."""
    more = 4 if batch == 1 else 1
    one = llama_seconds(tool, gguf, words[:1].repeat(2 * batch, 0), batch)
    many = llama_seconds(tool, gguf, words[:1].repeat((2 + 2 * more) * batch, 0), batch)
    return 2 * more * batch / (many - one)


def summary(values):
    return dict(
        median=round(statistics.median(values), 3),
        low=round(min(values), 3),
        high=round(max(values), 3),
    )


def compare(model, net, tool, gguf, length, batch, rounds):
    """Rates of the three programs in one cell, alternating, and ratios of their medians."""
    words = texts(length, batch)
    ids = [[2, *map(int, w), 3] for w in words]
    got = {"llmc": [], "llama.cpp": [], "torch": []}
    both = {1: [], batch: []}
    with our_rate(model, ids, batch) as rate:
        for _ in range(rounds):
            got["llmc"].append(rate())
            for size in both:
                both[size].append(llama_rate(tool, gguf, words, size))
            got["llmc"].append(rate())
            if net:
                got["torch"].append(torch_rate(net, ids))
    got["llama.cpp"] = max(both.values(), key=statistics.median)
    out = {k: summary(v) for k, v in got.items() if v}
    for peer in "llama.cpp", "torch":
        if got[peer]:
            out["ratio " + peer] = round(out["llmc"]["median"] / out[peer]["median"], 3)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("llama_cpp")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--models", default="bge-small,bert-base")
    ap.add_argument("--types", default="f32,bf16,q8_0")
    ap.add_argument("--cells", default="128x1,128x32,512x1,512x32")
    ap.add_argument("--out", default=str(machine.result_file("embed")))
    a = ap.parse_args()
    import torch
    import transformers

    import llmc

    torch.set_num_threads(1)
    tool = os.path.join(a.llama_cpp, "llama-embedding")
    cells = [tuple(map(int, c.split("x"))) for c in a.cells.split(",")]
    rows = []
    result = dict(
        machine=machine.machine(),
        date=datetime.date.today().isoformat(),
        command=" ".join(["tests/bench/embed_peer.py", *sys.argv[1:]]),
        torch=torch.__version__,
        transformers=transformers.__version__,
        rows=rows,
    )
    for name in a.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            theirs = build(folder, name)
            for kind in a.types.split(","):
                gguf = os.path.join(folder, f"{kind}.gguf")
                subprocess.run(
                    [LLMC, "quantize", folder, gguf, "--type", kind, "--method", "nearest", "-q"],
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
                net = TORCH[kind] and theirs.to(getattr(torch, TORCH[kind]))
                with llmc.Model(gguf) as model:
                    for length, batch in cells:
                        row = dict(model=name, type=kind, tokens=length, batch=batch)
                        row |= compare(model, net, tool, gguf, length, batch, a.rounds)
                        rows.append(row)
                        print(json.dumps(row), flush=True)
                        with open(a.out, "w") as f:
                            json.dump(result, f, indent=1)
                            f.write("\n")


if __name__ == "__main__":
    main()
