"""A minimal tokenizer for tests of chat templates."""

SMALL = {
    "added_tokens": [
        {
            "id": i,
            "content": t,
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for i, t in enumerate(["<unk>", "<s>", "</s>"])
    ],
    "model": {
        "type": "BPE",
        "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3},
        "merges": [],
        "unk_token": "<unk>",
    },
    "decoder": {"type": "Fuse"},
}
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
