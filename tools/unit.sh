#!/bin/sh
# Run unit test programs given as arguments, as many side by side as there are processors; say which failed; exit 1 when any did.
# check:PROGRAM runs it on an emulated GPU that looks at every access.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export out
# shellcheck disable=SC2016
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh -c 'p=${1#check:} log=$out/$(printf %s "$1" | tr / _)
	[ "$p" = "$1" ] || export LLMC_EMU_MODE=check
	"$p" >"$log" 2>&1 || touch "$log.failed"' sh {}
failed=""
for t in "$@"; do
	log=$out/$(printf %s "$t" | tr / _)
	if [ -e "$log.failed" ]; then
		failed="$failed $t"
		cat "$log"
	fi
done
if [ -n "$failed" ]; then
	echo "unit: failed:$failed" >&2
	exit 1
fi
echo "unit: $# programs passed"
