#!/bin/sh
# Install missing packages for building and testing llmc (Debian and its derivatives).
# Without root it uses sudo; without sudo it prints the packages that an administrator must install.
# --cross aarch64: install the cross compiler, the libraries of that architecture and qemu-user, for
# `make CROSS=aarch64-linux-gnu` and its tests.
# curl brings libcurl, which llmc opens at run time to download models; the build does not need it.
set -eu
if [ "${1:-}" = --cross ]; then
	[ "${2:-}" = aarch64 ] || { echo "deps: --cross takes aarch64" >&2; exit 2; }
	have=$(dpkg-query -W -f='${db:Status-Abbrev}' libutf8proc-dev:arm64 2>/dev/null || true)
	if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null && [ "${have%% *}" = ii ]; then
		exit 0
	fi
	run=""
	[ "$(id -u)" = 0 ] || run=sudo
	export DEBIAN_FRONTEND=noninteractive
	$run dpkg --add-architecture arm64
	$run apt-get update -qq
	$run apt-get install -y -qq --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user \
		libyaml-dev:arm64 libjansson-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libjpeg62-turbo-dev:arm64 libpng-dev:arm64 libwebp-dev:arm64 libcmocka-dev:arm64
	exit 0
fi
packages="gcc make binutils pkg-config libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev libjpeg62-turbo-dev libpng-dev libwebp-dev python3 ca-certificates curl"
tests="clang llvm libcmocka-dev python3-venv python3-pip unzip chromium chromium-driver"
# reverse proxies for tests of replicas, shells and mandoc for completions and man pages: those tests
# are skipped without them
optional="nginx-light haproxy zsh fish mandoc"
[ "${1:-}" = build ] || packages="$packages $tests"

# lacking PACKAGE...: print those that are not installed
lacking() {
	for p in "$@"; do
		dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || printf ' %s' "$p"
	done
}
# shellcheck disable=SC2086
missing=$(lacking $packages)
# shellcheck disable=SC2086
if [ "${1:-}" != build ] && [ "$(id -u)" = 0 ] && [ -n "$(lacking $optional)" ]; then
	DEBIAN_FRONTEND=noninteractive timeout 120 apt-get install -y -qq --no-install-recommends $optional >/dev/null 2>&1 || true
fi
[ -z "$missing" ] && exit 0
echo "deps: installing$missing" >&2
if ! command -v apt-get >/dev/null 2>&1; then
	echo "deps: no apt-get here; install the equivalents of:$missing" >&2
	exit 2
fi
run=""
if [ "$(id -u)" != 0 ]; then
	if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
		run="sudo"
	else
		echo "deps: not root and no sudo; an administrator must run: apt-get install$missing" >&2
		# the libraries may come from other packages: let the build decide
		pkg-config --exists yaml-0.1 jansson libpcre2-8 libutf8proc 2>/dev/null && exit 0
		exit 2
	fi
fi
export DEBIAN_FRONTEND=noninteractive
for try in 1 2 3; do
	$run apt-get update -qq >/dev/null 2>&1 || true
	# shellcheck disable=SC2086
	if $run apt-get install -y -qq --no-install-recommends $missing >/tmp/llmc-deps.$$ 2>&1; then
		rm -f /tmp/llmc-deps.$$
		# shellcheck disable=SC2086
		[ "${1:-}" = build ] || $run timeout 120 apt-get install -y -qq --no-install-recommends $optional >/dev/null 2>&1 || true
		exit 0
	fi
	sleep $((try * 3))
done
cat /tmp/llmc-deps.$$ >&2
rm -f /tmp/llmc-deps.$$
exit 2
