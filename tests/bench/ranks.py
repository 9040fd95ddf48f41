"""Measure the cost of ranks on one machine: decode of two ranks with one thread each, as threads
and as processes of mpirun, and of two stages, compared with one rank of two threads; and the time
of an all-reduce.

    python tests/bench/ranks.py model.gguf [--rounds 9] [--tokens 64] [--mpi openmpi|mpich|none] [--out FILE.json]

The variants alternate. Each counts by its ratio to the first variant of the same round, so that
other work on the machine affects all equally. Each rank needs a free core: with fewer, the figures
are those of the scheduler."""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

from machine import machine, result_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))


def mpirun(kind):
    """Return the command and environment that start two ranks; None: the library is not
    installed."""
    if kind == "none":
        return None
    p = subprocess.run(
        [os.path.join(ROOT, "tools", "mpi.sh"), kind], capture_output=True, text=True
    )
    if p.returncode:
        print(f"no {kind}: {p.stderr.strip()[-200:]}", file=sys.stderr)
        return None
    folder = p.stdout.strip()
    env = {"LD_LIBRARY_PATH": os.path.join(folder, "lib")}
    if kind == "openmpi":
        env |= dict(
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            OPAL_PREFIX=folder,
            OMPI_MCA_osc="sm",
        )
    return [
        os.path.join(folder, "bin", "mpirun"),
        *(["--bind-to", "core"] if kind == "openmpi" else ["-bind-to", "core"]),
        "-n",
        "2",
    ], env


def bench(args, model, tokens, launcher=None, ops=False):
    front, env = launcher or ([], {})
    p = subprocess.run(
        [
            *front,
            LLMC,
            "bench",
            model,
            "-p",
            "0",
            "-n",
            str(tokens),
            "-r",
            "1",
            "--json",
            *args,
            *(["--ops"] if ops else []),
        ],
        capture_output=True,
        text=True,
        env=dict(os.environ, **env),
    )
    if p.returncode:
        sys.exit(p.stderr)
    return json.loads(p.stdout)["results"][0]


def main():
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("model")
    a.add_argument("--rounds", type=int, default=9)
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--mpi", default="openmpi", choices=["openmpi", "mpich", "none"])
    a.add_argument("--out")
    a = a.parse_args()
    ways = {
        "1 rank, 2 threads": (["-t", "2"], None),
        "2 ranks, threads": (["-t", "1", "--tp", "2"], None),
        "2 stages, threads": (["-t", "1", "--pp", "2"], None),
    }
    launcher = mpirun(a.mpi)
    if launcher:
        ways["2 ranks, processes"] = (["-t", "1"], launcher)
    tps, load = {name: [] for name in ways}, os.getloadavg()[0]
    for _ in range(a.rounds):
        for name, (args, start) in ways.items():
            tps[name].append(bench(args, a.model, a.tokens, start)["tps"])
    first = next(iter(tps))
    report = {
        "model": os.path.basename(a.model),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "load_before": load,
        "rounds": a.rounds,
        "decode": {
            name: {
                "tps": statistics.median(v),
                "ratio": statistics.median(r := [x / y for x, y in zip(v, tps[first])]),
                "least": min(r),
                "most": max(r),
            }
            for name, v in tps.items()
        },
    }
    ops = {o["op"]: o for o in bench(["-t", "1", "--tp", "2"], a.model, 8, ops=True)["ops"]}
    report["all_reduce_us"] = 1e6 * ops["all_reduce"]["s"] / ops["all_reduce"]["n"]
    for name, r in report["decode"].items():
        print(f"{name:20} {r['tps']:8.1f} tokens/s   {r['ratio']:.3f} of one rank")
    print(f"all-reduce of two ranks that are threads: {report['all_reduce_us']:.1f} us")
    with open(a.out or result_file("ranks"), "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
