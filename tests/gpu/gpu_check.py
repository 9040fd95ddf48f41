#!/usr/bin/env python3
"""Tests and figures on a real GPU, in one run of at most ten minutes.

    tests/gpu/gpu_check.py [--llmc BINARY] [--out FILE.json] [--seconds 560] [--only STAGE,...]

Stages, in this order; each is skipped when the time left is short, and says so:
  machine   GPU, driver, NVRTC; read and copy bandwidth by our own kernels; cuBLASLt's rate through torch where there is one
  conform   every wrapper's PTX against what the PTX manual says it does, bit for bit
  kernels   tests/cuda on this GPU (needs pytest)
  models    golden models and the head of SmolLM2, end to end; the same token for token as on the CPU
  sanitize  compute-sanitizer (memcheck, racecheck) over a tiny model
  figures   decode and prefill of random-weight models against the floor, and against PyTorch
The result file names the machine. It is written anew after every stage, so nothing is lost when time runs out. Exit status 3: a check failed."""
import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACK = ROOT / os.environ.get("BUILD", "build") / "gpu"   # tests/gpu/pack.sh
sys.path[:0] = [str(HERE), str(ROOT / "tools"), str(ROOT / "tests" / "cuda"), str(ROOT / "tests" / "golden")]


class Run:
    def __init__(self, args):
        self.args, self.start = args, time.time()
        self.out = dict(date=datetime.date.today().isoformat(), host=platform.machine(), stages={})
        self.failed = []

    def left(self):
        return self.args.seconds - (time.time() - self.start)

    def save(self):
        self.out["seconds"] = round(time.time() - self.start, 1)
        self.out["failed"] = self.failed
        if self.args.out:
            Path(self.args.out).parent.mkdir(parents=True, exist_ok=True)
            Path(self.args.out).write_text(json.dumps(self.out, indent=1) + "\n")

    def llmc(self, *cmd, timeout=None, check=True, **env):
        p = subprocess.run([self.args.llmc, *map(str, cmd)], capture_output=True, text=True, timeout=timeout or max(20, self.left()),
                           env={**os.environ, **env})
        if check and p.returncode:
            raise RuntimeError(f"llmc {' '.join(map(str, cmd))}: {p.stderr.strip()[-800:]}")
        return p


def stage_machine(r):
    import gpu
    g = gpu.Gpu()
    info = dict(name=g.name, cc=g.cc, sms=g.sms, memory=g.memory, driver=g.driver, nvrtc=g.nvrtc_version)
    info["read_gbps"], info["read_spread"] = g.read_bandwidth()
    info["copy_gbps"], info["copy_spread"] = g.copy_bandwidth()
    g.close()
    r.out["machine"] = info
    return info


def pytest_on_gpu(r, tests, most):
    path = os.pathsep.join([*([str(PACK / "site")] if (PACK / "site").exists() else []), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "LLMC_TEST_GPU": "1", "PYTHONPATH": path}
    if subprocess.run([sys.executable, "-c", "import pytest"], capture_output=True, env=env).returncode:
        return dict(skipped="no pytest")
    p = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests)], capture_output=True, text=True, cwd=ROOT,
                       timeout=max(20, min(r.left() - 20, most)), env=env)
    tail = p.stdout.strip().split("\n")[-25:]
    if p.returncode not in (0, 5):
        raise RuntimeError("\n".join(tail))
    return dict(result=tail[-1])


def stage_conform(r):
    done = pytest_on_gpu(r, [ROOT / "tests" / "cuda" / "test_conformance.py"], 120)
    if r.out["machine"]["cc"] == 90 and (PACK / "t_sm90").exists():  # wgmma, tensor maps
        import nvrtc
        p = subprocess.run([str(PACK / "t_sm90")], capture_output=True, text=True, cwd=ROOT, timeout=120,
                           env={**os.environ, "EMU_CUDA": "libcuda.so.1", "EMU_NVRTC": nvrtc.find()._name})
        if p.returncode:
            raise RuntimeError((p.stdout + p.stderr)[-2000:])
        done["sm90"] = p.stdout.strip().split("\n")[-1]
    return done


def stage_kernels(r):
    others = ("test_nvrtc.py", "test_conformance.py", "test_runtime_artifacts.py", "test_gpu_check.py")
    return pytest_on_gpu(r, [p for p in sorted((ROOT / "tests" / "cuda").glob("test_*.py")) if p.name not in others], 240)


def stage_models(r):
    import tempfile
    import numpy as np
    import weights
    done = {}
    for name in ("llama-smol", "llama-bias-linear-bf16", "qwen3-bias-tied", "gemma2-caps", "mixtral-bf16", "deepseek_v3-plain", "gpt2-plain"):
        g = weights.Golden(name)
        with tempfile.TemporaryDirectory() as d:
            g.build(d)
            out = os.path.join(d, "logits.npy")
            p = r.llmc("run", d, "--device", "cuda", "--tokens", ",".join(map(str, g.prompt)), "--logits", out, "--json", "--ignore-eos",
                       "-n", len(g.greedy) or 1, "--artifact", os.path.join(d, "artifact"), "--set", "kv.dtype=f32", *g.args,
                       *[x for k, v in g.set.items() for x in ("--set", f"{k}={v}")])
            logits = np.load(out)
        error = float(np.abs(logits - g.logits).max() / np.ptp(g.logits))
        done[name] = error
        if not error < (2e-2 if "bf16" in name else 1e-4):
            raise RuntimeError(f"{name}: off by {error:.2e} of the range")
        if g.greedy and "bf16" not in name and json.loads(p.stdout)["tokens"] != g.greedy:
            raise RuntimeError(f"{name}: other tokens than transformers'")
    smol = PACK / "smollm2-head.gguf"
    if smol.exists():
        prompt = "The capital of France is"
        t = [json.loads(r.llmc("run", smol, "--device", d, "--prompt", prompt, "-n", 32, "--ignore-eos", "--json").stdout)["tokens"]
             for d in ("cpu", "cuda")]
        done["smollm2-head"] = sum(a == b for a, b in zip(*t)) / len(t[0])
    return done


def stage_sanitize(r):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        return dict(skipped="no compute-sanitizer")
    done = {}
    for check in ("memcheck", "racecheck"):
        p = subprocess.run([tool, "--tool", check, "--error-exitcode", "9", r.args.llmc, "run", str(ROOT / "configs" / "tiny.yaml"), "--device", "cuda",
                            "--random-weights", "--tokens", "1,2,3,4,5", "-n", "4", "--ignore-eos", "--quiet"], capture_output=True, text=True,
                           timeout=max(20, min(120, r.left() - 20)))
        done[check] = (p.stdout + p.stderr).strip().split("\n")[-1]
        if p.returncode == 9:
            raise RuntimeError(f"{check}: {done[check]}")
    return done


MODELS = ["llama3.2-1b", "llama3-8b", "qwen3-8b"]


def stage_figures(r):
    read = r.out["machine"]["read_gbps"] * 1e9
    rows = []
    for model in MODELS:
        config = ROOT / "configs" / f"{model}.yaml"
        shapes = [([], ["-p", "512,4096", "-b", "1,8,64", "-d", "0"]), ([], ["-p", "0", "-b", "1", "-d", "4000"])]
        if model == "llama3-8b":
            shapes += [(["--set", f"storage.default={t}"], ["-p", "0", "-b", "1", "-d", "0"]) for t in ("q8_0", "q4_k")]
        for extra, what in shapes:
            if r.left() < 60:
                rows.append(dict(model=model, args=what, skipped="no time left"))
                continue
            p = r.llmc("bench", config, "--device", "cuda", "--random-weights", "--json", "-n", "64", "-r", "3", "-c", "4224", "--chunk", "4096", *what, *extra,
                       timeout=min(r.left(), 120))
            for x in json.loads(p.stdout)["results"]:
                row = dict(model=model, storage=extra[-1].split("=")[1] if extra else "bf16", test=x["test"], tps=x["tps"], stddev=x["tps_stddev"], gbps=x["gbps"])
                if x["test"].startswith("tg"):
                    row["share_of_read"] = x["gbps"] * 1e9 / read
                rows.append(row)
            r.out["stages"]["figures"] = dict(partial=rows)
            r.save()
    peer = []
    if r.left() > 45 and subprocess.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True).returncode == 0:
        p = subprocess.run([sys.executable, str(HERE / "torch_peer.py"), "--seconds", str(int(r.left() - 20))], capture_output=True, text=True,
                           timeout=max(30, r.left()))
        peer = [json.loads(line) for line in p.stdout.split("\n") if line.startswith("{")]
        if p.returncode:
            peer.append(dict(error=p.stderr.strip()[-400:]))
    return dict(llmc=rows, torch=peer)


STAGES = dict(machine=stage_machine, conform=stage_conform, kernels=stage_kernels, models=stage_models, sanitize=stage_sanitize, figures=stage_figures)
NEEDS = dict(machine=5, conform=5, kernels=30, models=30, sanitize=30, figures=60)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--llmc", default=str(PACK / "llmc") if (PACK / "llmc").exists() else str(ROOT / "build" / "llmc"))
    a.add_argument("--out")
    a.add_argument("--seconds", type=float, default=560)
    a.add_argument("--only")
    r = Run(a.parse_args())
    for name in (r.args.only.split(",") if r.args.only else STAGES):
        if r.left() < NEEDS[name]:
            r.out["stages"][name] = dict(skipped="no time left")
            continue
        t = time.time()
        try:
            r.out["stages"][name] = STAGES[name](r)
            word = "passed"
        except Exception as e:  # the next stages still tell something
            r.out["stages"][name] = dict(r.out["stages"].get(name, {}), error=f"{type(e).__name__}: {e}"[:4000])
            r.failed.append(name)
            word = "FAILED"
        print(f"{name:9} {word}  {time.time() - t:6.1f} s  {json.dumps(r.out['stages'][name])[:2500]}", flush=True)
        r.save()
    return 3 if r.failed else 0


if __name__ == "__main__":
    sys.exit(main())
