#!/usr/bin/env python3
"""Write tests/golden/flm: models written by FastLLM's own exporter, the logits of transformers with the weights that FastLLM reads from them, and
FastLLM's own tokenization.

Needs ftllm, torch, transformers, sentencepiece.  Run:  python tests/golden/make_flm.py
FastLLM computes with int8 activations, so its logits are compared within 0.1 of their magnitude only. The values in a file come from flm_file.py,
in numpy, and are exact."""

import ctypes
import io
import json
import os
import pathlib
import sys

import numpy as np
import sentencepiece
import torch
from ftllm import torch2flm
from transformers import LlamaConfig, LlamaForCausalLM

import flm_file

HERE = pathlib.Path(__file__).parent / "flm"
TEXT = (
    "the quick brown fox jumps over the lazy dog. a small model knows few words and says them again. hello world, how are you today? "
    "numbers like 1 2 3 and names like Ann or Bob. "
).split(". ")
TEXTS = [
    "hello world",
    "the dog  jumps",
    " a b",
    "Zebra 42 über",
    "",
    "<s>x",
    "\n two\nlines\n",
    "   ",
]
PROMPTS = dict(
    pre_prompt="Be brief.\n", user_role="<FLM_FIX_TOKEN_1>Q: ", bot_role="\nA: ", history_sep="'\n"
)
CASES = {
    "f16": ("float16", 100),
    "int8": ("int8", 96),
    "int4": ("int4", 100),
    "int4-groups": ("int4g32", 160),
}  # 100: not a multiple of 32


class Pieces:
    """A tokenizer with a sentencepiece model, reduced to the functions that torch2flm calls."""

    bos_token, eos_token, unk_token, pad_token = "<s>", "</s>", "<unk>", None
    all_special_tokens = ["<s>", "</s>", "<unk>"]

    def __init__(self, path):
        self.vocab_file = path
        self.sp_model = sentencepiece.SentencePieceProcessor(model_file=path)


def vocabulary():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 4),
        model_writer=out,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), "flm.model")
    pathlib.Path(path).write_bytes(out.getvalue())
    return Pieces(path)


def llama(vocab, width):
    torch.manual_seed(3)
    m = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=width,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=vocab,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim >= 2:
                p.mul_(3 + torch.rand(p.shape[-1]) * 2)
    m.config.__dict__["model_type"] = "llama"  # the exporter reads the model type from this dict
    return m.eval().float()


def main():
    HERE.mkdir(exist_ok=True)
    tokenizer = vocabulary()
    n = tokenizer.sp_model.piece_size()
    ids = torch.randint(3, n, (1, 17), generator=torch.Generator().manual_seed(5))
    cut = {}
    for name, (kind, width) in CASES.items():
        path = HERE / f"{name}.flm"
        torch2flm.tofile(str(path), llama(n, width), tokenizer, dtype=kind, **PROMPTS)
        m = llama(n, width)
        m.load_state_dict(
            {k: torch.from_numpy(v.copy()) for k, v in flm_file.read(str(path)).weights.items()}
        )
        logits = m(ids).logits[0].detach().numpy()
        np.savez_compressed(
            HERE / f"{name}.npz", prompt=ids[0].numpy(), logits=logits.astype(np.float32)
        )
        from ftllm import llm

        q, lib = llm.model(str(path)), llm.fastllm_lib
        stops, stop = q.stop_token_ctypes(None)
        h = lib.launch_response_llm_model(
            q.model,
            ids.shape[1],
            (ctypes.c_int * ids.shape[1])(*ids[0].tolist()),
            1,
            0,
            False,
            1,
            1,
            1,
            1,
            True,
            stops,
            stop,
        )
        got = (ctypes.c_float * n)()
        lib.fetch_response_logits_llm_model(q.model, h, got)
        off = float(np.linalg.norm(np.array(got) - logits[-1]) / np.linalg.norm(logits[-1]))
        print(name, "FastLLM's own logits:", off)
        assert off < 0.1
        cut = {
            "texts": {t: q.encode(t) for t in TEXTS if t},
            "prompt": q.get_prompt("Why?", [("Hi", "Yes")]),
        }
    (HERE / "text.json").write_text(json.dumps(cut, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # exit at once, because FastLLM's threads never exit
