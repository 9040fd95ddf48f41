"""Logits as bits, for tests that compare results exactly."""

import numpy as np


def rows(session, chunks):
    """Return the logits of a forward as bits."""
    return np.array(session.forward(chunks)).view(np.uint32)


def whole(model, tok, threads=1):
    """Return the bits of all positions of a prompt, computed in one chunk of a new session."""
    n = len(tok)
    with model.session(context=n + 8, chunk=n, n_out=n, threads=threads) as s:
        out = rows(s, [(s.seq(), tok, n)])
    values = out.view(np.float32)
    assert np.isfinite(values).all() and values.std() > 0
    return out
