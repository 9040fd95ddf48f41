"""Prebuilt CPU kernels of common models (models.toml), named by their keys as
runtime/build/prebuilt.c looks for them.

llmc compiles a model from the header of a GGUF file, so the files have a hole instead of tensor
data."""

import json
import os
import shutil
import struct
import subprocess
import tomllib
from pathlib import Path

import binaries

TARGETS = {"x86_64": ("generic", "v3", "v4"), "aarch64": ("neon", "i8mm")}
# name: (number of the type, elements per block, bytes per block)
TYPE = {
    "f32": (0, 1, 4),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
}


def models():
    with open(Path(__file__).with_name("models.toml"), "rb") as f:
        table = tomllib.load(f)
    return {n: {"types": table["types"]} | row for n, row in table["model"].items()}


def more_bits(layer, layers):
    """Layers to which llama-quantize gives more bits in its _M mixes."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def type_of(name, mix, row, columns):
    """Type that llama-quantize gives a matrix."""
    base = mix.removesuffix("_m")
    if name == "output" or (name == "token_embd" and row.get("tied")):
        kind = "q8_0" if base == "q8_0" else "q6_k"
    elif mix.endswith("_m") and name.startswith("blk."):
        _, layer, part = name.split(".")
        wide = part in ("attn_v", "ffn_down") and more_bits(int(layer), row["layers"])
        kind = "q6_k" if wide else base
    else:
        kind = base
    # types that llama-quantize falls back to if rows are not a multiple of the block
    if columns % TYPE[kind][1]:
        kind = {"q4_k": "q5_0", "q6_k": "q8_0"}[kind]
    return kind


def tensors(row, mix):
    """(name, dimensions with columns first, type) of all tensors."""
    hidden, q, kv = row["hidden"], row["heads"] * row["dim"], row["kv"] * row["dim"]

    def matrix(name, rows, columns):
        return name + ".weight", [columns, rows], type_of(name, mix, row, columns)

    yield matrix("token_embd", row["vocab"], hidden)
    yield "output_norm.weight", [hidden], "f32"
    if not row.get("tied"):
        yield matrix("output", row["vocab"], hidden)
    for i in range(row["layers"]):
        at = f"blk.{i}"
        for name in ("attn_norm", "ffn_norm"):
            yield f"{at}.{name}.weight", [hidden], "f32"
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield matrix(f"{at}.attn_{name}", rows, hidden)
            if row.get("bias"):
                yield f"{at}.attn_{name}.bias", [rows], "f32"
            if row.get("qk_norm") and name != "v":
                yield f"{at}.attn_{name}_norm.weight", [row["dim"]], "f32"
        yield matrix(f"{at}.attn_output", hidden, q)
        yield matrix(f"{at}.ffn_gate", row["width"], hidden)
        yield matrix(f"{at}.ffn_up", row["width"], hidden)
        yield matrix(f"{at}.ffn_down", hidden, row["width"])


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def value(key, v):
    if isinstance(v, str):
        return text(key) + struct.pack("<I", 8) + text(v)
    return text(key) + (
        struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)
    )


def write_header(path, row, mix):
    """Write a GGUF file without the data of its tensors."""
    arch, infos, offset = row["arch"], b"", 0
    keys = {
        "general.architecture": arch,
        f"{arch}.block_count": row["layers"],
        f"{arch}.context_length": 8192,
        f"{arch}.embedding_length": row["hidden"],
        f"{arch}.feed_forward_length": row["width"],
        f"{arch}.attention.head_count": row["heads"],
        f"{arch}.attention.head_count_kv": row["kv"],
        f"{arch}.attention.layer_norm_rms_epsilon": float(row["eps"]),
        f"{arch}.attention.key_length": row["dim"],
        f"{arch}.attention.value_length": row["dim"],
        f"{arch}.rope.dimension_count": row["dim"],
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.vocab_size": row["vocab"],
    }
    found = list(tensors(row, mix))
    for name, dims, kind in found:
        number, block, size = TYPE[kind]
        infos += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        infos += struct.pack("<IQ", number, offset)
        n = 1
        for d in dims:
            n *= d
        offset += (n // block * size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(found), len(keys))
    head += b"".join(value(k, v) for k, v in keys.items()) + infos
    with open(path, "wb") as f:
        f.write(head)
        f.truncate((len(head) + 31) // 32 * 32 + offset)


def compiler(arch, folder):
    """A compiler that also strips and packs what it links: kernels are small, their pages are not."""
    cc = "gcc" if os.uname().machine == arch else f"{arch}-linux-gnu-gcc"
    if not shutil.which(cc):
        raise SystemExit(f"release: kernels for {arch} need {cc} (tools/deps.sh --cross {arch})")
    path = folder / f"kernel-cc-{arch}"
    path.write_text(f'#!/bin/sh\nexec {cc} "$@" -s -Wl,-z,noseparate-code -Wl,--build-id=none\n')
    path.chmod(0o755)
    return path


def compile_model(llmc, gguf, out, targets, env):
    """Compile a file ahead of time; return its kernels by key."""
    subprocess.run(
        [llmc, "compile", gguf, "-o", out, "--arch", ",".join(targets), "--aot", "-q"],
        check=True,
        env=env,
    )
    found = {}
    for manifest in sorted(out.glob("aot/*/manifest.json")):
        for source, key in json.loads(manifest.read_text())["source"].items():
            name = Path(source).stem + ".so"
            found[key] = manifest.parent / name
    return found


def build(arch, jobs, only=None):
    """Compile the kernels of all models; return their folder."""
    base = binaries.build_folder()
    folder, work = base / f"kernels-{arch}", base / "kernels-work"
    llmc = binaries.host_llmc(jobs)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = {**os.environ, "LLMC_CC": str(compiler(arch, base)), "LLMC_KERNELS": ""}
    env |= {"LLMC_CACHE": str(base / "kernel-cache"), "LLMC_THREADS": str(jobs)}
    for name, row in models().items():
        if only and name not in only:
            continue
        for mix in row["types"]:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            write_header(work / f"{name}.gguf", row, mix)
            found = compile_model(*(llmc, work / f"{name}.gguf", work / "out", TARGETS[arch], env))
            for key, path in found.items():
                if not (folder / f"{key}.so").exists():
                    shutil.copyfile(path, folder / f"{key}.so")
    shutil.rmtree(work, ignore_errors=True)
    return folder
