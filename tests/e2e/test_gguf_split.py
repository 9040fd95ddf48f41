"""A split GGUF gives the result of the whole file. Parts that do not fit are reported (all cases:
tests/unit/test_formats_gguf.c)."""

import subprocess

import gguf
import numpy as np
import pytest

from test_gguf_goldens import FOLDER, LLMC
from waiting import HANG

WHOLE = f"{FOLDER}/llama-q4_0.gguf"


def part(path, reader, no, count, tensors, keys):
    w = gguf.GGUFWriter(str(path), "llama")
    for f in reader.fields.values() if keys else ():
        if not f.name.startswith("GGUF.") and f.name != "general.architecture":
            w.add_key_value(
                f.name,
                f.contents(),
                f.types[0],
                f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None,
            )
    w.add_uint16("split.no", no)
    w.add_uint16("split.count", count)
    w.add_int32("split.tensors.count", len(reader.tensors))
    for t in tensors:
        w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.fixture
def parts(tmp_path):
    """Write three parts; the first has only keys, as from llama-gguf-split
    --no-tensor-first-split."""
    r = gguf.GGUFReader(WHOLE)
    half = len(r.tensors) // 2
    for i, some in enumerate(([], r.tensors[:half], r.tensors[half:])):
        part(tmp_path / f"m-{i + 1:05}-of-00003.gguf", r, i, 3, some, i == 0)
    return tmp_path


def run(path, out, *more):
    return subprocess.run(
        [
            LLMC,
            "run",
            str(path),
            "--tokens",
            "5,6,7,8",
            "-n",
            "1",
            "--device",
            "ref",
            "--logits",
            str(out),
            *more,
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )


def test_parts_are_the_whole_file(parts):
    for path, out in ((WHOLE, "whole.npy"), (parts / "m-00001-of-00003.gguf", "parts.npy")):
        p = run(path, parts / out)
        assert p.returncode == 0, p.stderr
    assert np.array_equal(np.load(parts / "whole.npy"), np.load(parts / "parts.npy"))


def test_parts_that_do_not_fit(parts):
    p = run(parts / "m-00002-of-00003.gguf", parts / "x.npy")
    assert (
        p.returncode == 1
        and "name the first one" in p.stderr
        and "m-00001-of-00003.gguf" in p.stderr
    )
    (parts / "m-00003-of-00003.gguf").rename(parts / "kept")
    p = run(parts / "m-00001-of-00003.gguf", parts / "x.npy")
    assert p.returncode == 1 and "part 3 of 3" in p.stderr and "is missing" in p.stderr
