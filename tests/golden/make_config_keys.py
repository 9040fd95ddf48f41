#!/usr/bin/env python3
"""Write tests/golden/config-keys.json: golden models whose configuration differs in one key, and what transformers computes.

For each model type of make_models.py every key of its configuration, class defaults included, gets other values, one at a time.
Variants that transformers refuses, or whose tensors have other names or shapes, are left out. A variant's expectation is a
projection of three rows of logits (project()). tests/e2e/test_config_keys.py runs llmc on them. Needs torch and transformers 5.

    python tests/golden/make_config_keys.py [CASE ...]     the cases named are written anew, the others are kept
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import warnings

import numpy as np

import weights as W

OUT = os.path.join(W.HERE, "config-keys.json")
# Keys that do not change a forward pass in evaluation, and keys that concern files or training.
IDLE = re.compile(
    r".*dropout.*|.*_pdrop|.*initializer.*|.*token_id$|output_.*|return_dict|use_cache|_.*|id2label|label2id|architectures"
    r"|transformers_version|torch_dtype|dtype|.*aux_loss.*|model_type|problem_type|chunk_size_feed_forward|is_encoder_decoder"
    r"|is_decoder|add_cross_attention|cross_attention_hidden_size|pretraining_tp|router_jitter_noise|.*z_loss.*|summary_.*"
    r"|use_mamba_kernels|num_logits_to_keep|rope_parameters|rope_scaling|quantization_config|.*_implementation"
)
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")


def values(key, v):
    """Yield other values of a key."""
    if isinstance(v, bool):
        yield not v
    elif v is None:
        yield from (True, 3, 0.5)
    elif isinstance(v, int):
        yield from {v + 1, v // 2, 1 if v == 0 else 0} - {v}
    elif isinstance(v, float):
        yield from (v * 1.5 + 0.1, v * 0.5)
    elif isinstance(v, str) and v in ACTIVATIONS:
        yield from (a for a in ACTIVATIONS if a != v)
    elif isinstance(v, list) and v and all(isinstance(x, (str, int)) for x in v):
        for other in (v[::-1], v[1:] + v[:1], [v[0]] * len(v), [v[-1]] * len(v)):
            if other != v:
                yield other


def rotations(config):
    """Yield variants of a configuration's rotary positions."""
    theta = config.get("rope_theta") or 100.0
    half = (config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]) // 2
    short, long = [1.0] * half, [1.0 + 0.25 * i for i in range(half)]
    types = [
        dict(rope_type="linear", factor=2.0),
        dict(rope_type="dynamic", factor=2.0),
        dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
        dict(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
        dict(
            rope_type="longrope",
            short_factor=short,
            long_factor=long,
            original_max_position_embeddings=16,
        ),
        dict(rope_type="proportional", partial_rotary_factor=0.5),
        dict(rope_type="default", partial_rotary_factor=0.5),
        dict(rope_type="linear", factor=2.0, partial_rotary_factor=0.5),
        dict(rope_type="default", rope_theta=3 * theta),
    ]
    for t in types:
        given = dict(rope_theta=theta) | t
        yield dict(rope_parameters=given)
        layers = config.get("layer_types")
        for kind in sorted(set(layers or ())) if len(set(layers or ())) > 1 else ():
            plain = dict(rope_theta=theta, rope_type="default")
            yield dict(
                rope_parameters={k: given if k == kind else plain for k in sorted(set(layers))}
            )
        if "partial_rotary_factor" not in t and "rope_theta" not in t:
            yield dict(rope_scaling=t)
    yield dict(partial_rotary_factor=0.5)


def variants(config, defaults):
    seen = []
    for key, v in (defaults | config).items():
        if not IDLE.fullmatch(key):
            seen += [{key: other} for other in values(key, v)]
    return seen + list(rotations(defaults | config)) if "num_attention_heads" in defaults else seen


def project(logits):
    """Reduce logits [tokens, vocab] to 12 numbers: the dot products of three rows with four random
    vectors."""
    vocab = logits.shape[1]
    r = W.noise("config-keys", 4 * vocab).reshape(4, vocab) / np.sqrt(vocab)
    rows = logits[[len(logits) // 8, len(logits) // 2, -1]].astype(np.float64)
    return (rows @ r.T).ravel()


class Model:
    """A case of make_models.py; its configuration is changed, its weights are kept."""

    def __init__(self, name, case, folder):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        self.torch, self.auto, self.config_class = torch, AutoModelForCausalLM, AutoConfig
        self.golden = W.Golden(name)
        self.folder, self.case = folder, case
        self.golden.build(folder)
        shapes = {case["strip"] + n: s for n, s in self.golden.tensors.items()}
        self.shapes = shapes
        w = {
            n: W.rounded(
                W.tensor(self.golden.seed, n.removeprefix(case["strip"]), s, case["plus_one"]),
                case["dtype"],
            )
            for n, s in shapes.items()
        }
        self.given = w
        W.write_safetensors(
            os.path.join(folder, "model.safetensors"),
            {n: np.ascontiguousarray(x).reshape(x.shape) for n, x in w.items()},
            "f32",
        )
        self.missing = None

    def logits(self, config):
        """Return the logits, or None if transformers refuses the configuration or its tensors differ."""
        with open(os.path.join(self.folder, "config.json"), "w") as f:
            json.dump(config, f)
        torch, quiet = self.torch, io.StringIO()
        try:
            with (
                contextlib.redirect_stderr(quiet),
                contextlib.redirect_stdout(quiet),
                torch.no_grad(),
            ):
                model, info = self.auto.from_pretrained(
                    self.folder,
                    dtype=torch.float32,
                    attn_implementation="eager",
                    experts_implementation="eager",
                    output_loading_info=True,
                )
                for n, p in model.named_parameters():
                    if n in self.given and list(p.shape) == self.shapes[n]:
                        p.data.copy_(torch.from_numpy(self.given[n]))
                state = {k: sorted(map(str, v)) for k, v in info.items() if v and k != "error_msgs"}
                if self.missing is None:
                    self.missing = state
                if state != self.missing:
                    return None
                out = model.eval()(torch.tensor([self.golden.prompt]), use_cache=False).logits[0]
                return out.float().numpy() if torch.isfinite(out).all() else None
        except Exception:
            return None


def make(name, case):
    with tempfile.TemporaryDirectory() as folder:
        m = Model(name, case, folder)
        base = m.golden.config
        logits = m.logits(base)
        if logits is None or np.abs(logits - m.golden.logits).max() > 1e-4 * np.ptp(
            m.golden.logits
        ):
            return None
        defaults = m.config_class.from_pretrained(folder).to_dict()
        kept = []
        for change in variants(base, defaults):
            got = m.logits(base | change)
            if got is not None:
                kept.append([change, [float(f"{x:.6g}") for x in project(got)]])
        return dict(spread=float(f"{np.ptp(m.golden.logits):.6g}"), variants=kept)


def one_per_type(cases):
    """Return one case for each model type: the case without variations in fp32, if there is one."""
    chosen = {}
    for name, c in cases.items():
        if c["other"] or c["vision"] or c["modern"]:
            continue
        key = name.split("-")[0], c["config"]["model_type"]
        rank = (c["dtype"] != "f32", not name.endswith("-plain"), bool(c["set"]), len(name), name)
        if key not in chosen or rank < chosen[key][0]:
            chosen[key] = rank, name
    return sorted(name for _, name in chosen.values())


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    import make_models

    done = json.load(open(OUT)) if os.path.exists(OUT) else {}
    for name in sys.argv[1:] or one_per_type(make_models.CASES):
        made = make(name, make_models.CASES[name])
        print(
            f"{name:34}",
            len(made["variants"]) if made else "left out: transformers loads another model",
            flush=True,
        )
        if made:
            done[name] = made
        with open(OUT, "w") as f:
            rows = []
            for n, d in sorted(done.items()):
                lines = ",\n".join("   " + json.dumps(v) for v in d["variants"])
                rows.append(f' "{n}": {{"spread": {d["spread"]}, "variants": [\n{lines}\n ]}}')
            f.write("{\n" + ",\n".join(rows) + "\n}\n")
