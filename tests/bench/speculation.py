"""Decoding with draft tokens and without, in one engine, in alternating pairs: kinds of prompts
alone, and sixteen clients at once.

    PYTHONPATH=bindings/python VENV/bin/python tests/bench/speculation.py MODEL.gguf [--threads 2] [--rounds 5] [--out FILE.json]

A ratio is the median over pairs of the decode time without draft tokens divided by that with them;
the outputs must be equal. BARS are the ratios expected of SmolLM2-135M Q4_1 on two threads; below
one of them the exit status is 1."""

import argparse
import functools
import datetime
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
import llmc  # noqa: E402
from machine import machine, result_file  # noqa: E402

CODE = """class Cart:
    def __init__(self, owner):
        self.owner = owner
        self.items = []

    def add(self, name, price, quantity):
        if quantity < 1:
            raise ValueError("quantity must be at least 1")
        self.items.append({"name": name, "price": price, "quantity": quantity})

    def remove(self, name):
        self.items = [item for item in self.items if item["name"] != name]

    def total(self, tax):
        subtotal = 0
        for item in self.items:
            subtotal += item["price"] * item["quantity"]
        return subtotal * (1 + tax)

    def receipt(self, tax):
        for item in self.items:
            print(item["name"], item["price"], item["quantity"])
        print("Total:", self.total(tax))
"""
ORDERS = """Order 1041: Anna Berg, Oslo, 3 lamps, 120.50. Order 1042: Bert Cohen, Haifa, 1 chair, 89.00. Order 1043: Cara Diaz, Lima, 2 tables, 410.00. Order 1044: Dora
Evans, Cardiff, 5 cups, 25.25. Order 1045: Emil Fischer, Bonn, 1 sofa, 799.99. Order 1046: Fatima Ghali, Cairo, 4 plates, 36.40."""
LETTER = """Dear Sir, i am writting to you becuase the washing mashine that i bougth in your shop last weak does not work. It makes a loud noize and the watter
stays inside. I have called your servise three times, but nobody has anserwed. Please send sombody to repare it or give me my mony back."""
NEWS = """The city council decided on Tuesday to close the old bridge over the river for at least two years. Engineers had found cracks in three of its eight
pillars. Buses will take the northern bridge, and a ferry for pedestrians and bicycles will run every ten minutes from April on. Shop owners on the east bank fear for
their business and demand help from the city. The mayor said that safety came first and that the new bridge would be wider, with lanes for bicycles on both sides."""
TEXTS = {
    "rewriting code": (
        "Write this Python class again with the method total renamed to sum_up. Change nothing else.\n\n```python\n"
        + CODE
        + "```",
        210,
    ),
    "extraction": (
        "Extract the orders of this text as a JSON list with the keys order, name, city, item and price.\n\n"
        + ORDERS,
        240,
    ),
    "correction": ("Correct the spelling of this letter:\n\n" + LETTER, 160),
    "summary": ("Summarise this article:\n\n" + NEWS, 160),
    "new code": (
        "Write a Python class for a stack with push, pop, peek and size, with docstrings and an example of use.",
        240,
    ),
    "story": ("Tell a story about a lighthouse keeper who finds a letter in a bottle.", 240),
    "chat": ("Which vegetables can I plant in March, and what do they need?", 240),
}
BARS = {"rewriting code": 2.8, "extraction": 1.5, "chat": 1.0, "16 clients": 0.98}
CLIENTS = [
    "Why is the sky blue?",
    "Name five rivers of Africa.",
    "What is a prime number?",
    "How do bees find their way?",
    "Explain inflation to a child.",
    "What should I see in Rome?",
    "Give me a recipe for pancakes.",
    "How does a bicycle stay upright?",
]


def chat(model, text):
    return model.tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


def alone(engine, prompt, n, drafts):
    tokens, decode_s = [], 0
    for e in engine.submit(prompt, max_tokens=n, speculate=drafts).events():
        if e.kind == "token":
            tokens.append(e.token)
        else:
            decode_s = e.decode_s
    return tokens, decode_s


def crowd(engine, prompts, n, drafts):
    start = time.perf_counter()
    requests = [
        engine.submit(p, max_tokens=n, speculate=drafts, seed=i, temperature=0.7, ignore_eos=True)
        for i, p in enumerate(prompts)
    ]
    tokens = [[e.token for e in r.events() if e.kind == "token"] for r in requests]
    return tokens, time.perf_counter() - start


def pairs(run, rounds):
    ratios, fast = [], []
    run(0), run(-1)  # learn the cost of steps, and warm the caches
    for i in range(rounds):
        first, second = (run(-1), run(0)) if i % 2 == 0 else (run(0), run(-1))
        off, on = (first, second) if i % 2 == 0 else (second, first)
        assert off[0] == on[0], "the text has changed"
        ratios.append(off[1] / on[1])
        fast.append(on[1])
    return statistics.median(ratios), ratios, statistics.median(fast)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--only")
    a.add_argument("--out")
    a = a.parse_args()
    out = {
        "date": str(datetime.date.today()),
        "machine": machine(),
        "threads": a.threads,
        "model": pathlib.Path(a.model).name,
        "load_before": os.getloadavg()[0],
        "texts": {},
    }
    below = []
    with (
        llmc.open(a.model) as model,
        model.engine(context=1024, seqs=16, kv_tokens=16384, threads=a.threads) as engine,
    ):
        runs = {}
        for name, (text, n) in TEXTS.items():
            runs[name] = functools.partial(alone, engine, chat(model, text), n)
        prompts = [chat(model, CLIENTS[i % len(CLIENTS)]) for i in range(16)]
        runs["16 clients"] = lambda k: crowd(engine, prompts, 96, k)
        for name, run in runs.items():
            if a.only and a.only not in name:
                continue
            before = engine.stats()
            ratio, ratios, seconds = pairs(run, a.rounds)
            after = engine.stats()
            d = {k: after[k] - before[k] for k in ("drafts", "drafted", "accepted", "new_tokens")}
            out["texts"][name] = {
                "ratio": round(ratio, 3),
                "ratios": [round(r, 3) for r in ratios],
                "seconds_with": round(seconds, 4),
                "bar": BARS.get(name),
                "accepted_of_guessed": round(d["accepted"] / max(1, d["drafted"]), 3),
                "guessed_a_draft": round(d["drafted"] / max(1, d["drafts"]), 2),
            }
            print(
                f"{name:16s} {ratio:5.2f}  {out['texts'][name]['ratios']}  accepted {d['accepted']} of {d['drafted']} in {d['drafts']} drafts",
                flush=True,
            )
            if name in BARS and ratio < BARS[name]:
                below.append(name)
    if a.out or not a.only:
        pathlib.Path(a.out or result_file("speculation")).write_text(
            json.dumps(out, indent=1) + "\n"
        )
    if below:
        sys.exit("below the bar: " + ", ".join(below))


if __name__ == "__main__":
    main()
