#!/bin/sh
# Run unit test programs given as arguments, as many side by side as there are processors; say which failed; exit 1 when any did.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export out
# shellcheck disable=SC2016
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh -c '"$1" >"$out/$(basename "$1")" 2>&1 || touch "$out/$(basename "$1").failed"' sh {}
failed=""
for t in "$@"; do
	if [ -e "$out/$(basename "$t").failed" ]; then
		failed="$failed $t"
		cat "$out/$(basename "$t")"
	fi
done
if [ -n "$failed" ]; then
	echo "unit: failed:$failed" >&2
	exit 1
fi
echo "unit: $# programs passed"
