"""Expert routing in numpy: the oracle of the kernels of both targets."""

import numpy as np


def sparsemixer(logits, top_k, jitter, scale):
    """SparseMixer routing, one expert at a time, as defined in ops.def"""
    ids, weights = [], []
    for row in logits.astype(np.float64):
        s, left, e, w = row.copy(), np.ones(len(row), bool), [], []
        for _ in range(top_k):
            best = int(np.where(left, s, -np.inf).argmax())
            # 0 / 0 counts as within the threshold
            with np.errstate(invalid="ignore", divide="ignore"):
                near = left & ~((s[best] - s) / np.maximum(np.abs(s), s[best]) > 2 * jitter)
            w.append(scale / np.exp(s[near] - s[best]).sum())
            e.append(best)
            left[best] = False
        ids.append(e)
        weights.append(w)
    return np.array(ids), np.array(weights)


def route(
    x,
    top_k,
    bias=None,
    score="softmax",
    renorm=0,
    scale=1.0,
    groups=1,
    keep=1,
    group_score="max",
    sum_eps=1e-20,
    jitter=0.0,
):
    """Routes row by row as defined in ops.def; scores are float32, so that ties stay ties."""
    if score == "sparsemixer":
        return sparsemixer(x, top_k, jitter, scale)
    ids, weights = [], []
    for row in x.astype(np.float64):
        s = (
            1 / (1 + np.exp(-row))
            if score == "sigmoid"
            else np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        )
        s = s.astype(np.float32)
        c = s + bias if bias is not None else s.copy()
        if groups > 1 and keep < groups:
            g = np.sort(c.reshape(groups, -1), 1)[:, ::-1]
            g = g[:, :2].sum(1) if group_score == "top2" and g.shape[1] > 1 else g[:, 0]
            stay = np.argsort(-g, kind="stable")[:keep]
            c = np.where(np.isin(np.arange(len(c)) // (len(c) // groups), stay), c, -np.inf)
        e = np.argsort(-c, kind="stable")[:top_k]
        w = s[e].astype(np.float64)
        if renorm:
            w = w / (w.sum() + sum_eps)
        ids.append(e), weights.append(w * scale)
    return np.array(ids), np.array(weights)
