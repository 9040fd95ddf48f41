#!/usr/bin/env python3
"""Add up lookups of the cache of built code, from files that LLMC_CACHE_STATS named.

    tools/cache_stats.py FILE ...            hits 812, misses 3; in caches of tests: hits 40, misses 120
    tools/cache_stats.py --kinds FILE ...    a line per kind as well

Lookups of the cache in LLMC_CACHE come first, then those of other folders: tests of the cache start with empty ones.
Exit status 0; 1 if no file can be read."""

import collections
import sys

import build_cache


def total(paths, own=None):
    """{kind: {event: lookups}} of a cache (own: True), of all other folders (False), or of both (None); None if no file can be read."""
    found, folder = None, str((build_cache.root() / "kernels").resolve())
    for path in paths:
        try:
            with open(path) as f:
                found = collections.defaultdict(collections.Counter) if found is None else found
                for line in f:
                    event, kind, where = line.rstrip("\n").split(" ", 2)
                    if own is None or own == (where == folder):
                        found[kind][event] += 1
        except OSError:
            continue
    return found


def sentence(kinds):
    """ "hits 812, misses 3", and the number of damaged entries among the misses"""
    events = sum(kinds.values(), collections.Counter())
    damaged = f", damaged {events['damaged']}" if events["damaged"] else ""
    return f"hits {events['hit']}, misses {events['miss']}{damaged}"


def summary(paths):
    """One line; None if no file can be read."""
    own, others = total(paths, True), total(paths, False)
    if own is None:
        return None
    return sentence(own) + (f"; in caches of tests: {sentence(others)}" if others else "")


def main():
    kinds, paths = "--kinds" in sys.argv[1:], [a for a in sys.argv[1:] if not a.startswith("--")]
    line = summary(paths)
    if line is None:
        print(__doc__.strip(), file=sys.stderr)
        return 1
    print(line)
    for own, where in ((True, ""), (False, " in caches of tests")) if kinds else ():
        found = total(paths, own)
        for kind in sorted(found):
            print(f"  {kind}{where}: {sentence({kind: found[kind]})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
