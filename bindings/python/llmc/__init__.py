"""Python binding of llmc over its C header.

    import llmc
    with llmc.open("model.gguf") as model, model.session() as session:
        for piece in session.generate("Hello", max_tokens=32):
            print(piece, end="", flush=True)

Errors raise llmc.Error with the library's sentence; .code is the status (negative).
A model may be used from any thread, a session from one at a time.
"""
import ctypes as C
import json
import queue
import threading

from . import _ffi
from ._ffi import lib

__all__ = ["Error", "Model", "Session", "Tokenizer", "open", "version"]
ADD_SPECIAL, PARSE_SPECIAL = 1, 2
FINISH = ("length", "eos", "stop", "cancel")
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
    """Call fn(*args, buf, cap, need, err), growing the buffer until it fits; the bytes."""
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
    """Open a YAML description, a generated folder, a Hugging Face folder or a GGUF file."""
    return Model(path, **options)


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
    """A tokenizer of its own file, or (through Model.tokenizer) a model's."""
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
            code = lib.llmc_tokenize(self._t, data, len(data), flags, ids, cap, C.byref(need), C.byref(err))
            if code == 0:
                return list(ids[: need.value])
            if code != _E_RANGE or need.value <= cap:
                raise Error(code, err.text.decode("utf-8", "replace"))
            cap = need.value

    def decode(self, ids, skip_special=False):
        return _text_call(lib.llmc_detokenize, self._t, _ids(ids), len(ids), skip_special).decode()

    def token(self, id):
        t = lib.llmc_token_text(self._t, id)
        return None if t is None else t.decode("utf-8", "replace")

    def chat(self, messages, **options):
        """The prompt that the model's chat template makes of the messages."""
        options.setdefault("add_generation_prompt", True)
        return _text_call(lib.llmc_chat, self._t, json.dumps(messages).encode(), json.dumps(options).encode()).decode()


class Model(_Handle):
    _close = lib.llmc_close

    def __init__(self, path, *, device=None, arch=None, weights=None, out_dir=None, set=None, threads=0,
                 random_weights=False, no_weights=False, cache_packed=False, log=None):
        def text(s):
            return None if s is None else str(s).encode()

        self._h = None
        keep = _strings([f"{k}={v}" for k, v in set.items()] if isinstance(set, dict) else set)
        log_fn = _ffi.LOG_FN(lambda user, level, line: log(level, line.decode("utf-8", "replace"))) if log else _ffi.LOG_FN()
        o = _ffi.Options(device=text(device), arch=text(arch), weights=text(weights), out_dir=text(out_dir), set=keep,
                         n_threads=threads, random_weights=random_weights, no_weights=no_weights,
                         cache_packed=cache_packed, log=log_fn)
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
        """A key of the resolved description: model["attention.n_heads"]."""
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

    def memory(self, **limits):
        m = _ffi.Memory()
        _call(lib.llmc_memory_for, self._h, C.byref(_ffi.Limits(**_limits(limits))), C.byref(m))
        return {name: getattr(m, name) for name, _ in m._fields_ if name != "size"}

    def session(self, **limits):
        """limits: context, seqs, chunk, n_out, kv_tokens, threads"""
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

    def seq(self, length_bound=0):
        q = C.c_int32()
        _call(lib.llmc_seq_new, self._h, length_bound, C.byref(q))
        return q.value

    def fork(self, seq):
        q = C.c_int32()
        _call(lib.llmc_seq_fork, self._h, seq, C.byref(q))
        return q.value

    def trim(self, seq, length):
        _call(lib.llmc_seq_trim, self._h, seq, length)

    def length(self, seq):
        return lib.llmc_seq_len(self._h, seq)

    def free(self, seq):
        lib.llmc_seq_free(self._h, seq)

    def forward(self, chunks):
        """chunks: [(seq, tokens, n_out), ...]. The logits asked for: a memoryview of floats [sum of n_out, vocab]."""
        vocab = self.model.info["vocab"]
        keep = [_ids(t) for _, t, _ in chunks]
        arr = (_ffi.Chunk * len(chunks))(*[
            _ffi.Chunk(q, C.cast(ids, C.POINTER(C.c_int32)), len(ids), n) for (q, _, n), ids in zip(chunks, keep)])
        rows = sum(n for _, _, n in chunks)
        out = (C.c_float * max(1, rows * vocab))()
        _call(lib.llmc_forward, self._h, arr, len(chunks), out)
        return memoryview(out).cast("B").cast("f", (rows, vocab)) if rows else None

    def stats(self):
        s = _ffi.Stats()
        lib.llmc_session_stats(self._h, C.byref(s))
        return {name: getattr(s, name) for name, _ in s._fields_ if name != "size"}

    def run(self, prompt, on_token=None, *, stop=None, **params):
        """Generate to the end: {"tokens", "text", "finish", ...}. prompt: text or ids. on_token(id, text) may return False to stop."""
        tokens = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        ids, text, raised = [], bytearray(), []

        def each(user, id, piece, n):
            try:
                data = C.string_at(piece, n) if n else b""
                if id >= 0:
                    ids.append(id)
                text.extend(data)
                return on_token is None or on_token(id, data.decode()) is not False
            except BaseException as e:  # must not cross C
                raised.append(e)
                return False

        r = _ffi.Result()
        p = _ffi.Params(stop=_strings(stop), **params)
        _call(lib.llmc_generate, self._h, _ids(tokens), len(tokens), C.byref(p), _ffi.TOKEN_FN(each), None, C.byref(r))
        if raised:
            raise raised[0]
        return {"tokens": ids, "text": text.decode(), "finish": FINISH[r.finish], "n_prompt": r.n_prompt,
                "n_new": r.n_new, "prefill_s": r.prefill_s, "decode_s": r.decode_s}

    def generate(self, prompt, **params):
        """A generator of pieces of text; closing it early stops the model."""
        pieces, end, stopped = queue.Queue(), object(), threading.Event()

        def each(id, text):
            if text:
                pieces.put(text)
            return not stopped.is_set()

        def work():
            try:
                self.result = self.run(prompt, each, **params)
            except Exception as e:
                pieces.put(e)
            pieces.put(end)

        t = threading.Thread(target=work, daemon=True)
        t.start()
        try:
            while (piece := pieces.get()) is not end:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            stopped.set()
            t.join()
