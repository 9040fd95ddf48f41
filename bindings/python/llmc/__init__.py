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

A failed call raises llmc.Error with the library's message; .code is the (negative) status. Any
thread may use a model; a session may be used by one thread at a time.
"""

import asyncio
import ctypes as C
import json
import os
import queue
import threading

from . import _ffi
from ._ffi import lib

__all__ = [
    "Engine",
    "Error",
    "Event",
    "Grammar",
    "Matcher",
    "Model",
    "Request",
    "Session",
    "Tokenizer",
    "open",
    "version",
]
ADD_SPECIAL, PARSE_SPECIAL, ADD_FIRST, ADD_SECOND, BREAKS = 1, 2, 4, 8, 16
FINISH = tuple(lib.llmc_finish_name(i).decode() for i in range(6))
KINDS = ("none", "prompt", "token", "finish", "error")
_E_RANGE = -4


class Error(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    @property
    def name(self):
        return lib.llmc_status_name(self.code).decode()


def _call(fn, *args):
    err = _ffi.Error()
    code = fn(*args, C.byref(err))
    if code:
        raise Error(code, err.text.decode("utf-8", "replace"))


def _text_call(fn, *args):
    """Call fn(*args, buf, cap, need, err) with a buffer that grows until it fits."""
    cap = 4096
    while True:
        buf, need, err = C.create_string_buffer(cap), C.c_size_t(), _ffi.Error()
        code = fn(*args, buf, cap, C.byref(need), C.byref(err))
        if code == 0:
            return buf.raw[: need.value]
        if code != _E_RANGE or need.value < cap:
            raise Error(code, err.text.decode("utf-8", "replace"))
        cap = need.value + 1


def _strings(items):
    if not items:
        return None
    return (C.c_char_p * (len(items) + 1))(*[s.encode() for s in items], None)


def _ids(tokens):
    return (C.c_int32 * len(tokens))(*tokens)


def version():
    return lib.llmc_version().decode()


def open(path, **options):
    """Open a YAML description, a generated folder, a Hugging Face folder, a GGUF or .flm file.

    options: see Model."""
    return Model(path, **options)


def _params(
    stop=None,
    stop_tokens=None,
    logit_bias=None,
    bad_words=None,
    grammar=None,
    grammar_after=None,
    dry_sequence_breakers=None,
    **params,
):
    """Return llmc_params and the objects that must live as long as it.

    logit_bias: {id: value}; bad_words: [[id, ...], ...]; grammar: a Grammar;
    dry_sequence_breakers: strings, None for the default ones."""
    keep = [grammar]
    p = _ffi.Params(
        stop=_strings(stop),
        grammar=grammar and grammar._h,
        grammar_after=_strings(grammar_after),
        dry_sequence_breakers=None
        if dry_sequence_breakers is None
        else _strings(dry_sequence_breakers) or (C.c_char_p * 1)(None),
        **params,
    )
    if stop_tokens:
        keep.append(_ids(stop_tokens))
        p.stop_tokens, p.n_stop_tokens = C.cast(keep[-1], C.POINTER(C.c_int32)), len(stop_tokens)
    if logit_bias:
        keep.append(
            (_ffi.Bias * len(logit_bias))(*[_ffi.Bias(int(k), v) for k, v in logit_bias.items()])
        )
        p.logit_bias, p.n_logit_bias = C.cast(keep[-1], C.POINTER(_ffi.Bias)), len(logit_bias)
    if bad_words:
        words = [_ids(w) for w in bad_words]
        keep += words
        keep.append(
            (_ffi.Sequence * len(words))(
                *[_ffi.Sequence(C.cast(w, C.POINTER(C.c_int32)), len(w)) for w in words]
            )
        )
        p.bad_words, p.n_bad_words = C.cast(keep[-1], C.POINTER(_ffi.Sequence)), len(words)
    return p, keep


class _Handle:
    _close = None

    def close(self):
        if self._h:
            type(self)._close(self._h)
            self._h = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __del__(self):
        if getattr(self, "_h", None):
            self.close()


class Tokenizer(_Handle):
    """A tokenizer, opened from its own file or borrowed from a model (Model.tokenizer)."""

    _close = lib.llmc_tokenizer_close

    def __init__(self, path=None, _borrowed=None, _owner=None):
        self._owner = _owner
        self._h = None
        if _borrowed:
            self._t = _borrowed
        else:
            h = C.c_void_p()
            _call(lib.llmc_tokenizer_open, str(path).encode(), C.byref(h))
            self._h = self._t = h

    def __len__(self):
        return lib.llmc_tokenizer_size(self._t)

    def encode(self, text, special=True):
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        flags = ADD_SPECIAL | PARSE_SPECIAL if special is True else int(special)
        cap = len(data) + 16
        while True:
            ids, need, err = (C.c_int32 * cap)(), C.c_size_t(), _ffi.Error()
            code = lib.llmc_tokenize(
                self._t, data, len(data), flags, ids, cap, C.byref(need), C.byref(err)
            )
            if code == 0:
                return list(ids[: need.value])
            if code != _E_RANGE or need.value <= cap:
                raise Error(code, err.text.decode("utf-8", "replace"))
            cap = need.value

    def break_special(self, text):
        """Return the text with a break in each special token. encode(..., special=PARSE_SPECIAL |
        BREAKS) then reads it as text.
        """
        data = text.encode("utf-8", "surrogatepass")
        return _text_call(lib.llmc_break_special, self._t, data, len(data)).decode()

    def decode(self, ids, skip_special=False):
        return _text_call(lib.llmc_detokenize, self._t, _ids(ids), len(ids), skip_special).decode()

    def token(self, id):
        t = lib.llmc_token_text(self._t, id)
        return None if t is None else t.decode("utf-8", "replace")

    def chat(self, messages, **options):
        """Return the prompt that the chat template renders from the messages."""
        options.setdefault("add_generation_prompt", True)
        return _text_call(
            lib.llmc_chat, self._t, json.dumps(messages).encode(), json.dumps(options).encode()
        ).decode()


class Grammar(_Handle):
    """Constraint on the output: Grammar(tokenizer, "json_schema", schema).

    Other kinds: "json", "regex", "gbnf", "choice", "parts", "lark". Schemas and choices may be
    Python objects. tokenizer None: the tokens are the 256 bytes, enough for match()."""

    _close = lib.llmc_grammar_close
    KINDS = ("json", "json_schema", "regex", "gbnf", "choice", "parts", "lark")

    def __init__(self, tokenizer, kind, text="", *, compact=False, standard=False, strict=False):
        self._h = None
        data = (text if isinstance(text, str) else json.dumps(text)).encode()
        h = C.c_void_p()
        options = _ffi.GrammarOptions(compact=compact, standard=standard, strict=strict)
        _call(
            lib.llmc_grammar_open,
            tokenizer._t if tokenizer else None,
            self.KINDS.index(kind),
            data,
            len(data),
            C.byref(options),
            C.byref(h),
        )
        self._h = h
        self._words = ((len(tokenizer) if tokenizer else 256) + 31) // 32

    def matcher(self):
        return Matcher(self)

    def match(self, text):
        """Return (complete, matched) for a string or bytes: whether all of it is an output of the
        grammar, and the bytes of the longest prefix with which an output can begin."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        complete, matched = C.c_bool(), C.c_size_t()
        _call(lib.llmc_grammar_match, self._h, data, len(data), C.byref(complete), C.byref(matched))
        return complete.value, matched.value


class Matcher(_Handle):
    """Position of one output in a grammar."""

    _close = lib.llmc_matcher_close

    def __init__(self, grammar):
        self._h = None
        h = C.c_void_p()
        _call(lib.llmc_matcher_open, grammar._h, C.byref(h))
        self._h = h
        self._bits = (C.c_uint32 * grammar._words)()

    def mask(self):
        """Return the allowed tokens as bytes: bit id % 8 of byte id // 8."""
        _call(lib.llmc_matcher_mask, self._h, self._bits, len(self._bits))
        return bytes(self._bits)

    def allows(self, id):
        return bool(self.mask()[id // 8] >> id % 8 & 1)

    def accept(self, id):
        _call(lib.llmc_matcher_accept, self._h, id)

    def reset(self):
        lib.llmc_matcher_reset(self._h)

    @property
    def may_end(self):
        return lib.llmc_matcher_may_end(self._h)

    @property
    def ended(self):
        return lib.llmc_matcher_ended(self._h)


class Model(_Handle):
    _close = lib.llmc_close

    def __init__(
        self,
        path,
        *,
        device=None,
        arch=None,
        weights=None,
        out_dir=None,
        set=None,
        threads=0,
        random_weights=False,
        no_weights=False,
        cache_packed=False,
        log=None,
        mpi_comm=None,
        allow_unknown_keys=False,
    ):
        """Open a model; the options are those of llmc_options.

        mpi_comm: address of an MPI_Comm whose processes become the model's ranks (mpi4py:
        MPI._addressof(comm)). allow_unknown_keys: report keys of config.json that the family does
        not know to `log`, instead of failing."""

        def text(s):
            return None if s is None else str(s).encode()

        self._h = None
        keep = _strings([f"{k}={v}" for k, v in set.items()] if isinstance(set, dict) else set)
        log_fn = (
            _ffi.LOG_FN(lambda user, level, line: log(level, line.decode("utf-8", "replace")))
            if log
            else _ffi.LOG_FN()
        )
        o = _ffi.Options(
            device=text(device),
            arch=text(arch),
            weights=text(weights),
            out_dir=text(out_dir),
            set=keep,
            n_threads=threads,
            random_weights=random_weights,
            no_weights=no_weights,
            cache_packed=cache_packed,
            log=log_fn,
            mpi_comm=mpi_comm,
            allow_unknown_keys=allow_unknown_keys,
        )
        h = C.c_void_p()
        _call(lib.llmc_open, str(path).encode(), C.byref(o), C.byref(h))
        self._h = h

    @property
    def info(self):
        i = _ffi.Info()
        lib.llmc_info(self._h, C.byref(i))
        d = {name: getattr(i, name) for name, _ in i._fields_ if name != "size"}
        for k in ("name", "family", "target"):
            d[k] = d[k].decode()
        d["eos"] = list(i.eos[: d.pop("n_eos")])
        return d

    def __getitem__(self, key):
        """Return a key of the resolved description: model["attention.n_heads"]."""
        try:
            return _text_call(lib.llmc_get, self._h, key.encode()).decode()
        except Error as e:
            raise KeyError(str(e)) from None

    @property
    def plan(self):
        return json.loads(lib.llmc_plan_json(self._h).decode())

    @property
    def plan_text(self):
        return lib.llmc_plan_text(self._h).decode()

    @property
    def yaml(self):
        return lib.llmc_model_yaml(self._h).decode()

    @property
    def tokenizer(self):
        t = lib.llmc_model_tokenizer(self._h)
        return Tokenizer(_borrowed=t, _owner=self) if t else None

    def follow(self):
        """Mirror rank 0 until it closes its model; call it on all other ranks under mpirun."""
        _call(lib.llmc_follow, self._h)

    def load_adapter(self, folder, scale=1.0):
        """Load a PEFT LoRA adapter into a slot of the model; return its id.

        Open the model with set={"adapters.slots": 4, "adapters.rank": 16}. Session.seq and
        Engine.submit take the id."""
        number = C.c_int32()
        _call(lib.llmc_adapter_load, self._h, os.fsencode(folder), scale, C.byref(number))
        return number.value

    def unload_adapter(self, adapter):
        """Remove an adapter. Its slot is free once its last sequence and request end."""
        _call(lib.llmc_adapter_unload, self._h, adapter)

    def memory(self, **limits):
        m = _ffi.Memory()
        _call(lib.llmc_memory_for, self._h, C.byref(_ffi.Limits(**_limits(limits))), C.byref(m))
        return {name: getattr(m, name) for name, _ in m._fields_ if name != "size"}

    def engine(self, **options):
        """Open an engine; takes the options of Engine and the limits of a session."""
        return Engine(self, **options)

    def session(self, **limits):
        """Open a session.

        limits: context, seqs, chunk, n_out, kv_tokens, threads, snapshots, host_tokens, marks"""
        return Session(self, **limits)


def _limits(d):
    d = dict(d)
    if "threads" in d:
        d["n_threads"] = d.pop("threads")
    return d


class Session(_Handle):
    _close = lib.llmc_session_close

    def __init__(self, model, **limits):
        self._h = None
        self.model = model
        self.result = None
        h = C.c_void_p()
        _call(lib.llmc_session_open, model._h, C.byref(_ffi.Limits(**_limits(limits))), C.byref(h))
        self._h = h

    def seq(self, length_bound=0, adapter=0):
        q = C.c_int32()
        _call(lib.llmc_seq_new, self._h, length_bound, C.byref(q))
        if adapter:
            try:
                self.adapt(q.value, adapter)
            except Error:
                self.free(q.value)
                raise
        return q.value

    def adapt(self, seq, adapter):
        """Select the adapter of an empty sequence, by its id from Model.load_adapter; 0: none."""
        _call(lib.llmc_seq_adapt, self._h, seq, adapter)

    def fork(self, seq):
        q = C.c_int32()
        _call(lib.llmc_seq_fork, self._h, seq, C.byref(q))
        return q.value

    def trim(self, seq, length):
        _call(lib.llmc_seq_trim, self._h, seq, length)

    def mark(self, seq):
        """Mark this position. With recurrent state only this position and 0 can be trimmed to."""
        _call(lib.llmc_seq_mark, self._h, seq)

    def unmark(self, seq):
        lib.llmc_seq_unmark(self._h, seq)

    def length(self, seq):
        return lib.llmc_seq_len(self._h, seq)

    def free(self, seq):
        lib.llmc_seq_free(self._h, seq)

    def save(self, seq):
        """Return the KV as bytes, for load() in any session of the same model and target."""
        need = C.c_size_t()
        lib.llmc_seq_save(self._h, seq, None, 0, C.byref(need), None)
        buf = C.create_string_buffer(max(1, need.value))
        _call(lib.llmc_seq_save, self._h, seq, buf, need.value, C.byref(need))
        return buf.raw[: need.value]

    def load(self, data):
        q = C.c_int32()
        _call(lib.llmc_seq_load, self._h, data, len(data), C.byref(q))
        return q.value

    def _chunks(self, chunks):
        keep = [_ids(t) for _, t, _ in chunks]
        arr = (_ffi.Chunk * len(chunks))(
            *[
                _ffi.Chunk(q, C.cast(ids, C.POINTER(C.c_int32)), len(ids), n)
                for (q, _, n), ids in zip(chunks, keep)
            ]
        )
        rows = sum(n for _, _, n in chunks)
        return arr, rows, (C.c_float * max(1, rows * self.model.info["out_width"]))(), keep

    def forward(self, chunks):
        """Run one step; chunks: [(seq, tokens, n_out), ...].

        Return the logits as a memoryview of floats [sum of n_out, vocab]. For a model whose output
        is not logits, rows have info["out_width"] values."""
        arr, rows, out, _ = self._chunks(chunks)
        _call(lib.llmc_forward, self._h, arr, len(chunks), out)
        return (
            memoryview(out).cast("B").cast("f", (rows, self.model.info["out_width"]))
            if rows
            else None
        )

    def forward_rows(self, chunks, came=None):
        """forward() for a model opened with mtp.part=rows, or for its MTP head.

        Return (logits or None, rows). came: input rows of the head, a buffer of floats
        [sum of tokens, hidden]. rows: a memoryview of the same shape."""
        arr, n_out, out, _ = self._chunks(chunks)
        n, hidden = sum(len(t) for _, t, _ in chunks), self.model.info["hidden"]
        rows = (C.c_float * max(1, n * hidden))()
        if came is not None:
            came = (C.c_float * (n * hidden)).from_buffer_copy(memoryview(came).cast("B"))
        _call(lib.llmc_forward_rows, self._h, arr, len(chunks), came, out, rows)
        logits = (
            memoryview(out).cast("B").cast("f", (n_out, self.model.info["out_width"]))
            if n_out
            else None
        )
        return logits, memoryview(rows).cast("B").cast("f", (n, hidden))

    def embed(self, text, pool=None, normalize=None):
        """Return the vector of a string or of ids, from a model whose output is not logits.

        pool: "last", "mean" or "cls"; None: that of the model."""
        info = self.model.info
        ids = self.model.tokenizer.encode(text) if isinstance(text, str) else list(text)
        kind = info["pool"] if pool is None else ["none", "last", "mean", "cls"].index(pool)
        out = (C.c_float * info["out_width"])()
        _call(
            lib.llmc_embed,
            self._h,
            _ids(ids),
            len(ids),
            kind,
            info["normalize"] if normalize is None else normalize,
            out,
        )
        return list(out)

    def stats(self):
        s = _ffi.Stats()
        lib.llmc_session_stats(self._h, C.byref(s))
        return {name: getattr(s, name) for name, _ in s._fields_ if name != "size"}

    def run(self, prompt, on_token=None, *, stop=None, **params):
        """Generate to the end; return {"tokens", "text", "finish", ...}.

        prompt: string or ids. on_token(id, text) may return False to stop."""
        tokens = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        ids, text, raised = [], bytearray(), []

        def each(user, id, part, n):
            try:
                data = C.string_at(part, n) if n else b""
                if id >= 0:
                    ids.append(id)
                text.extend(data)
                return on_token is None or on_token(id, data.decode()) is not False
            except BaseException as e:  # an exception must not unwind through C
                raised.append(e)
                return False

        r = _ffi.Result()
        p, keep = _params(stop=stop, **params)
        _call(
            lib.llmc_generate,
            self._h,
            _ids(tokens),
            len(tokens),
            C.byref(p),
            _ffi.TOKEN_FN(each),
            None,
            C.byref(r),
        )
        if raised:
            raise raised[0]
        return {
            "tokens": ids,
            "text": text.decode(),
            "finish": FINISH[r.finish],
            "n_prompt": r.n_prompt,
            "n_new": r.n_new,
            "prefill_s": r.prefill_s,
            "decode_s": r.decode_s,
        }

    def generate(self, prompt, **params):
        """Yield the output as strings; closing the generator early stops the model."""
        parts, end, stopped = queue.Queue(), object(), threading.Event()

        def each(id, text):
            if text:
                parts.put(text)
            return not stopped.is_set()

        def work():
            try:
                self.result = self.run(prompt, each, **params)
            except Exception as e:
                parts.put(e)
            parts.put(end)

        t = threading.Thread(target=work, daemon=True)
        t.start()
        try:
            while (part := parts.get()) is not end:
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            stopped.set()
            t.join()


class Event:
    """An llmc_event as Python values; kind: prompt, token, finish, error."""

    def __init__(self, e):
        self.kind, self.last, self.request = KINDS[e.kind], e.last, e.request
        self.index, self.token, self.logprob, self.time_s = e.index, e.token, e.logprob, e.time_s
        self.top = [(e.top[i].id, e.top[i].logprob) for i in range(e.n_top)]
        self.text = C.string_at(e.text, e.n_bytes).decode("utf-8", "replace") if e.n_bytes else ""
        if self.kind == "finish":
            self.finish, self.stop = FINISH[e.finish], e.stop
            for name in (
                "n_prompt",
                "n_new",
                "n_cached",
                "n_preempted",
                "sum_logprob",
                "queue_s",
                "prefill_s",
                "decode_s",
            ):
                setattr(self, name, getattr(e, name))
        elif self.kind == "error":
            self.error = Error(e.status, self.text)

    def __repr__(self):
        return "Event(" + ", ".join(f"{k}={v!r}" for k, v in vars(self).items()) + ")"


class Request:
    """A submitted request. Iteration yields text of the first choice, events() all events."""

    def __init__(self, engine, id):
        self.engine, self.id, self.done = engine, id, False
        self.result = None  # {"tokens", "text", "finish", ...} once the first choice is complete

    def events(self, timeout=None):
        while not self.done:
            e = self.engine._next(self.id, -1 if timeout is None else int(timeout * 1000))
            if e is None:
                raise TimeoutError(f"no event of request {self.id} in {timeout} s")
            self.done = e.last
            if e.kind == "error":
                raise e.error
            yield e

    def __iter__(self):
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

    def wait(self):
        """Wait for the request to complete; return its result."""
        for _ in self:
            pass
        return self.result

    def cancel(self):
        lib.llmc_cancel(self.engine._h, self.id)

    def forget(self):
        if not self.done and self.engine._h:
            lib.llmc_forget(self.engine._h, self.id)
        self.done = True


class Engine(_Handle):
    """Session with its own thread that serves many requests; any thread may call.

    options: max_concurrent_requests, max_batch_prefill_tokens, max_batch_total_tokens,
    waiting_served_ratio, max_waiting_tokens, no_prefix_cache, swap_bytes, prefix_dir,
    prefix_dir_bytes, speculate, draft. draft is a smaller Model with the same tokenizer, or the MTP
    head of the same checkpoint: opened with set=["mtp.part=head"], and the model with
    set=["mtp.part=rows"].
    limits: context, seqs, chunk, n_out, kv_tokens, threads, snapshots, host_tokens, marks.
    Use either submit() and generate(), or stream() in one event loop."""

    def __init__(self, model, *, log=None, **options):
        self._h = None
        self.model = model
        self._loop, self._waiting = None, {}
        limits = {
            k: options.pop(k)
            for k in (
                "context",
                "seqs",
                "chunk",
                "n_out",
                "kv_tokens",
                "threads",
                "snapshots",
                "host_tokens",
                "marks",
            )
            if k in options
        }
        keep = _ffi.Limits(**_limits(limits))
        if options.get("prefix_dir"):
            options["prefix_dir"] = os.fsencode(options["prefix_dir"])
        if options.get("draft"):
            options["draft"] = options["draft"]._h
        self._log = (
            _ffi.LOG_FN(lambda user, level, line: log(level, line.decode("utf-8", "replace")))
            if log
            else _ffi.LOG_FN()
        )
        o = _ffi.EngineOptions(limits=C.pointer(keep), log=self._log, **options)
        h = C.c_void_p()
        _call(lib.llmc_engine_open, model._h, C.byref(o), C.byref(h))
        self._h = h

    def close(self, drain=0):
        """Wait `drain` seconds for requests to end (None: no limit), then cancel the rest."""
        if self._h:
            lib.llmc_engine_close(self._h, -1 if drain is None else int(drain * 1000))
            self._h = None

    def drain(self, seconds=None):
        """Refuse new requests and wait; True if all were served in time."""
        return (
            lib.llmc_engine_drain(self._h, -1 if seconds is None else int(seconds * 1000), None)
            == 0
        )

    def submit(
        self,
        prompt,
        *,
        n=0,
        best_of=0,
        logprobs=False,
        prompt_logprobs=False,
        n_top=0,
        keep_stop=False,
        show_special=False,
        deadline=0,
        priority=0,
        adapter=0,
        prefix_salt=0,
        **params,
    ):
        """Submit a request; return a Request. llmc.Error LLMC_E_BUSY: the queue is full.

        prompt: string or ids. adapter: id from Model.load_adapter. prefix_salt: only requests with
        the same value share cached prefix pages."""
        tokens = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        p, keep = _params(**params)
        ids = _ids(tokens)
        r = _ffi.Request(
            tok=C.cast(ids, C.POINTER(C.c_int32)),
            n_tok=len(tokens),
            params=C.pointer(p),
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
        id = C.c_int64()
        _call(lib.llmc_submit, self._h, C.byref(r), C.byref(id))
        return Request(self, id.value)

    def generate(self, prompt, **params):
        """Yield the output as strings; closing the generator early cancels the request."""
        yield from self.submit(prompt, **params)

    async def stream(self, prompt, **params):
        """Yield the output as strings, asynchronously; closing it early cancels the request."""
        async for e in self.events(prompt, **params):
            if e.kind != "prompt" and e.index == 0 and e.text:
                yield e.text

    async def events(self, prompt, **params):
        """Yield all events of a request, asynchronously."""
        loop = asyncio.get_running_loop()
        if self._waiting and loop is not self._loop:
            raise RuntimeError("this engine is in use by another event loop")
        request = self.submit(prompt, **params)
        mail = self._waiting[request.id] = asyncio.Queue()
        if len(self._waiting) == 1:
            self._loop = loop
            loop.add_reader(lib.llmc_engine_fd(self._h), self._route)
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
                loop.remove_reader(lib.llmc_engine_fd(self._h))
            request.forget()

    def _route(self):
        while (e := self._next(0, 0)) is not None:
            if e.request in self._waiting:
                self._waiting[e.request].put_nowait(e)

    def _next(self, id, timeout_ms):
        ev = _ffi.Event()
        _call(lib.llmc_next, self._h, id, timeout_ms, C.byref(ev))
        if ev.kind == 0:
            return None
        try:
            return Event(ev)
        finally:
            lib.llmc_event_release(C.byref(ev))

    def stats(self):
        """Return the fields of llmc_counts; histograms are {"n", "sum", "bucket"}."""
        c = _ffi.Counts()
        lib.llmc_engine_stats(self._h, C.byref(c))
        d = {}
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
