"""Filter and score of one Pod over 5,000 nodes of 8 GPUs, half full, without JSON.

Cold: every node has been rewritten, the request is new, and the names come in a new order. Warm: the same request and
names again, without a change; then once more after one node changed, as after each bind. Each preference is measured;
the value that has the goal is that of packing, unless --preference names another, such as the default, fragmentation.
Nodes that are alike cost once. --different says how many differ; with as many as there are nodes, hardly any are alike.
"""

import argparse
import statistics
import sys

from packed_cluster import KINDS, Cluster
from result import close

from allocator.vocabulary.asks import Preference

LIMIT_MS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--different", type=int, default=KINDS, help="how many different nodes there are")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--preference", type=Preference, choices=list(Preference), default=Preference.PACKING)
    arguments = parser.parse_args()
    cluster = Cluster(arguments.nodes, arguments.different)
    cold: dict[Preference, list[float]] = {way: [] for way in Preference}
    warm: dict[Preference, list[float]] = {way: [] for way in Preference}
    changed: dict[Preference, list[float]] = {way: [] for way in Preference}
    for number in range(arguments.rounds):
        for place, way in enumerate(Preference):
            query, body = cluster.query(number * len(Preference) + place, way), cluster.body()
            cluster.rewrite()
            cold[way].append(cluster.answer_ms(body, query, way))
            warm[way].append(cluster.answer_ms(body, query, way))
            cluster.rewrite_one(number)
            changed[way].append(cluster.answer_ms(body, query, way))
    for way in Preference:
        texts = [
            f"{statistics.median(each[way]):.3f} (least {min(each[way]):.3f}) ms" for each in (cold, warm, changed)
        ]
        print(f"{way}: cold {texts[0]}, warm {texts[1]}, one node changed {texts[2]}", file=sys.stderr)
    value = statistics.median(cold[arguments.preference])
    close(name="filter", value=value, unit="ms", reference=LIMIT_MS, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
