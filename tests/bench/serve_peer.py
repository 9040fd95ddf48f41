#!/usr/bin/env python3
"""Compare llmc serve with llama.cpp's server on the same file, with two threads each. They
alternate in every round, under the same load.

    tests/bench/serve_peer.py [--rounds 3] [--clients 1,4,16,64] [--requests 3]

Load: `llmc bench serve`, closed loop, prompts of 32 to 96 words, 32 to 64 new tokens, greedy. Both
have 16 slots of 512 positions. Writes tests/bench/results/serve-<cpu>.json: output tokens/s and p99
of the time to first token per number of clients, as medians with their spread."""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer  # noqa: E402
from machine import machine, result_file  # noqa: E402

SLOTS, CONTEXT = 16, 512


def build_server(model):
    """Build llama-server of the build that peer.py selected; return it and its description for the
    result file."""
    peers, about = peer.build_peers("best")
    bin = peers[0][1]
    exe = os.path.join(bin, "llama-server")
    if not os.path.exists(exe):
        out = os.path.dirname(bin)
        peer.report("serve_peer: building llama-server; several minutes")
        with open(out + "-server.log", "w") as log:
            for cmd in (
                ["cmake", "-DLLAMA_BUILD_SERVER=ON", "."],
                ["cmake", "--build", ".", "-j", str(os.cpu_count()), "--target", "llama-server"],
            ):
                if subprocess.run(cmd, cwd=out, stdout=log, stderr=subprocess.STDOUT).returncode:
                    sys.exit(f"serve_peer: llama-server did not build; see {out}-server.log")
    return exe, about


class Server:
    def __init__(self, name, cmd, port):
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=2) as r:
                    if r.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"serve_peer: {name} did not start: {cmd}")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def bench(self, clients, requests, seed):
        p = subprocess.run(
            [
                peer.LLMC,
                "bench",
                "serve",
                "--url",
                self.url,
                "--json",
                "-q",
                "-c",
                str(clients),
                "-n",
                str(requests),
                "-i",
                "32..96",
                "-o",
                "32..64",
                "--seed",
                str(seed),
            ],
            capture_output=True,
            text=True,
        )
        if p.returncode:
            sys.exit(f"serve_peer: {self.name}: {p.stderr}")
        return json.loads(p.stdout)

    def seconds_of_cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(runs):
    out = {}
    for key, of in (
        ("output_tps", lambda r: r["output_tps"]),
        ("ttft_p50", lambda r: r["ttft"]["p50"]),
        ("ttft_p99", lambda r: r["ttft"]["p99"]),
        ("itl_p50", lambda r: r["itl"]["p50"]),
        ("e2e_p99", lambda r: r["e2e"]["p99"]),
    ):
        v = [of(r) for r in runs]
        out[key] = dict(median=statistics.median(v), least=min(v), most=max(v))
    return out


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--clients", default="1,4,16,64")
    a.add_argument("--requests", type=int, default=3, help="requests per client")
    a.add_argument("--port", type=int, default=18311)
    a = a.parse_args()
    model = peer.sh(os.path.join(peer.ROOT, "tools", "smollm2.sh")).strip()
    (exe, about), threads = build_server(model), str(os.cpu_count())
    command = {
        "llmc": lambda port: [
            peer.LLMC,
            "serve",
            model,
            "--port",
            str(port),
            "-t",
            threads,
            "--seqs",
            str(SLOTS),
            "-c",
            str(CONTEXT),
            "--max-concurrent-requests",
            "256",
        ],
        "llama.cpp": lambda port: [
            exe,
            "-m",
            model,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "-t",
            threads,
            "-np",
            str(SLOTS),
            "-c",
            str(SLOTS * CONTEXT),
            "--no-webui",
        ],
    }
    runs, port = {}, a.port
    for round_ in range(a.rounds):
        for name in command:
            port += 1
            s = Server(name, command[name](port), port)
            try:
                s.bench(2, 4, 99)  # warm up
                for n in map(int, a.clients.split(",")):
                    cpu, t = s.seconds_of_cpu(), time.time()
                    r = s.bench(
                        n, max(6, n * a.requests), 1000 * round_ + n
                    )  # new prompts, since both servers reuse cached prefixes
                    r["cpu_share"] = (s.seconds_of_cpu() - cpu) / (time.time() - t)
                    runs.setdefault(n, {}).setdefault(name, []).append(r)
                    peer.report(
                        f"round {round_ + 1} {name:9} {n:3} clients: {r['output_tps']:8.1f} tokens/s, first token p99 {r['ttft']['p99']:.2f} s"
                    )
            finally:
                s.stop()
    out = dict(
        date=datetime.date.today().isoformat(),
        machine=machine(),
        model=os.path.basename(model),
        slots=SLOTS,
        context=CONTEXT,
        llama_cpp=about,
        clients={},
    )
    for n, by in runs.items():
        ratio = [x["output_tps"] / y["output_tps"] for x, y in zip(by["llmc"], by["llama.cpp"])]
        out["clients"][n] = {k: summary(v) for k, v in by.items()} | {
            "tps_ratio": dict(median=statistics.median(ratio), least=min(ratio), most=max(ratio))
        }
    path = result_file("serve")
    with open(path, "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")
    for n, c in out["clients"].items():
        print(
            f"{n:3} clients: llmc {c['llmc']['output_tps']['median']:.1f}, llama.cpp {c['llama.cpp']['output_tps']['median']:.1f} tokens/s, "
            f"{c['tps_ratio']['median']:.2f}x ({c['tps_ratio']['least']:.2f}-{c['tps_ratio']['most']:.2f}); first token p99 "
            f"{c['llmc']['ttft_p99']['median']:.2f} s against {c['llama.cpp']['ttft_p99']['median']:.2f} s"
        )


if __name__ == "__main__":
    main()
