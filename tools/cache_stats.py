#!/usr/bin/env python3
"""Add up lookups of the cache of built code, from files that LLMC_CACHE_STATS named.

    tools/cache_stats.py FILE ...            hits 812, misses 3
    tools/cache_stats.py --kinds FILE ...    a line per kind as well

Exit status 0; 1 when no file can be read."""
import collections
import sys


def total(paths):
    """{kind: {event: lookups}}; None when none of the files can be read."""
    found = None
    for path in paths:
        try:
            with open(path) as f:
                found = collections.defaultdict(collections.Counter) if found is None else found
                for line in f:
                    event, _, kind = line.strip().partition(" ")
                    found[kind][event] += 1
        except OSError:
            continue
    return found


def sentence(events):
    """"hits 812, misses 3", and how many of the misses were damaged entries."""
    damaged = f", damaged {events['damaged']}" if events["damaged"] else ""
    return f"hits {events['hit']}, misses {events['miss']}{damaged}"


def main():
    kinds, paths = "--kinds" in sys.argv[1:], [a for a in sys.argv[1:] if not a.startswith("--")]
    found = total(paths)
    if found is None:
        print(__doc__.strip(), file=sys.stderr)
        return 1
    print(sentence(sum(found.values(), collections.Counter())))
    for kind in sorted(found) if kinds else []:
        print(f"  {kind}: {sentence(found[kind])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
