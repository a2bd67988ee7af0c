"""Milliseconds of CPU that a Pod costs with a real kube-scheduler: alone, and with koordgate.

All processes of the control plane and the webhook are counted (see pod_cost.py), by process; and the API server's
requests, watch events and writes to etcd, by kind. The first Pods ask for half a GPU each. With --mix, Pods of all
kinds follow (whole, several, fractions, joint with RDMA NICs and virtual functions), and only these are measured.

A burst is created before the scheduler starts; its creation is not counted, and the scheduler's start is. With live
arrivals the scheduler runs, and the creation of the Pods is counted.
"""

import argparse
import asyncio
import statistics

import pod_cost
from loads import halves, mix
from result import close

from localplane.binaries import find_or_build
from localplane.plane import CONTROL_PLANE

GOALS = {500: 8.0, 5000: 12.0}  # the most nodes, and ms of CPU a Pod
BEYOND = 14.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, help="of each list of Pods; by default 2000, and 500 for 10,000 nodes")
    parser.add_argument("--mix", action="store_true", help="then a mix of all kinds of Pods; only the mix is measured")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of both, alternating; medians are compared")
    parser.add_argument("--goal", type=float, help="ms of CPU a Pod; by default 8 to 14, by the number of nodes")
    pod_cost.add_options(parser, arrivals="burst")
    asked = parser.parse_args()
    pods = asked.pods or max(500, min(2000, 5_000_000 // asked.nodes))
    load = pod_cost.Load(
        nodes=asked.nodes,
        phases=[halves(pods), *([mix(pods)] if asked.mix else [])],
        live=asked.arrivals == "live",
        rate=asked.rate,
        quotas=asked.quotas,
        replicas=asked.replicas,
    )
    binaries = find_or_build((*CONTROL_PLANE, "helm"))
    references, values = [], []
    for number in range(asked.rounds):
        pod_cost.say(f"round {number + 1} of {asked.rounds}")
        alone = asyncio.run(pod_cost.alone(binaries, load))
        ours = asyncio.run(pod_cost.with_koordgate(binaries, load))
        pod_cost.tell(alone, ours)
        references.append(alone.total)
        values.append(ours.total)
    kind = f"{asked.arrivals}{' mix' if asked.mix else ''}, quotas in {asked.quotas}"
    close(
        name=f"end_to_end {asked.nodes} nodes {pods} pods {kind}",
        value=statistics.median(values),
        unit="ms of CPU a Pod",
        reference=statistics.median(references),
        goal=asked.goal or next((goal for most, goal in GOALS.items() if asked.nodes <= most), BEYOND),
        higher_is_better=False,
        goal_of_value=True,
    )


if __name__ == "__main__":
    main()
