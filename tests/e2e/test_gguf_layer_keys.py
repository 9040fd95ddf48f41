"""GGUF keys with one entry per layer. 0 and 1 of any type mean false and true, also if all entries
are equal; one number for all layers is refused."""

import os
import re
import subprocess

import gguf
import pytest

from golden_run import LLMC, ROOT
from waiting import HANG

FOLDER = os.path.join(ROOT, "tests", "golden", "gguf-families")
SWA = "attention.sliding_window_pattern"
FILES = [
    "cohere2_moe",
    "exaone4",
    "exaone_moe",
    "olmo3",
    "mellum",
    "granite_swa",
    "gemma3n",
    "gemma4",
    "step3p5",
    "mimo_v2",
]


def changed(name, keys, path):
    """Copy a file with keys as scalars or lists of bools or integers; None removes a key."""
    r = gguf.GGUFReader(os.path.join(FOLDER, name + ".gguf"))
    arch = r.fields["general.architecture"].contents()
    w = gguf.GGUFWriter(path, arch)
    for f in r.fields.values():
        if (
            f.name.startswith("GGUF.")
            or f.name == "general.architecture"
            or f.name.removeprefix(arch + ".") in keys
        ):
            continue
        kind = f.types[0]
        w.add_key_value(
            f.name, f.contents(), kind, f.types[1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    for key, value in keys.items():
        many = isinstance(value, list)
        kind = (
            gguf.GGUFValueType.BOOL
            if isinstance(value[0] if many else value, bool)
            else gguf.GGUFValueType.UINT32
        )
        if value is not None:
            w.add_key_value(
                f"{arch}.{key}",
                value,
                gguf.GGUFValueType.ARRAY if many else kind,
                kind if many else None,
            )
    for t in r.tensors:
        w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def described(path):
    p = subprocess.run([LLMC, "import", str(path)], capture_output=True, text=True, timeout=HANG)
    assert p.returncode == 0, p.stderr
    return re.sub(r"\S+\.gguf|^name: .*", "", p.stdout, flags=re.M)


def layers_of(text, key="window_layers"):
    m = re.search(rf"\b{key}: (\[.*?\]|\w+)", text)
    return m and m[1]


def pattern(name):
    r = gguf.GGUFReader(os.path.join(FOLDER, name + ".gguf"))
    f = r.fields[f"{r.fields['general.architecture'].contents()}.{SWA}"]
    return [bool(x) for x in f.contents()]


@pytest.mark.parametrize("name", FILES)
def test_numbers_are_flags(name, tmp_path):
    own = pattern(name)
    plain = described(os.path.join(FOLDER, name + ".gguf"))
    assert layers_of(plain) == str([i for i, x in enumerate(own) if x])
    assert described(changed(name, {SWA: [int(x) for x in own]}, tmp_path / "n.gguf")) == plain
    assert described(changed(name, {SWA: own}, tmp_path / "b.gguf")) == plain


@pytest.mark.parametrize("name", ["cohere2_moe", "exaone4", "granite_swa"])
def test_all_alike(name, tmp_path):
    n = len(pattern(name))
    for value, word in ((True, "all"), (False, "none")):
        texts = [
            described(
                changed(name, {SWA: [kind(value)] * n}, tmp_path / f"{kind.__name__}{value}.gguf")
            )
            for kind in (bool, int)
        ]
        assert (
            texts[0] == texts[1]
            and "window: " in texts[0]
            and (layers_of(texts[0]) or "all") == word
        )


@pytest.mark.parametrize("name", ["cohere2_moe", "mellum", "gemma3n", "mimo_v2"])
def test_one_number_is_refused(name, tmp_path):
    p = subprocess.run(
        [LLMC, "import", str(changed(name, {SWA: 4}, tmp_path / "s.gguf"))],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode and "4: one number does not select layers" in p.stderr, p.stderr


def test_factors_and_weights_of_their_own(tmp_path):
    """A residual factor without an embedding factor; softmax scores that are not renormalised."""
    both, one = (
        described(changed("granite_swa", {"embedding_scale": v}, tmp_path / f"{v}.gguf"))
        for v in (1, None)
    )
    assert one == both
    for norm in (True, False):
        path = changed(
            "cohere2_moe",
            {"expert_weights_norm": norm, "expert_gating_func": 1},
            tmp_path / f"{norm}.gguf",
        )
        assert ("renorm: false" in described(path)) == (not norm)
