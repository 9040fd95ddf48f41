"""Python binding of llmc over its C header.

    import llmc
    with llmc.open("model.gguf") as model, model.session() as session:
        for text in session.generate("Hello", max_tokens=32):
            print(text, end="", flush=True)

    with llmc.open("model.gguf") as model, model.engine() as engine:    many requests, any thread
        request = engine.submit("Hello", max_tokens=32)                 returns at once
        for text in request:                                            read it now or later
            print(text, end="", flush=True)
        async for text in engine.stream("Hello", max_tokens=32): ...    the same in an event loop

A failed call raises llmc.Error with the library's message; .code is the (negative) status. A closed
object raises llmc.ClosedError; sessions and engines keep their model open. Any thread may use any
object; threads that use the same session or matcher take turns.
"""

from __future__ import annotations

import os
from typing import Any

from ._engine import Engine, Event, Request, RequestResult
from ._ffi import lib
from ._handle import ClosedError, Error, RangeError
from ._image import Image, ImagePatches, ImageProcessor
from ._model import Model, Result, Session
from ._pull import Progress, load, pull, pulled
from ._params import EngineOptions, Limits, RequestOptions, SamplingParams
from ._text import (
    ADD_FIRST,
    ADD_SECOND,
    ADD_SPECIAL,
    BREAKS,
    PARSE_SPECIAL,
    Grammar,
    Matcher,
    Tokenizer,
)

__all__ = [
    "ADD_FIRST",
    "ADD_SECOND",
    "ADD_SPECIAL",
    "BREAKS",
    "ClosedError",
    "Engine",
    "EngineOptions",
    "Error",
    "Event",
    "Grammar",
    "Image",
    "ImagePatches",
    "ImageProcessor",
    "Limits",
    "Matcher",
    "Model",
    "PARSE_SPECIAL",
    "Progress",
    "RangeError",
    "Request",
    "RequestOptions",
    "RequestResult",
    "Result",
    "SamplingParams",
    "Session",
    "Tokenizer",
    "load",
    "open",
    "pull",
    "pulled",
    "version",
]


def version() -> str:
    """Return the version of the library."""
    return str(lib.llmc_version().decode())


def open(path: str | os.PathLike[str], **options: Any) -> Model:
    """Open a YAML description, a generated folder, a Hugging Face folder, a GGUF or .flm file.

    options: see Model."""
    return Model(path, **options)
