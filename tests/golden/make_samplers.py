"""Goldens of the samplers that llama.cpp defines: penalties of a window, DRY, XTC, top-n-sigma, dynamic temperature and
Mirostat. They are written here from the definitions, in double and without shortcuts; the order is that of
runtime/sample/sampler.h. tests/unit/test_samplers.c reads the files.

samplers.txt   logits; strings of the tokens; then per case: options, prompt, output, breakers (each list: its length and its
               items), the order of the samplers ('-': that of sampler.h; '+' before it: tokens have strings), and the
               probability of each token
mirostat.txt   per case: version, tau, eta, mu, temperature, seed of the logits, their number and standard deviation, and
               the number of tokens that are kept; then for each of these its id, probability, and the mu after it
"""

import math

import numpy as np

V = 48
OFF = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 0.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repeat_last_n": 0,
    "dry_multiplier": 0.0,
    "dry_base": 0.0,
    "dry_allowed_length": 0,
    "dry_penalty_last_n": 0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.0,
    "top_n_sigma": 0.0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 0.0,
    "typical_p": 0.0,
    "min_keep": 0,
}
END = 7  # a stop token; llama.cpp's infill treats it like an end of the text
# strings of the tokens; some are prefixes of others, some share only their first bytes
PIECES = [f"{a}{b}" for a in ("", "a", "ab", "abc", "b", "ba", "c", "xa") for b in "abcdéf"]
PROMPT = [2, 5, 5, 1, 30, 31, 32, 33, 2, 5, 40]
OUTPUT = [4, 30, 31, 32, 8, 4, 30, 31, 32]
A_B_C = [1, 2, 3, 3, 2, 3, 9, 1, 2, 3]  # the example of llama.cpp's comments
SAME = [6] * 12


def dry_limit(tokens, breakers):
    """Return the number of tokens after the last breaker."""
    for i in range(len(tokens)):
        at = len(tokens) - 1 - i
        match = [b for b in breakers if tokens[at : at + len(b)] == b]
        if match:
            return i - (max(map(len, match)) - 1)
    return len(tokens)


def dry(logits, o, tokens, breakers):
    base = o["dry_base"] if o["dry_base"] >= 1 else 1.75
    allowed = o["dry_allowed_length"] or 2
    if o["dry_penalty_last_n"]:
        tokens = tokens[-o["dry_penalty_last_n"] :]
    limit = dry_limit(tokens, breakers)
    if len(tokens) <= allowed or limit < allowed:
        return
    longest = {}
    for end in range(1, len(tokens)):
        n = 0
        while n < end and tokens[end - 1 - n] == tokens[-1 - n]:
            n += 1
        n = min(n, limit)
        if n >= allowed:
            longest[tokens[end]] = max(n, longest.get(tokens[end], 0))
    for token, n in longest.items():
        if [token] not in breakers:
            logits[token] -= o["dry_multiplier"] * base ** (n - allowed)


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def penalise(logits, o, prompt, output):
    tokens, n = prompt + output, o["repeat_last_n"]
    counted = output if n == 0 else tokens if n < 0 else tokens[-n:]
    for token in set(tokens if n == 0 else counted):
        x, count = logits[token], counted.count(token)
        x = x / o["repetition_penalty"] if x > 0 else x * o["repetition_penalty"]
        logits[token] = x - count * o["frequency_penalty"] - (count > 0) * o["presence_penalty"]


def cut(logits, o):
    order = np.argsort(-logits, kind="stable")
    if o["top_k"]:
        logits[order[o["top_k"] :]] = -np.inf
    if 0 < o["top_p"] < 1:
        p = softmax(logits)[order]
        logits[order[np.cumsum(p) - p >= o["top_p"]]] = -np.inf
    if o["min_p"]:
        p = softmax(logits)
        logits[p < o["min_p"] * p.max()] = -np.inf


def temperature(logits, o):
    t = o["temperature"]
    p = softmax(logits)
    p = p[p > 0]
    if o["dynatemp_range"] and t > 0 and len(p) > 1:
        low, high = max(0.0, t - o["dynatemp_range"]), t + o["dynatemp_range"]
        entropy = -(p * np.log(p)).sum() / math.log(len(p))
        t = low + (high - low) * entropy ** (o["dynatemp_exponent"] or 1.0)
    return t


def heat(logits, o):
    t = temperature(logits, o)
    if t == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    return softmax(logits / t)


def probabilities(logits, o, prompt, output, breakers):
    logits = logits.copy()
    penalise(logits, o, prompt, output)
    if o["dry_multiplier"]:
        dry(logits, o, prompt + output, breakers)
    if o["top_n_sigma"]:
        logits[logits < logits.max() - o["top_n_sigma"] * logits.std()] = -np.inf
    threshold = o["xtc_threshold"] or 0.1
    xtc = o["xtc_probability"] if threshold <= 0.5 else 0
    if not xtc and not o["dynatemp_range"]:
        if o["temperature"] == 0:
            return np.eye(V)[np.argmax(logits)]
        logits /= o["temperature"]
        cut(logits, o)
        return softmax(logits)
    cut(logits, o)
    kept = heat(logits, o)
    p = softmax(logits)
    reach = [i for i in np.argsort(-logits, kind="stable") if p[i] >= threshold]
    without = logits.copy()
    if len(reach) > 1:
        without[reach[:-1]] = -np.inf
    return (1 - xtc) * kept + xtc * heat(without, o)


def keep_only(logits, ids):
    out = np.full_like(logits, -np.inf)
    out[ids] = logits[ids]
    return out


def combine(p, ids):
    """Merge tokens where the text of one is a prefix of the other's text: the likelier token gets
    the sum of the probabilities."""
    p, left = p.copy(), set(ids)
    for a in ids:
        for b in ids:
            if a in left and b in left and a != b and PIECES[b].startswith(PIECES[a]):
                to, of = (b, a) if p[b] > p[a] else (a, b)
                p[to] += p[of]
                p[of] = 0
                left.remove(of)
    return p


def infill(logits, pieces):
    p = softmax(logits)
    left = [i for i in np.argsort(-logits, kind="stable") if logits[i] > -np.inf]
    if 3 * p[END] * len(left) > 1 - p[END]:
        return keep_only(logits, [END])
    if pieces:
        p = combine(p, left)
        left = [i for i in left if p[i] > 0]
    sure = [i for i in left if i == END or p[i] >= 0.2]
    others = [i for i in sure if i != END]
    if not others:
        return keep_only(np.zeros(V), [END])
    least = p[sure].sum() / (len(others) + 1)
    return keep_only(logits, [i for i in sure if i == END or p[i] >= least])


def step(letter, logits, o, prompt, output, breakers, xtc, pieces):
    """Apply one sampler of llama.cpp."""
    order = [i for i in np.argsort(-logits, kind="stable") if logits[i] > -np.inf]
    p, n = softmax(logits), len(order)
    if letter == "e":
        penalise(logits, o, prompt, output)
    elif letter == "d" and o["dry_multiplier"]:
        dry(logits, o, prompt + output, breakers)
    elif letter == "s" and o["top_n_sigma"]:
        left = logits[order]
        logits[logits < left.max() - o["top_n_sigma"] * left.std()] = -np.inf
    elif letter == "k" and o["top_k"]:
        return keep_only(logits, order[: o["top_k"]])
    elif letter == "p" and 0 < o["top_p"] < 1:
        kept = 1 + int((np.cumsum(p[order]) < o["top_p"]).sum())
        return keep_only(logits, order[: max(kept, o["min_keep"])])
    elif letter == "m" and o["min_p"]:
        kept = int((p[order] >= o["min_p"] * p.max()).sum())
        return keep_only(logits, order[: max(kept, o["min_keep"])])
    elif letter == "y" and 0 < o["typical_p"] < 1:
        q = p[order]
        entropy = -(q * np.log(q)).sum()
        near = [order[k] for k in np.argsort(np.abs(-np.log(q) - entropy), kind="stable")]
        kept = 1 + int((np.cumsum(p[near]) <= o["typical_p"]).sum())
        return keep_only(logits, near[: max(kept, o["min_keep"])])
    elif letter == "x" and xtc and n > 1:
        reach = int((p[order] >= (o["xtc_threshold"] or 0.1)).sum())
        if reach > 1 and n - (reach - 1) >= o["min_keep"]:
            return keep_only(logits, order[reach - 1 :])
    elif letter == "t":
        t = temperature(logits, o)
        return logits / t if t > 0 else keep_only(logits, [np.argmax(logits)])
    elif letter == "i":
        return infill(logits, pieces)
    return logits


def chain(logits, o, prompt, output, breakers, order):
    threshold = o["xtc_threshold"] or 0.1
    chance = o["xtc_probability"] if threshold <= 0.5 else 0
    total = np.zeros(V)
    order = order or " "
    for xtc, share in ((False, 1 - chance), (True, chance)):
        x = logits.copy()
        for letter in order.strip("+ "):
            x = step(letter, x.copy(), o, prompt, output, breakers, xtc, order[0] == "+")
        total += share * softmax(x)
    return total


def orders():
    """Yield cases with a different order of samplers, or with min_keep."""
    most = {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "repeat_last_n": 9,
        "dry_multiplier": 0.7,
        "xtc_probability": 0.4,
        "xtc_threshold": 0.08,
        "top_n_sigma": 1.8,
        "dynatemp_range": 0.4,
        "temperature": 1.3,
        "top_k": 14,
        "top_p": 0.93,
        "min_p": 0.03,
        "typical_p": 0.8,
    }
    plain = {**most, "xtc_probability": 0.0, "dynatemp_range": 0.0}
    for o in (most, plain, {**plain, "temperature": 0.0}, {**most, "min_keep": 9}):
        for order in (
            "edskypmxt",
            "txmpyksde",
            "kt",
            "tk",
            "pt",
            "tp",
            "ytk",
            "mtm",
            "stp",
            "x",
            "k",
            "",
            "kkpp",
            "ke",
            "tdt",
            "kxp",
        ):
            yield o, PROMPT, OUTPUT, [[8]], order
    for keep in (2, 7, 30, 99):
        for extra in ({"top_p": 0.3}, {"min_p": 0.4}, {"typical_p": 0.2}, {"top_k": 5}):
            yield {**extra, "min_keep": keep}, [1], [], [], "kypmt"
            yield {**extra, "min_keep": keep, "temperature": 0.7}, [1], [], [], "-"
    for k, t in ((0, 1.0), (3, 1.0), (2, 0.4), (12, 0.2), (30, 3.0)):
        yield {"top_k": k, "temperature": t}, [1], [], [], "kti"
    for order in ("kti", "kit", "ki", "tki"):
        for k, t in ((0, 1.0), (3, 1.0), (6, 0.6), (12, 1.5), (16, 0.4), (30, 0.8), (44, 0.7)):
            yield {"top_k": k, "temperature": t}, [1], [], [], "+" + order
            yield {"top_k": k, "temperature": t, "min_p": 0.1}, [1], [], [], "+m" + order


def cases():
    window = {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2}
    for n in (0, -1, 1, 3, 7, 12, 64):
        yield {**window, "repeat_last_n": n}, PROMPT, OUTPUT, []
    d = {"dry_multiplier": 0.8}
    for tokens in (A_B_C, SAME, PROMPT + OUTPUT, [1, 2, 1], [3]):
        yield d, tokens, [], []
        yield d, tokens[:1], tokens[1:], []
    for extra in (
        {"dry_base": 3.0},
        {"dry_base": 1.0},
        {"dry_base": 0.5},
        {"dry_allowed_length": 1},
        {"dry_allowed_length": 3},
        {"dry_allowed_length": 4},
        {"dry_penalty_last_n": 4},
        {"dry_penalty_last_n": 9},
        {"dry_multiplier": 3.5, "temperature": 0.0},
    ):
        yield {**d, **extra}, PROMPT, OUTPUT, []
        yield {**d, **extra}, A_B_C, SAME, []
    for breakers in ([[31]], [[32]], [[8]], [[30]], [[31, 32]], [[31, 9], [31, 32, 8]], [[4, 30]]):
        yield d, PROMPT, OUTPUT, breakers
        yield {**d, "dry_allowed_length": 1}, PROMPT, OUTPUT, breakers
    yield {"dry_multiplier": 99.0, "dry_base": 90.0}, SAME * 8, [], []
    for probability in (0.5, 1.0):
        for threshold in (0.0, 0.02, 0.05, 0.2, 0.5, 0.6):
            x = {"xtc_probability": probability, "xtc_threshold": threshold}
            yield x, [1], [], []
            yield {**x, "temperature": 0.6, "top_k": 12}, [1], [], []
            yield {**x, "temperature": 0.0}, [1], [], []
            yield {**x, "temperature": 1.7, "top_p": 0.9, "min_p": 0.02}, [1], [], []
    for sigma in (0.5, 1.0, 1.5, 3.0):
        for temperature in (0.7, 1.0, 2.5):
            yield {"top_n_sigma": sigma, "temperature": temperature}, [1], [], []
    for spread in (0.2, 0.8, 3.0):
        for exponent in (0.0, 0.5, 2.0):
            x = {"dynatemp_range": spread, "dynatemp_exponent": exponent, "temperature": 0.8}
            yield x, [1], [], []
            yield {**x, "top_k": 10, "min_p": 0.05, "temperature": 1.4}, [1], [], []
    yield {"dynatemp_range": 0.5, "top_k": 1}, [1], [], []
    yield {"dynatemp_range": 0.5, "temperature": 0.0}, [1], [], []
    yield (
        {
            **window,
            "repeat_last_n": 9,
            "dry_multiplier": 0.7,
            "xtc_probability": 0.4,
            "xtc_threshold": 0.08,
            "top_n_sigma": 2.0,
            "dynatemp_range": 0.4,
            "temperature": 1.1,
            "top_k": 30,
            "top_p": 0.97,
            "min_p": 0.01,
        },
        PROMPT,
        OUTPUT,
        [[8]],
    )


def lcg_logits(seed, n, deviation):
    """Return logits that the test in C can compute too: sums of twelve uniform numbers."""
    out, r = [], seed
    for _ in range(n):
        x = -6.0
        for _ in range(12):
            r = (r * 6364136223846793005 + 1442695040888963407) % 2**64
            x += (r >> 40) / 2**24
        out.append(np.float32(x * deviation))
    return np.array(out, dtype=np.float64)


def mirostat(version, tau, eta, mu, temperature, logits):
    order = np.argsort(-logits, kind="stable")
    p = softmax(logits / temperature)[order]
    if version == 1:
        m = min(100, len(p))
        t = np.log(np.arange(2, m + 1) / np.arange(1, m))
        b = np.log(p[: m - 1] / p[1:m])
        s = (t * b).sum() / (t * t).sum()
        e = s - 1
        k = ((e * 2**mu) / (1 - len(p) ** -e)) ** (1 / s)
        kept = int(min(max(int(k), 1), len(p)))
    else:
        kept = max(1, int((-np.log2(p) <= mu).sum()))
    p = p[:kept] / p[:kept].sum()
    return order[:kept], p, mu - eta * (-np.log2(p) - tau)


def number(x):
    return f"{x:.9g}"


def main():
    logits = np.random.default_rng(11).normal(0, 2, V).astype(np.float16).astype(np.float64)
    with open("tests/golden/samplers.txt", "w") as f:
        f.write(" ".join(map(number, logits)) + "\n")
        f.write(" ".join(PIECES) + "\n")
        all_cases = [(*c, "-") for c in cases()] + list(orders())
        f.write(f"{len(all_cases)}\n")
        for options, prompt, output, breakers, order in all_cases:
            o = {**OFF, **options}
            if order == "-" and not o["min_keep"]:
                p = probabilities(logits, o, prompt, output, breakers)
            else:
                own = "edstkpmy" if order == "-" else order
                p = chain(logits, o, prompt, output, breakers, own)
            items = [*o.values(), len(prompt), *prompt, len(output), *output, len(breakers)]
            items += [x for b in breakers for x in [len(b), *b]]
            f.write(" ".join(map(number, items)) + f' "{order}"\n')
            f.write(" ".join(map(number, p)) + "\n")
    with open("tests/golden/mirostat.txt", "w") as f:
        for version in (1, 2):
            for tau, eta, mu in ((5, 0.1, 10), (3, 0.5, 6), (2, 0.2, 1.2), (5, 0.1, -1), (4, 0, 3)):
                for temperature, n, deviation in ((1.0, 1000, 2), (0.7, 300, 3), (1.5, 60, 2)):
                    seed = n + 7 * version
                    x = lcg_logits(seed, n, deviation)
                    ids, p, after = mirostat(version, tau, eta, mu, temperature, x)
                    head = [version, tau, eta, mu, temperature, seed, n, deviation, len(ids)]
                    f.write(" ".join(map(number, head)) + "\n")
                    few = min(len(ids), 40)  # at most 40 of the kept tokens are written
                    for i in np.linspace(0, len(ids) - 1, few).astype(int):
                        f.write(f"{ids[i]} {number(p[i])} {number(after[i])}\n")


main()
