#!/usr/bin/env python3
"""Write the table of docs/families.md from the files of configs/families/ and the plans of their golden models. Usage: families_doc.py [--check]"""

import concurrent.futures
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOC = os.path.join(ROOT, "docs", "families.md")
FAMILIES = os.path.join(ROOT, "configs", "families")
GOLDEN = [os.path.join(ROOT, "tests", "golden", d) for d in ("models", "encoders")]
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
TARGETS = {"CPU": ["--arch", "generic"], "GPU": ["--target", "cuda", "--arch", "sm_75"]}
MARK = re.compile(r"(<!-- families: tools/families_doc.py -->\n).*?(<!-- end -->\n)", re.S)


def family(name):
    """A family's file, and the models in its top comment, before the first colon."""
    with open(os.path.join(FAMILIES, name + ".yaml")) as f:
        text = f.read()
    head = " ".join(line[1:].strip() for line in text[: text.index("\nfamily:")].splitlines())
    models, colon, _ = head.partition(": ")
    assert colon, (
        f"configs/families/{name}.yaml must start with `# models: what is specific to them`"
    )
    return yaml.safe_load(text), models


# --- ops of plans


def folder(case, to):
    """Make a golden model with all tensors zero (a sparse file): import reads only names and shapes. Scalars are skipped."""
    with open(os.path.join(case, "case.json")) as f:
        golden = json.load(f)
    header, at = {}, 0
    for name, shape in golden["tensors"].items():
        if not shape:
            continue
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    os.mkdir(to)
    os.symlink(os.path.join(case, "config.json"), os.path.join(to, "config.json"))
    with open(os.path.join(to, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    return [to] + [a for k, v in golden["set"].items() for a in ("--set", f"{k}={v}")]


def dump(model, stage, *args):
    return subprocess.run(
        [LLMC, "compile", *model, *args, "--dump", stage],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def built(name):
    """Ops of the graphs of a family's golden models, and per target the ops of their plans that run on the reference."""
    ops, untuned = set(), {target: set() for target in TARGETS}
    with tempfile.TemporaryDirectory() as tmp:
        models = [
            folder(os.path.join(models, c), os.path.join(tmp, c))
            for models in GOLDEN
            for c in sorted(os.listdir(models))
            if c.split("-")[0] == name and not c.endswith("-bf16")
        ]
        for model in models or [
            [os.path.join(ROOT, "configs", "tiny.yaml"), "--set", f"family={name}"]
        ]:
            new = set(re.findall(r"^[%!].* = (\w+) ", dump(model, "graph"), re.M)) - ops
            ops |= new
            for target, args in TARGETS.items() if new else ():
                untuned[target] |= set(
                    re.findall(r"^ +\d+ (\w+) .* by reference$", dump(model, "order", *args), re.M)
                )
    return ops, untuned


# --- contents of a file


def ways(match, key):
    """Format a condition as "`llama`, `chatglm` where `has(inner_hidden_size)`": the compared words and the remaining conditions."""
    out = []
    for way in re.split(rf" or (?={key} ==)", match or ""):
        if m := re.fullmatch(rf"{key} == ([\w-]+)(?: and (.*))?", way):
            out.append(f"`{m[1]}`" + (f" where `{m[2]}`" if m[2] else ""))
    return ", ".join(out)


def word(v):
    return "null" if v is None else str(v).lower() if isinstance(v, bool) else str(v)


def expected(part):
    for key, v in part.get("expect", {}).items():
        values = [word(x) for x in (v if isinstance(v, list) else [v]) if x is not None]
        if v == "given":
            yield f"`{key}` given"
        elif v != "any":
            yield f"`{key}` {' or '.join(values)}" if values else f"no `{key}`"


def lengths(part):
    """Positions up to which llmc computes the same as the model."""
    exact, when = part.get("keys", {}).get("exact_positions"), part.get("when", [])
    unless = "".join(
        f" unless `{w['if']}`"
        for w in when
        if "exact_positions" in w["set"] and w["set"]["exact_positions"] is None
    )
    if exact:
        yield (
            "positions up to "
            + " or ".join(f"`{e}`" for e in (exact if isinstance(exact, list) else [exact]))
            + unless
        )
    for w in when:
        if to := w["set"].get("exact_positions"):
            yield f"positions up to `{to}` where `{w['if']}`"


def limits(data):
    out = ["positions up to `max_positions`"] if data["block"].get("position") == "learned" else []
    out += list(lengths(data["hf"])) + list(expected(data["hf"]))
    gguf = list(lengths(data.get("gguf", {}))) + list(expected(data.get("gguf", {})))
    return "; ".join(out + ["GGUF: " + gguf[0], *gguf[1:]] if gguf else out).replace("|", "\\|")


def gguf(data):
    arch = data.get("gguf", {}).get("arch")
    return ways(data["match"].get("gguf"), "arch") or (
        f"none (written as `{arch}`)" if arch else "none"
    )


def table():
    with open(os.path.join(FAMILIES, "_index.yaml")) as f:
        names = yaml.safe_load(f)["families"]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        plans = dict(zip(names, pool.map(built, names)))
    plain = plans["llama"][0]
    lines = [
        "| file | models | Hugging Face `model_type` | GGUF architecture | ops not in `llama` | tuned on CPU | tuned on GPU | limits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        (data, models), (ops, untuned) = family(name), plans[name]
        tuned = [
            f"all but {', '.join(sorted(untuned[t]))}" if untuned[t] else "all" for t in TARGETS
        ]
        own = ", ".join(f"`{op}`" for op in sorted(ops - plain))
        lines.append(
            "| "
            + " | ".join(
                [
                    f"`{name}`",
                    models,
                    ways(data["match"]["hf"], "model_type"),
                    gguf(data),
                    own,
                    *tuned,
                    limits(data),
                ]
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


def main():
    with open(DOC) as f:
        old = f.read()
    new = MARK.sub(lambda m: m[1] + table() + m[2], old)
    if sys.argv[1:] == ["--check"]:
        sys.exit("docs/families.md is out of date: run tools/families_doc.py" if new != old else 0)
    with open(DOC, "w") as f:
        f.write(new)


main()
