"""One node of 8 GPUs and three resource classes, rewritten in an index of 5,000: packed, unpacked and stored.

The cards are used as those of other nodes are, which is the value; then as no node's were before, in percent by chance.
With --preference fragmentation makes and groups of the GPUs are stored too.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterable

from packed_cluster import GPUS, SEED, Cluster, kinds, packed, told
from result import close

from allocator.vocabulary.asks import Preference

LIMIT_US = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--updates", type=int, default=20000)
    parser.add_argument("--preference", type=Preference, choices=list(Preference), default=Preference.PACKING)
    arguments = parser.parse_args()
    by_fragments = arguments.preference is Preference.FRAGMENTATION
    index, known, chance = Cluster(arguments.nodes).index, kinds(), random.Random(SEED)
    names = index.names[1:]

    def measured(what: str, used: Iterable[list[int]]) -> float:
        pack, put = [], []
        for number, parts in enumerate(used):
            name = names[number * 7 % len(names)]
            began = time.perf_counter()
            row = told(packed(parts)) if by_fragments else packed(parts)
            between = time.perf_counter()
            index.put(name, (row,))
            pack.append((between - began) * 1e6)
            put.append((time.perf_counter() - between) * 1e6)
        both = [first + then for first, then in zip(pack, put, strict=True)]
        medians = ", ".join(f"{part} {statistics.median(each):.1f} us" for part, each in (("pack", pack), ("put", put)))
        print(f"{what}: {medians}; 99 of 100 within {statistics.quantiles(both, n=100)[-1]:.1f} us", file=sys.stderr)
        return statistics.median(both)

    value = measured("as other nodes", (known[number % len(known)] for number in range(arguments.updates)))
    measured("as no other", ([chance.randint(0, 100) for _ in range(GPUS)] for _ in range(arguments.updates)))
    close(name="index_update", value=value, unit="us", reference=LIMIT_US, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
