"""One node of 8 GPUs and three resource classes, rewritten in an index of 5,000: packed, unpacked and stored.

With --preference fragmentation makes and groups of the GPUs are stored too.
"""

import argparse
import statistics
import sys
import time

from packed_cluster import Cluster, kinds, packed, told
from result import close

from allocator.vocabulary.preference import Preference

LIMIT_US = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--updates", type=int, default=20000)
    parser.add_argument("--preference", type=Preference, choices=list(Preference), default=Preference.PACKING)
    arguments = parser.parse_args()
    by_fragments = arguments.preference is Preference.FRAGMENTATION
    index, used = Cluster(arguments.nodes).index, kinds()
    names = index.names[1:]
    pack, put = [], []
    for number in range(arguments.updates):
        name, parts = names[number * 7 % len(names)], used[number % len(used)]
        began = time.perf_counter()
        row = told(packed(parts)) if by_fragments else packed(parts)
        between = time.perf_counter()
        index.put(name, (row,))
        pack.append((between - began) * 1e6)
        put.append((time.perf_counter() - between) * 1e6)
    both = [first + then for first, then in zip(pack, put, strict=True)]
    medians = ", ".join(f"{what} {statistics.median(each):.1f} us" for what, each in (("pack", pack), ("put", put)))
    print(f"{medians}; 99 of 100 within {statistics.quantiles(both, n=100)[-1]:.1f} us", file=sys.stderr)
    value = statistics.median(both)
    close(name="index_update", value=value, unit="us", reference=LIMIT_US, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
