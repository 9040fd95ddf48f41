#!/bin/sh
# Write man pages and shell completions below a share folder. HOST_LLMC is the llmc that writes them.
# usage: tools/install_pages.sh SHARE
set -eu
share=$1
bash=$share/bash-completion/completions
zsh=$share/zsh/site-functions
fish=$share/fish/vendor_completions.d
install -d "$share/man/man1" "$bash" "$zsh" "$fish"
"$HOST_LLMC" man --out "$share/man/man1"
"$HOST_LLMC" completion bash >"$bash/llmc"
"$HOST_LLMC" completion zsh >"$zsh/_llmc"
"$HOST_LLMC" completion fish >"$fish/llmc.fish"
chmod 644 "$share"/man/man1/llmc*.1 "$bash/llmc" "$zsh/_llmc" "$fish/llmc.fish"
