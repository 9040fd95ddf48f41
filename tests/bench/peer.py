#!/usr/bin/env python3
"""Compare llmc and llama.cpp on the same GGUF with the same threads. They alternate; results are
medians of paired ratios.

    make bench-peer PEER_ARGS="--quick --isa v3"            SmolLM2
    make bench-peer PEER_ARGS="--widths --minutes 11"       MoE, latent attention, a dense 1B: files with random weights (random_gguf.py)
    make bench-peer PEER_ARGS="--widths --prepare"          beforehand: builds, files, kernels, so that the other run only measures
    make bench-peer PEER_ARGS="--widths --check"            no times: compare the logits of both
    make bench-peer PEER_ARGS="--codes --minutes 20"        a 1B in Q2_K, Q3_K, IQ1 to IQ4 and TQ
    make bench-peer PEER_ARGS="--recent --minutes 15"       Qwen3.5, gpt-oss in MXFP4, Gemma 4: recurrent states, sinks, windows, layers of two shapes

llama.cpp comes from the newest source package of llama-cpp-python (PyPI). It is built into the
cache with its native flags, without AMX (--isa best), or restricted to AVX2 like llmc (--isa v3).
The first round of a model runs every build with flash attention off and on, and without repacking
if repacking crashes. Per test the fastest variant is compared, and only it runs in later rounds.

The result file names the selected variant and how others failed, the machine, the lower bound of
bytes and operations per token, and the share of that bound that was reached. It also has the
machine's read bandwidth and the measured peak of its tiles. --minutes limits the number of rounds.
"""

import argparse
import datetime
import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tarfile
import time

from machine import machine, result_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.environ.get("LLMC_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc"
)
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
PACKAGE = "llama_cpp_python"
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize")
V3 = [
    "-DGGML_NATIVE=OFF",
    "-DGGML_AVX=ON",
    "-DGGML_AVX2=ON",
    "-DGGML_FMA=ON",
    "-DGGML_F16C=ON",
    "-DGGML_BMI2=ON",
    "-DGGML_AVX512=OFF",
    "-DGGML_AVX_VNNI=OFF",
    "-DGGML_AMX_INT8=OFF",
    "-DGGML_AMX_TILE=OFF",
    "-DGGML_AMX_BF16=OFF",
]

# see the header: without it GCC's AMX build crashes at its first matmul
AMX_REPAIR = f"-DCMAKE_CXX_FLAGS=-include {os.path.join(ROOT, 'tests', 'bench', 'peer_amx.h')}"
AVX512 = {
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
}


def sh(*cmd, **kw):
    return subprocess.run(cmd, check=True, text=True, stdout=subprocess.PIPE, **kw).stdout


def report(text):
    print(text, file=sys.stderr, flush=True)


def builds(isa):
    """Return build variants (name, flags). A native build uses every unit of the processor, which
    may be slower than another or crash."""
    if isa == "v3":
        return [("avx2", V3)]
    flags = open("/proc/cpuinfo").read().split()
    avx512 = [f"-DGGML_{k}=ON" for k, f in AVX512.items() if f in flags]
    return (
        [("native", ["-DGGML_NATIVE=ON", AMX_REPAIR])]
        + (
            [("avx512, no amx", [x for x in V3 if not x.startswith("-DGGML_AVX512")] + avx512)]
            if "avx512_vnni" in flags
            else []
        )
        + [("avx2", V3)]
    )


def sdists():
    """Return {version: URL} of the index. pip would build metadata to download a source package, so
    the index is queried directly."""
    import html
    import urllib.parse
    import urllib.request

    base = (
        os.environ.get("PIP_INDEX_URL")
        or subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
            text=True,
            capture_output=True,
        ).stdout.strip()
        or "https://pypi.org/simple"
    )
    page_url = base.rstrip("/") + "/llama-cpp-python/"
    page = urllib.request.urlopen(page_url, timeout=60).read().decode()
    found = {}
    for href in re.findall(r'href="([^"]+)"', page):
        href = html.unescape(href)
        m = re.search(PACKAGE + r"-(\d+(?:\.\d+)+)\.tar\.gz", href)
        if m:
            found[m[1]] = urllib.parse.urljoin(page_url, href)
    return found


def order(version):
    return tuple(map(int, version.split(".")))


def source(top, version):
    """Return (version, folder) of llama.cpp: the given version, else the newest of the index, else
    the newest that was fetched before."""
    import urllib.error
    import urllib.request

    have = {
        m[1]: d
        for d in glob.glob(os.path.join(top, f"{PACKAGE}-*", "vendor", "llama.cpp"))
        if (m := re.search(PACKAGE + r"-([\d.]+)/", d))
    }
    if version in have:
        return version, have[version]
    try:
        index = sdists()
    except (urllib.error.URLError, OSError) as e:
        if version or not have:
            sys.exit(f"bench-peer: no package index to fetch llama.cpp's source from: {e}")
        version = max(have, key=order)
        report(f"bench-peer: no package index ({e}); {version} is the newest source here")
        return version, have[version]
    version = version or max(index, key=order)
    if version not in index:
        sys.exit(f"bench-peer: the package index has no {PACKAGE}-{version}.tar.gz")
    if version not in have:
        report(f"bench-peer: fetching llama.cpp's source, {version}")
        name = os.path.join(top, f"{PACKAGE}-{version}.tar.gz")
        urllib.request.urlretrieve(index[version], name + ".part")
        os.rename(name + ".part", name)
        with tarfile.open(name) as t:
            t.extractall(top)
        have[version] = os.path.join(top, f"{PACKAGE}-{version}", "vendor", "llama.cpp")
    return version, have[version]


def build_one(src, out, name, flags):
    """Build one variant; return None, or the reason why it cannot be built."""
    if not all(os.path.exists(os.path.join(out, "bin", b)) for b in TOOLS):
        report(f"bench-peer: building llama.cpp ({name}); several minutes")
        with open(out + ".log", "w") as log:
            for cmd in (
                [
                    "cmake",
                    "-S",
                    src,
                    "-B",
                    out,
                    "-DCMAKE_BUILD_TYPE=Release",
                    "-DLLAMA_CURL=OFF",
                    "-DLLAMA_BUILD_TESTS=OFF",
                    "-DLLAMA_BUILD_SERVER=OFF",
                    "-DLLAMA_BUILD_EXAMPLES=OFF",
                    "-DBUILD_SHARED_LIBS=OFF",
                    *flags,
                ],
                ["cmake", "--build", out, "-j", str(os.cpu_count()), "--target", *TOOLS],
            ):
                if subprocess.run(cmd, stdout=log, stderr=subprocess.STDOUT).returncode:
                    return f"does not build; see {out}.log (cmake and g++ are needed)"
    return None


def build_peers(isa, version=None):
    """Return [(name, folder of its tools)] of existing builds, and their description for the result
    file."""
    top = os.path.join(CACHE, "peer")
    os.makedirs(top, exist_ok=True)
    version, src = source(top, version)
    peers, died = [], {}
    for name, flags in builds(isa):
        if peers and name == "avx2":
            break
        out = os.path.join(top, f"{version}-{name.replace(', ', '-').replace(' ', '-')}")
        why = build_one(src, out, name, flags)
        if why:
            report(f"bench-peer: the build {name} {why}")
            died[name] = why
        else:
            peers.append((name, os.path.join(out, "bin")))
    if not peers:
        sys.exit(f"bench-peer: no build of llama.cpp {version} here: {died}")
    return peers, {
        "version": f"llama.cpp of llama-cpp-python {version}",
        "builds": [n for n, _ in peers],
        "builds_that_died": died,
    }


# --- tests of one side that share a process
# ----------------------------------------------------------------------------


class Test:
    """A test: `batch` sequences decode n tokens each at `depth`, or a prompt of p tokens is
    computed."""

    def __init__(self, name, p=0, n=0, batch=1, depth=0):
        self.name, self.p, self.n, self.batch, self.depth = name, p, n, batch, depth
        self.kind = "batch" if batch > 1 else "depth" if depth else "plain"


class Died(Exception):
    pass


def run_peer(cmd):
    try:
        # start no debugger on an abort
        r = subprocess.run(
            cmd,
            text=True,
            capture_output=True,
            timeout=900,
            env=dict(os.environ, GGML_NO_BACKTRACE="1"),
        )
    except subprocess.TimeoutExpired:
        raise Died("does not end") from None
    if r.returncode:
        raise Died(
            f"{os.path.basename(cmd[0])} ends with "
            + (signal.Signals(-r.returncode).name if r.returncode < 0 else f"status {r.returncode}")
        )
    return r.stdout


def peer_bench(bin, model, threads, tests, fa, repack):
    """Return {test: [tokens/s]} for tests of one kind. A depth is filled once for three runs."""
    if tests[0].kind == "batch":
        out = {}
        for t in tests:
            each = (
                -(-(32 + t.n) // 256) * 256
            )  # llama.cpp rounds a sequence's context up, and reports no error if the sequences do not fit
            rows = run_peer(
                [
                    os.path.join(bin, "llama-batched-bench"),
                    "-m",
                    model,
                    "-t",
                    str(threads),
                    "-c",
                    str(t.batch * each),
                    "-npp",
                    "32",
                    "-ntg",
                    str(t.n),
                    "-npl",
                    str(t.batch),
                    "-ngl",
                    "0",
                    "--output-format",
                    "jsonl",
                    "-fa",
                    "on" if fa else "off",
                    *([] if repack else ["--no-repack"]),
                ]
            )
            found = [json.loads(x)["speed_tg"] for x in rows.splitlines() if x.startswith("{")]
            if not found:
                raise Died("llama-batched-bench says nothing")
            out[t.name] = found[-1:]
        return out
    depth = tests[0].kind == "depth"
    join = lambda xs: ",".join(map(str, sorted(set(xs)))) or "0"  # noqa: E731
    rows = json.loads(
        run_peer(
            [
                os.path.join(bin, "llama-bench"),
                "-m",
                model,
                "-t",
                str(threads),
                "-p",
                join(t.p for t in tests if t.p),
                "-n",
                join(t.n for t in tests if t.n),
                "-d",
                join(t.depth for t in tests),
                "-r",
                "3" if depth else "1",
                "-fa",
                str(int(fa)),
                "--repack",
                str(int(repack)),
                "-ngl",
                "0",
                "-o",
                "json",
            ]
        )
    )
    return {
        t.name: r["samples_ts"]
        for t in tests
        for r in rows
        if (r["n_prompt"], r["n_gen"], r["n_depth"]) == (t.p, t.n, t.depth)
    }


def llmc_bench(model, threads, isa, sets, tests, ops=False):
    """Return {test: its row} with mean tokens/s of the runs, and the surrounding document."""
    join = lambda xs: ",".join(map(str, sorted(set(xs)))) or "0"  # noqa: E731
    cmd = [
        LLMC,
        "bench",
        model,
        "-t",
        str(threads),
        "-p",
        join(t.p for t in tests if t.p),
        "-n",
        join(t.n for t in tests if t.n),
        "-b",
        join(t.batch for t in tests),
        "-d",
        join(t.depth for t in tests),
        "-r",
        "3" if tests[0].kind == "depth" else "1",
        "--json",
        "--quiet",
    ]
    cmd += ["--arch", "v3"] if isa == "v3" else []
    cmd += ["--ops"] if ops else []
    for s in sets:
        cmd += ["--set", s]
    r = json.loads(sh(*cmd, stderr=subprocess.DEVNULL))
    key = {
        (
            f"pp{t.p}"
            if t.p
            else f"tg{t.n}"
            + (f" b{t.batch}" if t.batch > 1 else "")
            + (f" @ d{t.depth}" if t.depth else "")
        ): t.name
        for t in tests
    }
    return {key[x["test"]]: x for x in r["results"]}, r


def tiles(threads):
    """Return the measured peak of the tiles on all threads, in operations/s: {"int8": .., "bf16":
    ..}; empty without AMX."""
    if "amx_int8" not in open("/proc/cpuinfo").read():
        return {}
    exe = os.path.join(CACHE, "peer", "tiles")
    try:
        sh(
            "cc",
            "-O2",
            "-mamx-tile",
            "-mamx-int8",
            "-mamx-bf16",
            "-pthread",
            os.path.join(ROOT, "tests", "bench", "tiles.c"),
            "-o",
            exe,
        )
        return json.loads(sh(exe, str(threads)))
    except (subprocess.CalledProcessError, OSError) as e:
        report(f"bench-peer: the tiles' peak was not measured: {e}")
        return {}


# --- cases
# --------------------------------------------------------------------------------------------------------------

I16, I8 = ("i16", []), ("i8", ["activations=i8"])
NEAR, BF16 = ("near exact", []), ("bf16", ["activations=bf16"])
DEMO = [
    Test("pp512", p=512),
    Test("tg128", n=128),
    Test("tg32 @ d2048", n=32, depth=2048),
    Test("tg32 b4", n=32, batch=4),
    Test("tg32 b8", n=32, batch=8),
]
WIDTHS = [
    Test("pp512", p=512),
    Test("tg32", n=32),
    Test("tg32 b8", n=32, batch=8),
    Test("tg32 @ d4096", n=32, depth=4096),
]
FORMATS = ("Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "F16", "BF16")


class Case:
    """A model file with its tests; model() creates the file if it is missing.

    goals: {test: ratio to llama.cpp, or {variant: ratio}}; 85 % of the read bandwidth counts as
    reached."""

    def __init__(self, name, kind, model, tests, sides, goals=None):
        self.name, self.kind, self.model, self.tests, self.sides, self.goals = (
            name,
            kind,
            model,
            tests,
            sides,
            goals or {},
        )
        self.rows = {
            t.name: {
                "peer": {},
                "llmc": {s: [] for s, _ in sides},
                "ratio": {s: [] for s, _ in sides},
                "row": {},
                "best": None,
            }
            for t in tests
        }
        self.died = {}


TINY = {
    "qwen3-30b-a3b": "tiny-qwen3moe",
    "deepseek-v2-lite": "tiny-deepseek",
    "llama3.2-1b": "tiny-llama",
    "mixtral-8x7b": "tiny-mixtral",
    "qwen3.5-9b": "tiny-qwen35",
    "qwen3.5-35b-a3b": "tiny-qwen35moe",
    "gpt-oss-20b": "tiny-gpt-oss",
    "gemma4-26b-a4b": "tiny-gemma4-moe",
    "gemma4-e4b": "tiny-gemma4",
}


def widths(quick, tiny=False):
    """Return the cases, the most important first, because a short time limit drops the end of each
    round."""
    import random_gguf

    mixture = {"tg32": 1.6, "tg32 @ d4096": 1.6, "tg32 b8": 2, "pp512": 3}
    latent = {"tg32": 1.6, "tg32 @ d4096": 3, "tg32 b8": 3, "pp512": 3}
    dense = {"tg32 b8": 3, "pp512": {"i8": 6, "i16": 4, "near exact": 4, "bf16": 4}}
    kinds = (("Q4_0",) if quick else ("Q4_0", "Q4_K_M", "Q8_0")) + (("BF16",) if tiny else ())
    out = []
    for kind in kinds:
        for shape, goals in (
            ("qwen3-30b-a3b", mixture),
            ("deepseek-v2-lite", latent),
            ("llama3.2-1b", dense),
            ("mixtral-8x7b", mixture),
        ):
            sides = (
                [NEAR]
                if kind == "BF16"
                else [I16, I8, BF16]
                if shape == "llama3.2-1b"
                else [I16, I8]
                if not quick
                else [I16]
            )
            out.append(
                Case(
                    shape,
                    kind,
                    lambda s=shape, k=kind: random_gguf.make(TINY[s] if tiny else s, k),
                    WIDTHS,
                    sides,
                    goals,
                )
            )
    out.append(
        Case(
            "llama3.2-1b",
            "BF16",
            lambda: random_gguf.make("tiny-llama" if tiny else "llama3.2-1b", "BF16"),
            WIDTHS[:2] if quick else WIDTHS,
            [NEAR, BF16],
            dense,
        )
    )
    return out


def recent(quick, tiny=False):
    """Return families of 2025 and 2026, in the type that is downloaded most."""
    import random_gguf

    goals = {"tg32": 1.5, "tg32 @ d4096": 1.5, "pp512": 2.5}
    return [
        Case(
            shape,
            kind,
            lambda s=shape, k=kind: random_gguf.make(TINY[s] if tiny else s, k),
            [t for t in WIDTHS if t.kind != "batch"],
            [I16] if quick else [I16, I8],
            goals,
        )
        for shape, kind in (
            ("qwen3.5-35b-a3b", "Q4_K_M"),
            ("gpt-oss-20b", "MXFP4"),
            ("gemma4-26b-a4b", "Q4_K_M"),
            ("qwen3.5-9b", "Q4_K_M"),
            ("gemma4-e4b", "Q4_K_M"),
        )
    ]


def codes(quick, tiny=False):
    """Return a 1B model in each low-bit type, the common types first."""
    import random_gguf

    goals = {"tg32": 1.3, "pp512": 2}
    shape = "tiny-llama" if tiny else "llama3.2-1b"
    order = (
        "IQ4_XS",
        "Q3_K",
        "IQ3_S",
        "IQ2_XS",
        "Q2_K",
        "IQ4_NL",
        "IQ3_XXS",
        "IQ2_XXS",
        "IQ1_S",
        "IQ2_S",
        "IQ1_M",
        "TQ2_0",
        "TQ1_0",
    )
    return [
        Case("llama3.2-1b", k, lambda k=k: random_gguf.make(shape, k), WIDTHS[:2], [I16, I8], goals)
        for k in order
    ]


SETS = {"widths": widths, "codes": codes, "recent": recent}


def quantised(bin, model, kind):
    """Requantise the model with llama-quantize."""
    out = os.path.join(CACHE, "peer", f"smollm2-{kind}.gguf")
    if not os.path.exists(out):
        sh(
            os.path.join(bin, "llama-quantize"),
            "--allow-requantize",
            model,
            out + ".part",
            kind,
            stderr=subprocess.DEVNULL,
        )
        os.rename(out + ".part", out)
    return out


def cases(a, bin):
    if a.set:
        return [
            c
            for c in SETS[a.set](a.quick, a.tiny)
            if not a.only or re.search(a.only, f"{c.name} {c.kind}")
        ]
    model = a.model or sh(os.path.join(ROOT, "tools", "smollm2.sh")).strip()
    name = os.path.basename(a.model) if a.model else "SmolLM2-135M"
    if a.formats:
        return [
            Case(name, k, lambda k=k: quantised(bin, model, k), DEMO[:2], [I16, I8])
            for k in FORMATS
        ]
    return [
        Case(
            name,
            "Q4_1" if not a.model else "",
            lambda: model,
            [x for x in DEMO if x.batch != 4 or not a.quick],
            [I16, I8],
        )
    ]


# --- measuring ----------------------------------------------------------------------------------------------------------


def measure_peer(case, model, tests, peers, threads):
    """Run all builds and flags once, later only the best of each test; return the best tokens/s per
    test in this round. A depth takes long to fill, so only the build that decodes best without
    one runs it."""
    now = {}
    decode = next(
        (
            row["best"]
            for name, row in case.rows.items()
            if name.startswith("tg") and row["best"] and tests[0].kind == "depth"
        ),
        None,
    )
    if decode:
        peers = [p for p in peers if p[0] == decode[0]]
    for build, bin in peers:
        for fa in (False, True):
            todo = [t for t in tests if case.rows[t.name]["best"] in (None, (build, fa))]
            if not todo:
                continue
            for repack in (True, False):
                if (build, repack) in case.died:
                    continue
                try:
                    got = peer_bench(bin, model, threads, todo, fa, repack)
                except Died as e:
                    case.died[build, repack] = str(e)
                    continue
                for name, tps in got.items():
                    case.rows[name]["peer"].setdefault((build, fa), []).extend(tps)
                    now[name] = max(now.get(name, 0), statistics.median(tps))
                break
    for t in tests:
        tried = case.rows[t.name]["peer"]
        if tried and not case.rows[t.name]["best"]:
            case.rows[t.name]["best"] = max(tried, key=lambda k: statistics.median(tried[k]))
    return now


def one_round(case, peers, a, late, kinds=("plain", "batch", "depth")):
    """Run one round of a case; late(): the time is over."""
    model = case.model()
    for kind in kinds:
        tests = [t for t in case.tests if t.kind == kind]
        if not tests or late():
            continue
        report(f"  {case.name} {case.kind} {', '.join(t.name for t in tests)}")
        peer = measure_peer(case, model, tests, peers, a.threads)
        for side, sets in list(case.sides):
            try:
                got, about = llmc_bench(model, a.threads, a.isa, sets, tests, ops=kind == "plain")
            except subprocess.CalledProcessError:
                report(f"bench-peer: llmc bench {case.name} {case.kind} ({side}) failed")
                continue
            for t in tests:
                row, x = case.rows[t.name], got[t.name]
                row["llmc"][side].append(x)
                row["bandwidth"] = about["bandwidth_gbps"]
                row["target"] = about["target"]
                if t.name in peer:
                    row["ratio"][side].append(x["tps"] / peer[t.name])


def summary(case, t, peak):
    """Return the entry of a test in the result file; None: it has not run."""
    row = case.rows[t.name]
    if not any(row["llmc"].values()):
        return None
    med = statistics.median
    out = {
        "model": case.name,
        "format": case.kind,
        "test": t.name,
        "target": row["target"],
        "rounds": max(map(len, row["llmc"].values())),
    }
    if row["best"]:
        out["peer_tps"] = round(med(row["peer"][row["best"]]), 2)
        out["peer_build"], out["peer_flash_attention"] = row["best"]
        out["peer_tried"] = {
            f"{b}{', fa' if fa else ''}": round(med(v), 2) for (b, fa), v in row["peer"].items()
        }
    for side, rows in row["llmc"].items():
        if not rows:
            continue
        tps = med(x["tps"] for x in rows)
        s = out[side] = {
            "tps": round(tps, 2),
            "bandwidth_share": round(med(x["bw_fraction"] for x in rows), 3),
        }
        if row["ratio"][side]:
            s |= {
                "ratio": round(med(row["ratio"][side]), 3),
                "ratio_min": round(min(row["ratio"][side]), 3),
                "ratio_max": round(max(row["ratio"][side]), 3),
            }
        unit = "bf16" if case.kind in ("BF16", "F16") or side == "bf16" else "int8"
        if t.p and rows[0].get("ops") and peak.get(unit):
            s["tile_share"] = round(
                sum(o["ops"] for o in rows[0]["ops"]) * tps / t.p / peak[unit], 3
            )
        if "peer_tps" in out and tps:
            s["peer_bandwidth_share"] = round(s["bandwidth_share"] * out["peer_tps"] / tps, 3)
        goal = case.goals.get(t.name)
        goal = goal.get(side) if isinstance(goal, dict) else goal
        if goal and "ratio" in s:
            s["goal"], s["reached"] = (
                goal,
                bool(s["ratio"] >= goal or t.name == "tg32" and s["bandwidth_share"] >= 0.85),
            )
    return out


def show(result):
    print(
        f"{'model':18} {'format':7} {'test':13} {'llama.cpp':>9} {'by':17} {'llmc':>20} {'ratio':>6} {'spread':>12} {'goal':>5} {'of reads':>9} {'of tiles':>9} {'llama.cpp':>10}"
    )
    for x in result["tests"]:
        by = (x.get("peer_build", "") + (", fa" if x.get("peer_flash_attention") else "")).replace(
            "avx512, no amx", "avx512"
        )
        for side in [k for k, v in x.items() if isinstance(v, dict) and "tps" in v]:
            s = x[side]
            goal = f"{s['goal']:g}{'' if s['reached'] else ' !'}" if "goal" in s else ""
            print(
                f"{x['model']:18} {x['format']:7} {x['test']:13} {x.get('peer_tps', 0):9.1f} {by:17} {s['tps']:9.1f} {side:>10} {s.get('ratio', 0):6.2f} "
                f"{s.get('ratio_min', 0):5.2f}-{s.get('ratio_max', 0):<6.2f} {goal:>5} {100 * s['bandwidth_share']:7.0f} % "
                f"{100 * s['tile_share'] if 'tile_share' in s else 0:7.0f} % {100 * s.get('peer_bandwidth_share', 0):8.0f} %"
            )


# --- the same logits ----------------------------------------------------------------------------------------------------


def check(case, lib, a):
    """Compare both programs' logits after the prompt and after each token that llama.cpp samples;
    return the largest differences of rows."""
    import numpy as np

    model, n = case.model(), 4
    exe = os.path.join(lib, "peer_logits")
    if not os.path.exists(exe):
        src = glob.glob(
            os.path.join(
                CACHE,
                "peer",
                f"{PACKAGE}-{re.search('[0-9.]+[0-9]', os.path.basename(lib))[0]}",
                "vendor",
                "llama.cpp",
            )
        )[0]
        sh(
            "cc",
            "-O1",
            f"-I{src}/include",
            f"-I{src}/ggml/include",
            "-c",
            os.path.join(ROOT, "tests", "bench", "peer_logits.c"),
            "-o",
            exe + ".o",
        )
        sh(
            "c++",
            exe + ".o",
            *(
                os.path.join(lib, x)
                for x in (
                    "src/libllama.a",
                    "ggml/src/libggml.a",
                    "ggml/src/libggml-cpu.a",
                    "ggml/src/libggml-base.a",
                )
            ),
            "-fopenmp",
            "-ldl",
            "-lpthread",
            "-o",
            exe,
        )
    prompt = [(i * 7919 + 13) % 500 for i in range(40)]
    ids = lambda x: ",".join(map(str, x))  # noqa: E731
    raw = subprocess.run(
        [exe, model, str(a.threads), ids(prompt), str(n)], check=True, stdout=subprocess.PIPE
    ).stdout
    theirs = np.frombuffer(raw, np.float32).reshape(n, -1)
    picks = [int(x.argmax()) for x in theirs]
    npy = os.path.join(CACHE, "peer", f"check-{os.getpid()}.npy")
    worst, agree = {}, {}
    for side, sets in case.sides:
        cmd = [
            LLMC,
            "run",
            model,
            "--tokens",
            ids(prompt + picks[:-1]),
            "-n",
            "1",
            "-t",
            str(a.threads),
            "--logits",
            npy,
            "--quiet",
        ]
        for s in sets:
            cmd += ["--set", s]
        r = subprocess.run(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if r.returncode:
            print(
                f"{case.name:18} {case.kind:7} {side:10} llmc: {r.stderr.strip().splitlines()[-1] if r.stderr.strip() else r.returncode}"
            )
            return False
        ours = np.load(npy)[-n:]
        os.remove(npy)
        worst[side] = max(
            float(np.sqrt(((x - y) ** 2).mean()) / y.std()) for x, y in zip(ours, theirs)
        )
        agree[side] = sum(int(x.argmax()) == p for x, p in zip(ours, picks))
        print(
            f"{case.name:18} {case.kind:7} {side:10} rms difference {worst[side]:.4f} of the logits' deviation, same token in {agree[side]} of {n} rows",
            flush=True,
        )
    # llama.cpp rounds activations to 8 bits, which may change a router's choice
    return all(w < 0.15 for w in worst.values())


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--model")
    ap.add_argument(
        "--isa",
        choices=["best", "v3"],
        help="instruction set [v3; with --widths, --codes or --recent best]",
    )
    ap.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    ap.add_argument("--rounds", type=int, help="number of rounds [5; with --quick 3]")
    ap.add_argument("--minutes", type=float, help="start no new measurement after this time")
    ap.add_argument(
        "--quick",
        action="store_true",
        help="fewer rounds and tests; with --widths only Q4_0 and BF16",
    )
    ap.add_argument(
        "--formats", action="store_true", help="decode and prefill of the other weight formats"
    )
    ap.add_argument(
        "--widths",
        action="store_true",
        help="files with the sizes of real models and random weights",
    )
    ap.add_argument(
        "--codes",
        action="store_true",
        help="files with the sizes of a 1B in GGUF's low-bit types: Q2_K, Q3_K, IQ1 to IQ4, TQ",
    )
    ap.add_argument(
        "--recent", action="store_true", help="files with the sizes of Qwen3.5, gpt-oss and Gemma 4"
    )
    ap.add_argument(
        "--tiny",
        action="store_true",
        help="with --widths, --codes or --recent: small files of the same kinds, to test the script",
    )
    ap.add_argument(
        "--only",
        metavar="REGEX",
        help="with --widths, --codes or --recent: only these names and formats, such as 'qwen3.* Q4_0'",
    )
    ap.add_argument("--tests", metavar="REGEX", default="", help="only these tests, such as 'tg'")
    ap.add_argument(
        "--prepare",
        action="store_true",
        help="build, write and compile what is missing; measure nothing",
    )
    ap.add_argument("--check", action="store_true", help="compare logits, measure nothing")
    ap.add_argument("--peer-version", help="version of llama-cpp-python [the newest]")
    ap.add_argument("--build-only", action="store_true")
    ap.add_argument("--out", help="result file [tests/bench/results/peer-...json]")
    a = ap.parse_args()
    start = time.monotonic()
    a.set = next((name for name in SETS if getattr(a, name)), None)
    a.isa = a.isa or ("best" if a.set else "v3")
    rounds = a.rounds or (3 if a.quick else 5)
    peers, about = build_peers(a.isa, a.peer_version)
    if a.build_only:
        return
    todo = cases(a, peers[-1][1])
    for c in todo:
        c.tests = [t for t in c.tests if re.search(a.tests, t.name)]
    if a.check:
        sys.exit(0 if all([check(c, os.path.dirname(peers[-1][1]), a) for c in todo]) else 1)
    if a.prepare:
        for c in todo:
            for _, sets in c.sides:
                report(f"{c.name} {c.kind} {' '.join(sets)}")
                try:
                    llmc_bench(c.model(), a.threads, a.isa, sets, [Test("tg1", n=1)])
                except subprocess.CalledProcessError:
                    report("  llmc cannot run it")
        return
    late = (lambda: time.monotonic() - start > 60 * a.minutes) if a.minutes else (lambda: False)
    peak, load = tiles(a.threads), os.getloadavg()[0]
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "isa": a.isa,
        "threads": a.threads,
        "rounds": rounds,
        "load_before": load,
        "quiet": load < 0.5,
        "peer": about,
        "tiles_peak": peak,
        "tests": [],
    }
    out = a.out or result_file(
        "peer", a.isa + (f"-{a.set}" if a.set else "-formats" if a.formats else "")
    )
    os.makedirs(os.path.dirname(out), exist_ok=True)
    for r in range(rounds):
        for c in todo:
            if late():
                break
            report(f"round {r + 1}/{rounds}, {time.monotonic() - start:.0f} s")
            # a depth has three runs per round, which is enough if time is short
            one_round(
                c,
                peers,
                a,
                late,
                ("plain", "batch") if a.quick and r > 0 else ("plain", "batch", "depth"),
            )
            # keep the results so far if a later case stops the run
            result["tests"] = [x for c in todo for t in c.tests if (x := summary(c, t, peak))]
            result["peer"]["died"] = {
                f"{c.name} {c.kind}: {b}{'' if repack else ', no repack'}": why
                for c in todo
                for (b, repack), why in c.died.items()
            }
            result["machine"]["read_gbps"] = round(
                max((row.get("bandwidth", 0) for c in todo for row in c.rows.values()), default=0),
                1,
            )
            with open(out, "w") as f:
                json.dump(result, f, indent=1)
                f.write("\n")
    show(result)
    report(
        f"wrote {out}; reads {result['machine']['read_gbps']} GB/s, tiles {', '.join(f'{k} {v / 1e12:.1f} Tops/s' for k, v in peak.items()) or 'none'}"
    )


if __name__ == "__main__":
    main()
