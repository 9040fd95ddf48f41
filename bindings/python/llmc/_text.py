"""Tokenizers, grammars and matchers."""

from __future__ import annotations

import ctypes as C
import json
import os
from collections.abc import Sequence
from typing import Any

from . import _ffi, _handle
from ._ffi import lib
from ._handle import Handle, Ref, SerialHandle, checked_names

ADD_SPECIAL, PARSE_SPECIAL, ADD_FIRST, ADD_SECOND, BREAKS = 1, 2, 4, 8, 16


def path_bytes(what: str, path: Any) -> bytes:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{what} is a path, not {type(path).__name__}")
    data = os.fsencode(path)
    if b"\0" in data:
        raise ValueError(f"{what} contains a NUL character")
    return data


class Tokenizer(Handle):
    """A tokenizer, opened from its own file or borrowed from a model (Model.tokenizer).

    Any thread may use it."""

    _kind = "tokenizer"

    @checked_names()
    def __init__(self, path: str | os.PathLike[str]) -> None:
        h = C.c_void_p()
        _handle.call(lib.llmc_tokenizer_open, path_bytes("path", path), C.byref(h))
        self._own(Ref(h, lib.llmc_tokenizer_close))

    @classmethod
    def _borrow(cls, handle: int, owner: Ref) -> Tokenizer:
        """Return a tokenizer that belongs to a model and keeps it open."""
        t = cls.__new__(cls)
        t._own(Ref(C.c_void_p(handle), lambda h: None, owner))
        return t

    def __len__(self) -> int:
        with self._use() as h:
            return int(lib.llmc_tokenizer_size(h))

    def __bool__(self) -> bool:
        return True

    @checked_names()
    def encode(self, text: str | bytes, special: bool | int = True) -> list[int]:
        """Return the token ids of a string.

        special: True adds the tokens that the model expects before and after a string, and
        recognises special tokens. False does neither. It may also be a sum of ADD_SPECIAL,
        PARSE_SPECIAL, ADD_FIRST, ADD_SECOND and BREAKS."""
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"text is a str or bytes, not {type(text).__name__}")
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        if special is True:
            flags = ADD_SPECIAL | PARSE_SPECIAL
        else:
            flags = _handle.integer("special", int(special) if special is False else special, 0, 31)
        cap = len(data) + 16
        with self._use() as h:
            while True:
                ids, need, err = (C.c_int32 * cap)(), C.c_size_t(), _ffi.Error()
                code = lib.llmc_tokenize(
                    h, data, len(data), flags, ids, cap, C.byref(need), C.byref(err)
                )
                if code == 0:
                    return list(ids[: need.value])
                if code != _handle.E_RANGE or need.value <= cap:
                    _handle.raise_error(code, err)
                cap = need.value

    def fim(self) -> dict[str, Any] | None:
        """Return the ids that mark a prompt with a missing middle (-1: none), or None.

        The prompt consists of the prefix mark and its text, the suffix mark and its text, and the
        middle mark; with suffix_first the suffix comes first. Tokens of the list stop end the
        middle."""
        f = _ffi.Fim()
        with self._use() as h:
            if not lib.llmc_fim_tokens(h, C.byref(f)):
                return None
        marks: dict[str, Any] = {
            n: getattr(f, n) for n in ("prefix", "suffix", "middle", "repo", "file")
        }
        return {**marks, "suffix_first": f.suffix_first, "stop": list(f.stop[: f.n_stop])}

    def break_special(self, text: str) -> str:
        """Return the text with a break in each special token.

        encode(..., special=PARSE_SPECIAL | BREAKS) then reads it as text."""
        data = _handle.of_kind("text", text, str).encode("utf-8", "surrogatepass")
        with self._use() as h:
            broken = _handle.bytes_call(lib.llmc_break_special, h, data, len(data))
        return broken.decode("utf-8", "replace")

    @checked_names()
    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD."""
        array = _handle.ids("ids", ids)
        with self._use() as h:
            size = lib.llmc_tokenizer_size(h)
            for i in array:
                if not 0 <= i < size:
                    raise _handle.out_of_range(f"id {i} is outside 0 .. {size - 1}")
            skip = _handle.flag("skip_special", skip_special)
            data = _handle.bytes_call(lib.llmc_detokenize, h, array, len(array), skip)
        return data.decode("utf-8", "replace")

    @checked_names()
    def token(self, id: int) -> str | None:
        """Return a token as its vocabulary spells it; None if the vocabulary leaves the id out."""
        with self._use() as h:
            size = lib.llmc_tokenizer_size(h)
            t = lib.llmc_token_text(h, _handle.integer("id", id, 0, size - 1))
        return None if t is None else str(t.decode("utf-8", "replace"))

    def chat(self, messages: Sequence[Any], **options: Any) -> str:
        """Return the prompt that the chat template renders from the messages.

        options: variables of the template, such as tools; add_generation_prompt is True."""
        if isinstance(messages, (str, bytes)):
            raise TypeError(f"messages is a list of messages, not {type(messages).__name__}")
        options.setdefault("add_generation_prompt", True)
        with self._use() as h:
            data = _handle.bytes_call(
                lib.llmc_chat, h, json.dumps(messages).encode(), json.dumps(options).encode()
            )
        return data.decode("utf-8", "replace")


class Grammar(Handle):
    """Constraint on the output: Grammar(tokenizer, "json_schema", schema).

    Other kinds: "json", "regex", "gbnf", "choice", "parts", "lark". Schemas and choices may be
    Python objects. tokenizer None: the tokens are the 256 bytes, enough for match(). Any thread may
    use it."""

    _kind = "grammar"
    KINDS = ("json", "json_schema", "regex", "gbnf", "choice", "parts", "lark")

    # rules of objects without additionalProperties; auto: open if the schema has `$schema`
    ADDITIONAL = ("auto", "closed", "open")

    @checked_names()
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        kind: str,
        text: Any = "",
        *,
        compact: bool = False,
        standard: bool = False,
        strict: bool = False,
        additional: str = "auto",
    ) -> None:
        if _handle.of_kind("kind", kind, str) not in self.KINDS:
            near = _handle.nearest(kind, self.KINDS)
            raise ValueError(f"kind = {kind!r} is none of {', '.join(self.KINDS)}{near}")
        if isinstance(text, bytes):
            raise TypeError("text is a str or a Python object of JSON, not bytes")
        data = (text if isinstance(text, str) else json.dumps(text)).encode()
        if _handle.of_kind("additional", additional, str) not in self.ADDITIONAL:
            near = _handle.nearest(additional, self.ADDITIONAL)
            raise ValueError(
                f"additional = {additional!r} is none of {', '.join(self.ADDITIONAL)}{near}"
            )
        options = _ffi.GrammarOptions()
        _handle.fill(
            options,
            "Grammar()",
            dict(
                compact=compact,
                standard=standard,
                strict=strict,
                additional=self.ADDITIONAL.index(additional),
            ),
        )
        h, size, number = C.c_void_p(), 256, self.KINDS.index(kind)
        args = (number, data, len(data), C.byref(options), C.byref(h))
        if tokenizer is None:
            _handle.call(lib.llmc_grammar_open, None, *args)
        else:
            with _handle.of_kind("tokenizer", tokenizer, Tokenizer)._use() as t:
                size = lib.llmc_tokenizer_size(t)
                _handle.call(lib.llmc_grammar_open, t, *args)
        self._size = size
        self._own(Ref(h, lib.llmc_grammar_close))

    def matcher(self) -> Matcher:
        """Return a matcher at the start of an output."""
        return Matcher(self)

    @checked_names()
    def match(self, text: str | bytes) -> tuple[bool, int]:
        """Return (complete, matched) for a string or bytes.

        complete: the whole string is an output of the grammar. matched: bytes of its longest prefix
        that is the beginning of an output."""
        if not isinstance(text, (str, bytes, bytearray, memoryview)):
            raise TypeError(f"text is a str or bytes, not {type(text).__name__}")
        data = text.encode() if isinstance(text, str) else bytes(text)
        complete, matched = C.c_bool(), C.c_size_t()
        with self._use() as h:
            _handle.call(
                lib.llmc_grammar_match, h, data, len(data), C.byref(complete), C.byref(matched)
            )
        return complete.value, matched.value


class Matcher(SerialHandle):
    """Position of one output in a grammar."""

    _kind = "matcher"

    @checked_names()
    def __init__(self, grammar: Grammar) -> None:
        h = C.c_void_p()
        with _handle.of_kind("grammar", grammar, Grammar)._use() as g:
            _handle.call(lib.llmc_matcher_open, g, C.byref(h))
        self._size = grammar._size
        self._bits = (C.c_uint32 * ((self._size + 31) // 32))()
        self._own(Ref(h, lib.llmc_matcher_close))

    def mask(self) -> bytes:
        """Return the allowed tokens as bytes: bit id % 8 of byte id // 8."""
        with self._use() as h:
            _handle.call(lib.llmc_matcher_mask, h, self._bits, len(self._bits))
            return bytes(self._bits)

    def allows(self, id: int) -> bool:
        """Return whether the token may come next."""
        n = _handle.integer("id", id, 0, self._size - 1)
        return bool(self.mask()[n // 8] >> n % 8 & 1)

    def accept(self, id: int) -> None:
        """Append a token to the output; Error: the grammar does not allow it."""
        n = _handle.integer("id", id, 0, self._size - 1)
        with self._use() as h:
            _handle.call(lib.llmc_matcher_accept, h, n)

    def reset(self) -> None:
        """Return to the start."""
        with self._use() as h:
            lib.llmc_matcher_reset(h)

    @property
    def may_end(self) -> bool:
        """Is the output so far complete?"""
        with self._use() as h:
            return bool(lib.llmc_matcher_may_end(h))

    @property
    def ended(self) -> bool:
        """Is the output complete, so that nothing can follow?"""
        with self._use() as h:
            return bool(lib.llmc_matcher_ended(h))
