"""Reads the protobuf fields of a tokenizer.model that a test has trained."""

import struct
from types import SimpleNamespace


def fields(data):
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            n = varint() if key & 7 == 2 else 4 if key & 7 == 5 else 8
            yield key >> 3, data[at : at + n]
            at += n


def read(path):
    model = SimpleNamespace(
        pieces=[], model_type=1, charsmap=b"", add_dummy_prefix=True, remove_extra_whitespaces=True
    )
    for field, value in fields(path.read_bytes()):
        if field == 1:
            p = dict(fields(value))
            model.pieces.append(
                SimpleNamespace(
                    piece=p[1].decode(),
                    score=struct.unpack("<f", p.get(2, b"\0\0\0\0"))[0],
                    type=p.get(3, 1),
                )
            )
        elif field == 2:
            model.model_type = dict(fields(value)).get(3, 1)
        elif field == 3:
            n = dict(fields(value))
            model.charsmap = n.get(2, b"")
            model.add_dummy_prefix = bool(n.get(3, 1))
            model.remove_extra_whitespaces = bool(n.get(4, 1))
    return model
