"""Logits as bits, for tests of what may not change a result."""

import numpy as np


def rows(session, chunks):
    """Logits of a forward as bits: equal means equal."""
    return np.array(session.forward(chunks)).view(np.uint32)


def whole(model, tok, threads=1):
    """Of all positions of a prompt, in one chunk of a session of its own."""
    n = len(tok)
    with model.session(context=n + 8, chunk=n, n_out=n, threads=threads) as s:
        out = rows(s, [(s.seq(), tok, n)])
    values = out.view(np.float32)
    assert np.isfinite(values).all() and values.std() > 0
    return out
