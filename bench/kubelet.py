"""Random Pods that `place()` binds to random nodes, beside the kubelet's own managers, which must admit them.

Nodes have 1 to 9 NUMA nodes, every policy and option of the kubelet's topology manager and of its CPU manager's static
policy, CPUs that others hold, and devices of plugins. Pods have init containers, sidecars, devices, and every class.
The reference is the number of Pods that were bound; nodes that lack what kube-scheduler counts are left out.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

from result import close

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]
from kubelet_questions import asked_of_kubelet, cases

from allocator.place import Placement
from localplane.binaries import find_or_build

BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=2)
    arguments = parser.parse_args()
    program = find_or_build(("kubelet-admission",))["kubelet-admission"]
    bound = admitted = refused = needlessly = 0
    tried = itertools.islice(cases(arguments.seed), arguments.count)
    for batch in iter(lambda: list(itertools.islice(tried, BATCH)), []):
        scheduled = [one for one in batch if one.schedulable]
        for one, answer in zip(scheduled, asked_of_kubelet(program, [one.question for one in scheduled]), strict=True):
            if isinstance(placed := one.placed(), Placement):
                bound += 1
                admitted += answer["admit"]
                if not answer["admit"]:
                    print(json.dumps({"question": one.question, "answer": answer}), flush=True)
            elif "AffinityError" in placed.message or "SMTAlignmentError" in placed.message:
                refused += 1
                needlessly += answer["admit"]
    print(f"{refused} refused for the kubelet's sake, {needlessly} of which it would have admitted", file=sys.stderr)
    close(name="kubelet", value=admitted, unit="Pods", reference=bound, goal=1.0)


if __name__ == "__main__":
    main()
