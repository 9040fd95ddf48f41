"""templates/cuda/weights/weights.h against formats/dequant.c, for every storage type and arbitrary
bytes"""

import numpy as np
import pytest

import cuda_harness as H
from cuda_weights import Weights

READER = H.ROOT / "tests" / "cuda" / "read_weights.cu.in"


@pytest.mark.sample(8)
@pytest.mark.parametrize("dtype", H.DTYPES)
def test_units_have_their_columns(dtype):
    sizes = (
        [768]
        if H.super_block(dtype)
        else [384]
        if "_128" in dtype
        else [64, 448]
        if "_64" in dtype or dtype == "nvfp4"
        else [32, 608]
        if dtype in H.PACKED
        else [64, 203]
    )
    for cols in sizes:
        k = H.build(READER, "sm_90a", W_DTYPE=dtype, HIDDEN=cols, SCALE=1.0)
        w = Weights(dtype, 5, cols, raw=True)
        for mode, seed in H.RUNS[1:]:
            (y,) = k.run(H.make_step([0] * 5), [w.packed, H.out((5, cols))], mode=mode, seed=seed)
            # a contracted or uncontracted sum: one rounding of the multiplication
            assert np.abs(y - w.value).max() <= 2e-7 * np.abs(w.value).max()
            # with an fp32 scale the multiplication is rounded too, and on most GPUs only once together
            # with the sum
            assert (y == w.value).mean() > (0.4 if dtype in H.GROUP and dtype[0] == "m" else 0.9)
