#!/usr/bin/env python3
"""Write docs/yaml.md from compiler/spec/spec.def: every key with type, unit, default and range. Usage: yaml_doc.py [--check]"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOC = os.path.join(ROOT, "docs", "yaml.md")
TYPES = {
    "INT": "integer",
    "NUM": "number",
    "BYTES": "size",
    "BOOL": "true or false",
    "WORD": "word",
    "STR": "string",
    "LAYERS": "layers",
    "INTS": "list of integers",
    "NUMS": "list of numbers",
    "RULES": "list of rules",
    "TENSORS": "map",
}


def split(args):
    """Split the arguments of a macro call at commas outside strings and brackets."""
    out, depth, text, quoted = [], 0, "", False
    i = 0
    while i < len(args):
        c = args[i]
        if quoted:
            text += c
            if c == "\\":
                i += 1
                text += args[i]
            elif c == '"':
                quoted = False
        elif c == "," and depth == 0:
            out.append(text.strip())
            text = ""
        else:
            quoted = c == '"'
            depth += (c == "(") - (c == ")")
            text += c
        i += 1
    return out + [text.strip()]


def value(text):
    """Evaluate a C expression of the table: adjacent strings, a number, a shift, NULL."""
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    if strings:
        return "".join(strings).replace('\\"', '"').strip()
    if text == "((void *)0)":  # NULL
        return None
    shift = re.fullmatch(r"(\d+)(?:ll)? << (\d+)", text)
    return int(shift[1]) << int(shift[2]) if shift else float(text)


def rows():
    source = subprocess.run(
        [
            "gcc",
            "-E",
            "-P",
            f"-I{ROOT}",
            "-imacros",
            os.path.join(ROOT, "formats/dtype.h"),
            "-imacros",
            os.path.join(ROOT, "formats/kv_type.h"),
            "-x",
            "c",
            os.path.join(ROOT, "compiler/spec/spec.def"),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    at = 0
    while (at := source.find("KEY(", at)) >= 0:
        depth, end, quoted = 0, at + 3, False
        while True:
            c = source[end]
            if c == '"' and source[end - 1] != "\\":
                quoted = not quoted
            if not quoted:
                depth += (c == "(") - (c == ")")
                if depth == 0:
                    break
            end += 1
        _, path, kind, *rest = split(source[at + 4 : end])
        default, low, high, unit, text = map(value, rest)
        yield value(path), kind, default, low, high, unit, text
        at = end


def number(v):
    return str(int(v)) if v == int(v) and abs(v) < 1e9 else f"{v:g}"


def document():
    out = [INTRO]
    group = None
    for path, kind, default, low, high, unit, text in rows():
        head = path.split(".")[0] if "." in path else ""
        if path.startswith(("rope.scaling", "rope.local")):
            head = ".".join(path.split(".")[:2])
        if head != group:
            out += [
                "",
                f"## {head or 'top level'}",
                "",
                "| key | type | default | range or words | meaning |",
                "|---|---|---|---|---|",
            ]
            group = head
        bounds = ""
        if kind in ("INT", "NUM", "INTS", "NUMS"):
            bounds = f"{number(low)} to {number(high)}" + (f" {unit}" if unit else "")
        elif kind == "BYTES":
            bounds = f"up to {int(high) >> 40}T"
        elif kind == "WORD":
            bounds = ", ".join(f"`{w}`" for w in unit.split())
        if default is None:
            shown = "required"
        elif kind == "BOOL":
            shown = "`true`" if default == "1" else "`false`"
        elif default == "":
            shown = "none"
        else:
            shown = "`" + default.replace("$", "") + "`"
        out.append(
            f"| `{path}` | {TYPES[kind]} | {shown} | {bounds} | {text.replace('|', chr(92) + '|')} |"
        )
    return "\n".join(out) + "\n"


INTRO = """# The description

Written by `tools/yaml_doc.py` from `compiler/spec/spec.def`; a test compares both.

A description is one YAML file. `family` names the file with the primitives (norms, positions,
masks, routers) and the names of tensors; the description has the numbers. A key may be written as
nested maps or with dots: `attention: {n_heads: 8}` is `attention.n_heads: 8`. Later layers override
earlier ones: defaults, the family's `block`, its `block` for the format of the checkpoint, the
description, `--set key=value` on the command line. `null` restores the default. Anchors, aliases,
tags and merge keys are refused, as are unknown and duplicate keys.

**Layers** are `all`, `none`, a number, ranges as `"0-3,8"`, a list of those, or a map. Maps are
`{from: 3}`, `{every: 2, at: 1}` (layers l with l % 2 == 1) and `{not_every: 6, at: 5}` (all except
those with l % 6 == 5), each optionally with `except:` and a selector.

**Storage rules** are `{tensor: down, layers: "0-3", type: q6_k}`. `tensor` is a role or `*`;
`layers` is optional. The first matching rule decides, then `storage.default`.

- `q.bias` is the bias of q. A bias without a rule of its own follows the rules of its matrix.
- Import writes these rules from the checkpoint's header.
- Grouped types (`u4_128`) accept `group: 64` or `group: row`, the columns that share a scale, and
  `symmetric: true`.
- `order: q` is for a checkpoint that permutes the columns of a matrix (GPTQ's `desc_act`,
  `actorder`). It names the role whose permutation applies.
- `factor: o` names the role whose column factors multiply x (`pre_quant_scale`).
- A step `permute_cols` permutes or multiplies x once for all matrices that share the order or the
  factors.
- `order: e_gate` on `e_gate` and `e_up`, and `order: e_down` on `e_down`: each expert has its own
  order.
- If a rule gives another type than the f32, f16 or bf16 checkpoint has, loading rounds the tensor
  to the nearest value of that type, on all threads. The cache keeps the result.
- `quant: {method: awq, bits: 4, group: 128}` stands for the rules of a quantisation format. Files
  of that format are read with the same description.

**Tensors** map a role to a name and override the family's: `q: .self_attn.q_proj`.

- A name that begins with `.` follows the name of the layer, which the role `layer` defines with
  `{l}` for its number. `{e}` is the number of an expert. A leading `/` omits `names.prefix`.
  `.weight` and `.bias` are added.
- Roles joined by `+` are stacked on rows in one tensor.
- Options follow a `|`. `per_head`: stacked head by head. `quarters`: in four parts, each with a
  quarter of every role. `transpose`: stored columns first. `stacked`: all experts in one tensor.
  `rope_pairs`: rows of each head in the order of interleaved pairs. `unfold`: columns of merged
  rows, those of all rows of the first element, then of the second. `whole`: the name is complete.
- `drop` names tensors to ignore. `drop: .act_fn.beta | all=0.5` ignores tensors that contain only
  that number; a checkpoint with another one is refused.

`resolved: true` marks a description in which everything is written out, such as `model.yaml` of a
compiled model. No family file is read, so it means the same everywhere.

`dtype` is the type that the model was made for (activations between steps are fp32). `kv.dtype` is
the type of cached keys and values ([quantisation.md](quantisation.md#cache))."""


def main():
    text = document()
    if sys.argv[1:] == ["--check"]:
        with open(DOC, encoding="utf-8") as f:
            if f.read() != text:
                sys.exit("docs/yaml.md is out of date: run tools/yaml_doc.py")
        return
    with open(DOC, "w", encoding="utf-8") as f:
        f.write(text)


main()
