"""Images, and the preprocessing of a model's folder."""

from __future__ import annotations

import ctypes as C
import os
from dataclasses import dataclass
from typing import Any

from . import _ffi, _handle
from ._ffi import lib
from ._handle import Handle, Ref, checked_names, of_kind
from ._text import path_bytes


class Image(Handle):
    """Pixels of an image: from the bytes or the path of a file, a PIL image or a numpy array.

    Files are JPEG, PNG, WebP, GIF (first frame) or BMP. An array is of uint8, [height, width] or
    [height, width, 1, 3 or 4]. max_pixels limits width times height of a file."""

    _kind = "image"

    @checked_names()
    def __init__(self, source: Any, max_pixels: int = 0) -> None:
        h = C.c_void_p()
        if hasattr(source, "__array_interface__"):
            _from_array(_pil_as_rgb(source), h)
        else:
            data = _file_bytes(source)
            _handle.call(lib.llmc_image_decode, data, len(data), int(max_pixels), C.byref(h))
        self._own(Ref(h, lib.llmc_image_close))

    def _shape(self, h: C.c_void_p) -> tuple[int, tuple[int, int, int]]:
        w, height, c = C.c_int32(), C.c_int32(), C.c_int32()
        at = lib.llmc_image_pixels(h, C.byref(w), C.byref(height), C.byref(c))
        return at, (height.value, w.value, c.value)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels (3 or 4)"""
        with self._use() as h:
            return self._shape(h)[1]

    def pixels(self) -> bytes:
        """Return the pixels, rows from the top, without padding."""
        with self._use() as h:
            at, (height, width, c) = self._shape(h)
            return C.string_at(at, height * width * c)


def _file_bytes(source: Any) -> bytes:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, (str, os.PathLike)):
        with open(path_bytes("source", source), "rb") as f:
            return f.read()
    raise TypeError(
        f"source is bytes, a path, a PIL image or a numpy array, not {type(source).__name__}"
    )


def _pil_as_rgb(source: Any) -> Any:
    """Convert a PIL image to a mode that has 8 bits per channel; arrays stay as they are."""
    if not hasattr(source, "getbands"):
        return source
    alpha = "A" in source.getbands() or "transparency" in source.info
    return source.convert("RGBA" if alpha else "RGB")


def _from_array(source: Any, h: C.c_void_p) -> None:
    a = source.__array_interface__
    shape = a["shape"]
    if a["typestr"][1:] != "u1" or len(shape) not in (2, 3):
        raise TypeError(
            "an array of pixels is uint8 and [height, width] or [height, width, channels]"
        )
    data = source.tobytes()  # in C order, whatever the strides
    channels = shape[2] if len(shape) == 3 else 1
    sizes = (shape[1], shape[0], channels)
    if min(sizes) < 1 or max(sizes) > _handle.INT32_MAX:
        raise _handle.out_of_range(f"an image of {shape[1]} x {shape[0]} pixels is not possible")
    _handle.call(lib.llmc_image_from_pixels, data, *sizes, 0, C.byref(h))


@dataclass(frozen=True)
class ImagePatches:
    """Patches of an image, as ImageProcessor.prepare returns them."""

    rows: memoryview[float]  # float32 [n, width]: the values of a patch per row
    positions: list[tuple[int, int]]  # row and column of each patch in its tile
    tiles: list[tuple[int, int]]  # patches per column and per row of each tile
    grid: tuple[int, int]  # tiles per column and per row; (0, 0): the image was not cut
    n_tokens: int  # number of embeddings that the vision tower makes of the image
    text: str  # replaces `placeholder` in the prompt; contains `token` n_tokens times
    placeholder: str
    token: str


class ImageProcessor(Handle):
    """Preprocessing of images as the model in a Hugging Face folder needs it."""

    _kind = "image processor"

    @checked_names()
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        h = C.c_void_p()
        _handle.call(lib.llmc_image_processor_open, path_bytes("folder", folder), C.byref(h))
        self._own(Ref(h, lib.llmc_image_processor_close))

    def prepare(self, image: Image) -> ImagePatches:
        """Return the patches of an image and the text that stands for it in the prompt."""
        of_kind("image", image, Image)
        out = _ffi.ImagePatches()
        with self._use() as h, image._use() as im:
            _handle.call(lib.llmc_image_prepare, h, im, C.byref(out))
        try:
            n, width = out.n_row, out.width
            data = C.string_at(out.row, 4 * n * width)
            return ImagePatches(
                rows=memoryview(data).cast("f", (n, width)),
                positions=list(zip(out.pos[0][:n], out.pos[1][:n], strict=True)),
                tiles=list(
                    zip(out.tile_height[: out.n_tile], out.tile_width[: out.n_tile], strict=True)
                ),
                grid=(out.tiles_high, out.tiles_wide),
                n_tokens=out.n_token,
                text=out.text.decode(),
                placeholder=out.placeholder.decode(),
                token=out.token.decode(),
            )
        finally:
            lib.llmc_image_patches_release(C.byref(out))
