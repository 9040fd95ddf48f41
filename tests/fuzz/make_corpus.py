#!/usr/bin/env python3
"""Write the seeds of the fuzzers of weight files and tokenizers: small valid files, from which mutations start.

    V/bin/pip install gguf==0.19.0 safetensors numpy && V/bin/python tests/fuzz/make_corpus.py

Inputs that once found a fault are kept with the seeds; the name of such a file describes the fault."""

import json
import pathlib
import struct
import tempfile

import gguf
import numpy as np
import safetensors.numpy

HERE = pathlib.Path(__file__).parent / "corpus"


def gguf_seed(name, fill, folder=HERE / "gguf"):
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp) / "seed"
        w = gguf.GGUFWriter(path, "llama")
        fill(w)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        (folder / name).write_bytes(path.read_bytes())


def keys(w):
    w.add_uint8("u8", 1)
    w.add_int16("i16", -2)
    w.add_uint64("u64", 3)
    w.add_float32("f32", 0.5)
    w.add_float64("f64", 0.25)
    w.add_bool("yes", True)
    w.add_array("words", ["a", "", "\u00e9"])
    w.add_array("ints", [1, 2, 3])
    w.add_array("floats", [0.5, 1.5])


def tensors(w):
    w.add_custom_alignment(8)
    w.add_tensor("a.weight", np.zeros((2, 3), np.float32))
    w.add_tensor("b.weight", np.ones(5, np.float16))
    w.add_tensor("q.weight", np.zeros((1, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("k.weight", np.zeros((1, 144), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    w.add_tensor("odd", np.zeros((1, 84), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q2_K)


def images():
    """The smallest golden images of each kind, and the configurations of image processors."""
    golden = HERE.parent.parent / "golden/images"
    for path in sorted(golden.iterdir()):
        if path.suffix != ".json" and path.stat().st_size < 1500:
            (HERE / "image" / path.name).write_bytes(path.read_bytes())
    tower = "bmp-565.bmp cut-jpeg-head.jpg cut-webp.webp gif-animated.gif png-1x1.png png-grey-1bit.png".split()
    tower += ["png-palette-alpha-interlaced.png", "webp-lossy.webp"]
    for i, name in enumerate(tower):
        data = (HERE / "image" / name).read_bytes()
        # the detail, and after how many calls of go_on the tower stops: 0 or 14
        first = i % 2 | (14 if i % 4 else 0)
        (HERE / "tower" / name.split(".")[0]).write_bytes(bytes([first]) + data)
    for name, case in json.loads((golden / "rows.json").read_text()).items():
        (HERE / "processor" / f"{name}.json").write_text(json.dumps(case["files"]))


def types():
    """Return a row of each codebook type and each 4-bit float type, with the tables that it needs.
    They are built here because the gguf package lacks the newest types."""
    sizes = {
        10: (256, 84),
        11: (256, 110),
        16: (256, 66),
        17: (256, 74),
        18: (256, 98),
        19: (256, 50),
        20: (32, 18),
        21: (256, 110),
        22: (256, 82),
        23: (256, 136),
        29: (256, 56),
        34: (256, 54),
        35: (256, 66),
        39: (32, 17),
        40: (64, 36),
        41: (128, 18),
        42: (64, 18),
    }
    tensors = [(f"t{k}.weight", [n, 2], k, bytes(2 * size)) for k, (n, size) in sizes.items()]
    tensors += [
        ("t40.scale", [1], 0, struct.pack("<f", 0.5)),
        ("t40.input_scale", [1], 0, struct.pack("<f", 2)),
    ]
    text = lambda t: struct.pack("<Q", len(t)) + t.encode()  # noqa: E731
    head, data = (
        b"GGUF"
        + struct.pack("<IQQ", 3, len(tensors), 1)
        + text("general.architecture")
        + struct.pack("<I", 8)
        + text("llama"),
        b"",
    )
    for name, dims, kind, raw in tensors:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    (HERE / "gguf" / "types").write_bytes(head + bytes(-len(head) % 32) + data)


def split(w):
    w.add_uint16("split.no", 0)
    w.add_uint16("split.count", 2)
    w.add_int32("split.tensors.count", 3)
    w.add_tensor("a.weight", np.zeros((2, 3), np.float32))


def byte_chars():
    """Return GPT-2's printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [
        chr(c)
        for _, c in sorted([(b, b) for b in plain] + [(b, 256 + i) for i, b in enumerate(rest)])
    ]


def added(i, text, **options):
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {"id": i, "content": text, **flags, **options}


def tokenizer_json(model, **parts):
    parts = {
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        **parts,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(0, "<s>")],
        **parts,
        "model": model,
    }


def tokenizer_seeds(out):
    chars = byte_chars()
    vocab = {c: i for i, c in enumerate(["<s>", *chars, "He", "ll", "\u0120w"])}
    bpe = tokenizer_json(
        {"type": "BPE", "vocab": vocab, "merges": [["H", "e"], ["l", "l"], "\u0120 w"]},
        normalizer={"type": "NFC"},
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": False,
                },
            ],
        },
        decoder={"type": "ByteLevel"},
        post_processor={
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
    )
    pieces = [
        ["<s>", 0.0],
        ["\u2581", -2.0],
        ["\u2581He", -1.0],
        ["l", -3.0],
        ["lo", -2.5],
        ["o", -3.5],
    ]
    unigram = tokenizer_json(
        {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
        normalizer={
            "type": "Sequence",
            "normalizers": [
                {"type": "Lowercase"},
                {"type": "Strip", "strip_left": True, "strip_right": False},
                {"type": "Replace", "pattern": {"String": "l"}, "content": "lo"},
            ],
        },
        pre_tokenizer={
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "first",
            "split": True,
        },
        decoder={
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "first",
            "split": True,
        },
    )
    byte_vocab = {
        "<unk>": 0,
        **{f"<0x{b:02X}>": b + 1 for b in range(256)},
        "\u2581": 257,
        "\u2581H": 258,
        "H": 259,
    }
    fallback = tokenizer_json(
        {
            "type": "BPE",
            "vocab": byte_vocab,
            "merges": ["\u2581 H"],
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
        normalizer={
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    )
    for name, tokenizer in (
        ("bpe.json", bpe),
        ("unigram.json", unigram),
        ("fallback.json", fallback),
    ):
        (out / name).write_text(json.dumps(tokenizer, separators=(",", ":")))
    (out / "unigram.model").write_bytes(spm(1))
    (out / "bpe.model").write_bytes(spm(2))
    for name, kind in (("llama", "llama"), ("gpt2", "gpt2")):
        gguf_seed(name, lambda w, kind=kind: vocabulary(w, kind), folder=out)


def field(number, value):
    """Encode one protobuf field: bytes, a float or an int."""
    if isinstance(value, bytes):
        return bytes([number << 3 | 2, len(value)]) + value
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    return bytes([number << 3, value])


def spm(model_type):
    """Encode a sentencepiece ModelProto: vocabulary, TrainerSpec (field 2), NormalizerSpec (field
    3)."""
    pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("\u2581", -2.0, 1),
        ("\u2581H", -1.0, 1),
        ("H", -4.0, 1),
        ("l", -3.0, 1),
        ("ll", -2.5, 1),
        ("<0x41>", 0.0, 6),
        ("<user>", 0.0, 4),
    ]
    out = b"".join(field(1, field(1, p.encode()) + field(2, s) + field(3, k)) for p, s, k in pieces)
    out += field(2, field(3, model_type))
    return out + field(3, field(1, b"identity") + field(3, 1) + field(4, 1) + field(5, 1))


def vocabulary(w, kind):
    w.add_tokenizer_model(kind)
    if kind == "gpt2":
        w.add_tokenizer_pre("smollm")
        w.add_token_list(["<s>", *byte_chars(), "He"])
        w.add_token_types([3] + [1] * 257)
        w.add_token_merges(["H e"])
    else:
        w.add_token_list(["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "\u2581H", "H", "l"])
        w.add_token_scores([0, 0, 0, 0, -1, -2, -3, -4])
        w.add_token_types([2, 3, 3, 6, 1, 1, 1, 1])
    w.add_bos_token_id(0)
    w.add_add_bos_token(True)
    w.add_chat_template("{{ messages[0].content }}")


def main():
    for kind in ("gguf", "safetensors", "tokenizer", "image", "processor", "tower"):
        (HERE / kind).mkdir(parents=True, exist_ok=True)
    gguf_seed("empty", lambda w: None)
    gguf_seed("keys", keys)
    gguf_seed("tensors", tensors)
    types()
    gguf_seed("split", split)
    v3 = (HERE / "gguf" / "tensors").read_bytes()
    (HERE / "gguf" / "version2").write_bytes(v3[:4] + b"\2" + v3[5:])
    for name, tensor in (
        ("empty", {}),
        ("one", {"w": np.zeros(2, np.float32)}),
        (
            "several",
            {
                "a": np.zeros((2, 3), np.float16),
                "b": np.zeros((), np.float32),
                "c": np.zeros((0, 4), np.int64),
                "d": np.ones(3, np.int32),
                "m": np.ones(5, bool),
            },
        ),
    ):
        data = safetensors.numpy.save(tensor, {"format": "np"} if tensor else None)
        (HERE / "safetensors" / name).write_bytes(data)
    tokenizer_seeds(HERE / "tokenizer")
    images()


main()
