"""Sampling parameters, limits and options as keyword arguments."""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from . import _ffi, _handle
from ._sampling import SamplingOptions
from ._text import Grammar

if TYPE_CHECKING:
    from ._model import Model


class SamplingParams(SamplingOptions, total=False):
    """Parameters of a generation: Session.run, Engine.submit and the calls built on them."""

    seed: int
    max_tokens: int
    speculate: int
    stop: Sequence[str] | None
    stop_tokens: Sequence[int] | None
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[Sequence[int]] | None
    allowed_tokens: Sequence[int] | None
    grammar: Grammar | None
    grammar_after: Sequence[str] | None
    stop_ignore: Sequence[str] | None
    dry_sequence_breakers: Sequence[str] | None
    thinking: Sequence[str] | None
    thinking_budget: int
    samplers: str | Sequence[str] | None


class Limits(TypedDict, total=False):
    """Limits of a session; an absent limit has the library's default."""

    context: int
    seqs: int
    chunk: int
    n_out: int
    kv_tokens: int
    threads: int
    snapshots: int
    host_tokens: int
    marks: int


class RequestOptions(SamplingParams, total=False):
    """Parameters of Engine.submit: sampling parameters, and parameters of the request."""

    n: int
    best_of: int
    logprobs: bool
    prompt_logprobs: bool
    n_top: int
    keep_stop: bool
    show_special: bool
    deadline: float
    priority: int
    adapter: int
    prefix_salt: int


class EngineOptions(Limits, total=False):
    """Options of an engine, and the limits of its session."""

    max_concurrent_requests: int
    max_batch_prefill_tokens: int
    max_batch_total_tokens: int
    waiting_served_ratio: float
    max_waiting_tokens: int
    no_prefix_cache: bool
    swap_bytes: int
    prefix_dir: str | None
    prefix_dir_bytes: int
    speculate: int
    draft: Model | None


# Fields of the structs that Python spells in another way; counts belong to their lists.
_COUNTS = ("n_stop_tokens", "n_logit_bias", "n_bad_words", "n_allowed_tokens")
PARAMS = [n for n in _handle.fields(_ffi.Params) if n not in _COUNTS] + [
    "stop",
    "stop_tokens",
    "logit_bias",
    "bad_words",
    "allowed_tokens",
    "grammar",
    "grammar_after",
    "stop_ignore",
    "dry_sequence_breakers",
    "thinking",
    "samplers",
]
LIMITS = ["threads" if n == "n_threads" else n for n in _handle.fields(_ffi.Limits)]
REQUEST = [
    n
    for n in RequestOptions.__annotations__
    if n not in SamplingParams.__annotations__ and n not in PARAMS
]
ENGINE = [*_handle.fields(_ffi.EngineOptions), "prefix_dir", "draft", *LIMITS]


def limits(what: str, given: Mapping[str, Any]) -> _ffi.Limits:
    lim = _ffi.Limits()
    for name in given:
        if name not in LIMITS:
            raise _handle.unknown(what, name, LIMITS)
    _handle.fill(lim, what, {("n_threads" if k == "threads" else k): v for k, v in given.items()})
    return lim


def _sequence(tokens: C.Array[C.c_int32]) -> _ffi.Sequence:
    return _ffi.Sequence(C.cast(tokens, C.POINTER(C.c_int32)), len(tokens))


@contextmanager
def params(what: str, given: Mapping[str, Any]) -> Iterator[_ffi.Params]:
    """Yield llmc_params made from keyword arguments, valid inside of `with`."""
    for name in given:
        if name not in PARAMS:
            raise _handle.unknown(what, name, PARAMS)
    p, rest, keep = _ffi.Params(), dict(given), []
    for name in ("stop", "grammar_after", "stop_ignore", "thinking"):
        setattr(p, name, _handle.strings(name, rest.pop(name, None)))
    breakers = rest.pop("dry_sequence_breakers", None)
    if breakers is not None:  # an empty list means no breakers, None the default breakers
        empty = (C.c_char_p * 1)(None)
        p.dry_sequence_breakers = _handle.strings("dry_sequence_breakers", breakers) or empty
    samplers = rest.pop("samplers", None)
    if samplers is not None:
        if not isinstance(samplers, (str, list, tuple)):
            kind = type(samplers).__name__
            raise TypeError(f"samplers is a str or a list of strings, not {kind}")
        if not isinstance(samplers, str):
            names = [_handle.text(f"samplers[{i}]", s) for i, s in enumerate(samplers)]
            p.samplers = b"".join(name + b";" for name in names)
        else:
            p.samplers = _handle.text("samplers", samplers)
    for name in ("stop_ignore", "thinking"):
        if getattr(p, name) and len(given[name]) != 2:
            raise ValueError(f"{name} has {len(given[name])} strings, not two")
    bias = rest.pop("logit_bias", None)
    words, grammar = rest.pop("bad_words", None), rest.pop("grammar", None)
    for name in ("stop_tokens", "allowed_tokens"):
        tokens = rest.pop(name, None)
        if tokens is not None:
            array = _handle.ids(name, tokens)
            keep.append(array)
            setattr(p, name, C.cast(array, C.POINTER(C.c_int32)))
            setattr(p, f"n_{name}", len(array))
    if bias is not None:
        items = [
            _ffi.Bias(
                _handle.integer("an id of logit_bias", int(k) if isinstance(k, str) else k),
                _handle.plain_value("a value of logit_bias", C.c_float, v),
            )
            for k, v in _handle.of_kind("logit_bias", bias, dict).items()
        ]
        p.logit_bias, p.n_logit_bias = (_ffi.Bias * len(items))(*items), len(items)
    if words is not None:
        if isinstance(words, (str, bytes)):
            raise TypeError(f"bad_words is a list of lists of ids, not {type(words).__name__}")
        arrays = [_handle.ids(f"bad_words[{i}]", w) for i, w in enumerate(words)]
        keep += arrays
        p.bad_words = (_ffi.Sequence * len(arrays))(*[_sequence(a) for a in arrays])
        p.n_bad_words = len(arrays)
    _handle.fill(p, what, rest)
    if grammar is None:
        yield p
        return
    with _handle.of_kind("grammar", grammar, Grammar)._use() as g:
        p.grammar = g
        yield p
