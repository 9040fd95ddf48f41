#!/bin/sh
# Fetch the sources of llama-cpp-python (MIT), which bring llama.cpp's server tests and the chat templates that these
# use, check their SHA-256, and print the folder of the tests in the cache. LLMC_LLAMACPP_TESTS names an existing tools/server/tests instead.
set -eu
version=0.3.36
sum=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
cache=${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}/downloads
base=$cache/llamacpp-$version
folder=${LLMC_LLAMACPP_TESTS:-$base/tools/server/tests}
if [ -d "$folder" ]; then
	echo "$folder"
	exit 0
fi
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "llamacpp_tests: fetching llama-cpp-python $version (77 MB)" >&2
pip="$("$(dirname "$0")/venv.sh")/bin/pip"
"$pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: -d "$tmp" "llama-cpp-python==$version" >&2
file=$tmp/llama_cpp_python-$version.tar.gz
got=$(sha256sum "$file" | cut -d' ' -f1)
if [ "$got" != "$sum" ]; then
	echo "llamacpp_tests: the file's SHA-256 is $got, expected $sum: not kept" >&2
	exit 1
fi
inside=llama_cpp_python-$version/vendor/llama.cpp
tar -xzf "$file" -C "$tmp" "$inside/tools/server/tests" "$inside/models/templates"
mv "$tmp/$inside" "$base"
echo "$folder"
