"""Writes GGUF files that hold only a vocabulary."""

import struct

U32, I32, F32, BOOL, STR, ARR, U8 = 4, 5, 6, 7, 8, 9, 0
CODE = {U32: "I", I32: "i", F32: "f", BOOL: "?", U8: "B"}


def _str(s):
    data = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind, v):
    return _str(v) if kind == STR else struct.pack("<" + CODE[kind], v)


def write(path, keys):
    """keys: name -> (type, value), or (ARR, element type, values)"""
    out = [b"GGUF", struct.pack("<IQQ", 3, 0, len(keys))]
    for name, (kind, *rest) in keys.items():
        out.append(_str(name) + struct.pack("<I", kind))
        if kind == ARR:
            elem, values = rest
            out.append(
                struct.pack("<IQ", elem, len(values)) + b"".join(_value(elem, v) for v in values)
            )
        else:
            out.append(_value(kind, rest[0]))
    path.write_bytes(b"".join(out))
