#!/bin/sh
# Run unit test programs given as arguments; say which failed; exit 1 when any did.
failed=""
n=0
for t in "$@"; do
	n=$((n + 1))
	out=$("$t" 2>&1) || { failed="$failed $t"; printf '%s\n' "$out"; }
done
if [ -n "$failed" ]; then
	echo "unit: failed:$failed" >&2
	exit 1
fi
echo "unit: $n programs passed"
