"""Measure the figures of gpu_check.py: llmc and PyTorch alternate on the same shapes. Then compare
with the bars that are set.

A share is (bytes of weights and KV that a step reads) / (end-to-end time of a step x read rate of
our kernel in the same run). The rate is the higher one of two measurements: by gpu.py, and by llmc
bench just before."""

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REAL = dict(
    models=[
        "llama3-8b",
        "llama3.2-1b",
        "qwen3-8b",
        "mixtral-8x7b",
        "qwen3-30b-a3b",
        "deepseek-v2-lite",
    ],
    batches=[1, 8, 16, 32, 64],
    n=64,
    depth=4000,
    prompts=[512, 4096],
    chunk=4096,
    runs=3,
    quantised=[("llama3-8b", "q8_0"), ("llama3-8b", "q4_k")],
)
SMALL = dict(
    models=["rehearsal", "rehearsal-moe", "rehearsal-mla"],
    batches=[1, 2],
    n=2,
    depth=40,
    prompts=[16],
    chunk=32,
    runs=1,
    quantised=[("rehearsal", "q8_0")],
)
# the bar of other models is 0.85
SHARE = {"llama3.2-1b": 0.75, "qwen3-30b-a3b": 0.75, "deepseek-v2-lite": 0.75}
MIXTURES = {
    "mixtral-8x7b": 8,
    "qwen3-30b-a3b": 12,
    "deepseek-v2-lite": 9,
    "rehearsal-moe": 2,
    "rehearsal-mla": 2,
}  # number of measured layers; all layers and PyTorch's copy of them would not fit in memory
QUANTISED = dict(q8_0=0.70, q4_k=0.55)


def model_path(r, name, storage):
    """Return the arguments that name a model: its artifact with kernels compiled ahead if the pack
    has it, else its description."""
    full = name + (f"-{storage}" if storage else "")
    made = Path(r.tmp) / "aot" / full
    config = next(
        p for p in (ROOT / "configs" / f"{name}.yaml", HERE / f"{name}.yaml") if p.exists()
    )
    sets = ["--set", f"storage.default={storage}"] if storage else []
    sets += ["--set", f"n_layers={MIXTURES[name]}"] if name in MIXTURES else []
    if r.small and not made.exists() and name.startswith("rehearsal"):
        r.llmc(
            "compile",
            config,
            "--target",
            "cuda",
            "--aot",
            "--arch",
            r.out["machine"]["arch"],
            "-o",
            made,
            "-q",
            *sets,
        )
    return [made] if made.exists() else [config, *sets]


class Peer:
    """PyTorch in a process that stays alive; it waits while llmc runs, and llmc waits while it
    runs."""

    def __init__(self, r, cpu):
        self.r, self.lines = r, queue.Queue()
        self.p = subprocess.Popen(
            [sys.executable, str(HERE / "torch_peer.py"), *(["--cpu"] if cpu else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=r.env,
        )
        self.error = []
        threading.Thread(
            target=self.read, args=(self.p.stdout, self.lines.put), daemon=True
        ).start()
        threading.Thread(
            target=self.read, args=(self.p.stderr, self.error.append), daemon=True
        ).start()

    @staticmethod
    def read(pipe, to):
        for line in pipe:
            to(line)
        to(None)

    def send_request(self, request, most):
        """Return the rows of a request. On a timeout the process is ended and the rows so far are
        returned."""
        rows, end = [], time.time() + min(most, self.r.left())
        try:
            self.p.stdin.write(json.dumps(request) + "\n")
            self.p.stdin.flush()
            while True:
                line = self.lines.get(timeout=max(0.1, end - time.time()))
                if line is None:
                    raise RuntimeError(
                        "".join(x for x in self.error if x).strip()[-500:] or "it ended"
                    )
                row = json.loads(line) if line.startswith("{") else {}
                if row.get("done"):
                    return rows
                if row.get("test"):
                    rows.append(row)
        except (queue.Empty, RuntimeError, OSError) as e:
            self.close()
            return rows + [
                dict(
                    model=request["model"],
                    test="peer",
                    error="no answer in time" if isinstance(e, queue.Empty) else str(e)[:500],
                )
            ]

    def alive(self):
        return self.p.poll() is None

    def close(self):
        self.p.kill()
        self.p.wait()


def ours(r, s, model, storage, tests, ops, way=None):
    """Return rows of llmc bench; tests: (prompts, batches, depth); way "own": without cuBLASLt."""
    rows, where = [], model_path(r, model, storage)
    for prompts, batches, depth in tests:
        text = r.llmc(
            "bench",
            *where,
            "--device",
            "cuda",
            "--random-weights",
            "--json",
            "-q",
            "-r",
            s["runs"],
            "--chunk",
            s["chunk"],
            "-p",
            ",".join(map(str, prompts)) or "0",
            "-n",
            s["n"] if batches else 0,
            "-b",
            ",".join(map(str, batches)) or "1",
            "-d",
            depth,
            *(["--ops"] if ops else []),
            most=100,
            env=dict(LLMC_CUBLASLT="never") if way else {},
        )
        got = json.loads(text)
        read = max(got["bandwidth_gbps"], r.out["machine"].get("read_gbps", 0), 1e-3)
        for x in got["results"]:
            row = dict(
                model=model,
                storage=storage or "bf16",
                test=x["test"][:2],
                batch=x["batch"],
                depth=x["depth"],
                tokens=x["tokens"],
                seconds=x["step_s"] * (x["steps"] if x["test"].startswith("pp") else 1),
                tps=x["tps"],
                tps_stddev=x["tps_stddev"],
                bytes=x["bytes"],
                read_gbps=read,
                open_s=got["open_s"],
            )
            if way:
                row["way"] = way
            if row["test"] == "tg":
                row["share"] = x["bytes"] / (row["seconds"] * read * 1e9)
            if "ops" in x:
                row["ops"] = x["ops"]
            rows.append(row)
    return rows


def merge(rows):
    """Merge rows of the same test from several passes: mean time, and all times."""
    out = {}
    for row in rows:
        key = tuple(
            row.get(k)
            for k in ("model", "storage", "way", "test", "batch", "depth", "tokens", "m", "n", "k")
        )
        if key not in out:
            out[key] = dict(row, passes=[row["seconds"]]) if "seconds" in row else row
        elif "seconds" in row:
            o = out[key]
            o["passes"].append(row["seconds"])
            o["seconds"] = sum(o["passes"]) / len(o["passes"])
            if "share" in o:
                o["read_gbps"] = max(o["read_gbps"], row["read_gbps"])
                o["share"] = o["bytes"] / (o["seconds"] * o["read_gbps"] * 1e9)
    return list(out.values())


def stage(r):
    s = SMALL if r.small else REAL
    models = r.args.models.split(",") if r.args.models else s["models"]
    all_tests = [(s["prompts"], s["batches"], 0), ([], [1], s["depth"])]
    request = dict(decode=[[b, 0] for b in s["batches"]] + [[1, s["depth"]]], prefill=s["prompts"])
    mine, theirs, skipped = {}, {}, []
    with_torch = r.out["machine"].get("torch") and (not r.small or r.args.all)
    peer = (
        Peer(r, r.small) if with_torch else None
    )  # PyTorch is imported while llmc has its first turn

    def keep():
        fresh = (
            merge([x for v in mine.values() for x in v]),
            merge([x for v in theirs.values() for x in v]),
        )
        old = r.out["figures"]
        for name, rows in zip(("llmc", "torch"), fresh):
            again = {(x["model"], x.get("storage")) for x in rows}
            old[name] = rows + [
                x for x in old.get(name, []) if (x["model"], x.get("storage")) not in again
            ]
        r.save()

    def attempt(name, what, least=12):
        if r.left() < least and not r.small:
            skipped.append(f"{name}: no time left")
            return
        t = time.time()
        try:
            what()
        except Exception as e:
            skipped.append(f"{name}: {type(e).__name__}: {e}"[:1500])
        r.note(
            f"{name}: {time.time() - t:.0f} s"
            + (f"; {skipped[-1][:600]}" if skipped and skipped[-1].startswith(name + ":") else "")
        )
        keep()

    def our_turn(m, storage=None, tests=all_tests, ops=False, way=None):
        mine.setdefault((m, storage), []).extend(ours(r, s, m, storage, tests, ops, way))

    try:
        for m in models:
            attempt(f"{m}", lambda: our_turn(m, ops=True))
            if peer and not peer.alive():
                peer = Peer(r, r.small)
            if peer:
                attempt(
                    f"{m}, PyTorch",
                    lambda: theirs.setdefault(m, []).extend(
                        peer.send_request(dict(request, model=m), 90)
                    ),
                )
                attempt(f"{m} again", lambda: our_turn(m), 20)
            if ((r.out["machine"].get("doctor") or {}).get("cublaslt") or {}).get("found"):
                attempt(
                    f"{m} without cuBLASLt",
                    lambda: our_turn(m, tests=[(s["prompts"], [], 0)], ops=True, way="own"),
                )
            for name, storage in s["quantised"] if not r.small or r.args.all else []:
                if name == m:
                    attempt(
                        f"{m} {storage}", lambda: our_turn(m, storage, [([], [1], 0)], ops=True)
                    )
        if not r.args.models:
            attempt("cold start", lambda: cold(r, s, models[0]), 20)
    finally:
        if peer:
            peer.close()
    if not any(mine.values()):
        raise RuntimeError("; ".join(skipped))
    return dict(
        result=f"{sum(len(v) for v in mine.values())} rows",
        **(dict(left_out=skipped) if skipped else {}),
    )


def cold(r, s, model):
    """Time the opening of a model with kernels compiled ahead, by NVRTC with an empty cache, and
    from the cache."""
    config = next(
        p for p in (ROOT / "configs" / f"{model}.yaml", HERE / f"{model}.yaml") if p.exists()
    )
    times = {}
    for name, where in (
        ("ahead", model_path(r, model, None)),
        ("nvrtc", [config]),
        ("cache", [config]),
    ):
        if name == "nvrtc" and not r.out["machine"]["nvrtc"]:
            break
        text = r.llmc(
            "bench",
            *where,
            "--device",
            "cuda",
            "--random-weights",
            "--json",
            "-q",
            "-p",
            "0",
            "-n",
            "1",
            "-r",
            "1",
            "-c",
            "64",
            env=dict(LLMC_CACHE=r.tmp + ("/ahead" if name == "ahead" else "/cold")),
            most=60,
        )
        times[name] = json.loads(text)["open_s"]
    r.out["figures"]["open_s"] = dict(model=model, **times)


# ---- bars -----------------------------------------------------------------------------------------------------------


def bars(out):
    """Return (name, bar, measured or None, reached) of every bar that is set; None: not
    measured."""
    small = out.get("machine", {}).get("emulator")
    s, found = SMALL if small else REAL, []
    rows, peer = out["figures"].get("llmc", []), out["figures"].get("torch", [])

    def row(test, m, storage="bf16", **more):
        return next(
            (
                x
                for x in rows
                if x["test"] == test
                and x["model"] == m
                and x["storage"] == storage
                and not x.get("way")
                and all(x[k] == v for k, v in more.items())
            ),
            None,
        )

    def other(test, m, **more):
        return next(
            (
                x
                for x in peer
                if x["test"] == test
                and x["model"] == m
                and "seconds" in x
                and all(x.get(k) == v for k, v in more.items())
            ),
            None,
        )

    def bar(what, wanted, value, most=False):
        found.append(
            dict(
                bar=what,
                wanted=wanted,
                most=most,
                value=value,
                reached=None if value is None else value <= wanted if most else value >= wanted,
            )
        )

    for m in s["models"]:
        for depth in (0, s["depth"]):
            x = row("tg", m, batch=1, depth=depth)
            bar(
                f"{m}: decode, batch 1, position {depth}: share of reads",
                SHARE.get(m, 0.85),
                x and x["share"],
            )
    for m, storage in s["quantised"]:
        x = row("tg", m, storage, batch=1, depth=0)
        bar(f"{m} {storage}: decode, batch 1: share of reads", QUANTISED[storage], x and x["share"])
    # in models with experts, a step of more rows reads more of them
    for m in [m for m in s["models"] if m not in MIXTURES]:
        one, some = row("tg", m, batch=1, depth=0), row("tg", m, batch=s["batches"][1], depth=0)
        bar(
            f"{m}: step of batch {s['batches'][1]} / of batch 1",
            1.10,
            some["seconds"] / one["seconds"] if one and some else None,
            most=True,
        )
        for b in [b for b in s["batches"] if b > 8]:
            x = row("tg", m, batch=b, depth=0)
            bar(f"{m}: decode, batch {b}: share of reads", SHARE.get(m, 0.85), x and x["share"])
    for m in s["models"]:
        n = s["prompts"][-1]
        x, g = row("pp", m, tokens=n), other("gemms", m, tokens=n)
        bar(
            f"{m}: prefill {n}: GEMMs alone in PyTorch / all of ours",
            0.80,
            g["seconds"] / x["seconds"] if x and g else None,
        )
    for m in s["models"]:
        for b, d in [(b, 0) for b in s["batches"]] + [(1, s["depth"])]:
            x, o = row("tg", m, batch=b, depth=d), other("tg", m, batch=b, depth=d)
            bar(
                f"{m}: decode, batch {b}, position {d}: PyTorch's time / ours",
                1.0,
                o["seconds"] / x["seconds"] if x and o else None,
            )
        for n in s["prompts"]:
            x, o = row("pp", m, tokens=n), other("pp", m, tokens=n)
            bar(
                f"{m}: prefill {n}: PyTorch's time / ours",
                1.0,
                o["seconds"] / x["seconds"] if x and o else None,
            )
    return found


def table(out):
    f, m = out["figures"], out.get("machine", {})
    print(
        f"\n{m.get('name')}: reads {m.get('read_gbps', 0):.0f} GB/s, copies {m.get('copy_gbps', 0):.0f} GB/s"
    )
    for x in f.get("llmc", []):
        what = (
            f"pp {x['tokens']} {x.get('way', '')}"
            if x["test"] == "pp"
            else f"tg b{x['batch']} @{x['depth']}"
        )
        print(
            f"{x['model']:12} {x['storage']:5} {what:12} {1e3 * x['seconds']:9.3f} ms {x['tps']:10.1f} tokens/s"
            + (f"  {100 * x['share']:5.1f} % of reads" if "share" in x else "")
        )
        if "ops" in x and (
            x["test"] == "pp"
            and x["tokens"] == max(y["tokens"] for y in f["llmc"] if y["test"] == "pp")
            or x["test"] == "tg"
            and x["batch"] == 1
        ):
            for o in x["ops"]:
                rate = o["weight_bytes"] / o["s"] / 1e9 if o["s"] and x["test"] == "tg" else 0
                print(
                    f"    {o['op'] + (' (Lt)' if o.get('cublaslt') else ''):16} {o['n']:3} x {1e6 * o['s'] / o['n']:8.1f} us = {1e3 * o['s']:8.3f} ms"
                    + (f" {rate:7.0f} GB/s {100 * rate / x['read_gbps']:5.1f} %" if rate else "")
                )
            print(f"    {'all of them':16} {'':22} {1e3 * sum(o['s'] for o in x['ops']):8.3f} ms")
    most = max((x["m"] for x in f.get("torch", []) if "m" in x), default=0)
    for x in f.get("torch", []):
        if "seconds" in x and x.get("m", most) == most:
            what = {
                "tg": f"tg b{x.get('batch')} @{x.get('depth')}",
                "gemm": f"{x.get('m')}x{x.get('n')}x{x.get('k')}",
            }.get(x["test"], f"{x['test']} {x.get('tokens')}")
            print(
                f"{x['model']:12} torch {what:18} {1e3 * x['seconds']:9.3f} ms"
                + (f" {x['tflops']:6.0f} TFLOP/s" if "tflops" in x else "")
            )
        elif "error" in x:
            print(
                f"{x['model']:12} torch {x['test']}: {x['error'].strip().split(chr(10))[-1][:200]}"
            )
    if "open_s" in f:
        print(
            "opening "
            + ", ".join(f"{k} {v:.2f} s" if k != "model" else v for k, v in f["open_s"].items())
        )
    print(f"\n{'bar':78} wanted  measured")
    for b in out["bars"]:
        value = (
            "not measured"
            if b["value"] is None
            else f"{b['value']:6.3f}  {'reached' if b['reached'] else 'NOT reached'}"
        )
        print(f"{b['bar']:78} {'<=' if b['most'] else '>='} {b['wanted']:.2f} {value}")
