"""Random blocks of CODE_DTYPES (formats/dtype.h), with ordinary f16 scales."""

import numpy as np

# name: elements, bytes, bits of a code in kernels, offsets of the scales (iq1_m: in the top nibbles
# of four words)
CODES = {
    "q2_k": (256, 84, 2, [80, 82]),
    "q3_k": (256, 110, 3, [108]),
    "iq4_nl": (32, 18, 8, [0]),
    "iq4_xs": (256, 136, 8, [0]),
    "iq3_s": (256, 110, 5, [0]),
    "iq3_xxs": (256, 98, 7, [0]),
    "iq2_s": (256, 82, 7, [0]),
    "iq2_xs": (256, 74, 7, [0]),
    "iq2_xxs": (256, 66, 7, [0]),
    "iq1_s": (256, 50, 5, [0]),
    "iq1_m": (256, 56, 5, []),
    "tq1_0": (256, 54, 2, [52]),
    "tq2_0": (256, 66, 2, [64]),
}
MINS = ("q2_k",)


def blocks(rng, dtype, shape, scale=1e-2, ends=False):
    """Return uint8 [*shape, bytes]. ends: codes of all zeros or all ones."""
    size, places = CODES[dtype][1], CODES[dtype][3]
    b = (
        rng.choice([0, 255], (*shape, size)).astype(np.uint8)
        if ends
        else rng.integers(0, 256, (*shape, size)).astype(np.uint8)
    )
    d = (rng.uniform(0.2, 1, (*shape, 2)) * scale * rng.choice([-1, 1], (*shape, 2))).astype(
        np.float16
    )
    if dtype in MINS:
        d = np.abs(d)
    for i, at in enumerate(places):
        b[..., at : at + 2] = d[..., i : i + 1].copy().view(np.uint8)
    if dtype == "iq1_m":
        bits = d[..., 0].copy().view(np.uint16)
        for k in range(4):
            b[..., 49 + 2 * k] = (b[..., 49 + 2 * k] & 15) | ((bits >> 4 * k & 15) << 4)
    return b
