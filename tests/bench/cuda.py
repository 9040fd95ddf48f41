#!/usr/bin/env python3
"""Time limits of the CUDA target that need no GPU: compiling kernels, warm start, describing a
large model.

    tests/bench/cuda.py [--runs 5]

  cold          all kernels of llama3-8b for sm_90a through the real NVRTC: 6 s on two cores
  warm          `llmc run` of SmolLM2 until loaded, on the emulator, all kernels cached: 1 s
  description   `llmc compile configs/llama2-70b.yaml --target cuda`: 0.5 s
  tokens        of SmolLM2 on the emulator: 1.5 s in fast mode, 4 s in checking mode
  host          host time per decode step with a driver that does nothing (null_cuda.c): 20 us

Writes medians with their spread to tests/bench/results/."""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "e2e")]
import build_cache  # noqa: E402
import nvrtc  # noqa: E402
from machine import machine, result_file  # noqa: E402

LLMC = os.environ.get("LLMC", str(ROOT / "build" / "llmc"))
EMU = Path(os.environ.get("LLMC_EMU_BUILD", ROOT / "build")) / "emu"


def timed(runs, fn):
    s = []
    for i in range(runs):
        t = time.time()
        got = fn(i)
        s.append(got if got is not None else time.time() - t)
    return dict(
        median=round(statistics.median(s), 4),
        least=round(min(s), 4),
        most=round(max(s), 4),
        runs=runs,
    )


def llmc(*args, **env):
    p = subprocess.run(
        [LLMC, *map(str, args)], capture_output=True, text=True, env={**os.environ, **env}
    )
    if p.returncode:
        sys.exit(f"llmc {args}: {p.stderr}")
    return p


def host(smol, tmp, runs):
    """Return the host's microseconds per decode step of 1 and of 64 sequences."""
    null = tmp / "null"
    null.mkdir()
    subprocess.run(
        [
            *shlex.split(os.environ.get("CC") or "cc"),
            "-O2",
            "-shared",
            "-fPIC",
            f"-I{ROOT}",
            ROOT / "tests/bench/null_cuda.c",
            "-o",
            null / "libcuda.so.1",
        ],
        check=True,
    )
    (null / "libnvrtc.so.13").symlink_to("libcuda.so.1")
    env = {"LLMC_CUDA_LIBDIR": str(null), "LLMC_CACHE": str(tmp / "null-cache")}

    def step(batch):
        cmd = [
            "bench",
            smol,
            "--device",
            "cuda",
            "-p",
            "0",
            "-n",
            "1024",
            "-b",
            batch,
            "--seqs",
            batch,
            "-c",
            "2048",
            "--json",
            "-q",
        ]
        return 1e6 * batch / json.loads(llmc(*cmd, **env).stdout)["results"][0]["tps"]

    return {f"{b}_sequences": timed(runs, lambda i: step(b)) for b in (1, 64)}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("--runs", type=int, default=5)
    a = a.parse_args()
    smol = subprocess.run(
        [ROOT / "tools" / "smollm2.sh"], capture_output=True, text=True, check=True
    ).stdout.strip()
    out = dict(machine=machine(), date=time.strftime("%Y-%m-%d"))
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        out["describe_70b_s"] = timed(
            a.runs,
            lambda i: llmc(
                "compile",
                ROOT / "configs/llama2-70b.yaml",
                "--target",
                "cuda",
                "--arch",
                "sm_90a",
                "-o",
                tmp / f"d{i}",
            )
            and None,
        )
        lib = nvrtc.find()
        if lib is not None:
            real = {"LLMC_CUDA_LIBDIR": str(Path(lib._name).parent)}
            out["compile_8b_cold_s"] = timed(
                min(a.runs, 3),
                lambda i: llmc(
                    "compile",
                    ROOT / "configs/llama3-8b.yaml",
                    "--target",
                    "cuda",
                    "--arch",
                    "sm_90a",
                    "--aot",
                    "-o",
                    tmp / f"c{i}",
                    LLMC_CACHE=str(tmp / f"cache{i}"),
                    **real,
                )
                and None,
            )
        emu = {
            "LLMC_CUDA_LIBDIR": str(EMU),
            "LLMC_EMU_GPU": "sm_90a",
            "LLMC_EMU_CACHE": str(build_cache.root()),
        }
        run = [
            "run",
            smol,
            "--device",
            "cuda",
            "--tokens",
            "1,2,3",
            "-n",
            "2",
            "--ignore-eos",
            "--json",
            "-c",
            "64",
        ]
        llmc(*run, **emu)
        out["warm_start_s"] = timed(
            a.runs, lambda i: json.loads(llmc(*run, **emu).stdout)["timing"]["load_s"]
        )
        out["host_us_per_step"] = host(smol, tmp, a.runs)
        for mode in ("fast", "check"):

            def token(i):
                t = json.loads(
                    llmc(*[x if x != "2" else "5" for x in run], LLMC_EMU_MODE=mode, **emu).stdout
                )["timing"]
                return t["decode_s"] / 4

            token(0)
            out[f"emulated_token_{mode}_s"] = timed(min(a.runs, 3), token)
    path = result_file("cuda")
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
