"""Files that are not what their name promises: a Git LFS pointer, or the page that a server sends
for a login or an error. Also adapters and tokenizers that cannot be used. The message states what
the file is and what to do."""

import json
import os
import struct
import subprocess

import pytest

import llmc
from golden_run import LLMC, weights
from waiting import HANG

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 99\n"
PAGES = [
    b"<!DOCTYPE html>\n<html><body>401</body></html>",
    b"\n <HTML><head></head></html>",
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
]
CONTENT = [(LFS, r"a Git LFS pointer, not the file itself: run git lfs pull")] + [
    (page, r"an HTML or XML page, not the file itself: .* Download it again") for page in PAGES
]
FILES = ("model.gguf", "model.safetensors", "config.json", "pytorch_model.bin")


@pytest.mark.parametrize("content,message", CONTENT, ids=["lfs", "doctype", "html", "xml"])
@pytest.mark.parametrize("name", [*FILES, "generation_config.json"])
def test_a_stand_in_for_a_model_file(name, content, message, tmp_path):
    path = tmp_path / name
    if name != "model.gguf":
        weights.Golden("qwen3-plain").build(tmp_path)
    if name == "pytorch_model.bin":
        os.remove(tmp_path / "model.safetensors")
    path.write_bytes(content)
    with pytest.raises(llmc.Error, match=rf"{name}: {message}"):
        llmc.open(path if name == "model.gguf" else tmp_path, no_weights=True)


@pytest.mark.parametrize("content,message", CONTENT, ids=["lfs", "doctype", "html", "xml"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_stand_in_for_a_tokenizer(name, content, message, tmp_path):
    weights.Golden("qwen3-plain").build(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(llmc.Error, match=rf"{name}: {message}"):
        llmc.Tokenizer(tmp_path)
    lines = []
    with llmc.open(tmp_path, no_weights=True, log=lambda level, line: lines.append((level, line))):
        pass
    assert [x for level, x in lines if level == 1 and "no tokenizer" in x and name in x], lines


def test_the_reason_for_a_missing_tokenizer_is_shown(tmp_path):
    weights.Golden("qwen3-plain").build(tmp_path)

    def stderr():
        p = subprocess.run(
            [LLMC, "run", tmp_path, "-p", "a", "--device", "ref"],
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert p.returncode != 0 and "has no tokenizer" in p.stderr
        return p.stderr

    assert "token ids:" not in stderr()  # the folder has no tokenizer
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "CharLevel"}}))
    assert 'model.type is "CharLevel"' in stderr()


def adapter(folder, tensors=None, config=None):
    folder.mkdir()
    head = json.dumps(tensors or {}).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    (folder / "adapter_config.json").write_bytes(
        config
        or json.dumps(
            dict(peft_type="LORA", r=4, lora_alpha=8, target_modules=["q_proj"], bias="none")
        ).encode()
    )
    return str(folder)


def test_an_adapter_without_matrices_is_refused(tmp_path):
    weights.Golden("llama-modern").build(tmp_path / "base")
    empty = adapter(tmp_path / "empty")
    with pytest.raises(llmc.Error, match="holds no matrices, so the adapter changes nothing"):
        llmc.open(tmp_path / "base", device="ref", set={"lora.path": empty})
    slots = {"adapters.slots": 1, "adapters.rank": 4}
    with llmc.open(tmp_path / "base", device="ref", set=slots) as model:
        with pytest.raises(llmc.Error, match="holds no matrices"):
            model.load_adapter(empty)


@pytest.mark.parametrize("content,message", CONTENT, ids=["lfs", "doctype", "html", "xml"])
def test_a_stand_in_for_an_adapter(content, message, tmp_path):
    weights.Golden("llama-modern").build(tmp_path / "base")
    bad = adapter(tmp_path / "config", config=content)
    with pytest.raises(llmc.Error, match=rf"adapter_config\.json: {message}"):
        llmc.open(tmp_path / "base", device="ref", set={"lora.path": bad})
    bad = adapter(tmp_path / "tensors")
    (tmp_path / "tensors" / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(llmc.Error, match=rf"adapter_model\.safetensors: {message}"):
        llmc.open(tmp_path / "base", device="ref", set={"lora.path": bad})
