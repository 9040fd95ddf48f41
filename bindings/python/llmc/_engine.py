"""Engines, their requests and events."""

from __future__ import annotations

import asyncio
import ctypes as C
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict
from collections.abc import Callable

from . import _ffi, _handle, _params
from ._ffi import lib
from ._handle import Handle, Ref, checked_names
from ._model import FINISH, Model, log_function, prompt_ids, with_tokenizer
from ._text import path_bytes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._params import EngineOptions, RequestOptions

KINDS = ("none", "prompt", "token", "finish", "error")
_SLICE_MS = 200
_FINISH_FIELDS = (
    "n_prompt",
    "n_new",
    "n_cached",
    "n_preempted",
    "sum_logprob",
    "queue_s",
    "prefill_s",
    "decode_s",
)


class RequestResult(TypedDict):
    """Result of the first choice of a request."""

    tokens: list[int]
    text: str
    finish: str
    n_prompt: int
    n_new: int
    n_cached: int
    queue_s: float
    prefill_s: float
    decode_s: float


class Event:
    """An llmc_event as Python values; kind: prompt, token, finish, error."""

    finish: str
    stop: int
    n_prompt: int
    n_new: int
    n_cached: int
    n_preempted: int
    sum_logprob: float
    queue_s: float
    prefill_s: float
    decode_s: float
    error: _handle.Error

    def __init__(self, e: _ffi.Event) -> None:
        self.kind: str = KINDS[e.kind]
        self.last: bool = e.last
        self.request: int = e.request
        self.index: int = e.index
        self.token: int = e.token
        self.logprob: float = e.logprob
        self.rank: int = e.rank
        self.time_s: float = e.time_s
        self.top: list[tuple[int, float]] = [
            (e.top[i].id, e.top[i].logprob) for i in range(e.n_top)
        ]
        data = C.string_at(e.text, e.n_bytes) if e.n_bytes else b""
        self.text: str = data.decode("utf-8", "replace")
        if self.kind == "finish":
            self.finish, self.stop = FINISH[e.finish], e.stop
            for name in _FINISH_FIELDS:
                setattr(self, name, getattr(e, name))
        elif self.kind == "error":
            self.error = _handle.Error(e.status, self.text)

    def __repr__(self) -> str:
        return "Event(" + ", ".join(f"{k}={v!r}" for k, v in vars(self).items()) + ")"


class Request:
    """A submitted request. Iteration yields text of the first choice, events() all events.

    Its events stay readable when the engine is closed, which ends the request."""

    def __init__(self, engine: Engine, id: int) -> None:
        self.engine, self.id, self.done = engine, id, False
        # set once the first choice is complete
        self.result: RequestResult | None = None
        self._left: deque[Event] = deque()  # events that the engine's close() has taken

    def events(self, timeout: float | None = None) -> Generator[Event, None, None]:
        """Yield all events; TimeoutError: none came within `timeout` seconds."""
        while not self.done:
            e = self._next(_handle.milliseconds("timeout", timeout))
            if e is None:
                raise TimeoutError(f"no event of request {self.id} in {timeout} s")
            self.done = e.last
            if e.kind == "error":
                raise e.error
            yield e

    def _next(self, timeout_ms: int) -> Event | None:
        try:
            while not self._left:
                # without a limit, wait in slices, so that Python handles signals in between
                e = self.engine._next(self.id, _SLICE_MS if timeout_ms < 0 else timeout_ms)
                if e is not None or timeout_ms >= 0:
                    return e
        except _handle.ClosedError:
            self.engine._ended.wait()  # wait until close() has moved the events
            if not self._left:
                raise
        return self._left.popleft()

    def __iter__(self) -> Generator[str, None, None]:
        tokens, text = [], []
        try:
            for e in self.events():
                if e.kind == "prompt" or e.index:
                    continue
                text.append(e.text)
                if e.kind == "token":
                    tokens.append(e.token)
                else:
                    self.result = {
                        "tokens": tokens,
                        "text": "".join(text),
                        "finish": e.finish,
                        "n_prompt": e.n_prompt,
                        "n_new": e.n_new,
                        "n_cached": e.n_cached,
                        "queue_s": e.queue_s,
                        "prefill_s": e.prefill_s,
                        "decode_s": e.decode_s,
                    }
                if e.text:
                    yield e.text
        finally:
            self.forget()

    def wait(self) -> RequestResult | None:
        """Wait for the request to complete; return its result."""
        for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """Stop the request; its events end with finish "cancel"."""
        if not self.engine.closed:
            self.engine._tell(lib.llmc_cancel, self.id)

    def forget(self) -> None:
        """Stop the request and drop its events."""
        if not self.done:
            self.done = True
            self._left.clear()
            self.engine._tell(lib.llmc_forget, self.id)
        self.engine._requests.pop(self.id, None)


class Engine(Handle):
    """Session with its own thread that serves many requests; any thread may call.

    options: max_concurrent_requests, max_batch_prefill_tokens, max_batch_total_tokens,
    waiting_served_ratio, max_waiting_tokens, no_prefix_cache, swap_bytes, prefix_dir,
    prefix_dir_bytes, speculate, draft. draft is a smaller Model with the same tokenizer, or the MTP
    head of the same checkpoint: opened with set=["mtp.part=head"], and the model with
    set=["mtp.part=rows"].
    limits: context, seqs, chunk, n_out, kv_tokens, threads, snapshots, host_tokens, marks.
    Use either submit() and generate(), or stream() in one event loop. An engine keeps its model
    open."""

    _kind = "engine"

    @checked_names(_params.ENGINE)
    def __init__(
        self,
        model: Model,
        *,
        log: Callable[[int, str], object] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.model = _handle.of_kind("model", model, Model)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Queue[Event]] = {}
        self._requests: weakref.WeakValueDictionary[int, Request] = weakref.WeakValueDictionary()
        self._ended = threading.Event()  # set by the end of close()
        # calls and log functions of this engine that are running on this thread
        self._here = threading.local()
        rest: dict[str, Any] = dict(options)
        limits = {k: rest.pop(k) for k in _params.LIMITS if k in rest}
        draft, prefix_dir = rest.pop("draft", None), rest.pop("prefix_dir", None)
        lim = _params.limits("engine()", limits)
        self._log = self._log_function(log)
        o = _ffi.EngineOptions(limits=C.pointer(lim), log=self._log)
        if prefix_dir is not None:
            o.prefix_dir = path_bytes("prefix_dir", prefix_dir)
        _handle.fill(o, "engine()", rest)
        with model._use() as m:
            if draft is None:
                self._open(m, o)
            else:
                with _handle.of_kind("draft", draft, Model)._use() as d:
                    o.draft = d
                    self._open(m, o)

    def _log_function(self, log: Callable[[int, str], object] | None) -> Any:
        if log is None:
            return log_function(None)
        given, here = log, self._here  # the callback must not keep the engine alive

        def line(level: int, text: str) -> None:
            here.logging = True
            try:
                given(level, text)
            finally:
                here.logging = False

        log_function(log)  # checks the type
        return log_function(line)

    def _open(self, model: C.c_void_p, options: _ffi.EngineOptions) -> None:
        h = C.c_void_p()
        _handle.call(lib.llmc_engine_open, model, C.byref(options), C.byref(h))
        # kept alive, because the log function is used until the engine is freed
        log, here = self._log, self._here
        self._tokenizer = self.model.tokenizer

        def free(handle: C.c_void_p) -> None:
            close = threading.Thread(target=lambda: lib.llmc_engine_close(handle, 0) or log)
            # not on the engine's own thread, which close() ends
            if getattr(here, "logging", False):
                close.start()
            else:
                close.run()

        both = with_tokenizer(free, self._tokenizer)
        self._own(Ref(h, both, self.model._open_ref, threads=True))

    @contextmanager
    def _use(self) -> Iterator[C.c_void_p]:
        with super()._use() as h:
            self._here.calls = getattr(self._here, "calls", 0) + 1
            try:
                yield h
            finally:
                self._here.calls -= 1

    def close(self, drain: float | None = 0) -> None:
        """Wait `drain` seconds for requests to end (None: no limit), then cancel the rest.

        The events of requests stay readable."""
        ref, ms = self._ref, _handle.milliseconds("drain", drain)
        if ref is None or ref.closed or ref.forked:
            return
        if getattr(self._here, "logging", False):
            raise RuntimeError("an engine cannot be closed by its own log function")
        with self._use() as h:
            lib.llmc_engine_drain(h, ms, None)  # calls that wait for events return
        with ref.lock:
            if ref.closed:
                return
            ref.closed = True
            # wait for calls of other threads
            while ref.users > 1 + getattr(self._here, "calls", 0):
                ref.lock.wait()
        try:
            for id, request in list(self._requests.items()):
                self._keep_events(ref.handle, id, request)
            self._requests.clear()
        finally:
            self._ended.set()
            ref.release()

    def _keep_events(self, h: C.c_void_p, id: int, request: Request) -> None:
        mail = self._waiting.get(id)
        try:
            while (e := _next_event(h, id, 0)) is not None:
                if mail is None or self._loop is None:
                    request._left.append(e)
                else:
                    self._loop.call_soon_threadsafe(mail.put_nowait, e)
                if e.last:
                    return
        except (_handle.Error, RuntimeError):
            return  # no event is left, or the event loop is closed

    def drain(self, seconds: float | None = None) -> bool:
        """Refuse new requests and wait; True if all were served in time."""
        ms = _handle.milliseconds("seconds", seconds)
        with self._use() as h:
            return bool(lib.llmc_engine_drain(h, ms, None) == 0)

    def replace_weights(
        self, path: str | os.PathLike[str], *, cancel_running: bool = False, threads: int = 0
    ) -> None:
        """Replace the model's weights by a checkpoint with the same tensors and shapes.

        It is read and packed while requests run. Then running ones finish, or are cancelled,
        and later ones see the new weights only. The engine's session is the model's only one.
        """
        o = _ffi.ReplaceOptions()
        o.cancel_running = _handle.flag("cancel_running", cancel_running)
        o.n_threads = _handle.integer("threads", threads)
        with self._use() as h:
            _handle.call(lib.llmc_engine_replace_weights, h, path_bytes("path", path), C.byref(o))

    @checked_names(_params.PARAMS)
    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        n: int = 0,
        best_of: int = 0,
        logprobs: bool = False,
        prompt_logprobs: bool = False,
        n_top: int = 0,
        keep_stop: bool = False,
        show_special: bool = False,
        deadline: float = 0,
        priority: int = 0,
        adapter: int = 0,
        prefix_salt: int = 0,
        **params: Unpack[_params.SamplingParams],
    ) -> Request:
        """Submit a request; return a Request. llmc.Error LLMC_E_BUSY: the queue is full.

        prompt: string or ids. adapter: id from Model.load_adapter. prefix_salt: only requests with
        the same value share cached prefix pages."""
        id = C.c_int64()
        with _params.params("submit()", params) as p, self._use() as h:
            ids = prompt_ids(self._tokenizer, prompt)
            r = _ffi.Request(
                tok=C.cast(ids, C.POINTER(C.c_int32)), n_tok=len(ids), params=C.pointer(p)
            )
            given = dict(
                n=n,
                best_of=best_of,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                n_top=n_top,
                keep_stop=keep_stop,
                show_special=show_special,
                deadline_s=deadline,
                priority=priority,
                adapter=adapter,
                prefix_salt=prefix_salt,
            )
            _handle.fill(r, "submit()", given)
            _handle.call(lib.llmc_submit, h, C.byref(r), C.byref(id))
            request = self._requests[id.value] = Request(self, id.value)
        return request

    @checked_names(_params.PARAMS + _params.REQUEST)
    def generate(
        self, prompt: str | Sequence[int], **params: Unpack[RequestOptions]
    ) -> Generator[str, None, None]:
        """Yield the output as strings; closing the generator early cancels the request."""
        self._open_ref  # noqa: B018  raises now, not at the first next()
        return self._generate(prompt, params)

    def _generate(
        self, prompt: str | Sequence[int], params: RequestOptions
    ) -> Generator[str, None, None]:
        yield from self.submit(prompt, **params)

    @checked_names(_params.PARAMS + _params.REQUEST)
    async def stream(
        self, prompt: str | Sequence[int], **params: Unpack[RequestOptions]
    ) -> AsyncGenerator[str, None]:
        """Yield the output as strings, asynchronously; closing it early cancels the request."""
        async for e in self.events(prompt, **params):
            if e.kind != "prompt" and e.index == 0 and e.text:
                yield e.text

    @checked_names(_params.PARAMS + _params.REQUEST)
    async def events(
        self, prompt: str | Sequence[int], **params: Unpack[RequestOptions]
    ) -> AsyncGenerator[Event, None]:
        """Yield all events of a request, asynchronously."""
        loop = asyncio.get_running_loop()
        if self._waiting and loop is not self._loop:
            raise RuntimeError("this engine is in use by another event loop")
        with self._use() as h:
            request = self.submit(prompt, **params)
            mail = self._waiting[request.id] = asyncio.Queue()
            if len(self._waiting) == 1:
                self._loop = loop
                # a copy, so that it stays valid when the engine is closed
                self._fd = os.dup(lib.llmc_engine_fd(h))
                loop.add_reader(self._fd, self._route)
        try:
            while not request.done:
                e = await mail.get()
                request.done = e.last
                if e.kind == "error":
                    raise e.error
                yield e
        finally:
            del self._waiting[request.id]
            if not self._waiting:
                loop.remove_reader(self._fd)
                os.close(self._fd)
            request.forget()

    def _route(self) -> None:
        try:
            while (e := self._next(0, 0)) is not None:
                if e.request in self._waiting:
                    self._waiting[e.request].put_nowait(e)
        except _handle.Error:  # closed, or drained and all events taken
            if self._loop is not None and self.closed:
                self._loop.remove_reader(self._fd)

    def _next(self, id: int, timeout_ms: int) -> Event | None:
        with self._use() as h:
            return _next_event(h, id, timeout_ms)

    def _tell(self, fn: Callable[[C.c_void_p, int], None], id: int) -> None:
        """Call llmc_cancel or llmc_forget; a closed engine has ended its requests already."""
        try:
            with self._use() as h:
                fn(h, id)
        except _handle.ClosedError:
            pass

    def stats(self) -> dict[str, Any]:
        """Return the fields of llmc_counts; histograms are {"n", "sum", "bucket"}."""
        c = _ffi.Counts()
        with self._use() as h:
            lib.llmc_engine_stats(h, C.byref(c))
        d: dict[str, Any] = {}
        for name, kind in c._fields_:
            v = getattr(c, name)
            if kind is _ffi.Histogram:
                v = {"n": v.n, "sum": v.sum, "bucket": list(v.bucket)}
            elif name == "accepted_at":
                v = list(v)
            elif name == "finished":
                v = dict(zip(FINISH, v))
            if name != "size":
                d[name] = v
        return d


def _next_event(h: C.c_void_p, id: int, timeout_ms: int) -> Event | None:
    ev = _ffi.Event()
    _handle.call(lib.llmc_next, h, id, timeout_ms, C.byref(ev))
    if ev.kind == 0:
        return None
    try:
        return Event(ev)
    finally:
        lib.llmc_event_release(C.byref(ev))
