#!/usr/bin/env python3
"""llmc and llama.cpp on the same GGUF, same threads, interleaved; medians of paired ratios.

    make bench-peer PEER_ARGS="--quick --isa v3"

llama.cpp comes from the newest source package of llama-cpp-python (PyPI), built into the cache, with its native flags
(--isa best) or held to AVX2 (--isa v3), as llmc is. Where its native build dies, the best build that runs is taken; the result
file says which, and how the others died. In each round every test runs once on each side, llama.cpp
with flash attention off and on; the better of the two is the one compared with. The result file names the machine,
the floor (bytes and operations of a token) and the share of it that was reached.
"""
import argparse
import datetime
import glob
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tarfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.environ.get("LLMC_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc")
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
PACKAGE = "llama_cpp_python"
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize")
V3 = ["-DGGML_NATIVE=OFF", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON", "-DGGML_AVX512=OFF",
      "-DGGML_AVX_VNNI=OFF", "-DGGML_AMX_INT8=OFF", "-DGGML_AMX_TILE=OFF", "-DGGML_AMX_BF16=OFF"]

# see the header: without it GCC's AMX build dies at its first product
AMX_REPAIR = f"-DCMAKE_CXX_FLAGS=-include {os.path.join(ROOT, 'tests', 'bench', 'peer_amx.h')}"
AVX512 = {"AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16"}


def sh(*cmd, **kw):
    return subprocess.run(cmd, check=True, text=True, stdout=subprocess.PIPE, **kw).stdout


def say(text):
    print(text, file=sys.stderr, flush=True)


def builds(isa):
    """Ways to build it, best first: (name, flags). A native build takes every unit of the processor, which may fault in one of them."""
    if isa == "v3":
        return [("avx2", V3)]
    flags = open("/proc/cpuinfo").read().split()
    avx512 = [f"-DGGML_{k}=ON" for k, f in AVX512.items() if f in flags]
    return [("native", ["-DGGML_NATIVE=ON", AMX_REPAIR])] + \
        ([("avx512, no amx", [x for x in V3 if not x.startswith("-DGGML_AVX512")] + avx512)] if "avx512_vnni" in flags else []) + [("avx2", V3)]


def sdists():
    """{version: address} of the index. pip would build the metadata to download a source package: ask the index itself."""
    import html
    import urllib.parse
    import urllib.request
    base = os.environ.get("PIP_INDEX_URL") or subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], text=True, capture_output=True).stdout.strip() or "https://pypi.org/simple"
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
    """(version, folder) of llama.cpp: the given version, else the index's newest, else without an index the newest one fetched before."""
    import urllib.error
    import urllib.request
    have = {m[1]: d for d in glob.glob(os.path.join(top, f"{PACKAGE}-*", "vendor", "llama.cpp")) if (m := re.search(PACKAGE + r"-([\d.]+)/", d))}
    if version in have:
        return version, have[version]
    try:
        index = sdists()
    except (urllib.error.URLError, OSError) as e:
        if version or not have:
            sys.exit(f"bench-peer: no package index to fetch llama.cpp's source from: {e}")
        version = max(have, key=order)
        say(f"bench-peer: no package index ({e}); {version} is the newest source here")
        return version, have[version]
    version = version or max(index, key=order)
    if version not in index:
        sys.exit(f"bench-peer: the package index has no {PACKAGE}-{version}.tar.gz")
    if version not in have:
        say(f"bench-peer: fetching llama.cpp's source, {version}")
        name = os.path.join(top, f"{PACKAGE}-{version}.tar.gz")
        urllib.request.urlretrieve(index[version], name + ".part")
        os.rename(name + ".part", name)
        with tarfile.open(name) as t:
            t.extractall(top)
        have[version] = os.path.join(top, f"{PACKAGE}-{version}", "vendor", "llama.cpp")
    return version, have[version]


def build_one(src, out, name, flags):
    """None, or why there is no such build."""
    if not all(os.path.exists(os.path.join(out, "bin", b)) for b in TOOLS):
        say(f"bench-peer: building llama.cpp ({name}); several minutes")
        with open(out + ".log", "w") as log:
            for cmd in (["cmake", "-S", src, "-B", out, "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
                         "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DBUILD_SHARED_LIBS=OFF", *flags],
                        ["cmake", "--build", out, "-j", str(os.cpu_count()), "--target", *TOOLS]):
                if subprocess.run(cmd, stdout=log, stderr=subprocess.STDOUT).returncode:
                    return f"does not build; see {out}.log (cmake and g++ are needed)"
    return None


def trial(bin, model, threads):
    """None, or how the build dies: a prompt long enough for every unit of the processor, and decode."""
    for cmd in (["llama-bench", "-m", model, "-t", str(threads), "-p", "512", "-n", "4", "-r", "1", "-fa", "0,1", "-ngl", "0", "-o", "json"],
                ["llama-batched-bench", "-m", model, "-t", str(threads), "-c", "512", "-npp", "32", "-ntg", "4", "-npl", "8", "-ngl", "0"]):
        try:
            r = subprocess.run([os.path.join(bin, cmd[0]), *cmd[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=900)
        except subprocess.TimeoutExpired:
            return f"{cmd[0]} does not end"
        if r.returncode:
            return f"{cmd[0]} ends with " + (signal.Signals(-r.returncode).name if r.returncode < 0 else f"status {r.returncode}")
    return None


def build_peer(isa, model, threads, version=None):
    """The best build that runs on this machine: (folder of its tools, what the result file says of it)."""
    top = os.path.join(CACHE, "peer")
    os.makedirs(top, exist_ok=True)
    version, src = source(top, version)
    died = {}
    for name, flags in builds(isa):
        out = os.path.join(top, f"{version}-{name.replace(', ', '-').replace(' ', '-')}")
        bin = os.path.join(out, "bin")
        why = build_one(src, out, name, flags) or trial(bin, model, threads)
        if not why:
            return bin, {"version": f"llama.cpp of llama-cpp-python {version}", "build": name, "builds_that_died": died}
        say(f"bench-peer: the build {name} {why}")
        died[name] = why
    sys.exit(f"bench-peer: no build of llama.cpp {version} runs here: {died}")


def peer_bench(bin, model, threads, p, n, depth):
    """{flash attention: tokens/s}"""
    rows = json.loads(sh(os.path.join(bin, "llama-bench"), "-m", model, "-t", str(threads), "-p", str(p), "-n", str(n), "-d", str(depth),
                         "-r", "1", "-fa", "0,1", "-ngl", "0", "-o", "json", stderr=subprocess.DEVNULL))
    return {bool(r["flash_attn"]): r["avg_ts"] for r in rows}


def peer_batched(bin, model, threads, batch, n):
    best = {}
    for fa in (False, True):
        # the flag took no value before mid-2025
        for flag in ((["-fa", "on"], ["-fa"]) if fa else (["-fa", "off"], [])):
            r = subprocess.run([os.path.join(bin, "llama-batched-bench"), "-m", model, "-t", str(threads), "-c", str(batch * (32 + n) + 64),
                                "-npp", "32", "-ntg", str(n), "-npl", str(batch), "-ngl", "0", "--output-format", "jsonl", *flag],
                               text=True, capture_output=True)
            rows = [json.loads(x) for x in r.stdout.splitlines() if x.startswith("{")]
            if rows:
                best[fa] = rows[-1]["speed_tg"]
                break
    return best


def llmc_bench(model, threads, isa, sets, p, n, batch, depth):
    cmd = [LLMC, "bench", model, "-t", str(threads), "-p", str(p), "-n", str(n), "-b", str(batch), "-d", str(depth), "-r", "1", "--json", "--quiet"]
    if isa == "v3":
        cmd += ["--arch", "v3"]
    for s in sets:
        cmd += ["--set", s]
    return json.loads(sh(*cmd, stderr=subprocess.DEVNULL))


def machine():
    name = "unknown"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    flags = open("/proc/cpuinfo").read()
    return {"cpu": name, "cores": os.cpu_count(), "avx512_vnni": "avx512_vnni" in flags, "amx_int8": "amx_int8" in flags, "kernel": platform.release()}


def tests(quick):
    t = [("pp512", 512, 0, 1, 0), ("tg128", 0, 128, 1, 0), ("tg32 @ d2048", 0, 32, 1, 2048), ("tg32 b4", 0, 32, 4, 0), ("tg32 b8", 0, 32, 8, 0)]
    return [x for x in t if x[0] != "tg32 b4"] if quick else t


def quantised(bin, model, kind):
    """The model in another format, by llama-quantize."""
    out = os.path.join(CACHE, "peer", f"smollm2-{kind}.gguf")
    if not os.path.exists(out):
        sh(os.path.join(bin, "llama-quantize"), "--allow-requantize", model, out + ".part", kind, stderr=subprocess.DEVNULL)
        os.rename(out + ".part", out)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model")
    ap.add_argument("--isa", choices=["best", "v3"], default="v3")
    ap.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--quick", action="store_true", help="three rounds, fewer tests")
    ap.add_argument("--formats", action="store_true", help="decode and prefill of the other weight formats")
    ap.add_argument("--peer-version", help="of llama-cpp-python [the newest]")
    ap.add_argument("--build-only", action="store_true")
    ap.add_argument("--out", help="result file [tests/bench/results/peer-...json]")
    a = ap.parse_args()
    rounds = 3 if a.quick else a.rounds
    model = a.model or sh(os.path.join(ROOT, "tools", "smollm2.sh")).strip()
    bin, about = build_peer(a.isa, model, a.threads, a.peer_version)
    if a.build_only:
        return
    sides = {"i16": [], "i8": ["activations=i8"]}
    plan = [(model, "Q4_1", t) for t in tests(a.quick)]
    if a.formats:
        plan = [(quantised(bin, model, k), k, t) for k in ("Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "F16", "BF16") for t in tests(True)[:2]]
    load = os.getloadavg()[0]
    result = {"date": datetime.date.today().isoformat(), "machine": machine(), "isa": a.isa, "threads": a.threads, "rounds": rounds,
              "load_before": load, "quiet": load < 0.5, "peer": about, "tests": []}
    rows = {}
    for r in range(rounds):
        for path, kind, (name, p, n, batch, depth) in plan:
            say(f"round {r + 1}/{rounds} {kind} {name}")
            row = rows.setdefault((kind, name), {"format": kind, "test": name, "peer": [], "llmc": {k: [] for k in sides}, "share": {k: [] for k in sides}})
            peer = peer_batched(bin, path, a.threads, batch, n) if batch > 1 else peer_bench(bin, path, a.threads, p, n, depth)
            row["peer"].append(peer)
            for side, sets in sides.items():
                got = llmc_bench(path, a.threads, a.isa, sets, p, n, batch, depth)
                row["llmc"][side].append(got["results"][0]["tps"])
                row["share"][side].append(got["results"][0]["bw_fraction"])
    print(f"{'format':8} {'test':14} {'llama.cpp':>10} " + " ".join(f"{'llmc ' + s:>10} {'ratio':>6} {'spread':>13}" for s in sides))
    for row in rows.values():
        best = [max(x.values()) for x in row["peer"]]
        out = {"format": row["format"], "test": row["test"], "peer_tps": round(statistics.median(best), 2),
               "peer_flash_attention": statistics.mode([max(x, key=x.get) for x in row["peer"]])}
        line = f"{row['format']:8} {row['test']:14} {out['peer_tps']:10.1f} "
        for side in sides:
            ratio = [x / b for x, b in zip(row["llmc"][side], best)]
            out[side] = {"tps": round(statistics.median(row["llmc"][side]), 2), "ratio": round(statistics.median(ratio), 3),
                         "ratio_min": round(min(ratio), 3), "ratio_max": round(max(ratio), 3),
                         "bandwidth_share": round(statistics.median(row["share"][side]), 3)}
            line += f" {out[side]['tps']:10.1f} {out[side]['ratio']:6.2f} {out[side]['ratio_min']:6.2f}-{out[side]['ratio_max']:<6.2f}"
        result["tests"].append(out)
        print(line)
    out = a.out or os.path.join(ROOT, "tests", "bench", "results",
                                f"peer-{re.sub('[^a-z0-9]+', '-', result['machine']['cpu'].lower()).strip('-')}-{a.isa}{'-formats' if a.formats else ''}.json")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    say(f"wrote {out}")


if __name__ == "__main__":
    main()
