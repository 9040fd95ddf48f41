"""Models and sessions."""

from __future__ import annotations

import ctypes as C
import json
import queue
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict
from collections.abc import Callable
from contextlib import nullcontext

from . import _ffi, _handle, _params
from ._compiler import use_zig
from ._ffi import lib
from ._handle import Handle, Ref, SerialHandle, checked_names
from ._text import Tokenizer, path_bytes

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from ._engine import Engine
    from ._params import EngineOptions, Limits, SamplingParams

FINISH = tuple(lib.llmc_finish_name(i).decode() for i in range(6))
POOLS = ("none", "last", "mean", "cls")


class Result(TypedDict):
    """Result of Session.run."""

    tokens: list[int]
    text: str
    finish: str
    n_prompt: int
    n_new: int
    prefill_s: float
    decode_s: float


def log_function(log: Callable[[int, str], object] | None) -> Any:
    if log is None:
        return _ffi.LOG_FN()
    if not callable(log):
        raise TypeError(f"log is a function, not {type(log).__name__}")
    return _ffi.LOG_FN(lambda user, level, line: log(level, line.decode("utf-8", "replace")))


def _struct_values(s: C.Structure) -> dict[str, Any]:
    return {f[0]: getattr(s, f[0]) for f in s._fields_ if f[0] != "size"}


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Model(Handle):
    """A model, opened by llmc.open(). Any thread may use it."""

    _kind = "model"

    @checked_names()
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        arch: str | None = None,
        weights: str | os.PathLike[str] | None = None,
        out_dir: str | os.PathLike[str] | None = None,
        set: Mapping[str, Any] | Sequence[str] | None = None,
        threads: int = 0,
        random_weights: bool = False,
        no_weights: bool = False,
        cache_packed: bool = False,
        log: Callable[[int, str], object] | None = None,
        mpi_comm: int | None = None,
        allow_unknown_keys: bool = False,
        trust_artifact: bool = False,
        no_fit: bool = False,
        tower: bool = False,
        host_memory: int = 0,
        mmproj: str | os.PathLike[str] | None = None,
        draft: str | os.PathLike[str] | None = None,
        draft_of: Model | None = None,
        chat_template: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open a model; the options are those of llmc_options.

        set: overrides of the description, {"key": value} or ["key=value"]. log: called as log(level,
        line). mpi_comm: address of an MPI_Comm whose processes become the model's ranks (mpi4py:
        MPI._addressof(comm)). allow_unknown_keys: report keys of config.json that the family does
        not know to `log`, instead of failing. trust_artifact: run the code of a generated folder as
        it is. no_fit: allocate without regard to free memory; otherwise what exceeds it is refused,
        and sessions without a context get the longest that fits. host_memory: limit of the CPU's
        memory for its part of a model on two devices; 0: what is free. mmproj: file with the vision
        tower of a GGUF model, which is then opened with images. draft: open the
        model with the rows that this draft reads, "mtp" or the path of a draft checkpoint.
        draft_of: path is such a checkpoint of that model. chat_template: a Jinja template instead
        of the model's own: a file, a name such as "chatml", or its source text."""
        use_zig()
        if isinstance(set, Mapping):
            set = [f"{k}={_setting(v)}" for k, v in set.items()]
        o = _ffi.Options(
            device=None if device is None else _handle.text("device", device),
            arch=None if arch is None else _handle.text("arch", arch),
            weights=None if weights is None else path_bytes("weights", weights),
            out_dir=None if out_dir is None else path_bytes("out_dir", out_dir),
            mmproj=None if mmproj is None else path_bytes("mmproj", mmproj),
            chat_template=None
            if chat_template is None
            else path_bytes("chat_template", chat_template),
            set=_handle.strings("set", set),
            log=log_function(log),
            mpi_comm=None if mpi_comm is None else _handle.integer("mpi_comm", mpi_comm, 1, 2**64),
        )
        flags = dict(
            random_weights=random_weights,
            no_weights=no_weights,
            cache_packed=cache_packed,
            allow_unknown_keys=allow_unknown_keys,
            trust_artifact=trust_artifact,
            no_fit=no_fit,
            tower=tower,
        )
        _handle.fill(o, "open()", dict(n_threads=threads, host_memory=host_memory, **flags))
        h = C.c_void_p()
        if draft is not None:
            o.draft = path_bytes("draft", draft)
        with (
            nullcontext()
            if draft_of is None
            else _handle.of_kind("draft_of", draft_of, Model)._use()
        ) as of:
            o.draft_of = of
            _handle.call(lib.llmc_open, path_bytes("path", path), C.byref(o), C.byref(h))
        self._log = o.log  # kept alive
        self._own(Ref(h, lib.llmc_close, threads=True))

    @property
    def draft_tokens(self) -> list[int] | None:
        """Token of each column of a draft checkpoint's logits; None: the column's number."""
        n = C.c_size_t()
        with self._use() as h:
            token = lib.llmc_draft_tokens(h, C.byref(n))
            return token[: n.value] if token else None

    @property
    def info(self) -> dict[str, Any]:
        """Return the fields of llmc_model_info."""
        with self._use() as h:
            return _info(h)

    def __getitem__(self, key: str) -> str:
        """Return a key of the resolved description: model["attention.n_heads"]."""
        name = _handle.text("key", key)
        with self._use() as h:
            try:
                return _handle.bytes_call(lib.llmc_get, h, name).decode()
            except _handle.Error as e:
                raise KeyError(str(e)) from None

    @property
    def plan(self) -> Any:
        """Return the plan as Python objects."""
        with self._use() as h:
            return json.loads(lib.llmc_plan_json(h).decode())

    @property
    def plan_text(self) -> str:
        """Return the plan as text."""
        with self._use() as h:
            return str(lib.llmc_plan_text(h).decode())

    @property
    def yaml(self) -> str:
        """Return the resolved description."""
        with self._use() as h:
            return str(lib.llmc_model_yaml(h).decode())

    @property
    def prompts(self) -> dict[str, str]:
        """Return the strings that an embedding model expects before inputs, by kind of input."""
        n = C.c_size_t()
        with self._use() as h:
            found = lib.llmc_input_prompts(h, C.byref(n))
            return {found[i].name.decode(): found[i].text.decode() for i in range(n.value)}

    @property
    def labels(self) -> list[str]:
        """Return the names of a classifier's labels, in the order of its output."""
        n, several = C.c_size_t(), C.c_bool()
        with self._use() as h:
            found = lib.llmc_labels(h, C.byref(n), C.byref(several))
            return [found[i].decode("utf-8", "replace") for i in range(n.value)]

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the model's tokenizer, which keeps the model open; None: it has none."""
        with self._use() as h:
            t = lib.llmc_model_tokenizer(h)
            return Tokenizer._borrow(t, self._open_ref) if t else None

    def follow(self) -> None:
        """Mirror rank 0 until it closes its model; call it on all other ranks under mpirun."""
        with self._use() as h:
            _handle.call(lib.llmc_follow, h)

    @checked_names()
    def load_adapter(self, folder: str | os.PathLike[str], scale: float = 1.0) -> int:
        """Load a PEFT LoRA adapter into a slot of the model; return its id.

        Open the model with set={"adapters.slots": 4, "adapters.rank": 16}. Session.seq and
        Engine.submit take the id."""
        number, factor = C.c_int32(), _handle.plain_value("scale", C.c_double, scale)
        with self._use() as h:
            name = path_bytes("folder", folder)
            _handle.call(lib.llmc_adapter_load, h, name, factor, C.byref(number))
        return number.value

    def unload_adapter(self, adapter: int) -> None:
        """Remove an adapter. Its slot is free once its last sequence and request end."""
        n = _handle.integer("adapter", adapter)
        with self._use() as h:
            _handle.call(lib.llmc_adapter_unload, h, n)

    def memory(self, **limits: Unpack[Limits]) -> dict[str, int]:
        """Return the bytes that a session with these limits needs."""
        m, lim = _ffi.Memory(), _params.limits("memory()", limits)
        with self._use() as h:
            _handle.call(lib.llmc_memory_for, h, C.byref(lim), C.byref(m))
        return _struct_values(m)

    def engine(
        self, *, log: Callable[[int, str], object] | None = None, **options: Unpack[EngineOptions]
    ) -> Engine:
        """Open an engine; takes the options of Engine and the limits of a session."""
        from ._engine import Engine

        return Engine(self, log=log, **options)

    def session(self, **limits: Unpack[Limits]) -> Session:
        """Open a session.

        limits: context, seqs, chunk, n_out, kv_tokens, threads, snapshots, host_tokens, marks. By
        default the context is the model's, or the longest that fits the free memory."""
        return Session(self, **limits)


def _info(h: C.c_void_p) -> dict[str, Any]:
    i = _ffi.Info()
    lib.llmc_info(h, C.byref(i))
    d = _struct_values(i)
    for k in ("name", "family", "target"):
        d[k] = d[k].decode("utf-8", "replace")
    d["eos"] = list(i.eos[: d.pop("n_eos")])
    return d


def with_tokenizer(
    free: Callable[[C.c_void_p], None], tokenizer: Tokenizer | None
) -> Callable[[C.c_void_p], None]:
    """Return a function that frees a handle and closes the borrowed tokenizer that it used."""

    def both(h: C.c_void_p) -> None:
        free(h)
        if tokenizer is not None:
            tokenizer.close()

    return both


def prompt_ids(tokenizer: Tokenizer | None, prompt: str | Sequence[int]) -> C.Array[C.c_int32]:
    """Return the ids of a prompt: a string, or ids already."""
    if not isinstance(prompt, str):
        return _handle.ids("prompt", prompt)
    if tokenizer is None:
        raise ValueError("the model has no tokenizer: pass token ids as the prompt")
    return _handle.ids("prompt", tokenizer.encode(prompt))


class Session(SerialHandle):
    """KV cache, scratch and threads that run a model. Threads take turns; see Engine for more.

    A session keeps its model open."""

    _kind = "session"

    @checked_names(_params.LIMITS)
    def __init__(self, model: Model, **limits: Unpack[Limits]) -> None:
        self.model = _handle.of_kind("model", model, Model)
        self.result: Result | None = None
        h, lim = C.c_void_p(), _params.limits("session()", limits)
        with model._use() as m:
            info = _info(m)
            self._width = info["out_width"]
            self._row_in, self._row_out = info["row_in"], info["row_out"]
            self._pool, self._normalize = info["pool"], info["normalize"]
            _handle.call(lib.llmc_session_open, m, C.byref(lim), C.byref(h))
            self._tokenizer = model.tokenizer
            free = with_tokenizer(lib.llmc_session_close, self._tokenizer)
            self._own(Ref(h, free, model._open_ref, threads=True))

    @checked_names()
    def seq(self, length_bound: int = 0, adapter: int = 0) -> int:
        """Create a sequence; return its number.

        length_bound: largest number of its tokens (0: the context). adapter: id from
        Model.load_adapter."""
        q, bound = C.c_int32(), _handle.integer("length_bound", length_bound)
        number = _handle.integer("adapter", adapter)
        with self._use() as h:
            _handle.call(lib.llmc_seq_new, h, bound, C.byref(q))
            if number:
                try:
                    _handle.call(lib.llmc_seq_adapt, h, q.value, number)
                except _handle.Error:
                    lib.llmc_seq_free(h, q.value)
                    raise
        return q.value

    def _seq_of(self, h: C.c_void_p, seq: int) -> int:
        q = _handle.integer("seq", seq)
        if lib.llmc_seq_len(h, q) < 0:
            raise _handle.out_of_range(f"there is no sequence {q} in this session")
        return q

    def adapt(self, seq: int, adapter: int) -> None:
        """Select the adapter of an empty sequence, by its id from Model.load_adapter; 0: none."""
        number = _handle.integer("adapter", adapter)
        with self._use() as h:
            _handle.call(lib.llmc_seq_adapt, h, self._seq_of(h, seq), number)

    def fork(self, seq: int) -> int:
        """Create a sequence with the tokens of another; they share pages."""
        q = C.c_int32()
        with self._use() as h:
            _handle.call(lib.llmc_seq_fork, h, self._seq_of(h, seq), C.byref(q))
        return q.value

    def trim(self, seq: int, length: int) -> None:
        """Drop all positions of a sequence from `length` on."""
        n = _handle.integer("length", length)
        with self._use() as h:
            _handle.call(lib.llmc_seq_trim, h, self._seq_of(h, seq), n)

    def mark(self, seq: int) -> None:
        """Mark this position. With recurrent state only this position and 0 can be trimmed to."""
        with self._use() as h:
            _handle.call(lib.llmc_seq_mark, h, self._seq_of(h, seq))

    def unmark(self, seq: int) -> None:
        """Drop the mark of a sequence."""
        with self._use() as h:
            lib.llmc_seq_unmark(h, self._seq_of(h, seq))

    def length(self, seq: int) -> int:
        """Return the number of tokens of a sequence."""
        with self._use() as h:
            return int(lib.llmc_seq_len(h, self._seq_of(h, seq)))

    def free(self, seq: int) -> None:
        """Free a sequence."""
        with self._use() as h:
            lib.llmc_seq_free(h, self._seq_of(h, seq))

    def save(self, seq: int) -> bytes:
        """Return the KV as bytes, for load() in any session of the same model and target."""
        need = C.c_size_t()
        with self._use() as h:
            q = self._seq_of(h, seq)
            lib.llmc_seq_save(h, q, None, 0, C.byref(need), None)
            buf = C.create_string_buffer(max(1, need.value))
            _handle.call(lib.llmc_seq_save, h, q, buf, need.value, C.byref(need))
        return buf.raw[: need.value]

    def load(self, data: bytes | bytearray | memoryview) -> int:
        """Create a sequence from the bytes of save()."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data is bytes, not {type(data).__name__}")
        q, saved = C.c_int32(), bytes(data)
        with self._use() as h:
            _handle.call(lib.llmc_seq_load, h, saved, len(saved), C.byref(q))
        return q.value

    def _chunks(
        self, chunks: Sequence[tuple[int, Sequence[int], int]]
    ) -> tuple[Any, list[C.Array[C.c_int32]], int]:
        tokens, parts, rows = [], [], 0
        for i, (seq, ids, n_out) in enumerate(chunks):
            array = _handle.ids(f"tokens of chunk {i}", ids)
            n = _handle.integer(f"n_out of chunk {i}", n_out, 0, len(array))
            tokens.append(array)
            pointer = C.cast(array, C.POINTER(C.c_int32))
            parts.append(_ffi.Chunk(_handle.integer("seq", seq), pointer, len(array), n))
            rows += n
        return (_ffi.Chunk * len(parts))(*parts), tokens, rows

    def forward(self, chunks: Sequence[tuple[int, Sequence[int], int]]) -> memoryview[float] | None:
        """Run one step; chunks: [(seq, tokens, n_out), ...].

        Return the logits as a memoryview of floats [sum of n_out, vocab], which numpy.asarray()
        takes without a copy. For a model whose output is not logits, rows have info["out_width"]
        values."""
        array, tokens, rows = self._chunks(chunks)
        out = (C.c_float * max(1, rows * self._width))()
        with self._use() as h:
            _handle.call(lib.llmc_forward, h, array, len(tokens), out)
        return _rows(out, rows, self._width) if rows else None

    @checked_names()
    def forward_rows(
        self, chunks: Sequence[tuple[int, Sequence[int], int]], came: Any = None
    ) -> tuple[memoryview[float] | None, memoryview[float]]:
        """forward() for a model opened with rows for a draft head (mtp.part=rows or draft=), or for
        that head.

        Return (logits or None, rows). came: input rows of the head, a buffer of floats
        [sum of tokens, info["row_in"]]. rows: a memoryview [sum of tokens, info["row_out"]]."""
        array, tokens, n_out = self._chunks(chunks)
        n = sum(len(t) for t in tokens)
        out = (C.c_float * max(1, n_out * self._width))()
        rows, given = (C.c_float * max(1, n * self._row_out))(), None
        if came is not None:
            view = memoryview(came)
            if view.format != "f" or view.nbytes != n * self._row_in * 4:
                raise ValueError(
                    f"came has {view.nbytes} bytes of format {view.format!r}, not float rows "
                    f"[{n}, {self._row_in}]"
                )
            given = (C.c_float * max(1, n * self._row_in))()
            C.memmove(given, view.tobytes(), view.nbytes)
        with self._use() as h:
            _handle.call(lib.llmc_forward_rows, h, array, len(tokens), given, out, rows)
        logits = _rows(out, n_out, self._width) if n_out else None
        return logits, _rows(rows, n, self._row_out)

    def forward_images(
        self, chunks: Sequence[tuple[int, Sequence[int], int]], rows: Sequence[dict[str, Any]]
    ) -> memoryview[float] | None:
        """forward() with rows of images, one dict per chunk: for a vision tower (tower=True) "row"
        (a buffer of floats [tokens, vision.width]), "pos" (time, row and column: three lists of
        integers per token), "number" (of learned positions) and "window" (of towers with windows);
        for a model opened with
        vision.part=rows "row" ([any, hidden]), "at" (the index of a token's row, or -1) and "pos"
        (RoPE positions, if the model has three), or no keys."""
        array, tokens, n_out = self._chunks(chunks)
        given = (_ffi.ImageRows * max(1, len(tokens)))()
        kept: list[Any] = []
        for r, own in zip(given, rows, strict=True):
            if "row" in own:
                view = memoryview(own["row"])
                if view.format != "f":
                    raise ValueError(f"row has the format {view.format!r}, expected floats")
                floats = (C.c_float * max(1, view.nbytes // 4))()
                C.memmove(floats, view.tobytes(), view.nbytes)
                r.row = C.cast(floats, C.POINTER(C.c_float))
                kept.append(floats)
            for key in "at", "number", "window":
                if key in own:
                    kept.append((C.c_int32 * len(own[key]))(*own[key]))
                    setattr(r, key, C.cast(kept[-1], C.POINTER(C.c_int32)))
            for i, p in enumerate(own.get("pos", ())):
                kept.append((C.c_int32 * len(p))(*p))
                r.pos[i] = C.cast(kept[-1], C.POINTER(C.c_int32))
        out = (C.c_float * max(1, n_out * self._width))()
        with self._use() as h:
            _handle.call(lib.llmc_forward_images, h, array, len(tokens), given, out)
        return _rows(out, n_out, self._width) if n_out else None

    @checked_names()
    def embed(
        self, text: str | Sequence[int], pool: str | None = None, normalize: bool | None = None
    ) -> list[float]:
        """Return the vector of a string or of ids, from a model whose output is not logits.

        pool: "last", "mean" or "cls"; None: that of the model."""
        self._open_ref  # noqa: B018  raises if closed
        ids, kind = prompt_ids(self._tokenizer, text), self._pool
        if pool is not None:
            if _handle.of_kind("pool", pool, str) not in POOLS:
                raise ValueError(f"pool = {pool!r} is none of {', '.join(POOLS)}")
            kind = POOLS.index(pool)
        unit = self._normalize if normalize is None else _handle.flag("normalize", normalize)
        out = (C.c_float * self._width)()
        with self._use() as h:
            _handle.call(lib.llmc_embed, h, ids, len(ids), kind, unit, out)
        return list(out)

    def stats(self) -> dict[str, int]:
        """Return the fields of llmc_stats."""
        s = _ffi.Stats()
        with self._use() as h:
            lib.llmc_session_stats(h, C.byref(s))
        return _struct_values(s)

    @checked_names(_params.PARAMS)
    def run(
        self,
        prompt: str | Sequence[int],
        on_token: Callable[[int, str], object] | None = None,
        **params: Unpack[SamplingParams],
    ) -> Result:
        """Generate to the end; return {"tokens", "text", "finish", ...}.

        prompt: string or ids. on_token(id, text) may return False to stop. Inside of it the session
        cannot be used, except for close(), which also stops the generation."""
        if on_token is not None and not callable(on_token):
            raise TypeError(f"on_token is a function, not {type(on_token).__name__}")
        self._open_ref  # noqa: B018  raises if closed
        tokens = prompt_ids(self._tokenizer, prompt)
        ids: list[int] = []
        output, raised = bytearray(), []

        def each(user: Any, id: int, part: Any, n: int) -> bool:
            try:
                data = C.string_at(part, n) if n else b""
                if id >= 0:
                    ids.append(id)
                output.extend(data)
                go = on_token is None or on_token(id, data.decode("utf-8", "replace")) is not False
                return go and not self.closed
            except BaseException as e:  # an exception must not unwind through C
                raised.append(e)
                return False

        r, fn = _ffi.Result(), _ffi.TOKEN_FN(each)
        with _params.params("run()", params) as p, self._use() as h:
            _handle.call(
                lib.llmc_generate, h, tokens, len(tokens), C.byref(p), fn, None, C.byref(r)
            )
        if raised:
            raise raised[0]
        return {
            "tokens": ids,
            "text": output.decode("utf-8", "replace"),
            "finish": FINISH[r.finish],
            "n_prompt": r.n_prompt,
            "n_new": r.n_new,
            "prefill_s": r.prefill_s,
            "decode_s": r.decode_s,
        }

    @checked_names(_params.PARAMS)
    def generate(
        self, prompt: str | Sequence[int], **params: Unpack[SamplingParams]
    ) -> Generator[str, None, None]:
        """Yield the output as strings; closing the generator early stops the model.

        The session is busy until the generator ends. Session.result then has the result."""
        self._open_ref  # noqa: B018  raises now, not at the first next()
        return self._generate(prompt, params)

    def _generate(
        self, prompt: str | Sequence[int], params: SamplingParams
    ) -> Generator[str, None, None]:
        parts: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        stopped = threading.Event()

        def each(id: int, text: str) -> bool:
            if text:
                parts.put(text)
            return not stopped.is_set()

        def work() -> None:
            try:
                self.result = self.run(prompt, each, **params)
                parts.put(None)
            except BaseException as e:
                parts.put(e)

        t = threading.Thread(target=work, daemon=True)
        t.start()
        try:
            while (part := parts.get()) is not None:
                if isinstance(part, BaseException):
                    raise part
                yield part
        finally:
            stopped.set()
            t.join()

    @checked_names(_params.PARAMS)
    def chat(
        self,
        messages: Sequence[Any],
        *,
        template: Mapping[str, Any] | None = None,
        **params: Unpack[SamplingParams],
    ) -> Generator[str, None, None]:
        """Yield the answer to chat messages [{"role": "user", "content": "..."}, ...] as strings.

        template: variables of the chat template, such as {"tools": [...]}."""
        self._open_ref  # noqa: B018  raises if closed
        if self._tokenizer is None:
            raise ValueError("the model has no tokenizer, so it has no chat template")
        prompt = self._tokenizer.chat(messages, **(template or {}))
        # the template writes the prefix, so it is not added again
        return self.generate(self._tokenizer.encode(prompt, special=2), **params)


def _rows(values: Any, n: int, width: int) -> memoryview[float]:
    if n == 0:
        return memoryview(b"").cast("f")
    return memoryview(values).cast("B")[: n * width * 4].cast("f", (n, width))
