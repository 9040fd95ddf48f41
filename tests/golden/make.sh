#!/bin/sh
# Regenerate the goldens. Needs torch, transformers, safetensors, gguf, numpy, tokenizers in the Python of PYTHON,
# and llama.cpp's tools for the quantised files (make bench-peer builds them). See README.md in this folder.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
"$python" tests/golden/make_dequant.py
"$python" tests/golden/make_images.py
"$python" tests/golden/make_image_rows.py
"$python" tests/golden/make_ops.py
"$python" tests/golden/make_sample.py
"$python" tests/golden/make_samplers.py
"$python" tests/golden/make_configs.py
"$python" tests/golden/make_models.py
"$python" tests/golden/make_vision.py
"$python" tests/golden/make_config_keys.py
"$python" tests/golden/make_kv.py
"$python" tests/golden/make_gguf.py
"$python" tests/golden/make_mixture_gguf.py
LLMC_GOLDEN=1 make unit-test_graph
"$python" tests/golden/rank_plans.py
"$python" tests/golden/smollm2/make.py "$(tools/smollm2.sh)"
