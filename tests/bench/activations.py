"""Measure the KL divergence that types of activations cause, in nats.

    PYTHONPATH=bindings/python python tests/bench/activations.py MODEL cpu cpu:i8 cuda cuda:i8 [--windows 1] [--length 512] [--set KEY=VALUE]

Each case is a device and a value of `activations`; the first one is the reference. Prompts are windows
of Python's help, in one step each. Without a GPU: LLMC_CUDA_LIBDIR=build/emu LLMC_EMU_GPU=sm_86, some
minutes per window of a small model."""

import argparse
import platform

import numpy as np

import llmc
from kv import log_softmax, windows


def logits(path, case, keys, texts):
    device, _, activations = case.partition(":")
    keys = keys + [f"activations={activations}"] * bool(activations)
    model = llmc.Model(path, device=device, set=keys)
    out = []
    for text in texts(model):
        with model.session(context=len(text), chunk=len(text), n_out=len(text)) as s:
            q = s.seq()
            out.append(log_softmax(np.array(s.forward([(q, text, len(text))]))))
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("cases", nargs="+", help="DEVICE or DEVICE:ACTIVATIONS")
    ap.add_argument("--windows", type=int, default=1)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--set", action="append", default=[])
    a = ap.parse_args()

    def texts(model):
        return windows(model, a.length, a.windows)

    want = np.concatenate(logits(a.model, a.cases[0], a.set, texts))
    print(
        f"{platform.processor()}, {a.windows} x {a.length} tokens of {a.model} {a.set}", flush=True
    )
    for case in a.cases[1:]:
        got = np.concatenate(logits(a.model, case, a.set, texts))
        kl = (np.exp(want) * (want - got)).sum(-1, dtype=np.float64)
        same = (want.argmax(-1) == got.argmax(-1)).mean()
        print(
            f"{case:12} KL {kl.mean():.6f}, 99 % of tokens below {np.quantile(kl, 0.99):.5f}, "
            f"same first choice {100 * same:.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
