#!/usr/bin/env python3
"""MaskBench: match the instances of its schemas with llmc's grammars and count the results.

usage: maskbench.py FOLDER [--standard] [--strict] [--list FILE]

FOLDER holds the JSON files of maskbench/data in https://github.com/guidance-ai/jsonschemabench. Instances are matched as json.dumps writes them.
"""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings/python"))
os.environ.setdefault("LLMC_LIBRARY", str(ROOT / "build/libllmc.so"))

import llmc  # noqa: E402


def match(job):
    """(file, error or None, [(valid, accepted, where it stopped)], seconds to compile)"""
    path, options = job
    try:
        data = json.loads(path.read_text())
    except json.JSONDecodeError:
        return path.name, None, [], 0
    begin = time.perf_counter()
    try:
        grammar = llmc.Grammar(None, "json_schema", data["schema"], **options)
    except llmc.Error as e:
        return path.name, str(e), [], time.perf_counter() - begin
    seconds, results = time.perf_counter() - begin, []
    with grammar:
        for t in data["tests"]:
            text = json.dumps(t["data"], ensure_ascii=False).encode(errors="replace")
            try:
                complete, n = grammar.match(text)
            except llmc.Error as e:  # too ambiguous
                return path.name, str(e), [], seconds
            results.append((t["valid"], complete, text[max(0, n - 40) : n + 40]))
    return path.name, None, results, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--standard", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--list", type=pathlib.Path, help="file for refused schemas and mistakes")
    args = parser.parse_args()
    options = {"standard": args.standard, "strict": args.strict}
    jobs = [(p, options) for p in sorted(args.folder.glob("*.json"))]
    count, lines, slowest = collections.Counter(), [], (0, "")
    with multiprocessing.Pool() as pool:
        for name, error, results, seconds in pool.imap_unordered(match, jobs, chunksize=20):
            slowest = max(slowest, (seconds, name))
            if error:
                count["refused"] += 1
                lines.append(f"refused {name}: {error}")
                continue
            count["compiled"] += 1
            count["right"] += all(valid == took for valid, took, _ in results)
            for valid, took, where in results:
                count[
                    f"{'valid' if valid else 'invalid'} {'accepted' if took else 'rejected'}"
                ] += 1
                if valid != took:
                    lines.append(f"{'rejected' if valid else 'accepted'} {name}: {where!r}")
    for what, n in sorted(count.items()):
        print(f"{what:20}{n:8}")
    print(f"slowest to compile: {slowest[1]}, {slowest[0]:.2f} s")
    if args.list:
        args.list.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
