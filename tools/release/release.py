#!/usr/bin/env python3
"""Release files of llmc in build/release/dist, for x86-64 and AArch64: `make release-tarball`, `release-deb`, `release-wheel`, `release`.

usage: release.py tarball|deb|wheel|all [--arch x86_64|aarch64] [--no-kernels | --model NAME]"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import binaries  # noqa: E402
import kernels  # noqa: E402
import pack  # noqa: E402

MAKERS = {"tarball": pack.tarball, "deb": pack.deb, "wheel": pack.wheel}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=[*MAKERS, "all"])
    parser.add_argument("--arch", choices=binaries.ARCHES, action="append")
    parser.add_argument("--no-kernels", action="store_true", help="ship no built kernels")
    parser.add_argument("--model", action="append", help="of models.toml: ship its kernels only")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    share = binaries.build_folder() / "share"
    share.parent.mkdir(parents=True, exist_ok=True)
    binaries.pages(share, args.jobs)
    for arch in args.arch or binaries.ARCHES:
        built = binaries.build(arch, args.jobs)
        prebuilt = None if args.no_kernels else kernels.build(arch, args.jobs, args.model)
        top = pack.stage(arch, built, share, prebuilt)
        for name, make in MAKERS.items():
            if args.what in (name, "all"):
                print(make(arch, top))
    print(pack.sums())


if __name__ == "__main__":
    main()
