"""Models by name: hf:ORG/REPO[:QUANT] and https:// addresses."""

from __future__ import annotations

import ctypes as C
import json
import os
from collections.abc import Callable
from typing import Any, TypedDict

from . import _ffi, _handle
from ._ffi import lib
from ._model import Model
from ._text import path_bytes


class Progress(TypedDict):
    """Progress of a pull: `file` is complete now, `note` is what the pull waits for; both may be
    None."""

    file: str | None
    note: str | None
    n_files: int
    n_done: int
    bytes: int
    total_bytes: int


def _progress_of(s: Any) -> Progress:
    return Progress(
        file=s.file.decode("utf-8", "replace") if s.file else None,
        note=s.note.decode("utf-8", "replace") if s.note else None,
        n_files=s.n_files,
        n_done=s.n_done,
        bytes=s.bytes,
        total_bytes=s.total_bytes,
    )


def pull(
    name: str,
    *,
    update: bool = False,
    offline: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> str:
    """Find a model by its name, or download it, and return the path of its file or folder.

    name: hf:ORG/REPO, hf:ORG/REPO:QUANT, hf:ORG/REPO@REVISION:FILE, or the https:// address of a
    GGUF file. update: look for a newer revision. offline: use no network. progress: called several
    times per second; an exception in it, or Ctrl-C, stops the pull and is raised here. The next
    pull resumes. The cache and the variables HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE are
    those of huggingface_hub."""
    raised: list[BaseException] = []

    def on_progress(user: Any, state: Any) -> bool:
        try:
            if progress is not None:
                progress(_progress_of(state.contents))
        except BaseException as e:
            raised.append(e)
        return not raised

    o = _ffi.PullOptions(update=update, offline=offline, progress=_ffi.PROGRESS_FN(on_progress))
    try:
        path = _handle.bytes_call(lib.llmc_pull, _handle.text("name", name), C.byref(o))
    except _handle.Error:
        if raised:
            raise raised[0] from None
        raise
    if raised:
        raise raised[0]
    return os.fsdecode(path)


def pulled() -> list[dict[str, Any]]:
    """Return the models in the caches: name, path, bytes, complete, modified."""
    rows: list[dict[str, Any]] = json.loads(_handle.bytes_call(lib.llmc_pulled))
    return rows


def load(
    name: str | os.PathLike[str],
    *,
    update: bool = False,
    progress: Callable[[Progress], object] | None = None,
    **options: Any,
) -> Model:
    """Open a model by its name, after a download if it is not in the cache, or by its path.

    update, progress: see pull. options: see Model."""
    if lib.llmc_is_model_name(path_bytes("name", name)):
        name = pull(os.fsdecode(name), update=update, progress=progress)
    return Model(name, **options)
