#!/usr/bin/env python3
"""docs/yaml.md from compiler/spec/spec.def: every key with type, unit, default and range. Usage: yaml_doc.py [--check]"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOC = os.path.join(ROOT, "docs", "yaml.md")
TYPES = {"INT": "whole number", "NUM": "number", "BYTES": "size", "BOOL": "true or false", "WORD": "word", "STR": "text", "LAYERS": "layers",
         "INTS": "list of whole numbers", "NUMS": "list of numbers", "RULES": "list of rules", "TENSORS": "map"}


def split(args):
    """Arguments of a macro call: commas outside strings and brackets."""
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
    """A C expression of the table: strings side by side, a number, a shift, NULL."""
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    if strings:
        return "".join(strings).replace('\\"', '"').strip()
    if text == "((void *)0)":  # NULL
        return None
    shift = re.fullmatch(r"(\d+)(?:ll)? << (\d+)", text)
    return int(shift[1]) << int(shift[2]) if shift else float(text)


def rows():
    source = subprocess.run(["gcc", "-E", "-P", "-imacros", os.path.join(ROOT, "formats/dtype.h"), "-imacros", os.path.join(ROOT, "formats/kv_type.h"), "-x", "c",
                             os.path.join(ROOT, "compiler/spec/spec.def")], check=True, capture_output=True, text=True).stdout
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
        _, path, kind, *rest = split(source[at + 4:end])
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
            out += ["", f"## {head or 'top level'}", "", "| key | type | default | range or words | meaning |", "|---|---|---|---|---|"]
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
        out.append(f"| `{path}` | {TYPES[kind]} | {shown} | {bounds} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(out) + "\n"


INTRO = """# The description

Written by `tools/yaml_doc.py` from `compiler/spec/spec.def`; a test keeps both alike.

A description is one YAML file. `family` names the file that gives the primitives (norms, positions, masks, routers) and the
names of tensors; the description gives the numbers. A key may be written as a map in a map or with points in between:
`attention: {n_heads: 8}` is `attention.n_heads: 8`. Later layers hide earlier ones: defaults, the family's `block`, its
`block` for the checkpoint's format, the description, `--set key=value` on the command line. `null` goes back to the default.
Anchors, aliases, tags and merge keys are refused, as are keys that llmc does not know and keys given twice.

**Layers** are `all`, `none`, a number, ranges as `"0-3,8"`, a list of those, or a map: `{from: 3}`, `{every: 2, at: 1}` (layers l with
l % 2 == 1), `{not_every: 6, at: 5}` (all but those with l % 6 == 5), each with `except:` a selector.

**Storage rules** are `{tensor: down, layers: "0-3", type: q6_k}`; `tensor` is a role or `*`, `layers` may be left out. The first rule that
matches decides, then `storage.default`. `q.bias` is the bias of q and follows the rules of q where it has none. Import writes these
from the checkpoint's header. Types of groups (`u4_128`) may have `group: 64` or `group: row`, the columns that share a scale, and `symmetric: true`.
Where a checkpoint has columns in an order of their own (GPTQ's `desc_act`, `actorder`) `order: q` names the role whose order it is, and `factor: o` the
role whose columns' factors x is multiplied by (`pre_quant_scale`): a step `arrange` makes such an x, one for all matrices that share it. `order: e_gate` on `e_gate` and `e_up`, `order: e_down` on `e_down`: each expert has an order of its own.
A checkpoint that has f32, f16 or bf16 where a rule says something else is quantised while it is read, to the nearest, by all threads; the cache keeps the
result. `quant: {scheme: awq, bits: 4, group: 128}` stands for the rules of a scheme; files of that scheme are read with the same description.

**Tensors** map a role to a name, on top of the family's: `q: .self_attn.q_proj`. A name that begins with `.` stands behind the name of
the layer, which the role `layer` gives with `{l}` for its number; `{e}` is the number of an expert; `/` in front keeps
`names.prefix` away. `.weight` and `.bias` are added. Roles joined by `+` are stacked on rows in one tensor. Behind a `|` stand
`per_head` (stacked head by head), `quarters` (in four parts, each with a quarter of every role), `transpose` (stored columns first), `stacked` (all experts in one tensor), `rope_pairs`
(rows of each head in the order of interleaved pairs) and `whole` (the name is complete). `drop` names tensors to pass over, `drop: .act_fn.beta | all=0.5` such as hold nothing but that
number (a checkpoint with another one is refused).

`resolved: true` marks a description in which everything is written out, as `model.yaml` of a compiled model: no family file is read, so
it means the same wherever it is taken.

`dtype` says what the model was made for (activations between steps are fp32), `kv.dtype` what keys and values are kept as (`docs/quantisation.md`)."""


def main():
    text = document()
    if sys.argv[1:] == ["--check"]:
        with open(DOC, encoding="utf-8") as f:
            if f.read() != text:
                sys.exit("docs/yaml.md is not what compiler/spec/spec.def says: run tools/yaml_doc.py")
        return
    with open(DOC, "w", encoding="utf-8") as f:
        f.write(text)


main()
