"""Seconds from a changed plan to the cpusets of 110 Pods: everything is planned again, read, and written in order.

The kubelet's default limit is 110 Pods per node. Half are LS on the shared pool, a quarter is pinned, a quarter is BE;
each has a sandbox and two containers. In every round the pinned Pods and the pools exchange their CPUs, so that
everything is written again. As root on a machine with cgroup v1 these are real cpusets. `--tree` forces plain files,
which have the same paths but no kernel behind them.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from result import close

from reporter.cgroup.cpusets import CpusetKeeper, Hierarchy, HierarchyError, find_hierarchy
from reporter.cgroup.layout import CgroupLayout, Driver, KubernetesQos, Version
from reporter.cgroup.plan import KubeletRules, Pod, SharedCpus

PODS = 110
CONTAINERS = ("sandbox", "main", "side")
GOAL_S = 1.0
FILES = ("cpuset.cpus", "cpuset.mems")


def pods(pinned: int) -> list[Pod]:
    """The Pods of the node; a quarter of them is pinned to these CPUs."""
    found = []
    for number in range(PODS):
        uid = f"{number:08d}-0000-4000-8000-000000000000"
        name = f"bench/pod-{number}"
        if number % 4 == 0:
            found.append(Pod(uid, name, KubernetesQos.GUARANTEED, qos="LSR", cpus=pinned))
        elif number % 4 == 1:
            found.append(Pod(uid, name, KubernetesQos.BEST_EFFORT, qos="BE"))
        else:
            found.append(Pod(uid, name, KubernetesQos.BURSTABLE, qos="LS"))
    return found


@contextmanager
def cgroups(*, real: bool) -> Iterator[tuple[Hierarchy, CgroupLayout]]:
    """The cgroups of the Pods, real or not; removed at the end."""
    layout = CgroupLayout(Driver.CGROUPFS, f"/koordgate-bench-{os.getpid()}")
    if not real:
        shared_memory = Path("/dev/shm")  # cgroups are in memory too
        with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
            hierarchy = Hierarchy(Path(folder), Version.V1)
            for file in FILES:
                (hierarchy.root / file).write_text("0-1\n")
            for group in groups(layout):
                make(hierarchy.root / group)
            yield hierarchy, layout
        return
    hierarchy = find_hierarchy(Path("/sys/fs/cgroup"))
    made: list[Path] = []
    try:
        for group in groups(layout):
            made.append(hierarchy.root / group)
            make(made[-1])
        yield hierarchy, layout
    finally:
        for below in reversed(made):
            below.rmdir()


def groups(layout: CgroupLayout) -> Iterator[str]:
    """The paths of all cgroups, parents first."""
    yield layout.kubepods.partition("/")[0]
    yield from dict.fromkeys(map(layout.tier, KubernetesQos))
    for pod in pods(1):
        path = layout.pod(pod.qos_class, pod.uid)
        yield path
        yield from (f"{path}/{container}" for container in CONTAINERS)


def make(group: Path) -> None:
    """Make a cgroup with its parent's CPUs and NUMA nodes, as a kubelet and a runtime do."""
    group.mkdir()
    for file in FILES:
        (group / file).write_text((group.parent / file).read_text())


def can_be_real() -> bool:
    try:
        return os.geteuid() == 0 and find_hierarchy(Path("/sys/fs/cgroup")).version is Version.V1
    except HierarchyError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tree", action="store_true", help="use plain files even if real cpusets can be made")
    arguments = parser.parse_args()
    real = not arguments.tree and can_be_real()
    sides = (0b01, 0b10)
    changed, unchanged, written = list[float](), list[float](), 0
    with cgroups(real=real) as (hierarchy, layout):
        keeper = CpusetKeeper(hierarchy, layout)
        for number in range(arguments.rounds + 1):
            pinned = sides[number % 2]
            node, pools = pods(pinned), SharedCpus(shared=0b11 & ~pinned, best_effort=0b11)
            for times in (changed, unchanged):
                began = time.perf_counter()
                findings = keeper.round(node, pools, KubeletRules())
                times.append(time.perf_counter() - began)
                if findings.failures:
                    raise SystemExit("\n".join(failure.message for failure in findings.failures[:5]))
                written = findings.written or written
    kind = "real cpusets" if real else "plain files"
    worst, median, idle = max(changed[1:]), statistics.median(changed[1:]), statistics.median(unchanged)
    print(
        f"{PODS} Pods, {kind}, {written} writes a round: median {median:.3f} s, worst {worst:.3f} s; "
        f"a round without a change {idle:.3f} s",
        file=sys.stderr,
    )
    close(name="cpuset_apply", value=worst, unit="s", reference=GOAL_S, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
