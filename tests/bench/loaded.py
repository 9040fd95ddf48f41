#!/usr/bin/env python3
"""Decode throughput while other processes use the same cores.

    tests/bench/loaded.py                                   this build: SmolLM2 and a MoE model with sizes of Qwen3-30B-A3B, -t 1 and -t 2
    tests/bench/loaded.py --before OTHER/build/libllmc.so   alternating with another build
    tests/bench/loaded.py --peer                            also with llama.cpp (built as tests/bench/peer.py does)

Busy processes are endless loops, one pinned to each core, at nice 0 or 19. Each variant (build,
threads) is a process that keeps its model open and decodes a burst of tokens on request. The
variants take turns within a round, in a rotating order. llama.cpp is one process per burst.

The result file holds median and quartiles of tokens per second, and tokens per second of the
process's CPU time, which depends less on other users of the machine. It also holds the number of
foreign runnable processes, because a shared machine is not idle at "none"."""

import argparse
import ctypes
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer  # noqa: E402
from machine import machine, result_file  # noqa: E402

LOADS = {"none": [], "1 low": [19], "2 low": [19, 19], "1 equal": [0], "2 equal": [0, 0]}
WORKER = """
import os, sys, time
import llmc
model, threads = sys.argv[1], int(sys.argv[2])
with llmc.Model(model, threads=threads) as m, m.session(context=512, chunk=16, threads=threads) as s:
    def burst(seconds):
        q, n = s.seq(), 0
        s.forward([(q, [1, 2, 3, 4], 1)])
        wall, cpu = time.monotonic(), time.process_time()
        while n < 500 and (n < 4 or time.monotonic() - wall < seconds):
            s.forward([(q, [10 + n], 1)])
            n += 1
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        s.free(q)
        return n / wall, n / cpu
    burst(0.1)
    print("ready", flush=True)
    for line in sys.stdin:
        print(*burst(float(line)), flush=True)
"""


class Busy:
    """Processes with endless loops, each pinned to a core."""

    def __init__(self, nices):
        self.nices, self.pids = nices, []

    def __enter__(self):
        cores = sorted(os.sched_getaffinity(0))
        for i, nice in enumerate(self.nices):
            pid = os.fork()
            if pid == 0:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
                os.sched_setaffinity(0, [cores[-1 - i % len(cores)]])
                os.nice(nice)
                while True:
                    pass
            self.pids.append(pid)
        if self.pids:
            time.sleep(0.1)
        return self

    def __exit__(self, *exc):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def runnable():
    with open("/proc/loadavg") as f:
        return int(f.read().split()[3].split("/")[0])


class Variant:
    """One build with a number of threads and its model open."""

    def __init__(self, name, library, model, threads):
        env = dict(
            os.environ,
            LLMC_LIBRARY=library,
            PYTHONPATH=os.path.join(
                os.path.dirname(os.path.dirname(os.path.abspath(library))), "bindings", "python"
            ),
        )
        self.name, self.threads = name, threads
        self.p = subprocess.Popen(
            [sys.executable, "-c", WORKER, model, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        if self.p.stdout.readline().strip() != "ready":
            sys.exit(f"loaded: {name} cannot open {model}")

    def burst(self, load, seconds):
        self.p.stdin.write(f"{seconds}\n")
        self.p.stdin.flush()
        return [float(x) for x in self.p.stdout.readline().split()]

    def close(self):
        self.p.stdin.close()
        self.p.wait()


class Peer:
    """Run llama.cpp's own benchmark, one process per burst."""

    def __init__(self, folder, model, threads):
        self.name, self.threads, self.tps = "llama.cpp", threads, {}
        self.cmd = [
            os.path.join(folder, "llama-bench"),
            "-m",
            model,
            "-t",
            str(threads),
            "-p",
            "0",
            "-r",
            "1",
            "-ngl",
            "0",
            "-o",
            "json",
        ]

    def burst(self, load, seconds):
        """Return the number of tokens that, at the rate of the last burst under this load, fill the
        time."""
        n = min(256, max(4, int(self.tps.get(load, 4) * seconds)))
        self.tps[load] = json.loads(peer.run_peer(self.cmd + ["-n", str(n)]))[0]["samples_ts"][0]
        return [self.tps[load], 0.0]

    def close(self):
        pass


def peer_folder():
    """Return the folder of llama.cpp's tools, from its native build."""
    top = os.path.join(peer.CACHE, "peer")
    os.makedirs(top, exist_ok=True)
    version, src = peer.source(top, None)
    name, flags = peer.builds("best")[0]
    out = os.path.join(top, f"{version}-{name}")
    why = peer.build_one(src, out, name, flags)
    if why:
        sys.exit(f"loaded: llama.cpp {why}")
    return version, os.path.join(out, "bin")


def quartiles(x):
    q = statistics.quantiles(x, n=4, method="inclusive") if len(x) > 1 else [x[0]] * 3
    return [round(v, 1) for v in (q[1], q[0], q[2])]


def rows_of(model, got):
    for (load, name, threads), x in sorted(got.items()):
        tps, per_cpu, others = ([r[i] for r in x] for i in range(3))
        yield {
            "model": model,
            "load": load,
            "side": name,
            "threads": threads,
            "runs": len(x),
            "tps": quartiles(tps)[0],
            "quartiles": quartiles(tps)[1:],
            "tps_per_cpu_second": quartiles(per_cpu)[0],
            "other_runnable": statistics.median(others),
        }


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--before", metavar="LIBRARY", help="build/libllmc.so of another tree")
    ap.add_argument("--peer", action="store_true")
    ap.add_argument(
        "--peer-every", type=int, default=3, help="run llama.cpp in every N-th round [3]"
    )
    ap.add_argument("--rounds", type=int, default=9)
    ap.add_argument("--seconds", type=float, default=1, help="approximate length of a burst")
    ap.add_argument("--threads", default="1,2")
    ap.add_argument("--loads", default=",".join(LOADS))
    ap.add_argument("--models", default="smollm2,qwen3-30b-a3b")
    ap.add_argument("--spin", default="", help="LLMC_SPIN_US values to compare, with this build")
    ap.add_argument("--out")
    a = ap.parse_args()
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "load_before": os.getloadavg()[0],
        "rounds": a.rounds,
        "rows": [],
    }
    version, folder = peer_folder() if a.peer else (None, None)
    if a.peer:
        result["peer"] = f"llama.cpp of llama-cpp-python {version}"
    for model in a.models.split(","):
        if model == "smollm2":
            path = peer.sh(os.path.join(peer.ROOT, "tools", "smollm2.sh")).strip()
        else:
            import random_gguf

            path = random_gguf.make(model, "Q4_0")
        library = os.path.join(peer.ROOT, "build", "libllmc.so")
        sides = []
        for t in map(int, a.threads.split(",")):
            if a.before:
                sides.append(Variant("before", a.before, path, t))
            for us in a.spin.split(","):
                if us:
                    os.environ["LLMC_SPIN_US"] = us
                sides.append(Variant(f"spin {us}" if us else "llmc", library, path, t))
            if folder:
                sides.append(Peer(folder, path, t))
        got = {}
        for r in range(a.rounds):
            for load in a.loads.split(","):
                with Busy(LOADS[load]):
                    for side in sides[r % len(sides) :] + sides[: r % len(sides)]:
                        if side.name == "llama.cpp" and r % a.peer_every:
                            continue
                        others = max(0, runnable() - 1 - len(LOADS[load]))
                        got.setdefault((load, side.name, side.threads), []).append(
                            (*side.burst(load, a.seconds), others)
                        )
            print(f"{model}: round {r + 1} of {a.rounds}", file=sys.stderr, flush=True)
        for side in sides:
            side.close()
        result["rows"] += rows_of(model, got)
        with open(a.out or result_file("loaded"), "w") as f:
            json.dump(result, f, indent=1)
            f.write("\n")
    print(
        f"{'model':14} {'load':8} {'threads':>7} {'side':10} {'tokens/s':>9} {'quartiles':>15} {'per CPU s':>9} {'others':>6}"
    )
    for x in sorted(
        result["rows"],
        key=lambda x: (x["model"], list(LOADS).index(x["load"]), x["threads"], x["side"]),
    ):
        print(
            f"{x['model']:14} {x['load']:8} {x['threads']:7} {x['side']:10} {x['tps']:9.1f} {x['quartiles'][0]:7.1f}-{x['quartiles'][1]:<7.1f} "
            f"{x['tps_per_cpu_second']:9.1f} {x['other_runnable']:6.0f}"
        )


if __name__ == "__main__":
    main()
