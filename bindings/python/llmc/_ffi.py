"""Declarations of llmc.h as ctypes, in the order of the header. Tests compare the struct sizes."""

from __future__ import annotations

import ctypes as C
import ctypes.util
import os
from typing import Any


def _load() -> C.CDLL:
    named = os.environ.get("LLMC_LIBRARY")
    here = os.path.dirname(os.path.abspath(__file__))
    built = os.path.join(here, "..", "..", "..", "build", "libllmc.so")
    inside = os.path.join(here, "_native", "lib", "libllmc.so")
    for path in (
        [named] if named else [inside, built, "libllmc.so.0", ctypes.util.find_library("llmc")]
    ):
        if not path:
            continue
        try:
            return C.CDLL(path)
        except OSError as e:
            last = e
    raise OSError(f"libllmc.so not found (set LLMC_LIBRARY to its path): {last}")


lib = _load()

LOG_FN = C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_char_p)
TOKEN_FN = C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_int32, C.POINTER(C.c_char), C.c_size_t)


class Error(C.Structure):
    _fields_ = [("code", C.c_int), ("text", C.c_char * 2044)]


class Sized(C.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **kw: Any) -> None:
        for name in kw:  # ctypes would silently add an attribute for an unknown name
            if name not in {f[0] for f in self._fields_}:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
        super().__init__(size=C.sizeof(type(self)), **kw)


class Options(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("device", C.c_char_p),
        ("arch", C.c_char_p),
        ("weights", C.c_char_p),
        ("out_dir", C.c_char_p),
        ("set", C.POINTER(C.c_char_p)),
        ("n_threads", C.c_int),
        ("random_weights", C.c_bool),
        ("no_weights", C.c_bool),
        ("cache_packed", C.c_bool),
        ("log", LOG_FN),
        ("log_user", C.c_void_p),
        ("mpi_comm", C.c_void_p),
        ("allow_unknown_keys", C.c_bool),
        ("trust_artifact", C.c_bool),
        ("planned", C.c_void_p),
        ("planned_user", C.c_void_p),
        ("no_fit", C.c_bool),
        ("tower", C.c_bool),
        ("images", C.c_bool),
        ("host_memory", C.c_int64),
        ("mmproj", C.c_char_p),
        ("draft", C.c_char_p),
        ("draft_of", C.c_void_p),
        ("chat_template", C.c_char_p),
    ]


class ImageRows(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("row", C.POINTER(C.c_float)),
        ("at", C.POINTER(C.c_int32)),
        ("pos", C.POINTER(C.c_int32) * 3),
        ("number", C.POINTER(C.c_int32)),
        ("window", C.POINTER(C.c_int32)),
    ]


class PullState(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("file", C.c_char_p),
        ("file_bytes", C.c_int64),
        ("note", C.c_char_p),
        ("n_files", C.c_int32),
        ("n_done", C.c_int32),
        ("bytes", C.c_int64),
        ("total_bytes", C.c_int64),
        ("received", C.c_int64),
    ]


PROGRESS_FN = C.CFUNCTYPE(C.c_bool, C.c_void_p, C.POINTER(PullState))


class PullOptions(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("update", C.c_bool),
        ("offline", C.c_bool),
        ("progress", PROGRESS_FN),
        ("user", C.c_void_p),
    ]


class Limits(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("context", C.c_int32),
        ("seqs", C.c_int32),
        ("chunk", C.c_int32),
        ("n_out", C.c_int32),
        ("kv_tokens", C.c_int64),
        ("n_threads", C.c_int),
        ("snapshots", C.c_int32),
        ("host_tokens", C.c_int64),
        ("marks", C.c_int32),
    ]


class InputPrompt(C.Structure):
    _fields_ = [("name", C.c_char_p), ("text", C.c_char_p), ("usual", C.c_bool)]


class Bias(C.Structure):
    _fields_ = [("id", C.c_int32), ("value", C.c_float)]


class Sequence(C.Structure):
    _fields_ = [("tok", C.POINTER(C.c_int32)), ("n", C.c_size_t)]


class SamplingOption(C.Structure):
    _fields_ = [
        ("kind", C.c_int),
        ("rule", C.c_int),
        ("name", C.c_char_p),
        ("alias", C.c_char_p),
        ("hf", C.c_char_p),
        ("gguf", C.c_char_p),
        ("text", C.c_char_p),
        ("offset", C.c_size_t),
        ("least", C.c_double),
        ("most", C.c_double),
        ("http_least", C.c_double),
        ("http_most", C.c_double),
        ("http_default", C.c_double * 3),
    ]


def _sampling_options() -> list[SamplingOption]:
    """Return the rows of LLMC_SAMPLING_OPTIONS, the first fields of llmc_params."""
    n = C.c_size_t()
    lib.llmc_sampling_options.restype = C.POINTER(SamplingOption)
    rows = lib.llmc_sampling_options(C.byref(n))
    return [rows[i] for i in range(n.value)]


class Params(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        *((o.name.decode(), (C.c_float, C.c_int32, C.c_bool)[o.kind]) for o in _sampling_options()),
        ("seed", C.c_uint64),
        ("max_tokens", C.c_int32),
        ("stop", C.POINTER(C.c_char_p)),
        ("n_stop_tokens", C.c_int32),
        ("n_logit_bias", C.c_int32),
        ("n_bad_words", C.c_int32),
        ("stop_tokens", C.POINTER(C.c_int32)),
        ("logit_bias", C.POINTER(Bias)),
        ("bad_words", C.POINTER(Sequence)),
        ("grammar", C.c_void_p),
        ("grammar_after", C.POINTER(C.c_char_p)),
        ("speculate", C.c_int32),
        ("stop_ignore", C.POINTER(C.c_char_p)),
        ("dry_sequence_breakers", C.POINTER(C.c_char_p)),
        ("thinking", C.POINTER(C.c_char_p)),
        ("thinking_budget", C.c_int32),
        ("n_allowed_tokens", C.c_int32),
        ("allowed_tokens", C.POINTER(C.c_int32)),
        ("samplers", C.c_char_p),
    ]


class ImagePatches(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("owner", C.c_void_p),
        ("row", C.POINTER(C.c_float)),
        ("n_row", C.c_int64),
        ("width", C.c_int32),
        ("pos", C.POINTER(C.c_int32) * 2),
        ("n_tile", C.c_int32),
        ("tile_height", C.POINTER(C.c_int32)),
        ("tile_width", C.POINTER(C.c_int32)),
        ("tiles_high", C.c_int32),
        ("tiles_wide", C.c_int32),
        ("n_token", C.c_int64),
        ("text", C.c_char_p),
        ("placeholder", C.c_char_p),
        ("token", C.c_char_p),
    ]


class GrammarOptions(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("compact", C.c_bool),
        ("standard", C.c_bool),
        ("strict", C.c_bool),
        ("additional", C.c_int),
    ]


class Result(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("finish", C.c_int),
        ("n_prompt", C.c_int32),
        ("n_new", C.c_int32),
        ("prefill_s", C.c_double),
        ("decode_s", C.c_double),
    ]


class Fim(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("prefix", C.c_int32),
        ("suffix", C.c_int32),
        ("middle", C.c_int32),
        ("repo", C.c_int32),
        ("file", C.c_int32),
        ("suffix_first", C.c_bool),
        ("n_stop", C.c_int32),
        ("stop", C.c_int32 * 12),
    ]


class Info(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("name", C.c_char * 128),
        ("family", C.c_char * 64),
        ("target", C.c_char * 64),
        ("vocab", C.c_int32),
        ("n_layers", C.c_int32),
        ("hidden", C.c_int32),
        ("max_positions", C.c_int32),
        ("hard_limit", C.c_bool),
        ("n_eos", C.c_int32),
        ("eos", C.c_int32 * 8),
        ("bos", C.c_int32),
        ("has_tokenizer", C.c_bool),
        ("has_chat_template", C.c_bool),
        ("n_params", C.c_int64),
        ("weight_bytes", C.c_int64),
        ("token_bytes", C.c_int64),
        ("load_s", C.c_double),
        ("compile_s", C.c_double),
        ("pack_s", C.c_double),
        ("rank", C.c_int32),
        ("ranks", C.c_int32),
        ("output", C.c_int),
        ("out_width", C.c_int32),
        ("pool", C.c_int),
        ("normalize", C.c_bool),
        ("two_devices", C.c_bool),
        ("reads_images", C.c_bool),
        ("row_in", C.c_int64),
        ("row_out", C.c_int64),
        ("own_at", C.c_int64),
    ]


class Memory(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("weights", C.c_int64),
        ("kv", C.c_int64),
        ("scratch", C.c_int64),
        ("state", C.c_int64),
        ("kv_per_token", C.c_int64),
        ("kv_per_seq", C.c_int64),
        ("kv_saved", C.c_int64),
        ("kv_snapshots", C.c_int64),
        ("kv_exact", C.c_int64),
        ("kv_host", C.c_int64),
    ]


class Chunk(C.Structure):
    _fields_ = [
        ("seq", C.c_int32),
        ("tok", C.POINTER(C.c_int32)),
        ("n_tok", C.c_int32),
        ("n_out", C.c_int32),
    ]


class Stats(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("steps_run", C.c_int64),
        ("barriers", C.c_int64),
        ("forwards", C.c_int64),
        ("tokens", C.c_int64),
        ("weight_bytes", C.c_int64),
        ("kv_pages_used", C.c_int64),
        ("kv_pages_total", C.c_int64),
        ("expert_bytes", C.c_int64),
        ("expert_read_bytes", C.c_int64),
    ]


class ReplaceOptions(Sized):
    _fields_ = [("size", C.c_size_t), ("cancel_running", C.c_bool), ("n_threads", C.c_int32)]


class EngineOptions(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("limits", C.POINTER(Limits)),
        ("max_concurrent_requests", C.c_int32),
        ("max_batch_prefill_tokens", C.c_int32),
        ("max_batch_total_tokens", C.c_int64),
        ("waiting_served_ratio", C.c_float),
        ("max_waiting_tokens", C.c_int32),
        ("no_prefix_cache", C.c_bool),
        ("swap_bytes", C.c_int64),
        ("log", LOG_FN),
        ("log_user", C.c_void_p),
        ("speculate", C.c_int32),
        ("prefix_dir", C.c_char_p),
        ("prefix_dir_bytes", C.c_int64),
        ("draft", C.c_void_p),
    ]


class Request(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("tok", C.POINTER(C.c_int32)),
        ("n_tok", C.c_size_t),
        ("params", C.POINTER(Params)),
        ("n", C.c_int32),
        ("best_of", C.c_int32),
        ("logprobs", C.c_bool),
        ("prompt_logprobs", C.c_bool),
        ("n_top", C.c_int32),
        ("keep_stop", C.c_bool),
        ("show_special", C.c_bool),
        ("deadline_s", C.c_double),
        ("user", C.c_void_p),
        ("pool", C.c_int),
        ("normalize", C.c_bool),
        ("priority", C.c_int32),
        ("adapter", C.c_int32),
        ("pool_tok", C.POINTER(C.c_int32)),
        ("n_pool_tok", C.c_int32),
        ("prefix_salt", C.c_uint64),
        ("n_first", C.c_size_t),
        ("images", C.c_void_p),
        ("n_images", C.c_size_t),
        ("client", C.c_uint64),
    ]


class Logprob(C.Structure):
    _fields_ = [("id", C.c_int32), ("logprob", C.c_float)]


class Event(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("kind", C.c_int),
        ("last", C.c_bool),
        ("request", C.c_int64),
        ("user", C.c_void_p),
        ("index", C.c_int32),
        ("token", C.c_int32),
        ("logprob", C.c_float),
        ("n_top", C.c_int32),
        ("top", C.POINTER(Logprob)),
        ("text", C.POINTER(C.c_char)),
        ("n_bytes", C.c_size_t),
        ("time_s", C.c_double),
        ("status", C.c_int),
        ("finish", C.c_int),
        ("stop", C.c_int32),
        ("n_prompt", C.c_int32),
        ("n_new", C.c_int32),
        ("n_cached", C.c_int32),
        ("n_preempted", C.c_int32),
        ("sum_logprob", C.c_double),
        ("queue_s", C.c_double),
        ("prefill_s", C.c_double),
        ("decode_s", C.c_double),
        ("memory_", C.c_void_p),
        ("vector", C.POINTER(C.c_float)),
        ("n_vector", C.c_int32),
        ("rank", C.c_int32),
    ]


class Histogram(C.Structure):
    _fields_ = [("bucket", C.c_uint64 * 36), ("n", C.c_uint64), ("sum", C.c_double)]


_COUNTS: list[Any] = (
    [
        ("size", C.c_size_t),
        ("running", C.c_int32),
        ("waiting", C.c_int32),
        ("preempted", C.c_int32),
        ("batch_size", C.c_int32),
        ("batch_max_tokens", C.c_int64),
        ("kv_pages_total", C.c_int64),
        ("kv_pages_used", C.c_int64),
        ("kv_pages_cached", C.c_int64),
        ("swap_bytes_used", C.c_int64),
        ("last_step_s", C.c_double),
        ("steps", C.c_uint64),
        ("prefill_steps", C.c_uint64),
        ("requests", C.c_uint64),
        ("finished", C.c_uint64 * 6),
        ("failed", C.c_uint64),
        ("refused", C.c_uint64),
        ("prompt_tokens", C.c_uint64),
        ("new_tokens", C.c_uint64),
        ("prefix_queries", C.c_uint64),
        ("prefix_hits", C.c_uint64),
        ("preemptions", C.c_uint64),
        ("swaps_out", C.c_uint64),
        ("swaps_in", C.c_uint64),
    ]
    + [
        (name, Histogram)
        for name in (
            "prefill_step_s",
            "decode_step_s",
            "queue_s",
            "first_token_s",
            "inter_token_s",
            "prefill_s",
            "decode_s",
            "request_s",
            "step_tokens",
            "start_size",
            "request_prompt",
            "request_new",
            "request_max_new",
            "request_n",
        )
    ]
    + [
        ("drafts", C.c_uint64),
        ("drafted", C.c_uint64),
        ("accepted", C.c_uint64),
        ("prefix_read", C.c_uint64),
        ("prefix_written", C.c_uint64),
        ("prefix_wrong", C.c_uint64),
        ("accepted_at", C.c_uint64 * 15),
        ("host_pages_total", C.c_int64),
        ("host_pages_used", C.c_int64),
        ("host_out", C.c_uint64),
        ("host_in", C.c_uint64),
    ]
)


class Counts(Sized):
    _fields_ = _COUNTS


P = C.POINTER
_E = P(Error)
_SIGNATURES = {
    "llmc_version": (C.c_char_p, []),
    "llmc_status_name": (C.c_char_p, [C.c_int]),
    "llmc_is_model_name": (C.c_bool, [C.c_char_p]),
    "llmc_pull": (C.c_int, [C.c_char_p, P(PullOptions), C.c_char_p, C.c_size_t, P(C.c_size_t), _E]),
    "llmc_pulled": (C.c_int, [C.c_char_p, C.c_size_t, P(C.c_size_t), _E]),
    "llmc_open": (C.c_int, [C.c_char_p, P(Options), P(C.c_void_p), _E]),
    "llmc_close": (None, [C.c_void_p]),
    "llmc_session_open": (C.c_int, [C.c_void_p, P(Limits), P(C.c_void_p), _E]),
    "llmc_follow": (C.c_int, [C.c_void_p, _E]),
    "llmc_session_close": (None, [C.c_void_p]),
    "llmc_generate": (
        C.c_int,
        [C.c_void_p, P(C.c_int32), C.c_size_t, P(Params), TOKEN_FN, C.c_void_p, P(Result), _E],
    ),
    "llmc_info": (None, [C.c_void_p, P(Info)]),
    "llmc_get": (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, C.c_size_t, P(C.c_size_t), _E]),
    "llmc_memory_for": (C.c_int, [C.c_void_p, P(Limits), P(Memory), _E]),
    "llmc_plan_text": (C.c_char_p, [C.c_void_p]),
    "llmc_plan_json": (C.c_char_p, [C.c_void_p]),
    "llmc_model_yaml": (C.c_char_p, [C.c_void_p]),
    "llmc_input_prompts": (C.POINTER(InputPrompt), [C.c_void_p, C.POINTER(C.c_size_t)]),
    "llmc_labels": (
        C.POINTER(C.c_char_p),
        [C.c_void_p, C.POINTER(C.c_size_t), C.POINTER(C.c_bool)],
    ),
    "llmc_model_tokenizer": (C.c_void_p, [C.c_void_p]),
    "llmc_tokenizer_open": (C.c_int, [C.c_char_p, P(C.c_void_p), _E]),
    "llmc_tokenizer_close": (None, [C.c_void_p]),
    "llmc_tokenizer_size": (C.c_int32, [C.c_void_p]),
    "llmc_tokenize": (
        C.c_int,
        [C.c_void_p, C.c_char_p, C.c_size_t, C.c_int, P(C.c_int32), C.c_size_t, P(C.c_size_t), _E],
    ),
    "llmc_detokenize": (
        C.c_int,
        [C.c_void_p, P(C.c_int32), C.c_size_t, C.c_bool, C.c_char_p, C.c_size_t, P(C.c_size_t), _E],
    ),
    "llmc_fim_tokens": (C.c_bool, [C.c_void_p, P(Fim)]),
    "llmc_token_text": (C.c_char_p, [C.c_void_p, C.c_int32]),
    "llmc_tokenize_least": (C.c_size_t, [C.c_void_p, C.c_char_p, C.c_size_t]),
    "llmc_break_special": (
        C.c_int,
        [C.c_void_p, C.c_char_p, C.c_size_t, C.c_char_p, C.c_size_t, P(C.c_size_t), _E],
    ),
    "llmc_token_bytes": (
        C.c_int,
        [C.c_void_p, C.c_int32, C.c_char_p, C.c_size_t, P(C.c_size_t), _E],
    ),
    "llmc_token_is_special": (C.c_bool, [C.c_void_p, C.c_int32]),
    "llmc_grammar_open": (
        C.c_int,
        [C.c_void_p, C.c_int, C.c_char_p, C.c_size_t, P(GrammarOptions), P(C.c_void_p), _E],
    ),
    "llmc_grammar_match": (
        C.c_int,
        [C.c_void_p, C.c_char_p, C.c_size_t, P(C.c_bool), P(C.c_size_t), _E],
    ),
    "llmc_grammar_close": (None, [C.c_void_p]),
    "llmc_matcher_open": (C.c_int, [C.c_void_p, P(C.c_void_p), _E]),
    "llmc_matcher_close": (None, [C.c_void_p]),
    "llmc_matcher_mask": (C.c_int, [C.c_void_p, P(C.c_uint32), C.c_size_t, _E]),
    "llmc_matcher_accept": (C.c_int, [C.c_void_p, C.c_int32, _E]),
    "llmc_matcher_may_end": (C.c_bool, [C.c_void_p]),
    "llmc_matcher_ended": (C.c_bool, [C.c_void_p]),
    "llmc_matcher_reset": (None, [C.c_void_p]),
    "llmc_has_chat_template": (C.c_bool, [C.c_void_p]),
    "llmc_chat_template": (C.c_char_p, [C.c_void_p]),
    "llmc_finish_name": (C.c_char_p, [C.c_int]),
    "llmc_chat": (
        C.c_int,
        [C.c_void_p, C.c_char_p, C.c_char_p, C.c_char_p, C.c_size_t, P(C.c_size_t), _E],
    ),
    "llmc_image_decode": (C.c_int, [C.c_void_p, C.c_size_t, C.c_int64, P(C.c_void_p), _E]),
    "llmc_image_from_pixels": (
        C.c_int,
        [C.c_void_p, C.c_int32, C.c_int32, C.c_int32, C.c_size_t, P(C.c_void_p), _E],
    ),
    "llmc_image_pixels": (C.c_void_p, [C.c_void_p, P(C.c_int32), P(C.c_int32), P(C.c_int32)]),
    "llmc_image_close": (None, [C.c_void_p]),
    "llmc_image_processor_open": (C.c_int, [C.c_char_p, P(C.c_void_p), _E]),
    "llmc_image_processor_close": (None, [C.c_void_p]),
    "llmc_image_prepare": (C.c_int, [C.c_void_p, C.c_void_p, P(ImagePatches), _E]),
    "llmc_image_patches_release": (None, [P(ImagePatches)]),
    "llmc_seq_new": (C.c_int, [C.c_void_p, C.c_int32, P(C.c_int32), _E]),
    "llmc_seq_adapt": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, _E]),
    "llmc_adapter_load": (C.c_int, [C.c_void_p, C.c_char_p, C.c_double, P(C.c_int32), _E]),
    "llmc_adapter_unload": (C.c_int, [C.c_void_p, C.c_int32, _E]),
    "llmc_adapter_slots": (C.c_int, [C.c_void_p]),
    "llmc_seq_fork": (C.c_int, [C.c_void_p, C.c_int32, P(C.c_int32), _E]),
    "llmc_seq_trim": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, _E]),
    "llmc_seq_mark": (C.c_int, [C.c_void_p, C.c_int32, _E]),
    "llmc_seq_unmark": (None, [C.c_void_p, C.c_int32]),
    "llmc_seq_len": (C.c_int32, [C.c_void_p, C.c_int32]),
    "llmc_seq_free": (None, [C.c_void_p, C.c_int32]),
    "llmc_forward": (C.c_int, [C.c_void_p, P(Chunk), C.c_size_t, P(C.c_float), _E]),
    "llmc_forward_rows": (
        C.c_int,
        [C.c_void_p, P(Chunk), C.c_size_t, P(C.c_float), P(C.c_float), P(C.c_float), _E],
    ),
    "llmc_draft_tokens": (P(C.c_int32), [C.c_void_p, P(C.c_size_t)]),
    "llmc_forward_images": (
        C.c_int,
        [C.c_void_p, P(Chunk), C.c_size_t, P(ImageRows), P(C.c_float), _E],
    ),
    "llmc_embed": (
        C.c_int,
        [C.c_void_p, P(C.c_int32), C.c_size_t, C.c_int, C.c_bool, P(C.c_float), _E],
    ),
    "llmc_session_stats": (None, [C.c_void_p, P(Stats)]),
    "llmc_seq_save": (C.c_int, [C.c_void_p, C.c_int32, C.c_char_p, C.c_size_t, P(C.c_size_t), _E]),
    "llmc_seq_load": (C.c_int, [C.c_void_p, C.c_char_p, C.c_size_t, P(C.c_int32), _E]),
    "llmc_engine_open": (C.c_int, [C.c_void_p, P(EngineOptions), P(C.c_void_p), _E]),
    "llmc_engine_drain": (C.c_int, [C.c_void_p, C.c_int, _E]),
    "llmc_engine_close": (None, [C.c_void_p, C.c_int]),
    "llmc_submit": (C.c_int, [C.c_void_p, P(Request), P(C.c_int64), _E]),
    "llmc_next": (C.c_int, [C.c_void_p, C.c_int64, C.c_int, P(Event), _E]),
    "llmc_event_release": (None, [P(Event)]),
    "llmc_cancel": (None, [C.c_void_p, C.c_int64]),
    "llmc_forget": (None, [C.c_void_p, C.c_int64]),
    "llmc_engine_fd": (C.c_int, [C.c_void_p]),
    "llmc_engine_stats": (None, [C.c_void_p, P(Counts)]),
    "llmc_engine_replace_weights": (C.c_int, [C.c_void_p, C.c_char_p, P(ReplaceOptions), _E]),
    "llmc_bandwidth": (C.c_double, [C.c_int, C.c_double]),
}
for _name, (_res, _args) in _SIGNATURES.items():
    getattr(lib, _name).restype = _res
    getattr(lib, _name).argtypes = _args
