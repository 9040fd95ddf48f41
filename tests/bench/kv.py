"""Cost of KV types: KL divergence from f32 rows, bytes per position, decode at a depth versus f16.

    PYTHONPATH=bindings/python python tests/bench/kv.py model.gguf [--windows 4] [--length 1024] [--depth 8100] [--out FILE.json]

KL: in nats, on the text of Python's help, of the distributions after each token of windows of
`length` tokens. Decode: sessions of all types alternate, a few tokens each, and the fastest token
counts, so that other work on the machine affects all types equally. --kernel TARGET: only the
attention of one decode row, with 9 heads, 3 kv heads of 64, one thread, pages beyond the caches; it
needs no model (-)."""

import argparse
import json
import platform
import pydoc_data.topics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import llmc

TYPES = {
    "f16": {},
    "bf16": {"dtype": "bf16"},
    "int8": {"dtype": "int8"},
    "int8, rotated": {"dtype": "int8", "rotate": "true"},
    "f8": {"dtype": "f8"},
    "int6": {"dtype": "int6"},
    "int6, rotated": {"dtype": "int6", "rotate": "true"},
    "int8 and int4, rotated": {"k": "int8", "v": "int4", "rotate": "true"},
    "int6 and int4, rotated": {"k": "int6", "v": "int4", "rotate": "true"},
    "int4, rotated": {"dtype": "int4", "rotate": "true"},
    "int4": {"dtype": "int4"},
    "int4c and int4, rotated, 32 in f16": {
        "k": "int4c",
        "v": "int4",
        "rotate": "true",
        "window": "32",
    },
    "int4c and int4, rotated, 128 + 32 in f16": {
        "k": "int4c",
        "v": "int4",
        "rotate": "true",
        "window": "128",
        "sinks": "32",
    },
    "int6 and int4, rotated, 128 + 32 in f16": {
        "k": "int6",
        "v": "int4",
        "rotate": "true",
        "window": "128",
        "sinks": "32",
    },
    "int4, rotated, 32 in f16": {"dtype": "int4", "rotate": "true", "window": "32"},
    "int4, rotated, first 32 in f16": {"dtype": "int4", "rotate": "true", "sinks": "32"},
    "int4, rotated, 128 + 32 in f16": {
        "dtype": "int4",
        "rotate": "true",
        "window": "128",
        "sinks": "32",
    },
}


ROOT = Path(__file__).resolve().parents[2]


def kernel(target, names, depth, rounds, heads=9, kv_heads=3, dim=64, layers=30):
    """Return {type: microseconds of attention per layer}."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "kernels")]
    import harness
    import kv_types

    harness.FLAGS[harness.FLAGS.index(harness.LEVEL)] = "-O3"  # flags of the runtime
    args = []
    names = [
        n for n in names if not TYPES[n].keys() & {"window", "sinks"}
    ]  # types that have pages of two kinds
    for n in names:
        k, v = (TYPES[n].get(key, TYPES[n].get("dtype", "f16")) for key in "kv")
        page = 32 * kv_heads * (kv_types.row_bytes(k, dim) + kv_types.row_bytes(v, dim))
        p = dict(
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=dim,
            V_DIM=dim,
            SCALE=0.125,
            SOFTCAP=0.0,
            WINDOW=0,
            ALIBI=0.0,
            MASK="causal",
            KV_K=k,
            KV_V=v,
            KV_ROTATE=int("rotate" in TYPES[n]),
            KV_PAGE_BYTES=page,
        )
        made = harness.expand("attention_decode", target, p)
        args += [
            harness.compiled("attention_decode", target, made["text"])._name,
            made["symbol"],
            str(page),
            str(1 << 20),
        ]
    out = ROOT / "build" / "bench" / "attention"
    out.parent.mkdir(exist_ok=True)
    subprocess.run(
        ["gcc", "-O2", "-I.", "-Itemplates", "tests/bench/attention.c", "-o", out, "-ldl"],
        check=True,
        cwd=ROOT,
    )
    got = subprocess.run(
        [out, str(depth), str(layers), str(rounds), str(heads), str(dim), *args],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return dict(zip(names, map(float, got)))


def open_model(path, kv):
    return llmc.Model(path, set=[f"kv.{k}={v}" for k, v in kv.items()])


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)


def windows(model, length, n):
    ids = model.tokenizer.encode(
        "\n\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    )
    return [list(ids[20000 + i * (len(ids) - 20000 - length) // n :][:length]) for i in range(n)]


def logits(model, text):
    with model.session(context=len(text), chunk=256, n_out=256) as s:
        q = s.seq()
        return np.concatenate(
            [
                log_softmax(np.array(s.forward([(q, part, len(part))])))
                for part in (text[i : i + 256] for i in range(0, len(text), 256))
            ]
        )


def quality(path, texts, names):
    """Return {type: (mean KL, standard error over windows, 99th percentile, share of equal top
    tokens)}."""
    kl, same = {n: [] for n in names}, {n: [] for n in names}
    models = {n: open_model(path, TYPES[n]) for n in names}
    exact = open_model(path, {"dtype": "f32"})
    for text in texts:
        want = logits(exact, text)
        p = np.exp(want)
        for n in names:
            got = logits(models[n], text)
            kl[n].append((p * (want - got)).sum(-1, dtype=np.float64))
            same[n].append((got.argmax(-1) == want.argmax(-1)).mean())
    return {
        n: (
            float(np.mean(kl[n])),
            float(np.std([k.mean() for k in kl[n]]) / max(1, len(texts) - 1) ** 0.5),
            float(np.quantile(np.concatenate(kl[n]), 0.99)),
            float(np.mean(same[n])),
        )
        for n in names
    }


def decode(path, names, depth, tokens, rounds):
    """Return {type: (tokens/s by the fastest token, by the median)}."""
    sessions = []
    for n in names:
        m = open_model(path, TYPES[n])
        s = m.session(context=depth + tokens * rounds + 8)
        q = s.seq()
        for at in range(0, depth, 512):
            s.forward([(q, [100 + at % 997 + i for i in range(min(512, depth - at))], 1)])
        sessions.append((n, m, s, q, []))
    for _ in range(rounds):
        for n, m, s, q, times in sessions:
            for _ in range(tokens):
                t = time.perf_counter()
                s.forward([(q, [100], 1)])
                times.append(time.perf_counter() - t)
    return {n: (1 / min(times), 1 / float(np.median(times))) for n, _, _, _, times in sessions}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("--windows", type=int, default=4)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--depth", type=int, default=8100)
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--types", default=",".join(TYPES), help="KV types, separated by ;")
    p.add_argument(
        "--kernel", metavar="TARGET", help="time only attention kernels: generic, v3 or v4"
    )
    p.add_argument("--out")
    a = p.parse_args()
    names = a.types.split(";") if ";" in a.types or a.types in TYPES else list(TYPES)
    if a.kernel:
        us = kernel(a.kernel, names, a.depth, a.rounds)
        for n in us:
            print(
                f"{n:24} {us[n]:7.1f} us  {us['f16'] / us[n]:.2f} of f16"
                if "f16" in us
                else f"{n:24} {us[n]:7.1f} us",
                flush=True,
            )
        return
    first = open_model(a.model, {})
    print(first.info.get("target"), flush=True)
    got = quality(a.model, windows(first, a.length, a.windows), names) if a.windows else {}
    speed = decode(a.model, names, a.depth, 4, a.rounds) if a.rounds else {}
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in open("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    rows = []
    for n in names:
        m = open_model(a.model, TYPES[n])
        row = dict(type=n, bytes_a_position=m.memory(context=4096)["kv_per_token"])
        if got:
            row |= dict(zip(("kl", "kl_error", "kl_99", "same_first"), got[n]))
        if speed:
            row |= dict(
                tokens_s=speed[n][0],
                tokens_s_median=speed[n][1],
                of_f16=speed[n][0] / speed["f16"][0],
                of_f16_median=speed[n][1] / speed["f16"][1],
            )
        rows.append(row)
        print(
            " ".join(
                f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            ),
            flush=True,
        )
    if a.out:
        with open(a.out, "w") as f:
            json.dump(
                dict(
                    model=a.model.rsplit("/", 1)[-1],
                    machine=cpu,
                    target=first.info.get("target"),
                    length=a.length,
                    windows=a.windows,
                    depth=a.depth,
                    rows=rows,
                ),
                f,
                indent=1,
            )
            f.write("\n")


if __name__ == "__main__":
    main()
