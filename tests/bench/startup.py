#!/usr/bin/env python3
"""Time to the first token of SmolLM2, cold (empty cache, kernels compiled) and warm, and peak memory against the plan.

Writes tests/bench/results/startup-<cpu>.json.
"""
import datetime
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLMC = os.path.join(ROOT, "build", "llmc")


# a context that the memory run fills to the brim, so that every planned page is touched
LIMITS = ["--context", "1024", "--chunk", "32"]


def first_token(model, cache, extra=("-n", "2")):
    """Seconds from starting the process to its first byte of text, and its peak resident bytes."""
    env = dict(os.environ, LLMC_CACHE=cache)
    t0 = time.monotonic()
    p = subprocess.Popen([LLMC, "run", model, "--prompt", "Hello", "--ignore-eos", "--quiet", *extra], stdout=subprocess.PIPE, env=env)
    p.stdout.read(1)
    took = time.monotonic() - t0
    p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    if status:
        sys.exit("startup: llmc run failed")
    return took, usage.ru_maxrss * 1024


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else subprocess.run([os.path.join(ROOT, "tools", "smollm2.sh")], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    name = next((x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "unknown")
    cold, warm, packed, peak = [], [], [], []
    for _ in range(3):
        cache = tempfile.mkdtemp(prefix="llmc-startup-")
        try:
            cold.append(first_token(model, cache)[0])
            for _ in range(3):
                warm.append(first_token(model, cache)[0])
            peak.append(first_token(model, cache, ["-n", "-1", *LIMITS])[1])
            first_token(model, cache, ["-n", "2", "--cache-packed"])
            packed.append(first_token(model, cache, ["-n", "2", "--cache-packed"])[0])
        finally:
            shutil.rmtree(cache)
    plan = json.loads(subprocess.run([LLMC, "plan", model, "--json", "-t", str(os.cpu_count()), *LIMITS], check=True, text=True, stdout=subprocess.PIPE).stdout)
    tokenizer = subprocess.Popen([LLMC, "tokenize", model, "--text", "Hello"], stdout=subprocess.DEVNULL)
    _, _, usage = os.wait4(tokenizer.pid, 0)
    process = usage.ru_maxrss * 1024
    m = statistics.median
    result = {"date": datetime.date.today().isoformat(), "machine": {"cpu": name, "cores": os.cpu_count(), "kernel": platform.release()},
              "load_before": os.getloadavg()[0], "cold_s": round(m(cold), 3), "cold_all_s": [round(x, 3) for x in cold],
              "warm_s": round(m(warm), 3), "warm_all_s": [round(x, 3) for x in warm], "warm_packed_cache_s": round(m(packed), 3),
              "plan_bytes": plan["memory"]["total"], "peak_bytes": int(m(peak)), "process_and_vocabulary_bytes": process,
              "peak_over_plan": round((m(peak) - process) / plan["memory"]["total"], 4)}
    print(json.dumps(result, indent=1))
    out = os.path.join(ROOT, "tests", "bench", "results", f"startup-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


main()
