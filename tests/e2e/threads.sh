#!/bin/bash
# Tests of the threads of llmc and of its kernels under TSan. Usage: threads.sh BUILD PART
#   models    sessions, packing and kernel building of whole models
#   engine    many callers of one engine
#   names     models of a server whose engines open and close
#   calls     hostile calls of the library from several threads
#   soak      one minute of every kind of client against a server with all features
#   mixed     64 requests at once, whose answers equal those of each alone
set -eu
build=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Models have a cache of their own. Built kernels come from the outer cache, because its keys
# include the compiler flags.
kernels=${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}/kernels
mkdir -p "$tmp/cache" && mkdir -p "$(dirname "$kernels")" && { [ -d "$kernels" ] || mkdir -m 700 "$kernels"; } && ln -s "$(realpath "$kernels")" "$tmp/cache/kernels"
export LLMC_CACHE=$tmp/cache LLMC_KERNEL_CFLAGS="-O1 -g1 -fsanitize=thread" LLMC_TEST_BUILD=$build
tokens=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36
case $2 in
models)
	for threads in 2 4; do
		"$build/llmc" run configs/tiny.yaml --random-weights --arch generic --threads $threads --tokens $tokens -n 8 --ignore-eos --json >/dev/null
	done
	;;
engine) LLMC_TEST_QUICK=1 LLMC_TEST_ARCH=generic "$build/unit/test_engine" ;;
names) "$build/unit/test_serve_models" ;;
calls) "$build/unit/test_hostile_calls" ;;
soak) PYTHONPATH=bindings/python "$(tools/venv.sh)/bin/python" tests/serve/soak.py 60 6 ;;
mixed) tools/pytest.sh tests/serve/test_mixed.py ;;
*) echo "threads.sh: no part \"$2\"" && exit 2 ;;
esac
echo "threads: clean"
