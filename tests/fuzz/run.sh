#!/bin/bash
# Build the fuzzers and run each over its kept corpus (tests/fuzz/corpus/<name>) and mutations of it.
#
#   tests/fuzz/run.sh [name...]     all fuzzers, or those named: gguf yaml ...
#   tests/fuzz/run.sh --library     the library alone, as they need it; prints its folder
#   FUZZ_SECONDS=30                 so long per fuzzer, with new inputs each time; without: short, and the same inputs in every run
#   FUZZ_RUNS=5000                  so many inputs per fuzzer when FUZZ_SECONDS is not set; without: some seconds' worth, four times as many with LLMC_CHECK_ALL=1
#   FUZZ_CC=gcc                     do without libFuzzer, with tests/fuzz/driver.c in its place
#   BUILD=build                     results go to $BUILD/fuzz; an input that failed is kept there
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}/fuzz
make=${MAKE:-make}

if [ -z "${FUZZ_CC:-}" ]; then
	try=$(mktemp -d)
	echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d && n < 0; }' > "$try/a.c"
	for cc in clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
		if $cc -fsanitize=fuzzer,address,undefined "$try/a.c" -o "$try/a" 2> /dev/null; then
			FUZZ_CC=$cc
			break
		fi
	done
	rm -rf "$try"
fi
cc=${FUZZ_CC:-${CC:-gcc}}
san=-fsanitize=address,undefined
case $cc in
*clang*) lib_san=-fsanitize=fuzzer-no-link,address,undefined; link="-fsanitize=fuzzer,address,undefined" ;;
*) lib_san=$san; link="$san tests/fuzz/driver.c" ;;
esac
build=$build-$(basename "$cc")
flags="-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all"
# lib_san also covers the fuzzers' own code; what links it brings the main function
$make -s -j"$(nproc)" BUILD="$build" CC="$cc" CFLAGS="$flags" SAN="$lib_san" "$build/libllmc.a"

if [ "${1:-}" = --library ]; then
	echo "$build"
	exit
fi
if [ $# -eq 0 ]; then
	for f in tests/fuzz/fuzz_*.c; do
		f=${f##*/fuzz_}
		set -- "$@" "${f%.c}"
	done
fi
libs=$(pkg-config --libs yaml-0.1 jansson libpcre2-8 libutf8proc)
# libFuzzer's choices follow addresses, of code and of what is compared, files in the order of the folder, and the clock: all three are taken away, so
# that two runs of one program try the same inputs. What addresses guide is left to runs with FUZZ_SECONDS.
fixed=()
if [ -z "${FUZZ_SECONDS:-}" ]; then
	fixed=(env -i "PATH=$PATH")
	if setarch -R true 2> /dev/null; then
		fixed+=(setarch -R)
	else
		echo "fuzz: addresses cannot be fixed here (setarch -R)"
	fi
fi
failed=
for name; do
	bin=$build/fuzz_$name
	src=tests/fuzz/fuzz_$name.c
	if [ ! -e "$bin" ] || [ "$src" -nt "$bin" ] || [ "$build/libllmc.a" -nt "$bin" ] || [ tests/fuzz/driver.c -nt "$bin" ]; then
		# shellcheck disable=SC2086
		$cc -I. -Iinclude -Itemplates -D_GNU_SOURCE -std=gnu11 -Wall -Wextra -Werror $flags $lib_san "$src" $link "$build/libllmc.a" \
			-o "$bin" $libs -lm -lpthread -ldl
	fi
	# first folder: where libFuzzer puts what it finds worth keeping; empty, so that runs are alike
	new=$build/new/$name
	rm -rf "$new"
	mkdir -p "$new" "tests/fuzz/corpus/$name"
	case $name in
	config) runs=150 ;;
	import) runs=75 ;;
	plan | spec) runs=250 ;;
	scheme) runs=500 ;;
	yaml) runs=1250 ;;
	kernel | template | tokenizer | grammar) runs=3000 ;;
	calls) runs=400 ;;
	http) runs=10000 ;;
	*) runs=25000 ;;
	esac
	if [ -n "${LLMC_CHECK_ALL:-}" ]; then runs=$((2 * runs)); else runs=$((runs / 2)); fi
	set -- "$new" "tests/fuzz/corpus/$name"
	limit="-seed=1 -runs=${FUZZ_RUNS:-$runs}"
	if [ -n "${FUZZ_SECONDS:-}" ]; then
		limit="-max_total_time=$FUZZ_SECONDS -seed=$(date +%s)"
	elif [ "$link" != "${link#*fuzzer}" ]; then
		LC_ALL=C ls "tests/fuzz/corpus/$name" | sed "s|^|tests/fuzz/corpus/$name/|" | paste -sd, | tr -d '\n' > "$build/$name.inputs"
		limit="$limit -reload=0 -use_cmp=0"
		[ ! -s "$build/$name.inputs" ] || limit="$limit -seed_inputs=@$build/$name.inputs"
		set -- "$new"
	fi
	[ ! -e "tests/fuzz/$name.dict" ] || set -- "-dict=tests/fuzz/$name.dict" "$@"
	# shellcheck disable=SC2086
	if ${fixed[@]+"${fixed[@]}"} "$bin" $limit -max_len=4096 -timeout="$(awk "BEGIN { print int(120 * ${LLMC_TEST_SLOW:-1}) }")" -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
		"-artifact_prefix=$build/$name-" "$@" > "$build/$name.log" 2>&1; then
		echo "fuzz $name: ok ($(sed -n -e 's/^stat::number_of_executed_units: *\(.*\)/\1 inputs/p' \
			-e 's/^driver: //p' "$build/$name.log"))"
	else
		echo "fuzz $name: FAILED; the input is $build/$name-*, the log $build/$name.log:"
		tail -n 60 "$build/$name.log"
		failed="$failed $name"
	fi
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
