"""Kernels of GPUs that keep a state: against the values that tests/kernels/test_states.py makes, on the emulator and in its checking mode, whole and cut into steps, which
must not change a bit."""
import numpy as np
import pytest

import cuda_harness as H
import state_oracle as O

RUNS = [("fast", "sm_75", 0, [0, 40]), ("check", "sm_90a", 1, [0, 1, 3, 40]), ("fast", "sm_90a", 2, [0, 13, 14, 40])]


def compare(op, params, inputs, fixed, shape, out_shape, want, want_state):
    first = None
    for mode, arch, seed, cuts in RUNS:
        kernel = H.build(op, arch, params)
        state, y = np.full((O.SEQS, *shape), np.nan, np.float32), [np.zeros((n, *out_shape), np.float32) for n in O.ROWS]
        for step in O.steps(cuts):
            pos = [p for _, a, b in step for p in range(a, b)]
            args = [np.concatenate([x[i][a:b] for i, a, b in step]) for x in inputs]
            s = H.make_step(pos, [b - a for _, a, b in step], seq=[O.AT[i] for i, _, _ in step])
            state, out = kernel.run(s, [*args, *fixed, H.inout(state), H.out((len(pos), *out_shape))], mode=mode, seed=seed)
            at = 0
            for i, a, b in step:
                y[i][a:b] = out[at:at + b - a]
                at += b - a
        got = [*y, *(state[a] for a in O.AT)]
        for g, w in zip(got, [*want, *want_state]):
            assert np.isfinite(g).all()
            np.testing.assert_allclose(g, w, rtol=0, atol=3e-6 * max(1, np.abs(w).max()))
        assert np.isnan(state[1]).all(), "the place of a sequence that is not in the step"
        assert first is None or all(np.array_equal(a, b) for a, b in zip(first, got)), f"{cuts}: other bits"
        first = first or got


@pytest.mark.parametrize("case", range(len(O.CONV)))
def test_conv1d(case):
    compare("conv1d", *O.conv(*O.CONV[case]))


@pytest.mark.parametrize("case", range(len(O.DELTA)))
def test_delta_rule(case):
    compare("delta_rule", *O.delta(case))


@pytest.mark.parametrize("case", range(len(O.GATES)))
def test_norm_gate(case):
    params, args, want = O.gate(*O.GATES[case])
    for mode, arch, seed, _ in RUNS:
        y, = H.build("norm_gate", arch, params).run(H.make_step([3] * 9), [*args, H.out(want.shape)], mode=mode, seed=seed)
        np.testing.assert_allclose(y, want, rtol=0, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("op,params", [
    ("conv1d", dict(WIDTH=8192, TAPS=4, GATE="silu", HAS_B=0)),
    ("delta_rule", dict(K_HEADS=16, V_HEADS=32, K_DIM=128, V_DIM=128, G_DIM=1, SCALE=0.1, EPS=1e-6, TILED=0, A_LOG=1, B_SCALE=1.0)),
    ("delta_rule", dict(K_HEADS=4, V_HEADS=4, K_DIM=256, V_DIM=512, G_DIM=256, SCALE=0.1, EPS=1e-6, TILED=0, A_LOG=1, B_SCALE=2.0)),
    ("norm_gate", dict(DIM=128, GROUPS=32, EPS=1e-6, ORDER="norm_first", GATE="silu"))])
def test_compiles_without_spills(op, params):
    if H.nvrtc(op, params, ["sm_75", "sm_90a", "sm_120a"]) is None:
        pytest.skip("no libnvrtc")
