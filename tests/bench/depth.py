#!/usr/bin/env python3
"""Attention of prompts at depth beside the products of the same step: operations a second of each, in the last 512 rows of a long prompt.

    tests/bench/depth.py [--quick]      writes tests/bench/results/depth-<cpu>.json

One layer of published widths, random weights in Q4_0, on all cores. A share is attention's rate over that of the step's products (all matrices of the
layer), so it tells what depth costs beyond its operations. Each row is a process that runs `command`: the prompt's chunks before the last fill the cache,
the ops of the last one are timed a few times, medians.
"""
import argparse
import datetime
import json
import os
import subprocess

from machine import machine, result_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
CUT = ["n_layers=1", "vocab_size=4096", "text.bos=1", "text.eos=[2]", "storage.default=q4_0"]
# description, what is cut
SHAPES = [("llama3.2-1b", ["max_positions=131072"]), ("qwen3-8b", ["max_positions=131072", "hidden=2048", "attention.n_heads=16", "attention.n_kv_heads=4", "ffn.width=6144"]),
          ("deepseek-v2-lite", ["n_layers=2", "moe.n_experts=16"])]
ATTENTION, OTHER = ("attention", "mla_attend"), ("embed", "norm_route", "mla_query", "mla_value", "head")
DEPTHS = (512, 16384, 65536)


def row(config, sets, depth, threads):
    cmd = ["bench", os.path.join("configs", config + ".yaml"), "--random-weights", "-p", str(depth), "-n", "0", "-r", "1", "-t", str(threads), "--ops", "--json", "--quiet"]
    for s in CUT + sets:
        cmd += ["--set", s]
    ops = json.loads(subprocess.run([LLMC, *cmd], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout)["results"][0]["ops"]

    def rate(names):
        some = [o for o in ops if names(o["op"]) and o["ops"]]
        return sum(o["ops"] for o in some) / sum(o["s"] for o in some) / 1e9

    attention, products = rate(lambda n: n in ATTENTION), rate(lambda n: n not in ATTENTION + OTHER)
    return {"model": config, "positions": depth, "attention_gops": round(attention, 1), "products_gops": round(products, 1), "share": round(attention / products, 3),
            "attention_ms": round(1e3 * sum(o["s"] for o in ops if o["op"] in ATTENTION), 2), "command": " ".join(["llmc", *cmd])}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--quick", action="store_true", help="depths up to 16384")
    a = a.parse_args()
    threads = os.cpu_count()
    result = {"date": datetime.date.today().isoformat(), "machine": machine(), "threads": threads, "load_before": os.getloadavg()[0], "rows": []}
    for config, sets in SHAPES:
        for depth in DEPTHS[:2] if a.quick else DEPTHS:
            result["rows"].append(row(config, sets, depth, threads))
            print(json.dumps(result["rows"][-1]), flush=True)
    with open(result_file("depth"), "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


main()
