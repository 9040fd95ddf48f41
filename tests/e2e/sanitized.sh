#!/bin/bash
# Sanitized llmc with sanitized kernels. Usage: sanitized.sh BUILD PART
#   models    whole models; one storage type per shared implementation, all with LLMC_CHECK_ALL=1
#   binding   the Python binding on a sanitized library
#   engine    test_engine on sanitized kernels
#   soak      one minute of every kind of client against a server with all features; freed memory is returned to the system early
#   mixed     64 requests at once
set -eu
build=$1
llmc=$build/llmc
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Models have a cache of their own. Built kernels come from the outer cache, because its keys
# include the compiler flags.
kernels=${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}/kernels
mkdir -p "$tmp/cache" && mkdir -p "$(dirname "$kernels")" && { [ -d "$kernels" ] || mkdir -m 700 "$kernels"; } && ln -s "$(realpath "$kernels")" "$tmp/cache/kernels"
# Kernels by gcc, which takes 2 s with these flags; clang takes 30 s. -nodefaultlibs: llmc, linked
# by clang, has the sanitizers' runtime.
export LLMC_CC=gcc LLMC_CACHE=$tmp/cache LLMC_KERNEL_CFLAGS="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -nodefaultlibs"
case $2 in
binding)
	# Python itself leaks
	export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 PYTHONPATH=bindings/python LLMC_LIBRARY=$PWD/$build/libllmc.so
	runtime=$("$(tools/clang.sh)" -print-file-name="libclang_rt.asan-$(uname -m).so")
	LD_PRELOAD=$runtime "$(tools/venv.sh)/bin/python" -m pytest -q -p no:cacheprovider tests/e2e/test_binding.py \
		-k "closed or random or wrong or threads or environment"
	exit
	;;
engine)
	LLMC_TEST_QUICK=1 LLMC_TEST_ARCH=generic "$build/unit/test_engine"
	exit
	;;
soak)
	ASAN_OPTIONS=${ASAN_OPTIONS:-}:quarantine_size_mb=8 LLMC_TEST_BUILD=$build PYTHONPATH=bindings/python "$(tools/venv.sh)/bin/python" tests/serve/soak.py 60 6
	exit
	;;
mixed)
	LLMC_TEST_BUILD=$build tools/pytest.sh tests/serve/test_mixed.py
	exit
	;;
esac
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
