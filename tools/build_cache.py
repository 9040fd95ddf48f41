"""The cache of built code for Python: the files of base/build_cache.h
(docs/internals/built-code.md).

    key = build_cache.key(text, flags, compiler)             # SHA-256 of everything that the contents depend on
    data = build_cache.get("nvrtc", key)                     # bytes, or None
    build_cache.put("nvrtc", key, data)
    lib = build_cache.library("test", key, make)             # a ctypes library; make(path) compiles it if the cache has no entry

A damaged entry counts as a miss, and a cache that cannot be written is disabled. Each is reported
once per process, on stderr."""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK, TRAILER = b"llmc ca1", 136
USAGE, USAGE_MARK = struct.Struct("<8sqq"), b"llmc us1"
COUNT_AGAIN_S = 86400


class Untrusted(Exception):
    """Other users may have written code in the cache."""


def root():
    """$LLMC_CACHE, else $XDG_CACHE_HOME/llmc, else ~/.cache/llmc."""
    own, xdg = os.environ.get("LLMC_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    return Path(own or (f"{xdg}/llmc" if xdg.startswith("/") else Path.home() / ".cache" / "llmc"))


def limit():
    """LLMC_CACHE_SIZE in bytes."""
    text = os.environ.get("LLMC_CACHE_SIZE") or "2G"
    number = text.rstrip("iB").upper()
    unit = "KMGT".find(number[-1:]) + 1 if number else 0
    try:
        size = int(float(number[:-1] if unit else number) * 1024**unit)
    except ValueError:
        raise SystemExit(
            f'LLMC_CACHE_SIZE is "{text}": expected a size, as 2G or 500M, or 0 for no cache of built code'
        ) from None
    return size


def check_owner(path, st):
    if st.st_uid not in (os.geteuid(), 0):
        raise Untrusted(f"{path}: belongs to user {st.st_uid}, not to you: its code is not loaded")
    if st.st_mode & 0o22 and not st.st_mode & 0o1000:
        raise Untrusted(
            f"{path}: others may write to it (mode {st.st_mode & 0o777:03o}): its code is not loaded; chmod go-w it"
        )


_warned = set()


def warn_once(kind, text):
    if kind not in _warned:
        _warned.add(kind)
        print(f"llmc: {text}", file=sys.stderr)


@functools.cache
def _folder(at):
    try:
        os.makedirs(f"{at}/kernels/.tmp", mode=0o700, exist_ok=True)
        check_owner(f"{at}/kernels", os.stat(f"{at}/kernels"))
    except OSError as e:
        warn_once(
            "folder",
            f"built code is not kept for the next time: {e} (LLMC_CACHE names another folder)",
        )
        return None
    return Path(at) / "kernels"


def folder():
    """Folder of the entries; None: caching is off."""
    return _folder(str(root())) if limit() else None


def key(*parts):
    """Digest of strings, bytes, numbers, and lists of them, each with its length."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _count(event, kind):
    path, at = os.environ.get("LLMC_CACHE_STATS"), folder()
    if path:
        with contextlib.suppress(OSError), open(path, "ab", buffering=0) as f:
            f.write(f"{event} {kind} {at.resolve() if at else '-'}\n".encode())


def _intact(data, key):
    trailer = data[-TRAILER:]
    sum_ = hashlib.sha256(memoryview(data)[:-TRAILER])
    sum_.update(trailer[:64])
    return (
        len(data) > TRAILER
        and trailer[128:] == MARK
        and trailer[:64] == key.encode()
        and trailer[64:128] == sum_.hexdigest().encode()
    )


@contextlib.contextmanager
def _held(kind, key):
    """Yield (path, bytes with trailer) of an entry, which is not evicted within this context; (None, None): no entry."""
    at = folder()
    try:
        fd = os.open(at / f"{key}.{kind}", os.O_RDONLY | os.O_CLOEXEC) if at else -1
    except OSError:
        fd = -1
    if fd < 0:
        _count("miss", kind)
        yield None, None
        return
    try:
        path = at / f"{key}.{kind}"
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_SH)
        st = os.fstat(fd)
        check_owner(path, st)
        data = mmap.mmap(fd, 0, prot=mmap.PROT_READ) if st.st_size and st.st_nlink else b""
        if st.st_nlink and not _intact(data, key):
            warn_once("damaged", f"{path}: damaged or cut off: it is built again")
            _count("damaged", kind)
            path = data = None
        elif not st.st_nlink:
            path = data = None
        else:
            with contextlib.suppress(OSError):
                os.utime(fd)
        _count("hit" if path else "miss", kind)
        yield path, data
    finally:
        os.close(fd)


def get(kind, key):
    with _held(kind, key) as (path, data):
        return data[:-TRAILER] if path else None


def put(kind, key, data):
    """Store an entry; a full disk is reported once."""
    at = folder()
    if at is None or not data:
        return
    tmp = None
    try:
        fd, tmp = tempfile.mkstemp(prefix="put.", dir=at / ".tmp")
        sum_ = hashlib.sha256(data)
        sum_.update(key.encode())
        with open(fd, "wb") as f:
            f.write(data)
            f.write(key.encode() + sum_.hexdigest().encode() + MARK)
        with open(
            os.open(at / ".usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0
        ) as usage:
            fcntl.flock(usage, fcntl.LOCK_EX)
            _add_usage(at, usage, len(data) + TRAILER)
            os.rename(tmp, at / f"{key}.{kind}")
    except OSError as e:
        if tmp:
            with contextlib.suppress(OSError):
                os.unlink(tmp)
        warn_once(
            "full",
            f"built code is not kept for the next time: {e} (LLMC_CACHE names another folder)",
        )


def _add_usage(at, usage, n):
    """Add n bytes to the total. Called before the entry becomes visible, so that a process killed
    in between leaves the total too high, never too low."""
    now, text = int(time.time()), usage.read(USAGE.size)
    mark, total, counted = USAGE.unpack(text) if len(text) == USAGE.size else (b"", 0, 0)
    total += n
    if mark != USAGE_MARK or total > limit() or not counted <= now <= counted + COUNT_AGAIN_S:
        total, counted = _count_again(at, n), now
    usage.seek(0)
    with contextlib.suppress(OSError):
        usage.write(USAGE.pack(USAGE_MARK, total, counted))


def add_folder(path):
    """Count a folder of .headers, which this process has filled and locked."""
    with open(
        os.open(folder() / ".usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600),
        "r+b",
        buffering=0,
    ) as usage:
        fcntl.flock(usage, fcntl.LOCK_EX)
        _add_usage(folder(), usage, sum(f.stat().st_size for f in path.rglob("*") if f.is_file()))


def _folders(at):
    """Precompiled headers of tests/quick_cc.py: (last use, name, bytes) of each folder"""
    for d in (at / ".headers").glob("*"):
        with contextlib.suppress(OSError):
            n = sum(f.stat().st_size for f in d.rglob("*") if f.is_file())
            yield (d / "lock").stat().st_mtime_ns, f".headers/{d.name}", n


def _count_again(at, more):
    """Count the bytes of all entries plus `more`, which are about to be written. Above the limit, evict the least recently used entries down to 90 % of it."""
    entries = list(_folders(at))
    for e in os.scandir(at):
        if not e.name.startswith(".") and e.is_file(follow_symlinks=False):
            st = e.stat(follow_symlinks=False)
            entries.append((st.st_mtime_ns, e.name, st.st_size))
    total = sum(n for *_, n in entries) + more
    if total > limit():
        for _, name, n in sorted(entries):
            if total <= limit() - limit() // 10:
                break
            total -= n * _evict(at / name)
    return total


def _evict(path):
    """Remove an entry, or a folder of headers, unless it has a reader. Return whether it was
    removed."""
    headers = path.is_dir()
    try:
        fd = os.open(path / "lock" if headers else path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if headers:
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def library(kind, key, make, mode=ctypes.DEFAULT_MODE):
    with _held(kind, key) as (path, _):
        if path:
            return ctypes.CDLL(str(path), mode)
    with tempfile.TemporaryDirectory(prefix="llmc-") as d:
        so = os.path.join(d, f"{key[:16]}.so")
        make(so)
        put(kind, key, Path(so).read_bytes())
        return ctypes.CDLL(so, mode)  # once mapped, the file may be removed


@functools.cache
def version(compiler):
    """Version output of a compiler; "": no such compiler."""
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ""


@functools.cache
def _read(path):
    try:
        return path.read_text()
    except OSError:
        return None


def included(text, folders, here=None):
    """[(name, text)] of all files that a source includes in quotes, from its own folder or one of these, sorted by name. Missing files are skipped:
    the compiler provides them, or a condition excludes them."""
    found, todo = {}, [(text, here)]
    while todo:
        text, here = todo.pop()
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', text, re.M):
            for folder in [here, *map(Path, folders)] if here else map(Path, folders):
                path = folder / name
                if (more := _read(path)) is not None:
                    if name not in found:
                        found[name] = more
                        todo.append((more, path.parent))
                    break
    return sorted(found.items())
