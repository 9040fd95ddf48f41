#!/usr/bin/env python3
"""Tests and figures on a real GPU, in one run of at most ten minutes.

Stages, the most valuable first. Each has its own time limit and process, so that a failure, hang or
crash loses no other stage:
  machine   GPU, driver, NVRTC; read and copy bandwidth by our own kernel and the driver's
  conform   PTX of every wrapper against the PTX manual, bit for bit
  models    golden models and the first layers of SmolLM2, against transformers and the interpreter
  figures   decode and prefill with random weights: share of read bandwidth, GEMMs alone, PyTorch, op by op
  ranks     two GPUs or more: golden models over ranks, equal tokens per algorithm, all-reduce by size
  kernels   the kernel tests of this architecture (tests/cuda)
  sanitize  compute-sanitizer over a tiny model
The result file is written after every stage. Stages of an earlier run that do not run again are
kept. The last lines are a table of the bars. Exit status 3: a check failed (a missed bar does not
count).

Needs python3, numpy for conform, models and kernels, and PyTorch for the comparison. Missing
packages are reported and their stages skipped."""

import argparse
import datetime
import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tools"), str(ROOT / "tests" / "golden")]
import build_cache  # noqa: E402
import figures  # noqa: E402

LIMIT = dict(machine=120, conform=90, models=100, figures=320, ranks=90, kernels=120, sanitize=120)
LEAST = dict(machine=5, conform=15, models=15, figures=30, ranks=10, kernels=25, sanitize=20)
GOLDEN = (
    "llama-smol",
    "llama-bias-linear-bf16",
    "qwen3-bias-tied",
    "gemma2-caps",
    "mixtral-bf16",
    "deepseek_v3-plain",
    "gpt2-plain",
)
# the kernels of the measured models come first
KERNELS = tuple(
    f"test_{x}.py"
    for x in (
        "gemv",
        "gemm_swap_ab",
        "sm90",
        "flash",
        "cuda_attention",
        "cuda_sample",
        "gemm",
        "cuda_moe",
        "moe_gemm",
        "moe_fused",
        "cuda_mla",
        "qkv",
        "cuda_weights",
        "two_weight_types",
        "values16",
        "cuda_ops",
        "cuda_matmul",
        "cuda_state",
        "cuda_index",
        "kv_types",
        "formats",
        "cuda_extremes",
        "cuda_sizes",
    )
)


class Failed(Exception):
    pass


def missing(*modules):
    """Return modules that cannot be imported; a folder with a module's name (tests/golden/torch)
    does not count."""
    return " ".join(
        m for m in modules if getattr(importlib.util.find_spec(m), "origin", None) is None
    )


def lacks(r):
    """Return the result of a stage whose requirements are missing on this machine."""
    what = " ".join(filter(None, [missing("numpy"), "" if r.out["machine"]["nvrtc"] else "NVRTC"]))
    return dict(skipped=f"no {what}") if what else None


class Run:
    def __init__(self, args):
        self.args, self.start, self.stage, self.stage_end = args, time.time(), None, 0
        self.small, self.patience = (
            args.rehearse,
            5 if args.rehearse else 1,
        )  # an emulator may share its CPU cores
        self.out = dict(
            date=datetime.date.today().isoformat(), host=platform.machine(), stages={}, figures={}
        )
        self.pack = (
            ROOT
            if (ROOT / "llmc").is_file()
            else Path(os.environ.get("BUILD") or ROOT / "build") / "gpu"
        )
        self.bin = args.llmc or next(
            (str(p) for p in (ROOT / "llmc", self.pack.parent / "llmc") if p.is_file()),
            str(self.pack / "llmc"),
        )
        self.tmp = tempfile.mkdtemp(
            prefix="gpu-check."
        )  # 0700, since llmc trusts what it loads from there
        self.env = {**os.environ, "LLMC_CACHE": self.tmp + "/cache"}

    def left(self):
        """Return the seconds left for this stage. The first stage always has its time, since the
        others depend on it."""
        if self.stage == "machine":
            return self.stage_end - time.time()
        return min(
            self.args.minutes * 60 - (time.time() - self.start),
            self.stage_end - time.time() if self.stage_end else 1e9,
        )

    def save(self):
        self.out["seconds"] = round(time.time() - self.start, 1)
        if self.args.out:
            Path(self.args.out).parent.mkdir(parents=True, exist_ok=True)
            Path(self.args.out + ".new").write_text(json.dumps(self.out, indent=1) + "\n")
            os.replace(self.args.out + ".new", self.args.out)

    def adopt(self):
        """Return the name of the result file and the results of earlier runs on this GPU."""
        name = self.out["machine"]["name"]
        if not self.args.out:
            self.args.out = str(
                HERE / "results" / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".json")
            )
        if Path(self.args.out).exists():
            old = json.loads(Path(self.args.out).read_text())
            if old.get("machine", {}).get("name") == name:
                self.out["stages"] = {**old["stages"], **self.out["stages"]}
                self.out["figures"] = old["figures"]

    def note(self, text):
        print(f"  {time.time() - self.start:5.0f} s  {text}", flush=True)

    def call(self, cmd, most=1e9, env=None, check=True, cwd=None):
        """Run a program; return (exit status, stdout, stderr). Raise Failed with its last output on
        a timeout or, with check, on failure."""
        cmd, limit = [str(c) for c in cmd], max(1, min(most * self.patience, self.left()))
        p = subprocess.Popen(
            cmd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            env={**self.env, **(env or {})},
            preexec_fn=os.setpgrp,
        )
        try:
            out, err = p.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            out, err = p.communicate()
            self.log(cmd, f"no end after {limit:.0f} s", out, err)
            raise Failed(
                f"no end after {limit:.0f} s: {' '.join(cmd)[-200:]}\n{(out[-1500:] + err[-500:]).strip()}"
            ) from None
        if p.returncode:
            self.log(cmd, f"exit status {p.returncode}", out, err)
        if check and p.returncode:
            raise Failed(
                f"exit status {p.returncode}: {' '.join(cmd)[-300:]}\n{(out[-1500:] + err[-1500:]).strip()}"
            )
        return p.returncode, out, err

    def log(self, cmd, end, out, err):
        """Write the full output of a failed program next to the result file, which holds only its
        end."""
        if self.args.out:
            Path(self.args.out).parent.mkdir(parents=True, exist_ok=True)
            with open(self.args.out + ".log", "a") as f:
                f.write(f"==== {end}: {' '.join(cmd)}\n{out}\n{err}\n")

    def llmc(self, *cmd, **more):
        return self.call([self.bin, *cmd], **more)[1]

    def keep(self, **more):
        """Store part of a stage's result before the stage ends."""
        self.out["stages"][self.stage] = {**self.out["stages"].get(self.stage, {}), **more}
        self.save()


def stage_machine(r):
    rc, out, err = r.call([sys.executable, HERE / "gpu.py"], check=False)
    lines = [json.loads(line) for line in out.split("\n") if line.startswith("{")]
    if lines:
        r.out["machine"] = lines[-1]
        r.out["machine"].update(
            torch=None if missing("torch") else importlib.metadata.version("torch"),
            llmc=r.llmc("--version", check=False).strip(),
        )
        found = r.call([r.bin, "doctor", "--json"], check=False)[1]
        r.out["machine"]["doctor"] = json.loads(found)["cuda"] if found.startswith("{") else None
    if rc:
        raise Failed(err.strip()[-1500:])
    m = r.out["machine"]
    return dict(
        result=f"{m['name']} {m['arch']}, driver {m['driver']}, NVRTC {m['nvrtc']}, cuBLASLt {'yes' if ((m['doctor'] or {}).get('cublaslt') or {}).get('found') else 'no'}, torch {m['torch']}: reads {m['read_gbps']:.0f} GB/s, copies "
        f"{m['copy_gbps']:.0f} GB/s"
    )


# ---- tests --------------------------------------------------------------------------------------------------------


def pytest(r, names, what, most=1e9):
    """Run test files on the GPU, one process per core; return the last line, or raise Failed with
    the failed tests."""
    site = [str(r.pack / "site")] if (r.pack / "site").exists() else []
    # plugins installed on this machine may need another pytest version
    env = dict(
        LLMC_TEST_GPU="1",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        LLMC_TEST_ARCH=r.out["machine"]["arch"],
        PYTHONPATH=os.pathsep.join(site + [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
    )
    jobs = (
        []
        if r.small and not r.args.all
        else ["-p", "xdist.plugin", "-n", str(max(1, min(14, (os.cpu_count() or 1) - 2)))]
    )
    if jobs and r.call([sys.executable, "-c", "import xdist"], env=env, check=False)[0]:
        jobs = []
    # print each test as it ends, so that a timeout shows which did not
    rc, out, err = r.call(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            *jobs,
            *what,
            *(f"tests/cuda/{name}" for name in names),
        ],
        most,
        env,
        check=False,
        cwd=ROOT,
    )
    last = (out.strip().split("\n") or [""])[-1].strip("= ")
    if rc not in (0, 5):
        bad = [line for line in out.split("\n") if line.startswith(("FAILED", "ERROR", "E  "))]
        raise Failed("\n".join([last, *(line[:300] for line in bad[:30]), err.strip()[-300:]]))
    return last


def stage_conform(r):
    if lacks(r):
        return lacks(r)
    done = dict(
        wrappers=pytest(
            r,
            ["test_conformance.py"],
            ["-k", "access or mma_bf16_m16n8k16 or mbarriers"] if r.small else [],
        )
    )
    r.keep(**done)
    if r.out["machine"]["cc"] == 90:  # layouts of wgmma and of tensor maps
        t = next(
            (p for p in (r.pack / "t_sm90", r.pack.parent / "emu" / "t_sm90") if p.exists()), None
        )
        if not t:
            return dict(done, sm90="no t_sm90 was brought along")
        r.call(
            [t],
            env=dict(
                EMU_CUDA=r.out["machine"]["driver_path"], EMU_NVRTC=r.out["machine"]["nvrtc_path"]
            ),
            cwd=ROOT,
        )
        done["sm90"] = "passed"
    return done


def stage_kernels(r):
    if lacks(r):
        return lacks(r)
    others = [
        a
        for a in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
        if a != r.out["machine"]["arch"]
    ]
    what = [
        "-k",
        "not (real_compiler or nvrtc or sass or checked or planted or without_spills or "
        + " or ".join(others)
        + ")",
    ]
    if r.small:
        return dict(result=pytest(r, ["test_cuda_ops.py"], ["-k", "test_cap_slice_select"]))
    return dict(result=pytest(r, KERNELS, what))


# ---- models -------------------------------------------------------------------------------------------------------


def golden(r, name, *more, env=None):
    import numpy as np
    import weights

    g = weights.Golden(name)
    with tempfile.TemporaryDirectory(dir=r.tmp) as d:
        g.build(d)
        out = os.path.join(d, "logits.npy")
        text = r.llmc(
            "run",
            d,
            "--device",
            "cuda",
            "--tokens",
            ",".join(map(str, g.prompt)),
            "--logits",
            out,
            "--json",
            "--ignore-eos",
            "-n",
            len(g.greedy) or 1,
            "--artifact",
            os.path.join(d, "artifact"),
            "--set",
            "kv.dtype=f32",
            *g.args,
            *[x for k, v in g.set.items() for x in ("--set", f"{k}={v}")],
            *more,
            most=60,
            env=env,
        )
        logits = np.load(out)
    error = float(np.abs(logits - g.logits).max() / np.ptp(g.logits))
    if not error < (2e-2 if "bf16" in name else 1e-4):
        raise Failed(f"off by {error:.2e} of the range")
    if g.greedy and "bf16" not in name and json.loads(text)["tokens"] != g.greedy:
        raise Failed("tokens differ from transformers'")
    return f"{error:.1e}"


def smollm2(r):
    """Compare its first layers with the results of the interpreter (tests/gpu/pack.sh)."""
    import numpy as np

    d = r.pack / "smollm2"
    want = json.loads((d / "want.json").read_text())
    out = os.path.join(r.tmp, "smollm2.npy")
    text = r.llmc(
        "run",
        d / "head.gguf",
        "--device",
        "cuda",
        "--prompt",
        want["prompt"],
        "-n",
        len(want["tokens"]),
        "--ignore-eos",
        "--json",
        "--logits",
        out,
        most=90,
    )
    got, logits = json.loads(text)["tokens"], np.load(d / "logits.npy")
    error = float(np.abs(np.load(out) - logits).max() / np.ptp(logits))
    if not error < 2e-2:
        raise Failed(f"off by {error:.2e} of the range")
    return f"{error:.1e}, {sum(a == b for a, b in zip(got, want['tokens']))} of {len(got)} tokens the same"


def stage_models(r):
    if lacks(r):
        return lacks(r)
    done, bad = {}, []
    todo = [(n, lambda n=n: golden(r, n)) for n in (GOLDEN[:1] if r.small else GOLDEN)]
    if (r.pack / "smollm2").exists() and not (r.small and not r.args.all):
        todo.insert(1, ("smollm2", lambda: smollm2(r)))
    for name, run in todo:
        try:
            done[name] = run()
        except Exception as e:
            done[name] = f"{type(e).__name__}: {e}"[:1500]
            bad.append(name)
            r.note(f"{name}: {done[name][:600]}")
        r.keep(**done)
    if bad:
        raise Failed("failed: " + " ".join(bad))
    return done


# ---- ranks --------------------------------------------------------------------------------------------------------

# 512 floats per row: messages of one row are 2 KB, those of 512 rows 1 MB
SUMS = """llmc: 1
name: gpu-check-sums
family: llama
n_layers: 1
vocab_size: 1024
max_positions: 1024
hidden: 512
attention: {n_heads: 16, n_kv_heads: 8, head_dim: 32}
ffn: {width: 512}
text: {bos: 1, eos: [2]}
storage: {default: bf16}
"""


WAYS = ("one-shot", "two-shot", "nccl")


def sums(r, n, env):
    """Return the tokens of a model over n GPUs per algorithm, and the microseconds of an all-reduce
    by size as llmc measured them (runtime/cuda/comm_algorithm.h)."""
    model = os.path.join(r.tmp, "sums.yaml")
    Path(model).write_text(SUMS)
    tokens, us = {}, {}
    for way in ("auto",) if r.small else ("one-shot", "two-shot", "always", "auto"):
        cache = os.path.join(r.tmp, f"cache-{n}-{way}")
        own = (
            dict(LLMC_NCCL="never", LLMC_PEER_SUMS=way)
            if way.endswith("shot")
            else dict(LLMC_NCCL=way)
        )
        rc, out, err = r.call(
            [
                r.bin,
                "run",
                model,
                "--random-weights",
                "--device",
                "cuda",
                "--tp",
                n,
                "--tokens",
                "1,2,3,4,5",
                "-n",
                "8",
                "--ignore-eos",
                "--json",
                "--set",
                "deterministic=true",
            ],
            env={**env, **own, "LLMC_CACHE": cache},
            check=way != "always" or r.small,
        )
        if rc and "libnccl" not in err:
            raise Failed(err.strip()[-1500:])
        tokens[way] = json.loads(out)["tokens"] if not rc else "no NCCL"
        for path in glob.glob(cache + "/nccl/*"):
            f = struct.unpack("48f", Path(path).read_bytes()[:192])
            us = {
                f"{2 << i} KB": {
                    name: round(f[16 * k + i], 1)
                    for k, name in enumerate(WAYS)
                    if f[16 * k + i] > 0
                }
                for i in range(10)
                if f[i] > 0
            }
    if any(t not in (tokens.get("one-shot", t), "no NCCL") for t in tokens.values()):
        raise Failed(f"tokens differ between algorithms: {tokens}")
    return us


def stage_ranks(r):
    if lacks(r):
        return lacks(r)
    env = dict(LLMC_EMU_DEVICES="2", LLMC_COMM_TIMEOUT="3600") if r.small else {}
    n_gpu = 2 if r.small else len((r.out["machine"]["doctor"] or {}).get("devices") or [])
    if n_gpu < 2:
        return dict(skipped=f"{n_gpu} GPU: two or more are needed")
    done = {}
    for name in GOLDEN[:1] if r.small else ("llama-smol", "deepseek_v3-plain", "gemma2-caps"):
        done[f"{name} over 2"] = golden(r, name, "--tp", "2", env=env)
        r.keep(**done)
    for n in (2, 4, 8):
        if n <= n_gpu:
            done[f"all-reduce over {n}, us"] = sums(r, n, env)
            r.keep(**done)
    return done


def stage_sanitize(r):
    tool = shutil.which("compute-sanitizer") or next(
        iter(
            sorted(
                glob.glob("/usr/local/cuda*/bin/compute-sanitizer")
                + glob.glob("/opt/nvidia/*/compute-sanitizer")
            )
        ),
        None,
    )
    if r.small:  # a stand-in, whose options end before the program
        tool = os.path.join(r.tmp, "sanitizer")
        Path(tool).write_text(
            '#!/bin/sh\nshift 6\n"$@" >/dev/null && echo "========= ERROR SUMMARY: 0 errors"\n'
        )
        os.chmod(tool, 0o700)
    if not tool:
        return dict(skipped="no compute-sanitizer")
    model = figures.model_path(r, "tiny", None)
    args = [
        r.bin,
        "run",
        *model,
        "--device",
        "cuda",
        "--random-weights",
        "--tokens",
        "1,2,3,4,5",
        "-n",
        "4",
        "--ignore-eos",
        "--quiet",
    ]
    r.call(args)  # builds the kernels
    done, bad = {}, []
    for check in ("memcheck", "racecheck", "initcheck", "synccheck"):
        if r.left() < 5:
            done[check] = "no time left"
            continue
        try:
            rc, out, err = r.call(
                [tool, "--tool", check, "--error-exitcode", "9", "--print-limit", "10"] + args,
                60,
                check=False,
            )
            lines = [line for line in (out + err).split("\n") if line.startswith("=========")]
            done[check] = (
                lines[-1].strip("= ")
                if lines
                else f"exit status {rc}: {(out + err).strip()[-300:]}"
            )
            if rc == 9:
                done[check + "_log"] = "\n".join(lines)[:3000]
            if rc:
                bad.append(check)
        except Failed as e:
            done[check] = str(e)[:600]
        r.keep(**done)
    if bad:
        raise Failed("failed: " + " ".join(bad))
    return done


STAGES = dict(
    machine=stage_machine,
    conform=stage_conform,
    models=stage_models,
    figures=figures.stage,
    ranks=stage_ranks,
    kernels=stage_kernels,
    sanitize=stage_sanitize,
)


def libraries(r):
    """Use NVRTC and cuBLASLt of Python's packages if llmc finds none by itself."""
    if os.environ.get("LLMC_CUDA_LIBDIR"):
        return
    found = r.call([r.bin, "doctor", "--json"], most=60, check=False)[1]
    cuda = json.loads(found)["cuda"] if found.startswith("{") else {}
    if all(cuda.get(k, {}).get("found") for k in ("nvrtc", "cublaslt")):
        return
    for p in sys.path:
        if all(glob.glob(f"{p}/nvidia/*/lib/lib{name}.so.1*") for name in ("nvrtc", "cublasLt")):
            r.env["LLMC_CUDA_LIBDIR"] = p
            return


def unpack(r):
    """Make kernels that were compiled ahead (tests/gpu/pack.sh) writable only by their owner, and
    restore the mode of programs."""
    for path in (Path(r.bin), r.pack / "t_sm90"):
        if path.exists() and not os.access(path, os.X_OK):
            os.chmod(path, 0o755)
    tar = r.pack / "aot.tar.gz"
    if tar.exists() and not r.small:
        os.umask(0o077)
        with tarfile.open(tar) as t:
            for member in t:
                if member.isfile():
                    path = Path(r.tmp) / "aot" / member.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(t.extractfile(member).read())


def main():
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("--llmc", metavar="BINARY", help="binary to test [the pack's, or build/llmc]")
    a.add_argument("--out", metavar="FILE.json", help="result file [tests/gpu/results/<GPU>.json]")
    a.add_argument(
        "--minutes",
        type=float,
        default=9.5,
        help="time limit; stages beyond it are skipped and reported [9.5]",
    )
    a.add_argument("--only", metavar="STAGE,...", help="these stages: " + ", ".join(STAGES))
    a.add_argument("--models", metavar="NAME,...", help="figures of these models only")
    a.add_argument(
        "--rehearse",
        action="store_true",
        help="every stage with tiny shapes on the emulator (LLMC_CUDA_LIBDIR, or build/emu); PyTorch on the CPU",
    )
    a.add_argument(
        "--all", action="store_true", help="rehearse the larger models and PyTorch as well"
    )
    a.add_argument("--list-golden", action="store_true", help=argparse.SUPPRESS)
    a.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    args = a.parse_args()
    if args.list_golden:
        print(*GOLDEN)
        return 0
    if args.collect:  # check without a GPU that every test finds its imports
        r = Run(args)
        r.out["machine"] = dict(arch="sm_90a")
        print(pytest(r, ("test_conformance.py", *KERNELS), ["--collect-only", "-q", "-q"]))
        return 0
    if args.rehearse:
        os.environ.setdefault(
            "LLMC_CUDA_LIBDIR", str(Path(os.environ.get("BUILD") or ROOT / "build") / "emu")
        )
        os.environ.setdefault("LLMC_EMU_CACHE", str(build_cache.root()))
        os.environ.update(LLMC_EMU_QUIET="1", LLMC_EMU_GPU="sm_90a")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    r = Run(args)
    try:
        return run(r)
    finally:
        shutil.rmtree(r.tmp, ignore_errors=True)


def run(r):
    libraries(r)
    unpack(r)
    todo = r.args.only.split(",") if r.args.only else list(STAGES)
    unknown = set(todo) - set(STAGES)
    if unknown:
        print(
            f"gpu_check: no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}",
            file=sys.stderr,
        )
        return 1
    if "machine" not in todo:  # use the rates of this run
        todo.insert(0, "machine")
    failed = []
    for name in todo:
        r.stage, r.stage_end = name, 0
        if name != "machine" and r.left() < (1 if r.small else LEAST[name]):
            r.out["stages"].setdefault(name, dict(skipped="no time left"))
            print(f"{name:9} SKIPPED  no time left", flush=True)
            continue
        r.stage_end = time.time() + LIMIT[name] * r.patience
        r.out["stages"].pop(name, None)
        t = time.time()
        try:
            result, word = STAGES[name](r), "passed"
        except Exception as e:  # later stages are still useful
            result, word = (
                dict(
                    r.out["stages"].get(name, {}),
                    error=(str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}")[:6000],
                ),
                "FAILED",
            )
            failed.append(name)
        if "skipped" in result:
            word = "SKIPPED"
        r.out["stages"][name] = dict(result, status=word, took=round(time.time() - t, 1))
        text = result.get("error") or json.dumps(result)
        print(f"{name:9} {word}  {time.time() - t:6.1f} s  {text[:1500]}", flush=True)
        if name == "machine" and word == "FAILED" and "machine" not in r.out:
            r.save()
            return 3
        if name == "machine":
            r.adopt()
        r.save()
    r.stage_end = 0
    r.out["bars"] = figures.bars(r.out)
    r.save()
    figures.table(r.out)
    print(
        f"{'failed: ' + ' '.join(failed) if failed else 'nothing failed'}; {time.time() - r.start:.0f} s; {r.args.out}",
        flush=True,
    )
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
