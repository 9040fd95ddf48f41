"""Dequantise the tensors of a quantised safetensors folder in numpy: value = scale * (code - zero), or scale * a float of 8 or 4 bits, by the formulas of
the packages that write them. make_quant_formats.py compares each with its package; tests use it as the oracle."""

import json
import os
import struct

import numpy as np

TYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U32": "<u4",
    "I8": "i1",
    "U8": "u1",
    "F8_E4M3": "u1",
    "F8_E8M0": "u1",
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def read(path):
    """Return {name: (type, array)}."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = (
                t["dtype"],
                np.frombuffer(raw[8 + n + a : 8 + n + b], TYPES[t["dtype"]]).reshape(t["shape"]),
            )
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
        v = np.where(e == 0, m * np.float32(2.0**-9), (8 + m) * np.exp2(e - 10.0)).astype(
            np.float32
        )
        return np.where(x & 128, -v, v)
    return x.astype(np.float32)


def bits_along(words, bits, axis):
    """Extract the bit fields of a stream of 32-bit words along an axis, lowest bits first; a field
    may cross a word boundary."""
    w = np.moveaxis(words, axis, -1)
    stream = np.unpackbits(
        np.ascontiguousarray(w).view(np.uint8).reshape(*w.shape[:-1], -1),
        axis=-1,
        bitorder="little",
    )
    n = stream.shape[-1] // bits
    fields = (
        stream[..., : n * bits].reshape(*w.shape[:-1], n, bits) << np.arange(bits, dtype=np.int32)
    ).sum(-1, dtype=np.int32)
    return np.moveaxis(fields, -1, axis)


def spread(scale, rows, cols, block=None):
    """Expand scales to one per element. Scales have shape [out, groups] or [out], or are a single
    scale or a grid of blocks."""
    s = scale.reshape(scale.shape[0] if scale.ndim else 1, -1)
    br, bc = block or (-(-rows // s.shape[0]), -(-cols // s.shape[1]))
    return s[np.arange(rows) // br][:, np.arange(cols) // bc]


def powers(kind, x):
    """Convert stored scales to floats; bytes are exponents of two."""
    return (
        np.exp2(x.astype(np.float64) - 127).astype(np.float32)
        if kind in ("U8", "F8_E8M0")
        else floats(kind, x)
    )


def pairs(x):
    """Split [.., n] bytes into [.., 2 n] codes; the low nibble is the first code."""
    return np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1)


def flat(t, name):
    """Dequantise 4-bit codes of bitsandbytes: the high nibble is the first code, and blocks run
    over all elements of the matrix."""
    get = lambda k: t[f"{name}.weight{k}"][1]  # noqa: E731
    said = json.loads(
        next(v[1].tobytes() for k, v in t.items() if k.startswith(f"{name}.weight.quant_state."))
    )
    peak = get(".absmax")
    if "nested_blocksize" in said:
        peak = get(".nested_quant_map")[peak] * np.repeat(
            get(".nested_absmax"), said["nested_blocksize"]
        )[: peak.size] + np.float32(said["nested_offset"])
    b = get("").reshape(-1).view(np.uint8)
    codes = np.stack([b >> 4, b & 15], 1).reshape(-1)[: int(np.prod(said["shape"]))]
    return (get(".quant_map")[codes] * np.repeat(peak, said["blocksize"])[: codes.size]).reshape(
        said["shape"]
    )


def module(t, name, config):
    """Return the matrix [out, in] of a module in fp32, or None if its tensors have no known
    format."""
    has = {k[len(name) + 1 :]: v for k, v in t.items() if k.startswith(name + ".")}
    get = lambda k: floats(*has[k])  # noqa: E731
    if "qweight" in has and (
        config["quant_method"] == "awq" or config.get("packing_format") == "auto_round:auto_awq"
    ):
        order = [0, 4, 1, 5, 2, 6, 3, 7]
        if config.get("version", "gemm") == "gemv":
            q, z, s = (
                bits_along(has["qweight"][1], 4, 1),
                bits_along(has["qzeros"][1], 4, 1),
                get("scales"),
            )
            g = np.arange(q.shape[1]) // config["group_size"]
            return (q - z[:, g]) * s[:, g]
        q, z = (
            bits_along(has[k][1], 4, 1)
            .reshape(len(has[k][1]), -1, 8)[..., order]
            .reshape(len(has[k][1]), -1)
            for k in ("qweight", "qzeros")
        )
        g = np.arange(len(q)) // (len(q) // len(z))
        return ((q - z[g]) * get("scales")[g]).T
    if "qweight" in has:
        bits = config["bits"]
        q, z = (
            bits_along(has["qweight"][1], bits, 0),
            bits_along(has["qzeros"][1], bits, 1)[:, : has["scales"][1].shape[1]],
        )
        if (
            config.get("packing_format", "auto_round:auto_gptq") == "auto_round:auto_gptq"
            and config.get("checkpoint_format", "gptq") == "gptq"
        ):
            z = z + 1 & (1 << bits) - 1
        g = has["g_idx"][1] if "g_idx" in has else np.arange(len(q)) // config["group_size"]
        return ((q - z[g]) * get("scales")[g]).T
    if "scales" in has and config.get("mode") == "nvfp4":  # MLX
        return E2M1[bits_along(has["weight"][1], 4, 1)] * np.repeat(
            floats("F8_E4M3", has["scales"][1]), 16, 1
        )
    if "scales" in has and config.get("mode") == "mxfp8":
        return floats("F8_E4M3", np.ascontiguousarray(has["weight"][1]).view(np.uint8)) * np.repeat(
            powers(*has["scales"]), 32, 1
        )
    if "scales" in has and has["scales"][0] == "U8":  # MLX's mxfp4
        q = E2M1[bits_along(has["weight"][1], 4, 1)]
        return q * np.repeat(powers(*has["scales"]), 32, 1)
    if "scales" in has and ("biases" in has or "qbiases" in has):  # MLX, transformers' metal
        q, s, b = has["weight"][1], get("scales"), get("biases" if "biases" in has else "qbiases")
        own = config.get(name, {})
        group = own.get("group_size") or config["group_size"]
        q = bits_along(q, q.shape[1] * 32 // (s.shape[1] * group), 1)
        return np.repeat(s, group, 1) * q + np.repeat(b, group, 1)
    if "W_q" in has:
        bits, size = int(has["nbits"][1]), int(has["group_size"][1])
        if bits == 3:  # a word has ten 3-bit codes
            q = np.concatenate([has["W_q"][1] >> 27 - 3 * i & 7 for i in range(10)]).astype(
                np.float32
            )[: len(has["scale"][1])]
            return ((q - get("zero")) * get("scale")).reshape(has["shape"][1])
        q = np.concatenate(
            [has["W_q"][1] >> 8 - bits - i * bits & (1 << bits) - 1 for i in range(8 // bits)]
        ).astype(np.float32)
        return (
            ((q - get("zero")) * get("scale")).reshape(has["shape"][1])
            if q.shape[1] == size
            else None
        )
    if (
        "weight._data._data" in has
    ):  # quanto: the lowest bits hold the first part of the groups. The shape is not stored: o and down have `hidden` rows, other matrices have `hidden` columns
        b, s = has["weight._data._data"][1], get("weight._scale")
        bits = 4 if len(b) == -(-len(s) // 2) else 2
        q = np.concatenate([b >> i * bits & (1 << bits) - 1 for i in range(8 // bits)])[
            : len(s)
        ].astype(np.float32)
        return (q * s - get("weight._shift")).reshape(
            *(
                (config["hidden"], -1)
                if name.endswith(("o_proj", "down_proj"))
                else (-1, config["hidden"])
            )
        )
    if "weight._data" in has:
        return get("weight._data") * get("weight._scale")
    if "_weight_qdata" in has:
        q = get("_weight_qdata")
        return (q - spread(get("_weight_zero_point"), *q.shape)) * spread(
            get("_weight_scale"), *q.shape
        )
    if config.get("quant_method") == "bitnet" and "weight_scale" in has:
        b = has["weight"][1]
        return (np.concatenate([b >> 2 * i & 3 for i in range(4)]).astype(np.float32) - 1) / get(
            "weight_scale"
        )
    if config.get("quant_method") == "quark" and has.get("weight", ["", 0])[0] == "I32":
        order = (
            [0, 4, 1, 5, 2, 6, 3, 7] if config["export"]["pack_method"] == "reorder" else range(8)
        )
        q, z = (
            bits_along(has[k][1], 4, 1)
            .reshape(len(has[k][1]), -1, 8)[..., order]
            .reshape(len(has[k][1]), -1)
            for k in ("weight", "weight_zero_point")
        )
        if config["global_quant_config"]["weight"]["dtype"] == "int4":
            q, z = (q ^ 8) - 8, (z ^ 8) - 8
        g = np.arange(len(q)) // (len(q) // len(z))
        return ((q - z[g]) * get("weight_scale")[g]).T
    if (
        "weight" in has
        and "weight_scale" in has
        and (has["weight"][0], has["weight_scale"][0]) == ("U8", "F32")
    ):
        b = has["weight"][1]
        q = (
            (np.stack([b & 15, b >> 4], 1).reshape(-1, b.shape[1]).astype(np.int32) ^ 8) - 8
        ).astype(np.float32)
        return (
            q
            * spread(get("weight_scale"), *q.shape)
            * (get("pre_quant_scale") if "pre_quant_scale" in has else 1)
        )
    if name + ".weight.absmax" in t:
        return flat(t, name)
    packed = next((k for k in ("weight_packed", "weight") if k in has and has[k][0] == "U8"), None)
    if packed and "weight_scale" in has:
        whole = np.float32(1)
        if "weight_global_scale" in has:
            whole = whole / get("weight_global_scale")
        if "weight_scale_2" in has:
            whole = get("weight_scale_2")
        q = E2M1[pairs(has[packed][1])]
        return q * spread(powers(*has["weight_scale"]) * whole, *q.shape)
    if "weight_packed" in has:
        rows, cols = has["weight_shape"][1]
        bits = has["weight_packed"][1].shape[1] * 32 // cols
        q = bits_along(has["weight_packed"][1], bits, 1)[:, :cols]
        z = (
            bits_along(has["weight_zero_point"][1], bits, 0)[:rows]
            if "weight_zero_point" in has
            else None
        )
        if "weight_g_idx" in has:
            g = has["weight_g_idx"][1]
            return (q - (1 << bits - 1 if z is None else z[:, g])) * get("weight_scale")[:, g]
        return (q - (1 << bits - 1 if z is None else spread(z, rows, cols))) * spread(
            get("weight_scale"), rows, cols
        )
    if "weight" in has and "SCB" in has:
        return get("weight") * (get("SCB") / np.float32(127))[:, None]
    for s in ("weight_scale_inv", "weight_scale"):
        if "weight" in has and s in has:
            w = get("weight")
            z = spread(get("weight_zero_point"), *w.shape) if "weight_zero_point" in has else 0
            return (w - z) * spread(
                powers(*has[s]),
                *w.shape,
                config.get("weight_block_size") if s == "weight_scale_inv" else None,
            )
    return None


def dense(folder):
    """Return all dequantised tensors of a folder: {name: fp32 array}."""
    with open(os.path.join(folder, "config.json")) as f:
        root = json.load(f)
    config = root.get("quantization_config", {}) | {"hidden": root.get("hidden_size")}
    t, out = read(os.path.join(folder, "model.safetensors")), {}
    for name in sorted(
        {k.rsplit(".weight", 1)[0] if ".weight." in k else k.rsplit(".", 1)[0] for k in t}
    ):
        w = module(t, name, config)
        if w is not None:
            out[name + ".weight"] = w.astype(np.float32)
        for k in t:
            if (
                ".weight." not in k
                and k.rsplit(".", 1)[0] == name
                and (w is None or k.endswith(".bias"))
            ):
                out[k] = floats(*t[k])
    return out
