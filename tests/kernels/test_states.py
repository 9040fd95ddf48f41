"""Kernels with recurrent states, against float64 and against each other bit for bit: whole sequences, division into steps, single rows, reuse of the
slots of other sequences, parts, partial vectors."""

import numpy as np
import pytest

import harness as H
from state_oracle import (
    AT,
    CHANNELS,
    CONV,
    DELTA,
    GATES,
    ROWS,
    SCAN,
    SEQS,
    channels,
    conv,
    delta,
    gate,
    scan,
    steps,
)


def run(kernel, inputs, fixed, shape, out_shape, cuts, n_parts):
    """inputs: per-row arrays [sequence][rows, ..]; fixed: arguments between them and the pool. Returns outputs of all rows, and the states."""
    state, y = H.aligned((SEQS, *shape)), [np.zeros((n, *out_shape), np.float32) for n in ROWS]
    for step in steps(cuts):
        pos = [p for _, a, b in step for p in range(a, b)]
        args = []
        for x in inputs:
            args.append(H.aligned((len(pos), *x[0].shape[1:])))
            args[-1][...] = np.concatenate([x[i][a:b] for i, a, b in step])
        out = H.aligned((len(pos), *out_shape))
        kernel.call(
            H.make_step(pos, [b - a for _, a, b in step], seq=[AT[i] for i, _, _ in step]),
            [*args, *fixed, state, out],
            n_parts,
        )
        at = 0
        for i, a, b in step:
            y[i][a:b] = out[at : at + b - a]
            at += b - a
    return y, state


def compare(target, op, params, inputs, fixed, shape, out_shape, want, want_state):
    kernel, first = H.build(op, target, params), None
    for cuts, parts in (([0, 40], 1), ([0, 40], 3), ([0, 1, 2, 5, 40], 2), (list(range(41)), 5)):
        y, state = run(kernel, inputs, fixed, shape, out_shape, cuts, parts)
        got = [*y, *(state[a] for a in AT)]
        for g, w in zip(got, [*want, *want_state]):
            assert np.isfinite(g).all()
            np.testing.assert_allclose(g, w, rtol=0, atol=3e-6 * max(1, np.abs(w).max()))
        assert np.isnan(state[1]).all(), "the place of a sequence that is not in the step"
        assert first is None or all(np.array_equal(a, b) for a, b in zip(first, got)), (
            f"{cuts}, {parts} parts: other bits"
        )
        first = first or got


@pytest.mark.parametrize("target", H.TARGETS)
@pytest.mark.parametrize("case", range(len(CONV)))
def test_conv1d(target, case):
    compare(target, "conv1d", *conv(*CONV[case]))


@pytest.mark.sample(9)
@pytest.mark.parametrize("target", H.TARGETS)
@pytest.mark.parametrize("case", range(len(DELTA)))
def test_delta_rule(target, case):
    compare(target, "delta_rule", *delta(case))


@pytest.mark.sample(7)
@pytest.mark.parametrize("target", H.TARGETS)
@pytest.mark.parametrize("case", range(len(SCAN)))
def test_selective_scan(target, case):
    compare(target, "selective_scan", *scan(case))


@pytest.mark.sample(6)
@pytest.mark.parametrize("target", H.TARGETS)
@pytest.mark.parametrize("case", range(len(CHANNELS)))
def test_channel_scan(target, case):
    compare(target, "channel_scan", *channels(case))


@pytest.mark.parametrize("target", H.TARGETS)
@pytest.mark.parametrize("case", range(len(GATES)))
def test_norm_gate(target, case):
    params, args, want = gate(*GATES[case])
    kernel = H.build("norm_gate", target, params)
    for parts in (1, 4):
        y = H.aligned(want.shape)
        kernel.call(H.make_step([3] * 9), [*args, y], parts)
        np.testing.assert_allclose(y, want, rtol=0, atol=3e-6 * np.abs(want).max())
