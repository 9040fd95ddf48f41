#!/bin/bash
# Whole models through a sanitized llmc, with the kernels sanitized too. Usage: sanitized.sh LLMC SANITIZER_FLAGS
# Of the storage types that share their code one runs each; with LLMC_CHECK_ALL all do.
set -eu
llmc=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# models of its own, built code of the cache that it was started with: flags are part of its keys
kernels=${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}/kernels
mkdir -p "$tmp/cache" && mkdir -m 700 -p "$kernels" && ln -s "$(realpath "$kernels")" "$tmp/cache/kernels"
export LLMC_CACHE=$tmp/cache LLMC_KERNEL_CFLAGS="-O1 -g1 $2"
n=0
run() {
	"$llmc" "$@" >"$tmp/out" 2>"$tmp/err" || { echo "failed ($?): llmc $*"; tail -n 60 "$tmp/err"; exit 1; }
	n=$((n + 1))
}
tokens=1,2,3,5,7,11,13,17,19,23,29,31,37,41,43,47,53,59,61,67,71,73,79,83,89,97,1,2,3,4,5,6,7,8,9,10
archs="generic v3"
grep -q avx2 /proc/cpuinfo || archs="generic"
grep -q avx512_vnni /proc/cpuinfo && archs="$archs v4"
for arch in $archs; do
	run run configs/tiny.yaml --random-weights --arch "$arch" --tokens $tokens -n 4 --ignore-eos --json --threads 2
done
storages="q5_1 bf16"
[ -z "${LLMC_CHECK_ALL:-}" ] || storages="$storages q8_0 f32 q4_1 q4_0 q5_0 f16"
for storage in $storages; do
	run run configs/tiny.yaml --random-weights --arch "${archs##* }" --set "storage.default=$storage" --tokens $tokens -n 2 --ignore-eos --json
done
run run configs/tiny.yaml --random-weights --device ref --tokens $tokens -n 2 --ignore-eos --json
run verify configs/tiny.yaml --random-weights --arch generic
LLMC_TEST_QUICK=1 LLMC_TEST_ARCH=generic "$(dirname "$llmc")/unit/test_engine" >"$tmp/out" 2>&1 || { tail -n 60 "$tmp/out"; exit 1; }
if [ -n "${LLMC_CHECK_ALL:-}" ]; then # a server with everything on: every kind of client, whose memory is freed for good soon; then 64 requests at once
	ASAN_OPTIONS=${ASAN_OPTIONS:-}:quarantine_size_mb=8 LLMC_TEST_BUILD=$(dirname "$llmc") PYTHONPATH=bindings/python "$(tools/venv.sh)/bin/python" tests/serve/soak.py 60 6
	LLMC_TEST_BUILD=$(dirname "$llmc") PYTHONPATH=bindings/python "$(tools/venv.sh)/bin/python" -m pytest -q -p no:cacheprovider tests/serve/test_mixed.py
fi
run compile configs/llama2-70b.yaml -o "$tmp/70b"
run plan configs/qwen3-8b.yaml --json
for wrong in /nonexistent README.md configs; do
	if "$llmc" run "$wrong" --tokens 1 >/dev/null 2>"$tmp/err"; then
		echo "llmc run $wrong should have failed"
		exit 1
	fi
	if grep -q -e Sanitizer -e "runtime error" "$tmp/err"; then
		cat "$tmp/err"
		exit 1
	fi
	n=$((n + 1))
done
echo "sanitized: $n runs clean"
