#!/usr/bin/env python3
"""Write tests/golden/mtp/drafts.json: outputs of EAGLE-3 draft checkpoints (weights.DRAFTS) for golden models.

The equations are those of SpecForge, SGLang and vLLM (llama_eagle3), written here in plain torch:

    rows [T, n H]   streams of the model before layers `reads`, joined; n_layers: the output of the last layer
    x = fc(rows);   for further draft tokens the draft's own stream before its last norm
    first layer     attention reads [input_layernorm(embed(token after the row)) | hidden_norm(x)]; the residual is x, or
                    with norm_before_residual hidden_norm(x)
    logits = lm_head(norm(x)); column j is token j + d2t[j]

Position i has row i and token i + 1. Needs torch and transformers 5. Run:  python tests/golden/make_draft.py
"""

import json
import os

import torch

import make_mtp
import weights as W

OUT = os.path.join(W.HERE, "mtp", "drafts.json")
GUESSES = 4


def rotated(x, theta):
    """Rotate x [T, heads, D]: the pair (i, i + D / 2) by the angle position / theta^(2 i / D)."""
    n, _, d = x.shape
    angle = torch.arange(n)[:, None] * theta ** (-torch.arange(0, d, 2) / d)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model:
    def __init__(self, d, embed, head):
        w = {n: torch.tensor(x) for n, x in d.values().items() if x.dtype.kind == "f"}
        self.d, self.w, self.c = d, w, d.own
        self.embed = w.get("embed_tokens.weight", embed)
        self.head = w.get("lm_head.weight", head)

    def norm(self, x, name):
        return make_mtp.rms(x, self.w[name + ".weight"], self.c["rms_norm_eps"])

    def __call__(self, tokens, x):
        """Convert tokens [T] and the stream x [T, H] after fc to logits [T, columns] and a stream
        [T, H]."""
        c, n = self.c, len(tokens)
        D, heads, kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        for i in range(c["num_hidden_layers"]):
            p = self.d.layer.format(i)
            h = self.norm(x, p + (".hidden_norm" if i == 0 else ".input_layernorm"))
            if i == 0:
                if self.d.config.get("norm_before_residual"):
                    x = h
                h = torch.cat([self.norm(self.embed[tokens], p + ".input_layernorm"), h], -1)
            q, k, v = (h @ self.w[f"{p}.self_attn.{r}_proj.weight"].T for r in "qkv")
            q, k, v = q.view(n, heads, D), k.view(n, kv, D), v.view(n, kv, D)
            if f"{p}.self_attn.q_norm.weight" in self.w:
                q, k = (self.norm(a, f"{p}.self_attn.{r}_norm") for a, r in ((q, "q"), (k, "k")))
            q, k = rotated(q, c["rope_theta"]), rotated(k, c["rope_theta"])
            k, v = (a.repeat_interleave(heads // kv, 1) for a in (k, v))
            s = torch.einsum("qhd,khd->hqk", q, k) / D**0.5
            s = s + torch.full((n, n), -torch.inf).triu(1)
            a = torch.einsum("hqk,khd->qhd", s.softmax(-1), v).reshape(n, -1)
            x = x + a @ self.w[p + ".self_attn.o_proj.weight"].T
            h = self.norm(x, p + ".post_attention_layernorm")
            g, u = (h @ self.w[f"{p}.mlp.{r}_proj.weight"].T for r in ("gate", "up"))
            x = x + (torch.nn.functional.silu(g) * u) @ self.w[p + ".mlp.down_proj.weight"].T
        return self.norm(x, "norm") @ self.head.T, x


@torch.no_grad()
def case(name):
    d = W.Draft(name)
    g = d.target
    model = make_mtp.load(
        g.config, {n: W.rounded(x, g.dtype) for n, x in g.values().items()}, g.dtype
    )
    body, at = make_mtp.text_of(model), {}
    for i, layer in enumerate(body.layers):
        layer.register_forward_pre_hook(lambda m, a, i=i: at.__setitem__(i, a[0][0]))
    body.layers[-1].register_forward_hook(
        lambda m, a, out: at.__setitem__(
            len(body.layers), (out if torch.is_tensor(out) else out[0])[0]
        )
    )
    ids = g.prompt
    logits = model(torch.tensor([ids])).logits[0]
    text = list(ids) + [int(logits[-1].argmax())]
    rows = torch.cat([at[i] for i in d.reads], -1)
    draft = Model(d, model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    x = rows @ draft.w["fc.weight"].T
    tokens, own = text[1:], []
    said, stream = draft(tokens, x)
    first = said[-3:]
    for _ in range(GUESSES):
        own.append(int(d.tokens()[int(said[-1].argmax())]))
        x = torch.cat([x, stream[-1:]])
        said, stream = draft(tokens + own, x)
    return dict(
        name=name,
        text=text,
        row=make_mtp.short(rows[-1].tolist()),
        logits=[make_mtp.short(r.tolist()) for r in first],
        guesses=own,
        behind=make_mtp.short(said[-1].tolist()),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(OUT, "w") as f:
        json.dump([case(name) for name in W.DRAFTS], f, indent=None, separators=(",", ":"))
        f.write("\n")
