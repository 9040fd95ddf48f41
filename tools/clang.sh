#!/bin/sh
# Print the first clang that has the sanitizers and libFuzzer; exit 1 if there is none.
try=$(mktemp -d)
trap 'rm -rf "$try"' EXIT
echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d && n < 0; }' >"$try/a.c"
for cc in "${SAN_CC:-clang}" clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
	if $cc -fsanitize=fuzzer,address,undefined "$try/a.c" -o "$try/a" 2>/dev/null; then
		echo "$cc"
		exit 0
	fi
done
exit 1
