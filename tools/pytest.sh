#!/bin/sh
# Run pytest with the Python environment, the bindings and the demo model. Usage: tools/pytest.sh tests/e2e/test_cli.py -k name
set -eu
cd "$(dirname "$0")/.."
venv=$(tools/venv.sh)
LLMC_SMOLLM2=$(tools/smollm2.sh)
export LLMC_SMOLLM2 PYTHONPATH="bindings/python${PYTHONPATH:+:$PYTHONPATH}"
exec "$venv/bin/python" -m pytest -q --rootdir=. -p no:cacheprovider "$@"
