#!/bin/sh
# What a check on a GPU needs beside the checkout, into build/gpu: llmc with the libraries that it links, a small model, pytest.
# Under 60 MB, for a machine with a GPU, a driver, NVRTC and python3 with numpy, and no compiler.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
out=$build/gpu
rm -rf "$out"
mkdir -p "$out/lib"
cp "$build/llmc" "$out/llmc.bin"
strip "$out/llmc.bin"
# all but the C library itself, which belongs to the machine
ldd "$build/llmc" | awk '$3 ~ /^\// { print $3 }' | grep -v -E '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' | while read -r lib; do
	cp -L "$lib" "$out/lib/"
done
cat >"$out/llmc" <<'SH'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/llmc.bin" "$@"
SH
chmod +x "$out/llmc"
make --no-print-directory -s -f tests/emu/emu.mk BUILD="$build" "$build/emu/t_sm90"
cp "$build/emu/t_sm90" "$out/"
venv=$(tools/venv.sh)
"$venv/bin/python" tests/gpu/head_gguf.py "$(tools/smollm2.sh)" "$out/smollm2-head.gguf" 6
"$venv/bin/pip" install --quiet --disable-pip-version-check --target "$out/site" pytest==8.3.4
rm -rf "$out/site/bin"
du -sh "$out" >&2
size=$(du -sm "$out" | cut -f1)
[ "$size" -le 60 ] || { echo "gpu-pack: $size MB, more than 60" >&2; exit 1; }
echo "$out"
