"""Tensor maps of a kernel's arguments (//@map): the number of rows is that of the memory, zeros
beyond it, and the 128-byte swizzle is that of the PTX manual (16-byte chunk c of row r is stored
at chunk c ^ r % 8)."""

import numpy as np
import pytest

import cuda_harness as H


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_a_tile_of_an_argument(mode):
    x = np.random.default_rng(0).integers(1, 1 << 16, (19, 64), dtype=np.uint16)
    y = H.build(
        H.ROOT / "tests" / "cuda" / "map_copy.cu.in", "sm_90a", WIDTH=32, FIRST=0, COUNT=32
    ).run(H.make_step([0] * 19), [x, H.out((19, 8, 8), np.uint16)], mode=mode)[0]
    tile = np.zeros((24, 64), np.uint16)
    tile[:19, :56] = x[:, 8:]
    chunks = tile.reshape(24, 8, 8)
    for r in range(19):
        for c in range(8):
            assert (y[r, c ^ r % 8] == chunks[r, c]).all()
