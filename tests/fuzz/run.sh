#!/bin/bash
# Run each fuzzer over its kept corpus (tests/fuzz/corpus/<name>) and mutations of it. make
# san-build builds them.
#
#   tests/fuzz/run.sh [--built | --runs] [name...]   all fuzzers, or the named ones: gguf yaml ...; --built: do not build; --runs: print the counts
#   FUZZ_SECONDS=30    time per fuzzer, with new inputs each time; without: short, and the same inputs in every run
#   FUZZ_RUNS=5000     inputs per fuzzer when FUZZ_SECONDS is not set; without: some seconds' worth, four times as many with LLMC_CHECK_ALL=1
#   FUZZ_MAX_LEN=4096  largest input in bytes; up to 1 MB where the cost may grow faster than the input
#   BUILD=build        results go to $BUILD/fuzz; failing inputs are kept there
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}/fuzz
programs=${BUILD:-build}/san/fuzz
only=""
if [ "${1:-}" = --built ] || [ "${1:-}" = --runs ]; then
	only=${1#--}
	shift
else
	${MAKE:-make} -s -j"$(nproc)" san-build
fi
if [ $# -eq 0 ]; then
	for f in tests/fuzz/fuzz_*.c; do
		f=${f##*/fuzz_}
		set -- "$@" "${f%.c}"
	done
fi
# libFuzzer's choices depend on addresses (of code and of compared data), on the order of files in
# the folder, and on the clock. All of these are fixed, so that two runs of one program try the same
# inputs. Address-guided exploration is left to runs with FUZZ_SECONDS.
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
	bin=$programs/fuzz_$name
	# libFuzzer stores new inputs in the first folder, which starts empty so that all runs are
	# equal
	new=$build/new/$name
	rm -rf "$new"
	mkdir -p "$new" "tests/fuzz/corpus/$name"
	case $name in
	config) runs=150 ;;
	import) runs=75 ;;
	plan | spec) runs=250 ;;
	quant_format) runs=500 ;;
	yaml) runs=1250 ;;
	kernel | template | tokenizer | grammar) runs=3000 ;;
	calls) runs=400 ;;
	image | processor) runs=3000 ;;
	peft | stored | batch | client) runs=4000 ;;
	saved | ranks | tower) runs=1000 ;;
	placement) runs=2000 ;;
	http) runs=10000 ;;
	*) runs=25000 ;;
	esac
	if [ -n "${LLMC_CHECK_ALL:-}" ]; then runs=$((2 * runs)); else runs=$((runs / 2)); fi
	if [ "$only" = runs ]; then
		echo "-runs=${FUZZ_RUNS:-$runs}"
		continue
	fi
	set -- "$new" "tests/fuzz/corpus/$name"
	limit="-seed=1 -runs=${FUZZ_RUNS:-$runs}"
	if [ -n "${FUZZ_SECONDS:-}" ]; then
		limit="-max_total_time=$FUZZ_SECONDS -seed=$(date +%s)"
	else
		find "tests/fuzz/corpus/$name" -mindepth 1 -maxdepth 1 | LC_ALL=C sort | paste -sd, | tr -d '\n' > "$build/$name.inputs"
		limit="$limit -reload=0 -use_cmp=0"
		[ ! -s "$build/$name.inputs" ] || limit="$limit -seed_inputs=@$build/$name.inputs"
		set -- "$new"
	fi
	[ ! -e "tests/fuzz/$name.dict" ] || set -- "-dict=tests/fuzz/$name.dict" "$@"
	# shellcheck disable=SC2086
	if ${fixed[@]+"${fixed[@]}"} "$bin" $limit -max_len="${FUZZ_MAX_LEN:-4096}" -timeout="$(awk "BEGIN { print int(120 * ${LLMC_TEST_SLOW:-1}) }")" -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
		"-artifact_prefix=$build/$name-" "$@" > "$build/$name.log" 2>&1; then
		echo "fuzz $name: ok ($(sed -n 's/^stat::number_of_executed_units: *\(.*\)/\1 inputs/p' "$build/$name.log"))"
	else
		echo "fuzz $name: FAILED; the input is $build/$name-*, the log $build/$name.log:"
		tail -n 60 "$build/$name.log"
		failed="$failed $name"
	fi
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
