"""Type hints of sampling options. Made by tools/sampling_options.py from include/llmc.h."""

from __future__ import annotations

from typing import TypedDict


class SamplingOptions(TypedDict, total=False):
    """The sampling options of llmc_params."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    ignore_eos: bool
    watermark: bool
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    xtc_probability: float
    xtc_threshold: float
    top_n_sigma: float
    dynatemp_range: float
    dynatemp_exponent: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    min_keep: int
