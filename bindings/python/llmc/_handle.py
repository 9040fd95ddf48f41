"""Handles that are counted, errors, and checks of arguments.

No use of a closed object reaches the library. A handle of the library is freed when its owner has
closed it and the last call and the last child that use it have ended: a session keeps its model
open, a matcher its grammar."""

from __future__ import annotations

import ctypes as C
import difflib
import functools
import inspect
import math
import operator
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from collections.abc import Callable

from . import _ffi
from ._ffi import lib

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import ParamSpec, Self

    P = ParamSpec("P")

R = TypeVar("R")
E_INPUT, E_RANGE = -1, -4
INT32_MAX = 2**31 - 1


class Error(Exception):
    """A failed call of the library: its message, and its status in `code` and `name`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def name(self) -> str:
        return str(lib.llmc_status_name(self.code).decode())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, str(self))


class ClosedError(Error, ValueError):
    """The object, or one that it needs, has been closed."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


class RangeError(Error, ValueError):
    """An argument is out of range."""


def closed(kind: str) -> ClosedError:
    return ClosedError(E_INPUT, f"this {kind} is closed")


def out_of_range(text: str) -> RangeError:
    return RangeError(E_RANGE, text)


def raise_error(code: int, err: _ffi.Error) -> None:
    kind = RangeError if code == E_RANGE else Error
    raise kind(code, err.text.decode("utf-8", "replace"))


def call(fn: Callable[..., int], *args: Any) -> None:
    err = _ffi.Error()
    code = fn(*args, C.byref(err))
    if code:
        raise_error(code, err)


def bytes_call(fn: Callable[..., int], *args: Any) -> bytes:
    """Call fn(*args, buf, cap, need, err) with a buffer that grows until it fits."""
    cap = 4096
    while True:
        buf, need, err = C.create_string_buffer(cap), C.c_size_t(), _ffi.Error()
        code = fn(*args, buf, cap, C.byref(need), C.byref(err))
        if code == 0:
            return buf.raw[: need.value]
        if code != E_RANGE or need.value < cap:
            raise_error(code, err)
        cap = need.value + 1


# ---- handles ----


class Ref:
    """Handle of the library with a count of its users: the owner, running calls and children.

    threads: the handle has threads of its own, which a forked process does not inherit."""

    def __init__(
        self,
        handle: C.c_void_p,
        free: Callable[[C.c_void_p], None],
        *parents: Ref,
        threads: bool = False,
    ) -> None:
        self.handle, self.free, self.parents = handle, free, parents
        self.users, self.closed = 1, False
        self.pid = os.getpid() if threads else 0
        # reentrant, because the garbage collector may run a finalizer inside of any method
        self.lock = threading.Condition(threading.RLock())
        for p in parents:
            p.hold()

    @property
    def forked(self) -> bool:
        return self.pid not in (0, os.getpid())

    def hold(self) -> None:
        with self.lock:
            self.users += 1

    def release(self) -> None:
        with self.lock:
            self.users -= 1
            last = self.users == 0
            self.lock.notify_all()
        if last and not self.forked:
            self.free(self.handle)
            for p in self.parents:
                p.release()

    def close(self) -> None:
        """Release the owner's reference, once."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self.release()


class Handle:
    """An object of the library. It is closed by close(), by `with`, or by the garbage collector."""

    _kind = "object"
    _ref: Ref | None = None

    def _own(self, ref: Ref) -> None:
        self._ref = ref
        self._finalizer = weakref.finalize(self, ref.close)

    @contextmanager
    def _use(self) -> Iterator[C.c_void_p]:
        """Keep the handle open for one call."""
        ref = self._ref
        if ref is None:
            raise closed(self._kind)
        if ref.forked:
            raise RuntimeError(f"this {self._kind} belongs to the process that forked this one")
        with ref.lock:
            if ref.closed:
                raise closed(self._kind)
            ref.users += 1
        try:
            yield ref.handle
        finally:
            ref.release()

    @property
    def _open_ref(self) -> Ref:
        if self._ref is None or self._ref.closed:
            raise closed(self._kind)
        return self._ref

    @property
    def _h(self) -> C.c_void_p:
        return self._open_ref.handle

    @property
    def closed(self) -> bool:
        """Whether the object was closed. Every other use then raises ClosedError."""
        return self._ref is None or self._ref.closed

    def close(self) -> None:
        """Close the object. Its memory is freed once no running call and no child needs it."""
        if self._ref is not None:
            self._ref.close()

    def __enter__(self) -> Self:
        self._open_ref  # noqa: B018  raises if closed
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"a {self._kind} cannot be pickled or copied")


class SerialHandle(Handle):
    """A handle that one thread at a time may use: other threads wait."""

    def _own(self, ref: Ref) -> None:
        super()._own(ref)
        self._turn = threading.Lock()
        self._thread = 0

    @contextmanager
    def _use(self) -> Iterator[C.c_void_p]:
        if self._ref is not None and self._thread == threading.get_ident():
            raise RuntimeError(f"this {self._kind} is in use by a call that has not returned")
        with super()._use() as h, self._turn:
            if self.closed:  # closed while this thread waited
                raise closed(self._kind)
            self._thread = threading.get_ident()
            try:
                yield h
            finally:
                self._thread = 0


# ---- arguments ----


def nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown(what: str, name: str, names: Iterable[str]) -> TypeError:
    return TypeError(f"{what} has no parameter {name!r}{nearest(name, names)}")


def checked_names(more: Iterable[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: an unknown keyword is a TypeError that contains the nearest name.

    more: names that the function takes as **params."""
    extra = list(more)

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        kinds = inspect.Parameter
        own = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD) and p.name != "self"
        ]
        names = [n for n in own if not n.startswith("_")] + extra
        known, what = set(own) | set(extra), fn.__qualname__.replace(".__init__", "") + "()"

        @functools.wraps(fn)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise unknown(what, name, names)
            return fn(*args, **kwargs)

        return wrapper

    return decorate


def of_kind(what: str, value: Any, kind: type[R]) -> R:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {kind.__name__}, not {type(value).__name__}")
    return value


def integer(what: str, value: Any, least: int = 0, most: int = INT32_MAX) -> int:
    """Return the value as an int; numpy integers pass, booleans and floats do not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an integer, not {type(value).__name__}")
    n = operator.index(value)
    if not least <= n <= most:
        raise out_of_range(f"{what} = {n} is outside {least} .. {most}")
    return n


def real(what: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{what} is a number, not {type(value).__name__}")
    return float(value)


def flag(what: str, value: Any) -> bool:
    # numpy.bool_ has the name bool or bool_
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{what} is True or False, not {type(value).__name__}")


def text(what: str, value: Any) -> bytes:
    """Return a string as UTF-8 for a C string."""
    data = of_kind(what, value, str).encode()
    if b"\0" in data:
        raise ValueError(f"{what} contains a NUL character")
    return data


def strings(what: str, items: Any) -> Any:
    """Return a NULL-terminated array of C strings; None for none."""
    if items is None:
        return None
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise TypeError(f"{what} is a list of strings, not {type(items).__name__}")
    data = [text(f"{what}[{i}]", s) for i, s in enumerate(items)]
    return (C.c_char_p * (len(data) + 1))(*data, None) if data else None


def ids(what: str, tokens: Any) -> C.Array[C.c_int32]:
    """Return token ids as an array; any iterable of integers, such as a numpy array, passes."""
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise TypeError(f"{what} is a list of token ids, not {type(tokens).__name__}")
    values = [integer(f"an id of {what}", t) for t in tokens]
    return (C.c_int32 * len(values))(*values)


def milliseconds(what: str, seconds: Any) -> int:
    """Return seconds as milliseconds; None is no limit, -1."""
    if seconds is None:
        return -1
    s = real(what, seconds)
    if not s >= 0:
        raise out_of_range(f"{what} = {s} is no number of seconds >= 0")
    return int(min(s * 1000, INT32_MAX))


_SIZES = {
    C.c_int: (32, True),
    C.c_int32: (32, True),
    C.c_int64: (64, True),
    C.c_uint64: (64, False),
    C.c_size_t: (64, False),
}


def fields(struct: type[C.Structure]) -> dict[str, Any]:
    """Return the fields of a struct that hold plain numbers and flags."""
    plain = (*_SIZES, C.c_bool, C.c_float, C.c_double)
    return {f[0]: f[1] for f in struct._fields_ if f[1] in plain and f[0] != "size"}


def plain_value(name: str, kind: Any, value: Any) -> Any:
    """Check a number or flag against the C type of its field."""
    if kind is C.c_bool:
        return flag(name, value)
    if kind in (C.c_float, C.c_double):
        x = real(name, value)
        if math.isnan(x):
            raise out_of_range(f"{name} is not a number (NaN)")
        return x
    bits, signed = _SIZES[kind]
    least = -(2 ** (bits - 1)) if signed else 0
    return integer(name, value, least, least + 2**bits - 1)


def fill(struct: Any, what: str, given: Mapping[str, Any]) -> None:
    """Set the plain fields of a struct from keyword arguments."""
    known = fields(type(struct))
    for name, value in given.items():
        if name not in known:
            raise unknown(what, name, known)
        setattr(struct, name, plain_value(name, known[name], value))
