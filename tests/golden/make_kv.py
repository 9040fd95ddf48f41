#!/usr/bin/env python3
"""Write tests/golden/kv/<case>.<k>.<v>[.turned][.near<recent>-<sinks>].npz: logits and greedy tokens of golden models by transformers, with a cache that stores
every row of keys and values in the types of tests/kv_types.py. turned: rows are rotated. near: each token reads the last `recent` positions, its own included,
and the first `sinks` in 16 bits; such a model processes its tokens one at a time.

Needs torch and transformers 5, as make_models.py does. The last line of a case prints the distance of its logits from those of an fp32 cache, the smallest gap between
two tokens, and the change of the logits after a tiny change of the rows (which rounds some codes differently)."""

import os
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import kv_types  # noqa: E402
import weights as W  # noqa: E402

OUT = os.path.join(W.HERE, "kv")
CASES = [
    ("llama-smol", "int8", "int8", False),
    ("qwen3-plain", "int6", "int4", True),
    ("mistral-nemo", "f8", "f8", False),
    ("gemma2-caps", "int4", "int4", False),
    ("deepseek_v3-plain", "int8_32", "int8_32", False),
    ("deepseek_v2-lite", "f8_32", "f8_32", False),
    ("deepseek_v3-yarn", "int4", "int4", False),
    ("llama-smol", "int4", "int4", True, (5, 3)),
    ("gemma2-caps", "int6", "int4", True, (4, 2)),
    ("llama-smol", "int4c", "int4", True, (32, 0)),
    ("glm-bias", "int8", "int4", True),
    ("qwen3_moe-renorm", "int6", "int6", False),
    ("llama-scaled3", "bf16", "int8", False),
]


class Rounded(DynamicCache):
    """A cache whose rows are rounded when they are appended. hair: relative noise that is added
    before rounding."""

    def __init__(self, k, v, turned, hair=0.0):
        super().__init__()
        self.types, self.turned, self.hair = (k, v), turned, hair
        self.rng = np.random.default_rng(1)

    def update(self, key, value, layer, *args, **kw):
        def kept(t, x):
            rows = x.numpy() * (1 + self.hair * self.rng.standard_normal(x.shape)).astype(
                np.float32
            )
            return torch.from_numpy(kv_types.kept(t, rows, self.turned).astype(np.float32))

        if key.shape[-1] != value.shape[-1]:  # a latent and its rotary key form one row
            row = torch.cat([key, value], -1)
            assert (
                row.shape[1] == 1 and row.shape[-1] <= 32
            )  # there is one group, so the result does not depend on the order of the key's elements
            key, value = kept(self.types[0], row).split([key.shape[-1], value.shape[-1]], -1)
            return super().update(key, value, layer, *args, **kw)
        return super().update(
            kept(self.types[0], key), kept(self.types[1], value), layer, *args, **kw
        )


class Near(DynamicCache):
    """A cache that stores exact rows. The distance of a row decides whether attention reads its
    rounded values."""

    def __init__(self, k, v, turned, recent, sinks, hair=0.0):
        super().__init__()
        self.types, self.turned, self.near, self.hair = (k, v), turned, (recent, sinks), hair
        self.rng = np.random.default_rng(1)

    def update(self, key, value, layer, *args, **kw):
        def noisy(x):
            return torch.from_numpy(
                x.numpy() * (1 + self.hair * self.rng.standard_normal(x.shape)).astype(np.float32)
            )

        def read(t, x):
            rows, at = x.numpy(), np.arange(x.shape[-2])
            exact = ((at < self.near[1]) | (len(at) - 1 - at < self.near[0]))[:, None]
            kept = np.moveaxis(kv_types.kept(t, np.moveaxis(rows, -2, 0), self.turned), 0, -2)
            return torch.from_numpy(
                np.where(exact, kv_types.kept_exact(t, rows, self.turned), kept).astype(np.float32)
            )

        assert key.shape[-2] == 1
        both = super().update(noisy(key), noisy(value), layer, *args, **kw)
        return tuple(read(t, x) for t, x in zip(self.types, both))


def make(name, k, v, turned, near=None):
    g = W.Golden(name)
    with tempfile.TemporaryDirectory() as d:
        g.build(d)
        model = AutoModelForCausalLM.from_pretrained(
            d, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        ).eval()

    @torch.no_grad()
    def run(ids, hair=0.0):
        if near:
            cache = Near(k, v, turned, *near, hair)
            return np.concatenate(
                [
                    model(torch.tensor([[i]]), past_key_values=cache, use_cache=True)
                    .logits[0]
                    .float()
                    .numpy()
                    for i in ids
                ]
            )
        return (
            model(torch.tensor([ids]), past_key_values=Rounded(k, v, turned, hair), use_cache=True)
            .logits[0]
            .float()
            .numpy()
        )

    logits = run(g.prompt)
    spread = float(np.ptp(logits))
    greedy, gaps, row = [], [], logits[-1]
    for _ in range(len(g.greedy)):
        top = np.sort(row)[-2:]
        gaps.append(float(top[1] - top[0]) / spread)
        greedy.append(int(row.argmax()))
        row = run(g.prompt + greedy)[-1]
    hair = float(np.abs(run(g.prompt, 1e-7) - logits).max()) / spread
    far = float(np.abs(g.logits - logits).max()) / spread
    os.makedirs(OUT, exist_ok=True)
    path = os.path.join(
        OUT, f"{name}.{k}.{v}{'.turned' if turned else ''}{'.near%d-%d' % near if near else ''}.npz"
    )
    np.savez_compressed(path, logits=logits.astype(np.float32), greedy=np.array(greedy, np.int32))
    print(
        f"{os.path.basename(path):40} beside fp32 {far:.1e} gap {min(gaps):.1e} hair {hair:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for c in CASES:
        if not sys.argv[1:] or c[0] in sys.argv[1:]:
            make(*c)
