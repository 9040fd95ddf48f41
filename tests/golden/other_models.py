"""ChatGLM-6B, ChatGLM2/3 (and GLM-4 with remote code), Baichuan, InternLM2 and relatives of Llama in plain torch, written from the description of
these architectures, because transformers does not have them. Only the forward pass over a whole sequence."""

import math

import torch
import torch.nn.functional as F


def rms(x, w, eps):
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def half_rope(x, pos, theta):
    """Rotate x [T, heads, d] in the rotate_half convention."""
    d = x.shape[-1]
    a = pos[:, None].to(x.dtype) / theta ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
    c, s = torch.cat([a, a], -1).cos()[:, None], torch.cat([a, a], -1).sin()[:, None]
    turned = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return x * c + turned * s


def softmax_attention(q, k, v, seen, bias=None):
    """Compute attention of q [T, H, d] over k and v [T, K, d]; seen [T, T]: the positions that a
    row attends to."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = torch.einsum("thd,jhd->htj", q, k) / math.sqrt(q.shape[-1])
    if bias is not None:
        s = s + bias
    p = s.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("htj,jhd->thd", p, v).reshape(q.shape[0], -1)


class Baichuan:
    def __init__(self, c, vocab_norm=False):
        self.c, self.vocab_norm = c, vocab_norm

    def shapes(self):
        c, h, f = self.c, self.c["hidden_size"], self.c["intermediate_size"]
        s = {"model.embed_tokens.weight": [c["vocab_size"], h]}
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            s |= {
                p + "input_layernorm.weight": [h],
                p + "self_attn.W_pack.weight": [3 * h, h],
                p + "self_attn.o_proj.weight": [h, h],
                p + "post_attention_layernorm.weight": [h],
                p + "mlp.gate_proj.weight": [f, h],
                p + "mlp.up_proj.weight": [f, h],
                p + "mlp.down_proj.weight": [h, f],
            }
        return s | {"model.norm.weight": [h], "lm_head.weight": [c["vocab_size"], h]}

    def logits(self, w, ids):
        c, eps = self.c, self.c["rms_norm_eps"]
        heads, d = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
        n, pos = len(ids), torch.arange(len(ids))
        alibi = "max_position_embeddings" not in c
        x = w["model.embed_tokens.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = rms(x, w[p + "input_layernorm.weight"], eps)
            q, k, v = (
                t.view(n, heads, d)
                for t in F.linear(h, w[p + "self_attn.W_pack.weight"]).chunk(3, -1)
            )
            bias = None
            if alibi:
                bias = torch.tensor(self.slopes(heads), dtype=x.dtype)[:, None, None] * pos.to(
                    x.dtype
                )
            else:
                q, k = half_rope(q, pos, 10000.0), half_rope(k, pos, 10000.0)
            a = softmax_attention(q, k, v, pos[None] <= pos[:, None], bias)
            x = x + F.linear(a, w[p + "self_attn.o_proj.weight"])
            h = rms(x, w[p + "post_attention_layernorm.weight"], eps)
            g = F.silu(F.linear(h, w[p + "mlp.gate_proj.weight"])) * F.linear(
                h, w[p + "mlp.up_proj.weight"]
            )
            x = x + F.linear(g, w[p + "mlp.down_proj.weight"])
        head = w["lm_head.weight"]
        if self.vocab_norm:
            head = F.normalize(head)
        return F.linear(rms(x, w["model.norm.weight"], eps), head)

    @classmethod
    def slopes(cls, n):
        def power(m):
            start = 2 ** (-(2 ** -(math.log2(m) - 3)))
            return [start ** (i + 1) for i in range(m)]

        if math.log2(n).is_integer():
            return power(n)
        near = 2 ** math.floor(math.log2(n))
        return power(near) + cls.slopes(2 * near)[0::2][: n - near]


class ChatGLM1:
    """ChatGLM-6B. A prompt is any tokens, gmask and bos. The first position stays at gmask's; from
    bos on the second position counts up."""

    def __init__(self, c):
        self.c = c

    def shapes(self):
        c, h, f = self.c, self.c["hidden_size"], self.c["inner_hidden_size"]
        s = {"transformer.word_embeddings.weight": [c["vocab_size"], h]}

        def layer_norm(name):
            return {name + ".weight": [h], name + ".bias": [h]}

        def linear(name, rows, cols):
            return {name + ".weight": [rows, cols], name + ".bias": [rows]}

        for i in range(c["num_layers"]):
            p = f"transformer.layers.{i}."
            s |= layer_norm(p + "input_layernorm") | linear(
                p + "attention.query_key_value", 3 * h, h
            )
            s |= linear(p + "attention.dense", h, h) | layer_norm(p + "post_attention_layernorm")
            s |= linear(p + "mlp.dense_h_to_4h", f, h) | linear(p + "mlp.dense_4h_to_h", h, f)
        return (
            s | layer_norm("transformer.final_layernorm") | {"lm_head.weight": [c["vocab_size"], h]}
        )

    def logits(self, w, ids):
        c, n = self.c, len(ids)
        heads, d = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
        hidden, eps = c["hidden_size"], c["layernorm_epsilon"]
        context, mask_at = ids.index(c["bos_token_id"]), ids.index(c["gmask_token_id"])
        pos, block = torch.arange(n), torch.zeros(n, dtype=torch.long)
        pos[context:] = mask_at
        block[context:] = torch.arange(n - context) + 1
        j = torch.arange(n)
        seen = (j[None] <= j[:, None]) | (j[None] < context)
        skip = (2 * c["num_layers"]) ** 0.5

        def lin(name, x):
            return F.linear(x, w[name + ".weight"], w[name + ".bias"])

        def norm(name, x):
            return F.layer_norm(x, (hidden,), w[name + ".weight"], w[name + ".bias"], eps)

        x = w["transformer.word_embeddings.weight"][ids]
        for i in range(c["num_layers"]):
            p = f"transformer.layers.{i}."
            h = norm(p + "input_layernorm", x)
            q, k, v = lin(p + "attention.query_key_value", h).view(n, heads, 3 * d).chunk(3, -1)
            q, k = (
                torch.cat(
                    [
                        half_rope(t[..., : d // 2], pos, 10000.0),
                        half_rope(t[..., d // 2 :], block, 10000.0),
                    ],
                    -1,
                )
                for t in (q, k)
            )
            x = h * skip + lin(p + "attention.dense", softmax_attention(q, k, v, seen))
            h = norm(p + "post_attention_layernorm", x)
            x = h * skip + lin(
                p + "mlp.dense_4h_to_h", F.gelu(lin(p + "mlp.dense_h_to_4h", h), approximate="tanh")
            )
        return F.linear(norm("transformer.final_layernorm", x), w["lm_head.weight"])


class ChatGLM2:
    def __init__(self, c):
        self.c = c

    def shapes(self):
        c, h, f, d = self.c, self.c["hidden_size"], self.c["ffn_hidden_size"], self.c["kv_channels"]
        q = d * c["num_attention_heads"]
        groups = (
            c["multi_query_group_num"] if c["multi_query_attention"] else c["num_attention_heads"]
        )
        s = {"transformer.embedding.word_embeddings.weight": [c["padded_vocab_size"], h]}

        def linear(name, rows, cols, bias):
            return {name + ".weight": [rows, cols]} | ({name + ".bias": [rows]} if bias else {})

        for i in range(c["num_layers"]):
            p = f"transformer.encoder.layers.{i}."
            every = c["add_bias_linear"]
            s |= {p + "input_layernorm.weight": [h]}
            s |= linear(
                p + "self_attention.query_key_value",
                q + 2 * d * groups,
                h,
                c["add_qkv_bias"] or every,
            )
            s |= linear(p + "self_attention.dense", h, q, every) | {
                p + "post_attention_layernorm.weight": [h]
            }
            s |= linear(p + "mlp.dense_h_to_4h", 2 * f, h, every) | linear(
                p + "mlp.dense_4h_to_h", h, f, every
            )
        if c["post_layer_norm"]:
            s["transformer.encoder.final_layernorm.weight"] = [h]
        return s | {"transformer.output_layer.weight": [c["padded_vocab_size"], h]}

    def logits(self, w, ids):
        c, n, d, eps = self.c, len(ids), self.c["kv_channels"], self.c["layernorm_epsilon"]
        heads = c["num_attention_heads"]
        groups = c["multi_query_group_num"] if c["multi_query_attention"] else heads
        pos = torch.arange(n)

        def lin(name, x):
            return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

        def rope(t):
            r = d // 2
            theta = 10000.0 * c.get("rope_ratio", 1)
            a = pos[:, None].to(t.dtype) / theta ** (torch.arange(0, r, 2, dtype=t.dtype) / r)
            turn = torch.polar(torch.ones_like(a), a)[:, None]
            z = torch.view_as_complex(t[..., :r].reshape(n, -1, r // 2, 2).contiguous()) * turn
            return torch.cat([torch.view_as_real(z).reshape(n, -1, r), t[..., r:]], -1)

        x = w["transformer.embedding.word_embeddings.weight"][ids]
        for i in range(c["num_layers"]):
            p = f"transformer.encoder.layers.{i}."
            h = rms(x, w[p + "input_layernorm.weight"], eps)
            skip = h if c["apply_residual_connection_post_layernorm"] else x
            q, k, v = (
                lin(p + "self_attention.query_key_value", h)
                .view(n, -1, d)
                .split([heads, groups, groups], 1)
            )
            x = skip + lin(
                p + "self_attention.dense",
                softmax_attention(rope(q), rope(k), v, pos[None] <= pos[:, None]),
            )
            h = rms(x, w[p + "post_attention_layernorm.weight"], eps)
            skip = h if c["apply_residual_connection_post_layernorm"] else x
            g, u = lin(p + "mlp.dense_h_to_4h", h).chunk(2, -1)
            x = skip + lin(p + "mlp.dense_4h_to_h", F.silu(g) * u)
        if c["post_layer_norm"]:
            x = rms(x, w["transformer.encoder.final_layernorm.weight"], eps)
        return F.linear(x, w["transformer.output_layer.weight"])


class InternLM2:
    """q, k and v of a key head are adjacent; beyond max_position_embeddings `dynamic` scales the base with the length."""

    def __init__(self, c):
        self.c = c

    def shapes(self):
        c, h, f = self.c, self.c["hidden_size"], self.c["intermediate_size"]
        groups, d = c["num_key_value_heads"], h // c["num_attention_heads"]
        rows = h + 2 * groups * d
        s = {"model.tok_embeddings.weight": [c["vocab_size"], h]}
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            s |= {
                p + "attention_norm.weight": [h],
                p + "attention.wqkv.weight": [rows, h],
                p + "attention.wo.weight": [h, h],
            }
            s |= (
                {p + "attention.wqkv.bias": [rows], p + "attention.wo.bias": [h]}
                if c["bias"]
                else {}
            )
            s |= {
                p + "ffn_norm.weight": [h],
                p + "feed_forward.w1.weight": [f, h],
                p + "feed_forward.w3.weight": [f, h],
                p + "feed_forward.w2.weight": [h, f],
            }
        return s | {"model.norm.weight": [h], "output.weight": [c["vocab_size"], h]}

    def logits(self, w, ids):
        c, n, eps = self.c, len(ids), self.c["rms_norm_eps"]
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        each, d = heads // groups, c["hidden_size"] // heads
        pos, theta, scaling = torch.arange(n), c["rope_theta"], c.get("rope_scaling")
        if scaling and n > c["max_position_embeddings"]:
            theta *= (
                scaling["factor"] * n / c["max_position_embeddings"] - (scaling["factor"] - 1)
            ) ** (d / (d - 2))

        def lin(name, x):
            return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

        x = w["model.tok_embeddings.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            qkv = lin(p + "attention.wqkv", rms(x, w[p + "attention_norm.weight"], eps)).view(
                n, groups, each + 2, d
            )
            q, k, v = qkv[:, :, :each].reshape(n, heads, d), qkv[:, :, -2], qkv[:, :, -1]
            a = softmax_attention(
                half_rope(q, pos, theta), half_rope(k, pos, theta), v, pos[None] <= pos[:, None]
            )
            x = x + lin(p + "attention.wo", a)
            h = rms(x, w[p + "ffn_norm.weight"], eps)
            x = x + lin(
                p + "feed_forward.w2",
                F.silu(lin(p + "feed_forward.w1", h)) * lin(p + "feed_forward.w3", h),
            )
        return F.linear(rms(x, w["model.norm.weight"], eps), w["output.weight"])


class LlamaLike:
    """Common parts of relatives of Llama; subclasses define names and factors. biased: parts with a bias."""

    base, layer, final, head = "model.embed_tokens", "model.layers.{}.", "model.norm", "lm_head"
    parts = dict(
        n1="input_layernorm",
        q="self_attn.q_proj",
        k="self_attn.k_proj",
        v="self_attn.v_proj",
        o="self_attn.o_proj",
        n2="post_attention_layernorm",
        gate="mlp.gate_proj",
        up="mlp.up_proj",
        down="mlp.down_proj",
    )
    biased = ()

    def __init__(self, c):
        self.c, self.heads = c, c["num_attention_heads"]
        self.groups = c.get("num_key_value_heads") or self.heads
        self.layers = c.get("num_hidden_layers") or c["num_layers"]
        self.dim, self.eps = (
            c["hidden_size"] // self.heads,
            c.get("rms_norm_eps") or c["layer_norm_epsilon"],
        )
        self.theta, self.width = c.get("rope_theta", 10000.0), c["intermediate_size"]

    def rows(self, i):
        """Return the number of rows of each matrix of a layer."""
        h, f, d = self.c["hidden_size"], self.width, self.dim
        return dict(
            n1=[h],
            q=[self.heads * d, h],
            k=[self.groups * d, h],
            v=[self.groups * d, h],
            o=[h, self.heads * d],
            n2=[h],
            gate=[f, h],
            up=[f, h],
            down=[h, f],
        )

    def shapes(self):
        s = {self.base + ".weight": [self.c["vocab_size"], self.c["hidden_size"]]}
        named = {self.final: ("final", [self.c["hidden_size"]])}
        for i in range(self.layers):
            named |= {
                self.layer.format(i) + self.parts.get(part, part): (part, shape)
                for part, shape in self.rows(i).items()
            }
        for name, (part, shape) in named.items():
            s |= {name + ".weight": shape} | (
                {name + ".bias": shape[:1]} if part in self.biased else {}
            )
        return s | (
            {}
            if self.c["tie_word_embeddings"]
            else {self.head + ".weight": [self.c["vocab_size"], self.c["hidden_size"]]}
        )

    def factors(self):
        """Return the factors of the embedding, of block outputs, and of the logits."""
        return 1.0, 1.0, 1.0

    def norm(self, x, w, b):
        return rms(x, w, self.eps)

    def qkv(self, lin, y):
        return (lin(part, y) for part in "qkv")

    def ffn(self, i, lin, y):
        return lin("down", F.silu(lin("gate", y)) * lin("up", y))

    def logits(self, w, ids):
        n, pos = len(ids), torch.arange(len(ids))
        embed, block, out = self.factors()
        x = w[self.base + ".weight"][ids] * embed
        for i in range(self.layers):

            def pair(part):
                name = self.layer.format(i) + self.parts.get(part, part)
                return w[name + ".weight"], w.get(name + ".bias")

            def lin(part, y):
                return F.linear(y, *pair(part))

            q, k, v = (t.view(n, -1, self.dim) for t in self.qkv(lin, self.norm(x, *pair("n1"))))
            q, k = (half_rope(t, pos, self.theta) for t in (q, k))
            x = x + block * lin("o", softmax_attention(q, k, v, pos[None] <= pos[:, None]))
            x = x + block * self.ffn(i, lin, self.norm(x, *pair("n2")))
        return out * F.linear(
            self.norm(x, w[self.final + ".weight"], w.get(self.final + ".bias")),
            w.get(self.head + ".weight", w[self.base + ".weight"]),
        )


class Exaone(LlamaLike):
    base, layer, final = "transformer.wte", "transformer.h.{}.", "transformer.ln_f"
    parts = dict(
        n1="ln_1",
        q="attn.attention.q_proj",
        k="attn.attention.k_proj",
        v="attn.attention.v_proj",
        o="attn.attention.out_proj",
        n2="ln_2",
        gate="mlp.c_fc_0",
        up="mlp.c_fc_1",
        down="mlp.c_proj",
    )


class MiniCPM(LlamaLike):
    def factors(self):
        c = self.c
        return (
            c["scale_emb"],
            c["scale_depth"] / c["num_hidden_layers"] ** 0.5,
            c["dim_model_base"] / c["hidden_size"],
        )


class Pangu(LlamaLike):
    """Pangu. bias: q, k, v and o have biases."""

    def __init__(self, c):
        super().__init__(c)
        self.biased = tuple("qkvo") if c.get("bias") else ()


class MiMo(LlamaLike):
    """Qwen2 followed by an MTP layer"""

    biased = tuple("qkv")

    def shapes(self):
        own = super().shapes()
        return own | {
            n.replace("model.layers.0.", "model.mtp_layers.0."): s
            for n, s in own.items()
            if "layers.0." in n
        }


class Orion(LlamaLike):
    """Llama with layer norms, although its configuration names rms."""

    biased = "n1", "n2", "final"

    def norm(self, x, w, b):
        return F.layer_norm(x, x.shape[-1:], w, b, self.eps)


class Qwen(LlamaLike):
    """q, k and v in one tensor with a bias; w2 is the gate, and intermediate_size counts gate and up together."""

    base, layer, final = "transformer.wte", "transformer.h.{}.", "transformer.ln_f"
    parts = dict(
        n1="ln_1",
        qkv="attn.c_attn",
        o="attn.c_proj",
        n2="ln_2",
        gate="mlp.w2",
        up="mlp.w1",
        down="mlp.c_proj",
    )
    biased = ("qkv",)

    def __init__(self, c):
        super().__init__(c)
        self.theta, self.width, self.dim = (
            c["rotary_emb_base"],
            c["intermediate_size"] // 2,
            c["kv_channels"],
        )

    def rows(self, i):
        own = super().rows(i)
        return {k: v for k, v in own.items() if k not in "qkv"} | dict(
            qkv=[3 * self.heads * self.dim, self.c["hidden_size"]]
        )

    def qkv(self, lin, y):
        return lin("qkv", y).chunk(3, -1)


class DeepSeek(LlamaLike):
    """DeepSeekMoE: a softmax over all experts, top-k selection with or without renormalisation, and
    shared experts; the first layers are dense."""

    def __init__(self, c):
        super().__init__(c)
        self.experts, self.shared = (
            c.get("n_routed_experts") or c["num_experts"],
            c.get("n_shared_experts", c.get("num_shared_experts")),
        )

    def sparse(self, i):
        return i >= self.c["first_k_dense_replace"] and i % self.c.get("moe_layer_freq", 1) == 0

    def mlp(self, prefix, f):
        h = self.c["hidden_size"]
        return {
            prefix + "gate_proj": [f, h],
            prefix + "up_proj": [f, h],
            prefix + "down_proj": [h, f],
        }

    def rows(self, i):
        own, c = super().rows(i), self.c
        if not self.sparse(i):
            return own
        own = {k: v for k, v in own.items() if k not in ("gate", "up", "down")} | {
            "mlp.gate": [self.experts, c["hidden_size"]]
        }
        for e in range(self.experts):
            own |= self.mlp(f"mlp.experts.{e}.", c["moe_intermediate_size"])
        return own | (
            self.mlp("mlp.shared_experts.", self.shared * c["moe_intermediate_size"])
            if self.shared
            else {}
        )

    def ffn(self, i, lin, y):
        if not self.sparse(i):
            return super().ffn(i, lin, y)

        def one(prefix, x):
            return lin(
                prefix + "down_proj",
                F.silu(lin(prefix + "gate_proj", x)) * lin(prefix + "up_proj", x),
            )

        weight, chosen = lin("mlp.gate", y).softmax(-1).topk(self.c["num_experts_per_tok"], -1)
        if self.c["norm_topk_prob"]:
            weight = weight / weight.sum(-1, keepdim=True)
        out = one("mlp.shared_experts.", y) if self.shared else torch.zeros_like(y)
        for t in range(len(y)):
            for f, e in zip(weight[t], chosen[t].tolist()):
                out[t] = out[t] + f * one(f"mlp.experts.{e}.", y[t])
        return out


class Ling(DeepSeek):
    """DeepSeekMoE with q, k and v in one tensor"""

    base = "model.word_embeddings"
    parts = DeepSeek.parts | dict(qkv="attention.query_key_value", o="attention.dense")

    def rows(self, i):
        own = super().rows(i)
        return {k: v for k, v in own.items() if k not in "qkv"} | dict(
            qkv=[sum(own[k][0] for k in "qkv"), self.c["hidden_size"]]
        )

    def qkv(self, lin, y):
        return lin("qkv", y).split(
            [self.heads * self.dim, self.groups * self.dim, self.groups * self.dim], -1
        )
