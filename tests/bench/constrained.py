#!/usr/bin/env python3
"""Measure the cost of grammars to a server: clients with and without a schema, alternating on one
server; output tokens/s and CPU seconds per token.

    tests/bench/constrained.py [--rounds 5] [--clients 16] [--tokens 128] [--write]

Three loads with the same number of tokens: `free` has no constraint, `schema` one that all clients
share, `new` another schema per request, so that no masks are cached. The schemas require more items
than there are tokens, so no output ends early. Speculation is off. --write:
tests/bench/results/constrained-<cpu>.json, with medians over rounds, and of the ratios to `free` in
the same round."""

import argparse
import datetime
import json
import os
import statistics
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer  # noqa: E402
from machine import machine, result_file  # noqa: E402
from serve_peer import Server  # noqa: E402


def schema(tag):
    """Records with strings of bounded and unbounded length, numbers, an enum, an optional
    member."""
    record = {
        "type": "object",
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
        "properties": {
            f"name{tag}": {"type": "string", "maxLength": 20},
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "kind": {"enum": ["person", "place", f"thing{tag}"]},
            "tags": {
                "type": "array",
                "items": {"type": "string", "pattern": "^[a-z]{2,8}$"},
                "maxItems": 3,
            },
        },
    }
    return {"type": "array", "items": record, "minItems": 1000}


def send_request(url, body):
    r = urllib.request.Request(
        url + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(r, timeout=600) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def load(server, kind, clients, tokens, round_):
    """Return (tokens per second, CPU seconds per token)."""
    bodies, made = [], []
    for i in range(clients):
        body = {
            "messages": [
                {
                    "role": "user",
                    "content": f"Write a list of {i + 20} invented people, round {round_}, as JSON.",
                }
            ],
            "max_tokens": tokens,
            "temperature": 0,
            "speculate": 0,
            "ignore_eos": True,
        }
        if kind != "free":
            tag = "" if kind == "schema" else f"_{round_}_{i}"
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema(tag)},
            }
        bodies.append(body)
    threads = [
        threading.Thread(target=lambda b=b: made.append(send_request(server.url, b)))
        for b in bodies
    ]
    cpu, start = server.seconds_of_cpu(), time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took, cpu = time.perf_counter() - start, server.seconds_of_cpu() - cpu
    assert made == [tokens] * clients, made
    return sum(made) / took, cpu / sum(made)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--clients", type=int, default=16)
    a.add_argument("--tokens", type=int, default=128)
    a.add_argument("--port", type=int, default=18411)
    a.add_argument("--write", action="store_true")
    a = a.parse_args()
    model, threads = (
        peer.sh(os.path.join(peer.ROOT, "tools", "smollm2.sh")).strip(),
        str(os.cpu_count()),
    )
    kinds, rate, cost = ("free", "schema", "new"), {}, {}
    server = Server(
        "llmc",
        [
            peer.LLMC,
            "serve",
            model,
            "--port",
            str(a.port),
            "-t",
            threads,
            "--seqs",
            str(a.clients),
            "-c",
            "512",
            "--kv-tokens",
            str(512 * a.clients),
        ],
        a.port,
    )
    try:
        load(server, "free", a.clients, 16, -1)
        for round_ in range(a.rounds):
            for kind in kinds[:: 1 if round_ % 2 else -1]:
                tps, cpu = load(server, kind, a.clients, a.tokens, round_)
                rate.setdefault(kind, []).append(tps)
                cost.setdefault(kind, []).append(cpu)
    finally:
        server.stop()
    out = dict(
        date=datetime.date.today().isoformat(),
        machine=machine(),
        model=os.path.basename(model),
        clients=a.clients,
        tokens=a.tokens,
        rounds=a.rounds,
        loads={},
    )
    for kind in kinds:
        ratio = [x / f for x, f in zip(rate[kind], rate["free"])]
        more = [x / f for x, f in zip(cost[kind], cost["free"])]
        out["loads"][kind] = dict(
            tokens_per_s=statistics.median(rate[kind]),
            of_free=statistics.median(ratio),
            cpu_ms_per_token=1000 * statistics.median(cost[kind]),
            cpu_of_free=statistics.median(more),
        )
        print(
            f"{kind:7} {statistics.median(rate[kind]):8.1f} tokens/s, {statistics.median(ratio):.3f} of free ({min(ratio):.3f}-{max(ratio):.3f}); "
            f"{1000 * statistics.median(cost[kind]):.3f} ms of processor a token, {statistics.median(more):.3f} of free"
        )
    if a.write:
        path = result_file("constrained")
        with open(path, "w") as f:
            json.dump(out, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
