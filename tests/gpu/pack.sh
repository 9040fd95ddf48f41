#!/bin/sh
# Make build/gpu, all that tests/gpu/check.sh needs on a machine with a GPU, its driver and python3,
# but no compiler. Under 60 MB: llmc with its libraries linked in, scripts and tests, templates,
# kernels of the measured models compiled ahead (GPU_ARCHS, default sm_90a; then only tests need
# NVRTC), the first layers of SmolLM2 with the interpreter's results, pytest.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
archs=${GPU_ARCHS:-sm_90a}
out=$build/gpu
python=$(tools/venv.sh)/bin/python
llmc=$build/gpu-llmc
# use the compiler of the tests' own environment, the same everywhere, not an emulator's
[ -n "${LLMC_CUDA_LIBDIR:-}" ] && [ ! -e "$LLMC_CUDA_LIBDIR/libcuda.so.1" ] ||
	LLMC_CUDA_LIBDIR=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export LLMC_CUDA_LIBDIR
rm -rf "$out"
mkdir -p "$out/lib" "$out/smollm2"
cp "$llmc" "$out/llmc"
strip "$out/llmc"
cp "$build/emu/t_sm90" "$out/"
cp "$build/gpu-expand" "$out/lib/expand"
strip "$out/lib/expand"
cp --parents tests/gpu/*.py tests/gpu/*.sh tests/gpu/*.yaml tests/cuda/*.py tests/cuda/*.cu tests/cuda/*.cu.in tests/emu/t_sm90.cu \
	tests/kernels/*.py tests/kv_types.py tests/waiting.py tests/route_oracle.py tests/golden/weights.py tools/nvrtc.py tools/build_cache.py include/llmc.h configs/*.yaml configs/families/*.yaml templates/common/*.h "$out"
cp --parents -r templates/cuda "$out"
for name in $("$python" tests/gpu/gpu_check.py --list-golden); do
	cp --parents -r "tests/golden/models/$name" "$out"
done
# oracles of the kernel tests
PYTHONPATH=tests/cuda "$python" - "$out/lib" <<'PY'
import sys
import cuda_harness, cuda_weights, test_cuda_sample
cuda_harness.build_host_library(sys.argv[1] + "/planes.so", cuda_weights.SOURCES)
cuda_harness.build_host_library(sys.argv[1] + "/sampler.so", test_cuda_sample.SOURCES)
PY
strip "$out"/lib/*.so
# kernels compiled ahead
aot=$build/gpu-aot
rm -rf "$aot"
mkdir -p "$aot"
for model in tiny llama3.2-1b llama3-8b qwen3-8b mixtral-8x7b qwen3-30b-a3b deepseek-v2-lite llama3-8b-q8_0 llama3-8b-q4_k; do
	storage=$(expr "$model" : '.*-\(q[48]_[0k]\)$' || true)
	layers=$(PYTHONPATH=tests/gpu "$python" -c 'import figures, sys; print(figures.MIXTURES.get(sys.argv[1], ""))' "$model")
	"$llmc" compile "configs/${model%"-$storage"}.yaml" --target cuda --aot --arch "$archs" -o "$aot/$model" -q ${storage:+--set storage.default="$storage"} \
		${layers:+--set n_layers="$layers"}
done
tar -C "$aot" --sort=name --owner=0 --group=0 --mtime=@0 -czf "$out/aot.tar.gz" .
for arch in $(echo "$archs" | tr , ' '); do
	"$python" tools/nvrtc.py --arch "$arch" -I templates --cubin "$aot" templates/cuda/runtime/read.cu >/dev/null
	mv "$aot/read.cu.$arch.cubin" "$out/lib/read.$arch.cubin"
done
rm -rf "$aot"
# first layers of a real model
prompt="The capital of France is"
"$python" tests/gpu/head_gguf.py "$(tools/smollm2.sh)" "$out/smollm2/head.gguf" 3
"$llmc" run "$out/smollm2/head.gguf" --device ref --prompt "$prompt" -n 16 --ignore-eos --json -q --logits "$out/smollm2/logits.npy" |
	"$python" -c 'import json, sys; print(json.dumps(dict(prompt=sys.argv[1], tokens=json.load(sys.stdin)["tokens"])))' "$prompt" >"$out/smollm2/want.json"
"$python" -m pip install --quiet --disable-pip-version-check --no-compile --target "$out/site" pytest==8.3.4 pytest-xdist==3.6.1
rm -rf "$out/site/bin"
# check that no import of the tests is missing
"$python" "$out/tests/gpu/gpu_check.py" --collect >"$build/gpu-collect.log" || { cat "$build/gpu-collect.log" >&2; exit 1; }
find "$out" -name __pycache__ -prune -exec rm -rf {} +
needs=$(objdump -T "$out/llmc" "$out/lib/expand" "$out/t_sm90" "$out"/lib/*.so | sed -n 's/.*(GLIBC_\([0-9.]*\)).*/\1/p' | sort -V | tail -1)
size=$(du -sm --apparent-size "$out" | cut -f1)
echo "$out: $size MB; needs glibc $needs, python3, the driver; numpy for the tests of kernels, PyTorch for the comparison"
[ "$size" -le 60 ] || { echo "gpu-pack: more than 60 MB" >&2; exit 1; }
