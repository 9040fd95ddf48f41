"""Contents of each rank for each golden model, as text: tests/golden/ranks/tp<N>.txt and pp2.txt, one paragraph per model.

    python3 tests/golden/rank_plans.py         rewrites them from plans of build/llmc; review the diff. With names: prints the paragraphs of these models

A paragraph has the all-reduces ("sums") and all-gathers ("joins") of a decode step with their bytes per row, and a digest of their sequence (op, layer, attributes). Then one line per
rank: bytes of weights, of keys and values per token, of recurrent states per sequence, and the part of each sharded role (rows, or columns with c) at its first occurrence. If the model
cannot be sharded, it has the error message. `check` compares every plan with shapes computed here in numpy from the plan of one rank, by the rules of docs/parallel.md, independently of the compiler."""

import collections
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import weights  # noqa: E402

LLMC = os.environ.get("LLMC", os.path.join(HERE, "..", "..", "build", "llmc"))
WAYS = {"tp2": 2, "tp3": 3, "tp4": 4, "tp8": 8, "pp2": 2}
BLOCKS = {
    "f32": (1, 4),
    "bf16": (1, 2),
    "f16": (1, 2),
    "i32": (1, 4),
    "q4_0": (32, 18),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q6_k": (256, 210),
}  # elements and bytes of a block


# only the first layers: all layers are sharded in the same way
PUBLISHED = {
    name: (name, "n_layers=" + ("4" if name.startswith("deepseek") else "2"))
    for name in [
        "chatglm3-6b",
        "deepseek-v2-lite",
        "deepseek-v3",
        "gemma2-9b",
        "glm4-9b",
        "llama2-7b",
        "llama3-70b",
        "mistral-7b",
        "mixtral-8x7b",
        "phi3-mini",
        "qwen2.5-7b",
        "qwen3-30b-a3b",
        "qwen3-8b",
    ]
}
PUBLISHED |= {
    f"{name}-{dtype}": (name, "n_layers=2", f"storage.default={dtype}")
    for name, dtype in [("qwen2.5-7b", "q4_k"), ("llama3-8b", "q6_k"), ("smollm2-135m", "q4_0")]
}


def cases():
    """Return a golden model of each family, which is small and has odd sizes, and the first layers
    of published models in configs/ whose heads suffice for eight ranks."""
    first = {}
    for case in weights.cases():
        first.setdefault(case.split("-")[0], case)
    return sorted(first.values()) + list(PUBLISHED)


def path_of(way):
    return os.path.join(HERE, "ranks", way + ".txt")


def plans(model, way=None):
    """Return the plans of all ranks, or the error message. way None: one rank. model: path, output
    folder, arguments."""
    path, folder, args = model
    out = tempfile.mkdtemp(dir=folder)
    args = args + ["--set", "kv.dtype=f16"] + (["--" + way[:2], way[2:]] if way else [])
    p = subprocess.run(
        [LLMC, "compile", path, "-o", out, "--target", "ref", *args], capture_output=True, text=True
    )
    if p.returncode:
        said = re.search(r"error: (parallel\..*)", p.stderr)
        assert said, p.stderr
        return said[1]
    n = WAYS[way] if way else 1
    names = [f"plan-ref-r{k}of{n}.json" for k in range(n)] if way else ["plan-ref.json"]
    return [json.load(open(os.path.join(out, name))) for name in names]


# ---- contents of a plan -------------------------------------------------------------------------------------------------


def role_of(name):
    """Split a tensor's name into (layer, role, rest): L3.q.bias gives 3, q, bias."""
    m = re.match(r"(?:L(\d+)\.)?([^.]*)(?:\.(.*))?$", name)
    return int(m[1]) if m[1] else -1, m[2], m[3]


number_of = collections.defaultdict(lambda: len(number_of))  # indices of checkpoint tensors


def reads(t):
    """Return the rows of the checkpoint that make up a tensor, in order: the high half of a number
    is the index of the checkpoint's tensor, the low half the row. Also return the tensor's first
    column and number of columns."""
    rows = []
    for s in t["src"]:
        i = np.arange(s["n_block"] * s["block"])
        if s["rope_pairs"]:
            pair, at, half = s["rope_pairs"], i % s["rope_pairs"], s["rope_pairs"] // 2
            i = i // pair * pair + np.where(at < half, 2 * at, 2 * (at - half) + 1)
        rows.append(
            (number_of[s["name"]] << 32)
            + s["first"]
            + i // s["block"] * s["stride"]
            + i % s["block"]
        )
    columns = {(s.get("col_first", 0), t["cols"]) for s in t["src"]}
    assert len(columns) == 1, t["id"]
    return np.concatenate(rows), columns.pop()


def bytes_of(t):
    elements, size = BLOCKS[t["dtype"]]
    return t["rows"] * (t["cols"] // elements * size if t["cols"] else size)


def steps(plan, *ops):
    return [s for s in plan["phase"][0]["step"] if s["op"] in ops]


def together(plan):
    return [(s["op"], s["layer"], s["attr"]) for s in steps(plan, "all_reduce", "all_gather")]


def kept(plan):
    """Return the bytes of keys and values per token, and of recurrent states per sequence."""
    kv = sum(
        2 * p["n_layers"] * p["kv_heads"] * (p["k_dim"] + p["v_dim"])
        for p in plan["pool"]
        if not p.get("state")
    )
    return kv, sum(
        4 * p["n_layers"] * p["kv_heads"] * p["k_dim"] * p["v_dim"]
        for p in plan["pool"]
        if p.get("state")
    )


def digest(what):
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def paragraph(name, one, ranks):
    """Return the paragraph of a model; ranks: the plans, or the error message."""
    if isinstance(ranks, str):
        return f"{name}: {ranks}\n"
    said = together(ranks[0])
    sums = [a["width"] for op, _, a in said if op == "all_reduce"]
    joins = [a["width"] for op, _, a in said if op == "all_gather"]
    text = f"{name}: {len(sums)} sums, {4 * sum(sums)} bytes; {len(joins)} joins, {4 * sum(joins)} bytes; {digest(said)}\n"
    whole = {t["id"]: reads(t) for t in one["tensor"]}
    for k, plan in enumerate(ranks):
        seen, parts = set(), []
        for t in plan["tensor"]:
            rows, (first, count) = reads(t)
            all_rows, (_, all_count) = whole["embed" if t["id"] not in whole else t["id"]]
            role = role_of(t["id"])[1]
            if role in seen or (len(rows) == len(all_rows) and count == all_count):
                continue
            seen.add(role)
            parts.append(
                f"{role} c{first}+{count}"
                if count != all_count
                else f"{role} {int(np.flatnonzero(all_rows == rows[0])[0])}+{len(rows)}"
            )
        kv, state = kept(plan)
        stands = (
            f"layers {layers_of(plan)[0]}+{len(layers_of(plan))}, "
            if plan.get("stages", 1) > 1
            else ""
        )
        text += (
            f"  {k}: {stands}weights {sum(map(bytes_of, plan['tensor']))}, kv {kv}, state {state}"
            + "".join(", " + p for p in parts)
            + "\n"
        )
    return text


def layers_of(plan):
    return sorted({s["layer"] for s in plan["phase"][0]["step"]} - {-1})


# ---- expected contents -------------------------------------------------------------------------------------------------


def deal(total, unit, n, k):
    """Return the share of `total` that rank k of n gets: whole units; if they do not divide evenly,
    the first ranks get one more."""
    units = np.array_split(np.arange(-(-total // unit)), n)[k]
    return (
        np.concatenate([np.arange(u * unit, min((u + 1) * unit, total)) for u in units])
        if len(units)
        else np.arange(0)
    )


def deal_columns(total, block, n, k):
    even = np.lcm(block, 32)
    return deal(total, even if total // even >= n else block, n, k)


def deal_heads(heads, kv_heads, block, n, k):
    """Return the query heads and kv heads of a rank: kv heads with all their query heads, or one kv
    head, whose query heads are split over several ranks. block: heads per block of the columns of
    o; may be a fraction."""
    group = heads // kv_heads
    if n <= kv_heads:
        kv = deal(kv_heads, max(1, block // group), n, k)
        return np.concatenate([np.arange(h * group, (h + 1) * group) for h in kv]), kv
    copies = n // kv_heads
    kv = k // copies
    return kv * group + deal(group, 1, copies, k % copies), np.array([kv])


class Whole:
    """The model on one rank: sizes of its layers, read from the plan's steps."""

    def __init__(self, plan):
        self.plan = plan
        read = {a for phase in plan["phase"] for s in phase["step"] for a in s["arg"]}
        self.tensor = {
            t["id"]: t for t in plan["tensor"] if t["id"] in read
        }  # tensors that steps read; others are stacked into one of these
        self.attention = {s["layer"]: s["attr"] for s in steps(plan, "attention", "mla_attention")}
        self.delta = {s["layer"]: s["attr"] for s in steps(plan, "delta_rule")}
        self.experts = {s["layer"]: s["attr"] for s in steps(plan, "moe_ffn")}

    def block(self, layer, role):
        return BLOCKS[self.tensor[f"L{layer}.{role}"]["dtype"]][0]

    def columns(self, layer, role, n, k):
        t = self.tensor.get(f"L{layer}.{role}")
        return deal_columns(t["cols"], self.block(layer, role), n, k) if t else None

    def heads(self, layer, n, k):
        a = self.attention[layer]
        o = self.tensor.get(f"L{layer}.o")
        block = BLOCKS[o["dtype"]][0] // np.gcd(BLOCKS[o["dtype"]][0], a["v_dim"])
        return deal_heads(a["heads"], a.get("kv_heads", a["heads"]), int(block), n, k)

    def delta_heads(self, layer, n, k):
        """Return the value heads and key heads of a rank: key heads with their consecutive value
        heads."""
        d = self.delta[layer]
        group = d["v_heads"] // d["k_heads"]
        key = deal(d["k_heads"], 1, n, k)
        return np.concatenate([np.arange(h * group, (h + 1) * group) for h in key]), key

    def part(self, name, n, k):
        """Return the indices of the rows and columns of a tensor on a rank; None: all."""
        layer, role, rest = role_of(name)
        t = self.tensor[name]

        def of(places, each):
            return (places[:, None] * each + np.arange(each)).reshape(-1)

        def rows_of(places, total):
            return of(places, t["rows"] // total), None

        if role in ("q", "q_b", "q_gate", "k_b", "v_b", "sinks"):
            return rows_of(self.heads(layer, n, k)[0], self.attention[layer]["heads"])
        if role in ("k", "v"):
            a = self.attention[layer]
            return rows_of(self.heads(layer, n, k)[1], a.get("kv_heads", a["heads"]))
        if role == "o" and t["cols"]:
            return None, of(self.heads(layer, n, k)[0], t["cols"] // self.attention[layer]["heads"])
        for prefix in ("", "s_"):
            if role in (prefix + "gate", prefix + "up"):
                return self.columns(layer, prefix + "down", n, k), None
            if role == prefix + "down" and t["cols"]:
                return None, self.columns(layer, role, n, k)
        if role in ("e_gate", "e_up", "e_gate_b", "e_up_b"):
            e = self.experts[layer]
            return (
                np.arange(e["n_experts"])[:, None] * e["width"]
                + self.columns(layer, "e_down", n, k)
            ).reshape(-1), None
        if role == "e_down" and t["cols"]:
            return None, self.columns(layer, role, n, k)
        if role.startswith("conv_"):
            if role == "conv_o":
                return (None, self.columns(layer, role, n, k)) if t["cols"] else (None, None)
            return rows_of(
                self.columns(layer, "conv_o", n, k), self.tensor[f"L{layer}.conv_o"]["cols"]
            )
        if role.startswith("lin_") and layer in self.delta:
            return self.delta_part(t, layer, role, n, k)
        return None, None

    def delta_part(self, t, layer, role, n, k):
        d, (value, key) = self.delta[layer], self.delta_heads(layer, n, k)
        widths = [d["k_heads"] * d["k_dim"]] * 2 + [d["v_heads"] * d["v_dim"]]
        if role in ("lin_qkv", "lin_conv"):
            each = t["rows"] // sum(widths)
            starts = np.cumsum([0] + widths)
            places = [
                starts[i] + (heads[:, None] * dim + np.arange(dim)).reshape(-1)
                for i, (heads, dim) in enumerate(
                    [(key, d["k_dim"]), (key, d["k_dim"]), (value, d["v_dim"])]
                )
            ]
            return (np.concatenate(places)[:, None] * each + np.arange(each)).reshape(-1), None
        if role == "lin_o":
            each = t["cols"] // d["v_heads"]
            return None, (value[:, None] * each + np.arange(each)).reshape(-1)
        if role in ("lin_z", "lin_a", "lin_b", "lin_rate", "lin_dt"):
            each = t["rows"] // d["v_heads"]
            return (value[:, None] * each + np.arange(each)).reshape(-1), None
        return None, None


def check_rank(whole, plan, n, k):
    """Check a rank of tp: each tensor has exactly the rows that the rules give."""
    want_bytes = 0
    for t in plan["tensor"]:
        rows, columns = reads(t)
        if t["id"] not in whole.tensor and t["id"] != "head":
            continue
        if role_of(t["id"])[1] == "head":  # a tied head has the rows of the embedding
            base = whole.tensor.get(t["id"]) or whole.tensor["embed"]
            vocab = base["rows"]
            part = deal(vocab, 64 if vocab // 64 >= n else 1, n, k), None
        else:
            base = whole.tensor[t["id"]]
            part = whole.part(t["id"], n, k)
        all_rows, (_, all_columns) = reads(base)
        want = all_rows if part[0] is None else all_rows[part[0]]
        assert np.array_equal(rows, want), (t["id"], k)
        want_columns = (0, all_columns) if part[1] is None else (int(part[1][0]), len(part[1]))
        if part[1] is not None:
            assert (np.diff(part[1]) == 1).all()
        assert columns == want_columns, (t["id"], k, columns, want_columns)
        want_bytes += bytes_of({"rows": len(want), "cols": want_columns[1], "dtype": base["dtype"]})
    assert (
        sum(bytes_of(t) for t in plan["tensor"] if t["id"] in whole.tensor or t["id"] == "head")
        == want_bytes
    )
    missing = whole.tensor.keys() - {t["id"] for t in plan["tensor"]}
    if k:  # the router weights the biases, so only one rank may add them
        missing = {t for t in missing if role_of(t)[1] != "e_down_b"}
    assert not missing, missing


def check(one, ranks, way):
    """Check the plans by the rules; AssertionError: a plan violates them."""
    n = WAYS[way]
    if isinstance(ranks, str):
        return
    whole = Whole(one)
    if way.startswith("pp"):
        ids = [{t["id"] for t in p["tensor"]} & (whole.tensor.keys() | {"head"}) for p in ranks]
        layers = [layers_of(p) for p in ranks]
        assert sum(layers, []) == list(range(one["n_layers"])) and all(layers), (
            layers
        )  # the parts of the ranks are contiguous and do not overlap
        assert not [t for t in ids[0] & ids[1] if role_of(t)[0] >= 0]
        assert set(whole.tensor) <= set().union(*ids)
        for p in ranks:
            assert not together(p)
            for t in p["tensor"]:
                if t["id"] not in whole.tensor and t["id"] != "head":
                    continue
                base = whole.tensor.get(t["id"]) or whole.tensor["embed"]
                assert (
                    np.array_equal(reads(t)[0], reads(base)[0]) and reads(t)[1] == reads(base)[1]
                ), t["id"]
        return
    for k, plan in enumerate(ranks):
        assert together(plan) == together(ranks[0]), k
        check_rank(whole, plan, n, k)
    # all ranks together have one copy of keys and values, or one copy per rank that shares a kv
    # head. Every rank has latents and the recurrent states of scans
    for pool in one["pool"]:
        own = [next(p for p in plan["pool"] if p["id"] == pool["id"]) for plan in ranks]
        places = [p["n_layers"] * p["kv_heads"] * p["k_dim"] * p["v_dim"] for p in own]
        total = pool["n_layers"] * pool["kv_heads"] * pool["k_dim"] * pool["v_dim"]
        if pool["mla"] or pool["id"] not in ("kv", "kv_window", "state", "short_conv"):
            continue
        copies = (
            n // pool["kv_heads"] if pool["id"].startswith("kv") and n > pool["kv_heads"] else 1
        )
        assert sum(places) == copies * total, (pool["id"], places, total)
    # a block has at most one all-reduce, which sums rows of the stream; the last op gathers the
    # logits
    said = together(ranks[0])
    assert all(a["width"] == one["hidden"] for op, _, a in said if op == "all_reduce")
    places = {
        role_of(t)[:2]
        for t in whole.tensor
        if role_of(t)[1] in ("o", "lin_o", "conv_o", "down", "e_down")
    }
    sums = [layer for op, layer, _ in said if op == "all_reduce"]
    assert len(sums) <= len(places) and set(sums) == {layer for layer, _ in places}, (sums, places)
    assert (
        said[-1][0] == "all_gather" and said[-1][1] == -1 and said[-1][2]["width"] == one["vocab"]
    )


def model(name, folder):
    """Return the arguments of plans() for a case; folder: an empty folder."""
    if name in PUBLISHED:
        config, *settings = PUBLISHED[name]
        return (
            os.path.join(HERE, "..", "..", "configs", config + ".yaml"),
            folder,
            [a for s in settings for a in ("--set", s)],
        )
    golden = weights.Golden(name)
    golden.build(folder)
    return (
        folder,
        folder,
        golden.args
        + [
            a
            for key, value in golden.set.items()
            if key != "kv.dtype"
            for a in ("--set", f"{key}={value}")
        ],
    )


def read(way):
    """Read a stored file: {name: paragraph}."""
    with open(path_of(way)) as f:
        return {p.split(":")[0]: p for p in re.findall(r"^\S.*\n(?: .*\n)*", f.read(), re.M)}


def main():
    os.makedirs(os.path.join(HERE, "ranks"), exist_ok=True)
    text = dict.fromkeys(WAYS, "")
    for name in sys.argv[1:] or cases():
        with tempfile.TemporaryDirectory() as folder:
            made = model(name, folder)
            one = plans(made)[0]
            for way in WAYS:
                ranks = plans(made, way)
                try:
                    check(one, ranks, way)
                except AssertionError as e:
                    print(f"{name} {way}: {str(e)[:300]}")
                text[way] += paragraph(name, one, ranks)
    for way in WAYS if not sys.argv[1:] else ():
        with open(path_of(way), "w") as f:
            f.write(text[way])
    if sys.argv[1:]:
        print("\n".join(text.values()))


if __name__ == "__main__":
    main()
