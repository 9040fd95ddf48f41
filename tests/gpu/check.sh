#!/bin/sh
# Tests and figures on the GPU of this machine, written to tests/gpu/results/: tests/gpu/gpu_check.py --help says what, and with which options.
# Works from a checkout that is built, and from what tests/gpu/pack.sh made, where nothing can be built.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if [ -x tools/venv.sh ] && ! "$python" -c 'import numpy' 2>/dev/null; then
	venv=$(tools/venv.sh) && python=$venv/bin/python
fi
exec "$python" tests/gpu/gpu_check.py "$@"
