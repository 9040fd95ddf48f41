"""Goldens of sampling: the distribution after transformers' logits processors, one case per line.

Line of a case: temperature top_k top_p min_p typical_p repetition min_tokens watermark, then counts and items of logit_bias
(id value) and bad_words (length ids), then the probabilities. The processors run in the order of runtime/sample/sampler.h."""

import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    WatermarkLogitsProcessor,
)

V, PROMPT, OUTPUT, EOS = 48, [2, 5, 5, 1], [4, 4, 10], [7, 9]
torch.manual_seed(5)
LOGITS = (torch.randn(V) * 2).half().float()
BIAS = {3: 2.5, 10: -3.0, 11: 1.25, 40: -100.0}
BAD = [[12], [4, 10, 6], [10, 14], [4, 11], [1, 4, 4, 10, 20]]

CASES = []  # temperature top_k top_p min_p typical repetition min_tokens watermark bias bad
for typical in (0.2, 0.5, 0.9, 0.95):
    CASES.append((1.0, 0, 0, 0, typical, 1, 0, 0, {}, []))
CASES += [
    (0.6, 0, 0, 0, 0.7, 1, 0, 0, {}, []),
    (1.8, 10, 0, 0, 0.6, 1, 0, 0, {}, []),
    (1.3, 20, 0.9, 0.02, 0.8, 1, 0, 0, {}, []),
    (1.0, 0, 0, 0, 0, 1, 0, 0, BIAS, []),
    (1.0, 0, 0, 0, 0, 1, 0, 0, {}, BAD),
    (1.0, 0, 0, 0, 0, 1, 4, 0, {}, []),
    (1.0, 0, 0, 0, 0, 1, 3, 0, {}, []),
    (1.0, 0, 0, 0, 0, 1, 0, 1, {}, []),
    (0.9, 0, 0, 0, 0, 1.4, 0, 1, {}, []),
    (0.8, 30, 0.95, 0.01, 0.9, 1.2, 9, 1, BIAS, BAD),
]


def probabilities(
    temperature, top_k, top_p, min_p, typical, repetition, min_tokens, watermark, bias, bad
):
    steps = LogitsProcessorList()
    if bias:
        steps.append(SequenceBiasLogitsProcessor({(k,): v for k, v in bias.items()}))
    if watermark:
        steps.append(WatermarkLogitsProcessor(V, "cpu", greenlist_ratio=0.5, bias=2.0))
    if repetition != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(repetition))
    if bad:
        steps.append(NoBadWordsLogitsProcessor(bad, eos_token_id=torch.tensor([-1])))
    if min_tokens:
        steps.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), min_tokens, EOS))
    steps.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        steps.append(TopKLogitsWarper(top_k))
    if top_p:
        steps.append(TopPLogitsWarper(top_p))
    if min_p:
        steps.append(MinPLogitsWarper(min_p))
    if typical:
        steps.append(TypicalLogitsWarper(typical))
    return steps(torch.tensor([PROMPT + OUTPUT]), LOGITS[None].clone())[0].softmax(-1)


def number(x):
    return f"{x:.7g}"


with open("tests/golden/sample.txt", "w") as f:
    f.write(" ".join(map(number, LOGITS.tolist())) + "\n")
    f.write(f"{len(CASES)}\n")
    for c in CASES:
        items = [
            *c[:8],
            len(c[8]),
            *[x for kv in c[8].items() for x in kv],
            len(c[9]),
            *[x for w in c[9] for x in [len(w), *w]],
        ]
        f.write(
            " ".join(map(number, items))
            + "\n"
            + " ".join(map(number, probabilities(*c).tolist()))
            + "\n"
        )
    # tokens that the watermark favours in a vocabulary of realistic size: their number, and a checksum over all of them
    for vocab, last in (
        (49152, 0),
        (49152, 1),
        (49152, 40000),
        (151936, 151935),
        (1, 0),
        (2, 1),
        (1001, 500),
    ):
        w = WatermarkLogitsProcessor(vocab, "cpu", greenlist_ratio=0.5, bias=2.0)
        ids = w._get_greenlist_ids(torch.tensor([last])).tolist()
        f.write(f"{vocab} {last} {len(ids)} {sum(i * i % 1000003 for i in ids)}\n")
