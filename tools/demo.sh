#!/bin/sh
# make demo: from a fresh Debian machine to generated text.
set -eu
cd "$(dirname "$0")/.."
tools/deps.sh build
echo "== building llmc"
make -s -j"$(nproc)" build/llmc
model=$(tools/smollm2.sh)
echo "== $model"
question=${QUESTION:-"What is a compiler? Answer in two sentences."}
echo "== its description, from llmc import"
build/llmc import "$model" | sed -n '1,12p'
echo "   ..."
echo "== asking: $question"
build/llmc run "$model" --chat --prompt "$question" -n 96
echo "== memory use"
build/llmc plan "$model" | tail -n 8
echo "== speed (tokens/s; share of this machine's read bandwidth)"
build/llmc bench "$model" -p 256 -n 64 -r 2
echo "== now try: build/llmc chat $model"
