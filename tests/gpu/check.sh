#!/bin/sh
# Tests and figures on the GPU of this machine, written to tests/gpu/results/. See
# tests/gpu/gpu_check.py --help for stages and options. Works in a built checkout, and in the folder
# that tests/gpu/pack.sh makes for machines without a compiler.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if [ -x tools/venv.sh ] && ! "$python" -c 'import numpy' 2>/dev/null; then
	venv=$(tools/venv.sh) && python=$venv/bin/python
fi
exec "$python" tests/gpu/gpu_check.py "$@"
