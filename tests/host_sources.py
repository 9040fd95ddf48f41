"""C files of the library that tests build alone and call through ctypes."""

# packing, dequantisation and their types
PACKING = [
    "formats/dtype.c",
    "formats/dequant.c",
    "formats/quantize_row.c",
    "formats/layout_packed.c",
    "formats/layout_planes.c",
    "formats/layout_codes.c",
]
