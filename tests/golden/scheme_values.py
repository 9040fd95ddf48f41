"""What the tensors of a quantised safetensors folder stand for, in numpy: value = scale * (code - zero) or scale * float8, by the formulas of
the packages that write them. make_schemes.py holds each to its package; tests use it to see what a folder should be."""
import json
import os
import struct

import numpy as np

TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "F8_E4M3": "u1"}


def read(path):
    """name -> (type, array)"""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = (t["dtype"], np.frombuffer(raw[8 + n + a:8 + n + b], TYPES[t["dtype"]]).reshape(t["shape"]))
    return out


def write(path, tensors):
    header, blobs, at = {}, [], 0
    for name, (kind, x) in tensors.items():
        blob = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def floats(kind, x):
    if kind == "BF16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    if kind == "F8_E4M3":
        e, m = (x >> 3 & 15).astype(np.int32), (x & 7).astype(np.float32)
        v = np.where(e == 0, m * np.float32(2.0 ** -9), (8 + m) * np.exp2(e - 10.0)).astype(np.float32)
        return np.where(x & 128, -v, v)
    return x.astype(np.float32)


def bits_along(words, bits, axis):
    """Fields of a stream of 32-bit words along an axis, the lowest bits first; a field may begin in one word and end in the next."""
    w = np.moveaxis(words, axis, -1)
    stream = np.unpackbits(np.ascontiguousarray(w).view(np.uint8).reshape(*w.shape[:-1], -1), axis=-1, bitorder="little")
    n = stream.shape[-1] // bits
    fields = (stream[..., :n * bits].reshape(*w.shape[:-1], n, bits) << np.arange(bits, dtype=np.int32)).sum(-1, dtype=np.int32)
    return np.moveaxis(fields, -1, axis)


def spread(scale, rows, cols, block=None):
    """A scale for each element: [out, groups], [out], one alone, or a grid of blocks."""
    s = scale.reshape(scale.shape[0] if scale.ndim else 1, -1)
    br, bc = block or (-(-rows // s.shape[0]), -(-cols // s.shape[1]))
    return s[np.arange(rows) // br][:, np.arange(cols) // bc]


def module(t, name, config):
    """The matrix [out, in] of a module, fp32; None where its tensors are no scheme's."""
    has = {k[len(name) + 1:]: v for k, v in t.items() if k.startswith(name + ".")}
    get = lambda k: floats(*has[k])  # noqa: E731
    if "qweight" in has and config["quant_method"] == "awq":
        order = [0, 4, 1, 5, 2, 6, 3, 7]
        if config.get("version", "gemm") == "gemv":
            q, z, s = bits_along(has["qweight"][1], 4, 1), bits_along(has["qzeros"][1], 4, 1), get("scales")
            g = np.arange(q.shape[1]) // config["group_size"]
            return (q - z[:, g]) * s[:, g]
        q, z = (bits_along(has[k][1], 4, 1).reshape(len(has[k][1]), -1, 8)[..., order].reshape(len(has[k][1]), -1) for k in ("qweight", "qzeros"))
        g = np.arange(len(q)) // (len(q) // len(z))
        return ((q - z[g]) * get("scales")[g]).T
    if "qweight" in has:
        bits = config["bits"]
        q, z = bits_along(has["qweight"][1], bits, 0), bits_along(has["qzeros"][1], bits, 1)[:, :has["scales"][1].shape[1]]
        if config.get("checkpoint_format", "gptq") == "gptq":
            z = z + 1 & (1 << bits) - 1
        g = np.arange(len(q)) // (len(q) // len(z))
        return ((q - z[g]) * get("scales")[g]).T
    if "weight_packed" in has:
        rows, cols = has["weight_shape"][1]
        bits = has["weight_packed"][1].shape[1] * 32 // cols
        q = bits_along(has["weight_packed"][1], bits, 1)[:, :cols]
        z = spread(bits_along(has["weight_zero_point"][1], bits, 0)[:rows], rows, cols) if "weight_zero_point" in has else 1 << bits - 1
        return (q - z) * spread(get("weight_scale"), rows, cols)
    if "weight" in has and "SCB" in has:
        return get("weight") * (get("SCB") / np.float32(127))[:, None]
    for s in ("weight_scale_inv", "weight_scale"):
        if "weight" in has and s in has:
            w = get("weight")
            z = spread(get("weight_zero_point"), *w.shape) if "weight_zero_point" in has else 0
            return (w - z) * spread(get(s), *w.shape, config.get("weight_block_size") if s == "weight_scale_inv" else None)
    return None


def dense(folder):
    """All tensors of the model that a folder stands for: name -> fp32"""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f).get("quantization_config", {})
    t, out = read(os.path.join(folder, "model.safetensors")), {}
    for name in sorted({k.rsplit(".", 1)[0] for k in t}):
        w = module(t, name, config)
        if w is not None:
            out[name + ".weight"] = w.astype(np.float32)
        for k in t:
            if k.rsplit(".", 1)[0] == name and (w is None or k.endswith(".bias")):
                out[k] = floats(*t[k])
    return out
