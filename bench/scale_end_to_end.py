"""How what a Pod costs grows with the cluster: end_to_end with live arrivals, at several numbers of nodes.

The closing line compares the webhook's own CPU time for a Pod at the most nodes with that at the fewest.
"""

import argparse
import asyncio

import pod_cost
from loads import halves
from result import close

from localplane.binaries import find_or_build
from localplane.plane import CONTROL_PLANE

SIZES = [500, 1000, 2000, 5000, 10_000]
WIDTH = 60
GOAL = 1.2


def tell(costs: dict[int, tuple[pod_cost.Cost, pod_cost.Cost]]) -> None:
    """Print a line for each number of nodes: ms of CPU a Pod by process, as figures and as a bar of their letters."""
    names = {"etcd": "e", "kube-apiserver": "a", pod_cost.MANAGER: "m", "scheduler": "s", "webhook": "w"}
    shown = {name: letter for name, letter in names.items() if any(name in ours.cpu for _, ours in costs.values())}
    most = max(ours.total for _, ours in costs.values())
    print("ms of CPU a Pod with koordgate, and of kube-scheduler and its control plane alone")
    print(f"{'nodes':>6}", *(f"{name:>{len(name) + 1}}" for name in shown), "   all  alone")
    for nodes, (alone, ours) in costs.items():
        figures = (f"{ours.cpu[name]:{len(name) + 1}.2f}" for name in shown)
        bar = "".join(letter * round(WIDTH * ours.cpu[name] / most) for name, letter in shown.items())
        print(f"{nodes:>6}", *figures, f"{ours.total:6.2f} {alone.total:6.2f}  {bar}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--pods", type=int, default=1000, help="half-card Pods at each number of nodes")
    parser.add_argument("--goal", type=float, default=GOAL)
    pod_cost.add_options(parser, arrivals="live")
    asked = parser.parse_args()
    binaries = find_or_build((*CONTROL_PLANE, "helm"))
    costs = {}
    for nodes in sorted(asked.nodes):
        live = asked.arrivals == "live"
        load = pod_cost.Load(nodes, [halves(asked.pods)], live, asked.rate, asked.quotas, asked.replicas)
        pod_cost.say(f"{nodes} nodes")
        alone = asyncio.run(pod_cost.alone(binaries, load))
        ours = asyncio.run(pod_cost.with_koordgate(binaries, load))
        pod_cost.tell(alone, ours)
        costs[nodes] = alone, ours
    tell(costs)
    close(
        name=f"scale_end_to_end {min(costs)} to {max(costs)} nodes {asked.pods} pods",
        value=costs[max(costs)][1].cpu["webhook"],
        unit="ms of CPU a Pod in the webhook",
        reference=costs[min(costs)][1].cpu["webhook"],
        goal=asked.goal,
        higher_is_better=False,
    )


if __name__ == "__main__":
    main()
