"""ctypes binding of the C functions used by the tests in this folder."""

import ctypes
import json
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADD_SPECIAL, PARSE_SPECIAL, ADD_FIRST, ADD_SECOND, BREAKS = 1, 2, 4, 8, 16
E_INPUT, E_RANGE = -1, -4


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 2044)]


class LlmcError(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status
        self.text = text


def load():
    lib = ctypes.CDLL(os.environ.get("LLMC_LIB") or str(ROOT / "build" / "libllmc.so"))
    p, z, i = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    err = ctypes.POINTER(Error)
    sizes = ctypes.POINTER(z)
    lib.llmc_tokenizer_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(p), err]
    lib.llmc_tokenizer_close.argtypes = [p]
    lib.llmc_tokenizer_size.argtypes = [p]
    lib.llmc_tokenize.argtypes = [
        p,
        ctypes.c_char_p,
        z,
        i,
        ctypes.POINTER(ctypes.c_int32),
        z,
        sizes,
        err,
    ]
    lib.llmc_tokenize_least.argtypes = [p, ctypes.c_char_p, z]
    lib.llmc_tokenize_least.restype = z
    lib.llmc_break_special.argtypes = [p, ctypes.c_char_p, z, ctypes.c_char_p, z, sizes, err]
    lib.llmc_detokenize.argtypes = [
        p,
        ctypes.POINTER(ctypes.c_int32),
        z,
        ctypes.c_bool,
        ctypes.c_char_p,
        z,
        sizes,
        err,
    ]
    lib.llmc_token_text.argtypes = [p, ctypes.c_int32]
    lib.llmc_token_text.restype = ctypes.c_char_p
    lib.llmc_chat.argtypes = [p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, z, sizes, err]
    lib.llmc_stream_open.argtypes = [p, ctypes.c_bool, ctypes.POINTER(p), err]
    lib.llmc_stream_feed.argtypes = [p, ctypes.c_int32, ctypes.POINTER(p), sizes, err]
    lib.llmc_stream_close.argtypes = [p]
    return lib


LIB = load()


def check(status, err):
    if status != 0:
        raise LlmcError(status, err.text.decode("utf-8", "replace"))


class Tokenizer:
    def __init__(self, path):
        self.handle = ctypes.c_void_p()
        err = Error()
        check(
            LIB.llmc_tokenizer_open(
                str(path).encode(), ctypes.byref(self.handle), ctypes.byref(err)
            ),
            err,
        )

    def close(self):
        LIB.llmc_tokenizer_close(self.handle)
        self.handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def size(self):
        return LIB.llmc_tokenizer_size(self.handle)

    def text(self, token):
        s = LIB.llmc_token_text(self.handle, token)
        return None if s is None else s.decode("utf-8", "replace")

    def encode(self, text, flags=0):
        data = text if isinstance(text, bytes) else text.encode()
        cap = 4 * len(data) + 16
        ids = (ctypes.c_int32 * cap)()
        need = ctypes.c_size_t()
        err = Error()
        check(
            LIB.llmc_tokenize(
                self.handle, data, len(data), flags, ids, cap, ctypes.byref(need), ctypes.byref(err)
            ),
            err,
        )
        least = LIB.llmc_tokenize_least(self.handle, data, len(data))
        assert flags & BREAKS or least <= need.value, (
            f"{need.value} ids for {data[:80]}, said to be {least} at least"
        )
        return ids[: need.value]

    def break_special(self, text):
        data = text.encode()
        buf, need, err = ctypes.create_string_buffer(5 * len(data) + 16), ctypes.c_size_t(), Error()
        check(
            LIB.llmc_break_special(
                self.handle, data, len(data), buf, len(buf), ctypes.byref(need), ctypes.byref(err)
            ),
            err,
        )
        return buf.raw[: need.value].decode()

    def decode(self, ids, skip_special=True):
        cap = 4096 + 64 * len(ids)
        while True:
            buf = ctypes.create_string_buffer(cap)
            need = ctypes.c_size_t()
            err = Error()
            arr = (ctypes.c_int32 * len(ids))(*ids)
            status = LIB.llmc_detokenize(
                self.handle,
                arr,
                len(ids),
                skip_special,
                buf,
                cap,
                ctypes.byref(need),
                ctypes.byref(err),
            )
            if status == E_RANGE and need.value >= cap:
                cap = need.value + 1
                continue
            check(status, err)
            return buf.raw[
                : need.value
            ].decode()  # decode strictly, because the library must return valid UTF-8

    def stream(self, ids, skip_special=True):
        """Returns the output of each stream_feed and of the flush."""
        s = ctypes.c_void_p()
        err = Error()
        check(
            LIB.llmc_stream_open(self.handle, skip_special, ctypes.byref(s), ctypes.byref(err)), err
        )
        out = []
        for token in [*ids, -1]:
            p, n = ctypes.c_void_p(), ctypes.c_size_t()
            check(
                LIB.llmc_stream_feed(s, token, ctypes.byref(p), ctypes.byref(n), ctypes.byref(err)),
                err,
            )
            out.append(ctypes.string_at(p.value, n.value).decode())
        LIB.llmc_stream_close(s)
        return out

    def chat(self, messages, **options):
        return self.chat_json(json.dumps(messages), json.dumps(options))

    def chat_json(self, messages, options):
        cap = 1 << 16
        while True:
            buf = ctypes.create_string_buffer(cap)
            need = ctypes.c_size_t()
            err = Error()
            status = LIB.llmc_chat(
                self.handle,
                messages.encode(),
                options.encode() if options is not None else None,
                buf,
                cap,
                ctypes.byref(need),
                ctypes.byref(err),
            )
            if status == E_RANGE and need.value >= cap:
                cap = need.value + 1
                continue
            check(status, err)
            return buf.raw[: need.value].decode()
