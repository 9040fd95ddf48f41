#!/bin/sh
# Tests and figures on the GPU of this machine (tests/gpu/gpu_check.py says what), written to tests/gpu/results/.
# Works from a checkout with build/ or, where nothing can be built, with what tests/gpu/pack.sh made.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if ! "$python" -c 'import numpy' 2>/dev/null; then
	python=$(tools/venv.sh)/bin/python
fi
name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
out=${OUT:-tests/gpu/results}/${name:-no-gpu}.json
exec "$python" tests/gpu/gpu_check.py --out "$out" "$@"
