#!/usr/bin/env python3
"""Write tests/golden/torch: files of torch.save in each format, and the values that torch.load reads from them, as safetensors. Also compare
torch_file.py's files with torch.load.

Needs torch and safetensors. Run:  python tests/golden/make_torch.py"""

import collections
import os
import pathlib
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

import torch_file

HERE = pathlib.Path(__file__).parent / "torch"


def tensors():
    g = torch.Generator().manual_seed(1)
    base = torch.randn(6, 5, generator=g)
    every = collections.OrderedDict(
        whole=base,
        turned=base.t(),
        rows=base[1:3],
        column=base[:, 2],
        stepped=base[::2],
        repeated=base[:1].expand(3, 5),
    )
    every |= {
        "half": torch.randn(7, generator=g).half(),
        "brain": torch.randn(3, 4, generator=g).bfloat16(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "cube": torch.randn(2, 3, 4, generator=g).permute(2, 0, 1),
        "flags": torch.tensor([True, False]),
    }
    every |= {
        "i64": torch.arange(5),
        "i32": torch.arange(3, dtype=torch.int32),
        "i16": torch.arange(3, dtype=torch.int16),
        "i8": torch.arange(-3, 3, dtype=torch.int8),
        "u8": torch.arange(9, dtype=torch.uint8),
        "f64": torch.arange(2, dtype=torch.float64),
        "parameter": nn.Parameter(torch.randn(2, 2, generator=g)),
    }
    return every


def keep(name, found):
    save_file(
        {k: v.detach().contiguous().clone() for k, v in found.items()}, HERE / f"{name}.safetensors"
    )


def main():
    HERE.mkdir(exist_ok=True)
    every = tensors()
    newer = {
        "e4m3": torch.randn(8).to(torch.float8_e4m3fn),
        "e5m2": torch.randn(8).to(torch.float8_e5m2),
        "u16": torch.arange(4).to(torch.uint16),
    }
    linear = nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4)
    ).state_dict()  # the state dict of a module also has _metadata
    for name, what, how in [
        ("zip", every, {}),
        ("old", every, dict(_use_new_zipfile_serialization=False)),
        ("protocol4", every, dict(pickle_protocol=4)),
        ("newer", newer, {}),
        ("linear", linear, {}),
        ("linear-old", linear, dict(_use_new_zipfile_serialization=False)),
        ("inner", {"epoch": 3, "lr": 0.5, "state_dict": linear, "done": False}, {}),
    ]:
        path = HERE / f"{name}.bin"
        torch.save(what, path, **how)
        found = torch.load(path, weights_only=False)
        keep(name, found.get("state_dict", found))
    with tempfile.TemporaryDirectory() as tmp:
        arrays = {
            "a": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.arange(3).astype(np.float16),
            "c": np.arange(4).astype(np.int8),
        }
        for write in (torch_file.write, torch_file.write_old):
            path = os.path.join(tmp, "x.bin")
            write(path, arrays)
            found = torch.load(path, weights_only=True)
            assert list(found) == list(arrays) and all(
                (found[k].numpy() == v).all() and found[k].numpy().dtype == v.dtype
                for k, v in arrays.items()
            )


if __name__ == "__main__":
    main()
