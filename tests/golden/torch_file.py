"""Write folders of pickled weights as published before safetensors: pytorch_model.bin, as one file or in shards with an index. numpy only;
make_torch.py checks these files with torch.load."""

import json
import os
import pickle
import struct
import zipfile

import numpy as np

STORAGE = {
    np.dtype("f4"): "FloatStorage",
    np.dtype("f2"): "HalfStorage",
    np.dtype("f8"): "DoubleStorage",
    np.dtype("i1"): "CharStorage",
    np.dtype("u1"): "ByteStorage",
    np.dtype("i8"): "LongStorage",
    np.dtype("u2"): "BFloat16Storage",
}


def text(s):
    b = s.encode()
    return b"X" + struct.pack("<I", len(b)) + b


def number(i):
    return b"J" + struct.pack("<i", i)


def name(module, what):
    return f"c{module}\n{what}\n".encode()


def tensor(key, x, old=False, offset=0, elems=None):
    """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, OrderedDict())"""
    strides = [s // x.itemsize for s in x.strides]
    ref = (
        b"("
        + text("storage")
        + name("torch", STORAGE[x.dtype])
        + text(key)
        + text("cpu")
        + number(x.size if elems is None else elems)
        + b"N" * old
        + b"tQ"
    )
    sizes, steps = (b"(" + b"".join(map(number, v)) + b"t" for v in (x.shape, strides))
    return (
        name("torch._utils", "_rebuild_tensor_v2")
        + b"("
        + ref
        + number(offset)
        + sizes
        + steps
        + b"\x89"
        + name("collections", "OrderedDict")
        + b")RtR"
    )


def entries(tensors, extra=b"", old=False):
    """Return data.pkl of a dict of arrays; extra: more pairs of key and value, as opcodes."""
    items = b"".join(
        text(n) + tensor(str(i), np.ascontiguousarray(x), old)
        for i, (n, x) in enumerate(tensors.items())
    )
    return b"\x80\x02" + name("collections", "OrderedDict") + b")R(" + items + extra + b"u."


def archive(path, pickled, storages, byteorder=b"little", method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as z:
        z.writestr("archive/data.pkl", pickled)
        z.writestr("archive/byteorder", byteorder)
        for key, blob in storages.items():
            z.writestr(f"archive/data/{key}", blob)
        z.writestr("archive/version", b"3\n")


def write(path, tensors, **how):
    archive(
        path,
        entries(tensors),
        {str(i): np.ascontiguousarray(x).tobytes() for i, x in enumerate(tensors.values())},
        **how,
    )


def write_old(path, tensors):
    """Write the format of torch before 1.6: pickles, followed by the number of elements of each
    storage and the elements."""
    with open(path, "wb") as f:
        f.write(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2))
        f.write(
            pickle.dumps(
                {
                    "protocol_version": 1001,
                    "little_endian": True,
                    "type_sizes": {"short": 2, "int": 4, "long": 4},
                },
                2,
            )
        )
        f.write(entries(tensors, old=True) + pickle.dumps([str(i) for i in range(len(tensors))], 2))
        for x in tensors.values():
            f.write(struct.pack("<q", x.size) + np.ascontiguousarray(x).tobytes())


def write_shards(folder, tensors, n, writer=write):
    """Write pytorch_model-00001-of-0000n.bin files and their index, whose total size is wrong like
    that of ChatGLM."""
    files = [f"pytorch_model-{i + 1:05d}-of-{n:05d}.bin" for i in range(n)]
    where = {t: files[i % n] for i, t in enumerate(tensors)}
    for f in files:
        writer(os.path.join(folder, f), {t: x for t, x in tensors.items() if where[t] == f})
    with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": where}, f)
    return where
