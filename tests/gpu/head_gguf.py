#!/usr/bin/env python3
"""The first layers of a GGUF as a smaller GGUF. Usage: head_gguf.py IN.gguf OUT.gguf LAYERS"""

import re
import sys

from gguf import GGUFReader, GGUFValueType, GGUFWriter


def main(src, dst, layers):
    r = GGUFReader(src)
    arch = r.fields["general.architecture"].contents()
    w = GGUFWriter(dst, arch)
    for name, f in r.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name == f"{arch}.block_count" else f.contents()
        if f.types[0] == GGUFValueType.ARRAY:
            w.add_array(name, value)
        else:
            w.add_key_value(name, value, f.types[0])
    for t in r.tensors:
        m = re.match(r"blk\.(\d+)\.", t.name)
        if not m or int(m[1]) < layers:
            w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
