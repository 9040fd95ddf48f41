#!/usr/bin/env python3
"""Start llmc serve with the options that llama.cpp's server tests give llama-server.

The model is LLMC_SUITE_MODEL. An option without a counterpart ends the process with status 1.
"""

import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAME = {
    "--port": "--port",
    "--host": "--host",
    "--parallel": "--seqs",
    "--batch-size": "--chunk",
    "--threads": "--threads",
    "--api-key": "--api-key",
    "--models-dir": "--models-dir",
    "--chat-template": "--chat-template",
    "--chat-template-file": "--chat-template",
    "--cors-origins": "--allow-origin",
}
# options with a value that change nothing here: the model, sampling defaults, sizes of buffers
DROPPED = {
    "--temp",
    "--seed",
    "--hf-repo",
    "--hf-file",
    "--model",
    "--model-url",
    "--ubatch-size",
    "--n-gpu-layers",
    "--cache-ram",
    "-fa",
    "--reasoning-format",
    "--n-predict",
}
# flags that the server needs no option for, because it always acts like this
IMPLIED = {
    "--offline",
    "--cont-batching",
    "--metrics",
    "--slots",
    "--no-slots",
    "--jinja",
    "--no-jinja",
    "--swa-full",
    "--no-mmproj",
    "--verbose",
    "--no-cache-idle-slots",
}


def translate(args):
    """The arguments of llmc serve, or the option that has no counterpart."""
    out, slots, context, names, one_cache, think = [], 1, None, "", False, True
    args = list(args)
    while args:
        name = args.pop(0)
        if name in IMPLIED:
            continue
        if name == "--alias":
            names = args.pop(0)
        elif name == "--reasoning":
            think = args.pop(0) != "off"
        elif name == "--kv-unified":
            one_cache = True
        elif name == "--ctx-size":
            context = int(args.pop(0))
        elif name in SAME:
            slots = int(args[0]) if name == "--parallel" else slots
            out += [SAME[name], args.pop(0)]
        elif name in DROPPED:
            args.pop(0)
        else:
            return None, name
    if "--models-dir" not in out:
        out += ["--model-name", names + ",*"]  # llama-server answers to any name
    # llama-server always sets this variable
    out += ["--chat-template-kwargs", json.dumps({"enable_thinking": think})]
    if context and one_cache:
        out += ["--context", str(context), "--kv-tokens", str(context)]
    elif context:
        out += ["--context", str(max(context // slots, 64))]
    return out, None


def main():
    args, unknown = translate(sys.argv[1:])
    if unknown:
        sys.exit(f"llama_server: llmc serve has no {re.sub('^-+', '', unknown)}")
    program = os.path.join(ROOT, os.environ.get("LLMC_TEST_BUILD", "build"), "llmc")
    os.execv(program, [program, "serve", os.environ["LLMC_SUITE_MODEL"], *args])


if __name__ == "__main__":
    main()
