"""python -m llmc ARGUMENTS: run the llmc command that belongs to the library."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

from ._compiler import use_zig
from ._ffi import lib


def command() -> str:
    """Return the path of the command: next to the library, in its prefix, or in PATH."""
    folder = os.path.dirname(os.path.abspath(lib._name)) if os.sep in lib._name else ""
    for path in (os.path.join(folder, "llmc"), os.path.join(folder, "..", "bin", "llmc")):
        if folder and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    found = shutil.which("llmc")
    if found is None:
        sys.exit("llmc: the command was not found; install it or add its folder to PATH")
    return found


def main() -> NoReturn:
    path = command()
    use_zig()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
