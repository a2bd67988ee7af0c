"""What `koordgate simulate` prints of Pods and nodes, whole, and the List of Pods that it writes."""

import json
from typing import Any

import pytest
import yaml
from builders import device_entry, device_object
from rich.table import Table
from simulator.clusters import asking, gpus, held, nic, node, topology
from simulator.test_account import account, cpus_of, holds

from allocator.vocabulary.cputopology import parse
from allocator.wire.nodetopology import CpuManagerPolicy, KubeletCpus, NodeReservation, PodCpuAlloc
from console import terminal
from console.simulator import apiserver, podgroups, report
from console.simulator.account import Account
from console.simulator.assumed import ASSUMED
from console.simulator.cluster import PodFate, Result
from console.simulator.podgroups import PodGroup

Raw = dict[str, Any]
Captured = pytest.CaptureFixture[str]

# Many Pods


def owned(name: str, owner: str = "web", kind: str = "ReplicaSet", on: str = "", namespace: str | None = "team") -> Raw:
    references = [{"kind": "Node", "name": "x"}, {"kind": kind, "name": owner, "controller": True}]
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [*references, {"kind": "Node", "name": "y"}]}
    return {"metadata": metadata, "spec": {"nodeName": on} if on else {}}


GROUPS = [
    Result({"metadata": {"name": "alone"}, "spec": {"nodeName": "n1"}}, PodFate.BOUND),
    *(Result(owned(name, on=on), PodFate.BOUND) for name, on in (("a", "n1"), ("b", "n2"), ("c", "n2"))),
    Result(owned("d"), PodFate.UNSCHEDULABLE, ("n1: not enough cpu: 2 requested",)),
    Result(owned("e"), PodFate.UNSCHEDULABLE, ("n1, n2: not enough cpu: 2 requested", "n3: cordoned")),
    Result(
        owned("f", on="n1"), PodFate.DENIED, ("Pod default/f: odd",), given=owned("f", "job", "Job", namespace=None)
    ),
    Result({**owned("g", on="n1"), "status": {"phase": "Succeeded"}}, PodFate.STANDING),
    Result({**owned("h", on="n1"), "status": {"phase": "Running"}}, PodFate.STANDING),
]

GROUPED = """\
POD                    ASKED                           STATE                  NODE   WHAT IT GOT, OR WHY NOT
default/alone          no devices, no CPUs of its own  bound                  n1     -
team/web (ReplicaSet)  no devices, no CPUs of its own  bound                  n1: 1  -
3 Pods                                                                        n2: 2
team/web (ReplicaSet)  no devices, no CPUs of its own  no node                -      n1, n2: not enough cpu: 2 requested
2 Pods                                                                               n3: cordoned
default/f              no devices, no CPUs of its own  refused at admission   -      odd
team/g                 no devices, no CPUs of its own  was there (Succeeded)  n1     -
team/h                 no devices, no CPUs of its own  was there              n1     -

"""


def grouped(results: list[Result], *, apart: bool = False) -> list[PodGroup]:
    return podgroups.grouped(results, account(), apart=apart)


def test_pods_of_one_owner_that_fare_alike_are_one_line(capsys: Captured) -> None:
    report.show_pods(grouped(GROUPS))
    assert capsys.readouterr().out == GROUPED
    heading, *_ = report.block(grouped(GROUPS)[2])
    assert str(heading) == "team/web (ReplicaSet), 2 Pods  no node"


def test_each_pod_has_a_line_where_all_are_wanted() -> None:
    names = [one.name for one in grouped(GROUPS, apart=True)]
    assert names == ["default/alone", *(f"team/{name}" for name in "abcde"), "default/f", "team/g", "team/h"]


def test_five_hundred_pods_without_an_owner_that_are_refused_alike_are_one_line_and_a_count() -> None:
    refused = [
        Result({"metadata": {"name": f"p{at}"}, "spec": {}}, PodFate.DENIED, (f"Pod default/p{at}: odd",))
        for at in range(500)
    ]
    (only,) = grouped(refused)
    assert (only.name, only.many, only.told) == ("default/p0 and others", "500 Pods", ["odd"])


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (5, ["n1: why", "n2: why", "n3: why", "n4: why", "n5: why"]),
        (6, ["n1: why", "n2: why", "n3: why", "n4: why", "... and 2 more reasons (--all)"]),
    ],
)
def test_of_many_reasons_why_a_pod_has_no_node_four_are_told(reasons: int, told: list[str]) -> None:
    waits = Result(owned("a"), PodFate.UNSCHEDULABLE, tuple(f"n{at}: why" for at in range(1, reasons + 1)))
    (group,) = grouped([waits])
    assert group.told == told
    (apart,) = grouped([waits], apart=True)
    assert len(apart.told) == reasons


def test_whom_a_pod_would_preempt_is_told_however_many_reasons_there_are() -> None:
    why = ("n1: a", "n2: b", "n3: c", "n4: d", "n5: e", "would fit on n1 by preempting team/x; nobody is evicted here")
    (group,) = grouped([Result(owned("a"), PodFate.UNSCHEDULABLE, why, ("odd",))])
    assert group.told == ["n1: a", "n2: b", "n3: c", "... and 2 more reasons (--all)", why[-1], "warning: odd"]


def test_each_problem_of_a_refused_pod_has_a_line() -> None:
    said = "Pod team/a: 2 problems\n- metadata.x: odd; write y\n- spec.z: none"
    (group,) = grouped([Result(owned("a"), PodFate.DENIED, (said,))])
    assert group.told == ["metadata.x: odd; write y", "spec.z: none"]


def test_pods_that_were_there_are_left_out_beside_new_ones() -> None:
    there, new = GROUPS[-1], GROUPS[0]
    assert podgroups.settled([there, new], account()) == [new]
    assert podgroups.settled([there], account()) == [there]


@pytest.mark.parametrize(
    ("pods", "rest"),
    [
        (500, []),
        (501, ["... and 1 more line (-o json has all)", ""]),
        (1100, ["... and 600 more lines (-o json has all)", ""]),
    ],
)
def test_five_hundred_lines_are_listed_and_the_others_counted(pods: int, rest: list[str], capsys: Captured) -> None:
    bound = [Result(owned(f"p{at}", f"o{at}", on="n1"), PodFate.BOUND) for at in range(1, pods)]
    report.show_pods(grouped([*bound, Result(owned("last"), PodFate.UNSCHEDULABLE, ("n1: full",))]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[501:] == ["", *rest]
    first, last = lines[1].split()[0], lines[500].split()[0]
    assert (first, last) == (("team/p1", "team/last") if pods == 500 else ("team/last", "team/p499"))


# Pods one by one


def full(name: str) -> list[Raw]:
    """A node of two cards and two NUMA nodes of four cores."""
    cards = [device_entry(at, id=f"GPU-{name}-{at}") for at in range(2)]
    return [node(name), device_object(*cards, name=name), topology(name)]


IN_ZONE = [{"node": 0, "resources": {"cpu": "3"}}]
IN_POOL = [{"node": 1, "resources": {"cpu": "1500m", "memory": "1Gi"}}]
THERE = [
    held("gpu-a", "node-1", (0, 30)),
    held("gpu-b", "node-1", (0, 50), (1, 100)),
    holds("cpus", status={"cpuset": "1-2,9", "numaNodeResources": IN_ZONE}),
    holds("pooled", qos="LS", status={"numaNodeResources": IN_POOL}),
    holds("more", status={"cpuset": "4,6-7"}),
    held("gone", "node-1", (1, 100), phase="Succeeded"),
]


def standing() -> Account:
    elsewhere = holds("else", on="node-4", status={"cpuset": "0-3"})
    return account(*full("node-1"), *full("node-2"), node("node-3"), device_object(name="bare"), *THERE, elsewhere)


def results() -> list[Result]:
    real = apiserver.with_defaults
    waits = real(asking("waits", {"kubernetes.io/gpu-core": "10"}))
    written = asking("waits", {"kubernetes.io/gpu": "10"})
    return [
        *(Result(real(pod), PodFate.STANDING) for pod in THERE),
        Result(real(gpus("no", 250)), PodFate.DENIED, ("wrong: ask 200",), ("odd",), given=gpus("no", 250)),
        Result(real(asking("plain", nodeName="node-1")), PodFate.BOUND, given=asking("plain")),
        Result(waits, PodFate.UNSCHEDULABLE, ("node-1: full", "node-2: cordoned"), given=written),
    ]


PODS = """\
POD             ASKED                           STATE                  NODE    WHAT IT GOT, OR WHY NOT
default/gpu-a   no devices, no CPUs of its own  was there              node-1  gpu 0 GPU-node-1-0: core 30 %, memory 24 GiB (30 %)
default/gpu-b   no devices, no CPUs of its own  was there              node-1  gpu 0 GPU-node-1-0: core 50 %, memory 40 GiB (50 %)
                                                                               gpu 1 GPU-node-1-1: core 100 %, memory 80 GiB (100 %)
default/cpus    main: cpu=3                     was there              node-1  CPUs 1-2,9 (LSR), NUMA node 0: 3 CPU
                qosClass=LSR
default/pooled  main: cpu=1                     was there              node-1  NUMA node 1: 1500m CPU, 1 GiB
                qosClass=LS
default/more    main: cpu=3                     was there              node-1  CPUs 4,6-7 (LSR)
                qosClass=LSR
default/gone    no devices, no CPUs of its own  was there (Succeeded)  node-1  -
default/no      main: kubernetes.io/gpu=250     refused at admission   -       wrong: ask 200
                                                                               warning: odd
default/plain   no devices, no CPUs of its own  bound                  node-1  -
default/waits   main: kubernetes.io/gpu=10      no node                -       node-1: full
                                                                               node-2: cordoned

"""  # noqa: E501 as it is printed

BLOCKS = """\
default/gpu-a  was there on node-1
  asked   no devices, no CPUs of its own
     gpu 0 GPU-node-1-0: core 30 %, memory 24 GiB (30 %)

default/gpu-b  was there on node-1
  asked   no devices, no CPUs of its own
     gpu 0 GPU-node-1-0: core 50 %, memory 40 GiB (50 %)
     gpu 1 GPU-node-1-1: core 100 %, memory 80 GiB (100 %)

default/cpus  was there on node-1
  asked   main: cpu=3
  asked   qosClass=LSR
     CPUs 1-2,9 (LSR), NUMA node 0: 3 CPU

default/pooled  was there on node-1
  asked   main: cpu=1
  asked   qosClass=LS
     NUMA node 1: 1500m CPU, 1 GiB

default/more  was there on node-1
  asked   main: cpu=3
  asked   qosClass=LSR
     CPUs 4,6-7 (LSR)

default/gone  was there (Succeeded) on node-1
  asked   no devices, no CPUs of its own

default/no  refused at admission
  asked   main: kubernetes.io/gpu=250
     wrong: ask 200
     warning: odd

default/plain  bound to node-1
  asked   no devices, no CPUs of its own

default/waits  no node
  asked   main: kubernetes.io/gpu=10
  became  main: kubernetes.io/gpu-core=10
     node-1: full
     node-2: cordoned

"""


def test_each_pod_is_a_row_where_the_table_is_as_wide_as_it_may_be(capsys: Captured) -> None:
    widest = max(map(len, PODS.splitlines()))
    report.show_pods(podgroups.grouped(results(), standing(), apart=True), widest)
    assert capsys.readouterr().out == PODS
    report.show_pods(podgroups.grouped(results(), standing(), apart=True), widest - 1)
    assert capsys.readouterr().out == BLOCKS


WRAPPED = """\
default/gpu-a  was
there on node-1
  asked   no
          devices,
          no CPUs
          of its
          own
     gpu 0
     GPU-node-1-0:
     core 30 %,
     memory 24 GiB
     (30 %)
"""


def test_what_is_wrapped_goes_on_below_its_beginning(capsys: Captured) -> None:
    terminal.show(*report.block(podgroups.grouped(results()[:1], standing())[0]), most=18)
    assert capsys.readouterr().out == WRAPPED


def test_a_pod_on_a_lost_node_keeps_its_place_and_a_refused_one_has_none() -> None:
    on = owned("a", on="n1")
    fates = {fate: podgroups.node_of(Result(on, fate)) for fate in PodFate}
    assert [fate for fate, at in fates.items() if at == ""] == [PodFate.DENIED, PodFate.NOT_CREATED]
    assert {at for at in fates.values() if at} == {"n1"}
    assert podgroups.node_of(Result(owned("a"), PodFate.BOUND)) == ""


@pytest.mark.parametrize(
    ("fate", "phase", "state"),
    [
        (PodFate.STANDING, "Failed", "was there (Failed)"),
        (PodFate.STANDING, "Running", "was there"),
        (PodFate.STANDING, None, "was there"),
        (PodFate.BOUND, "Failed", "bound"),
    ],
)
def test_how_a_pod_that_was_there_has_ended_is_told(fate: PodFate, phase: str | None, state: str) -> None:
    pod = {**owned("a"), **({"status": {"phase": phase}} if phase else {})}
    heading = report.block(grouped([Result(pod, fate)])[0])[0]
    assert str(heading) == f"team/a  {state}"


def test_what_a_pod_got_comes_before_what_is_wrong_and_what_is_warned_of() -> None:
    listed = [{"id": "GPU-node-1-0", "resources": {"koordinator.sh/gpu-core": "30"}}]
    about = {"koordgate.io/device-quotas": json.dumps({"main": {"gpu": listed}})}
    pod = apiserver.with_defaults(held("a", "node-1", (0, 30)))
    pod["metadata"]["annotations"] |= about
    counted = account(*full("node-1"), pod)
    got = ["gpu 0 GPU-node-1-0: core 30 %, memory 24 GiB (30 %)", "main may use of gpu GPU-node-1-0: core 30 %"]
    assert podgroups.outcome(Result(pod, PodFate.BOUND, ("a reason",), ("one", "two")), counted) == [
        *got,
        "a reason",
        "warning: one",
        "warning: two",
    ]
    assert podgroups.outcome(Result(pod, PodFate.STANDING), counted) == got
    none = apiserver.with_defaults(asking("b", nodeName="node-1"))
    none["metadata"]["annotations"] = dict(about)
    assert podgroups.outcome(Result(none, PodFate.STANDING), counted) == [], "quotas of devices that it does not hold"


def test_what_is_wrong_with_a_pod_is_told_of_those_that_were_there() -> None:
    pod = apiserver.with_defaults(asking("a", {"kubernetes.io/gpu-core": "30"}, nodeName="node-1"))
    counted = account(*full("node-1"), pod)
    told = "asks for devices and carries no allocation, so it holds none; to place it, remove spec.nodeName"
    assert podgroups.outcome(Result(pod, PodFate.STANDING), counted) == [told]
    assert podgroups.outcome(Result(pod, PodFate.BOUND), counted) == []


# Nodes


NODES = """\
node-1: 2 GPUs, 16 CPUs (2 sockets, 2 NUMA nodes, 2 threads a core)
DEVICE  ID            MODEL  NUMA  USED                      WHO, OR WHY NOT
gpu 0   GPU-node-1-0  -      -     core 80 %, 64 of 80 GiB   gpu-a: 30 %
                                                             gpu-b: 50 %
gpu 1   GPU-node-1-1  -      -     core 100 %, 80 of 80 GiB  gpu-b: whole
NUMA  CPUS         WHO
0     1-2,9        cpus (LSR)
      0,3,8,10-11  shared pool: class LS, and all others without CPUs of their own
      0-3,8-11     best-effort pool: class BE, and BestEffort
1     4,6-7        more (LSR)
      5,12-15      shared pool: class LS, and all others without CPUs of their own
                      in it pooled (LS): 1500m CPU, 1 GiB
      4-7,12-15    best-effort pool: class BE, and BestEffort

node-2: 2 GPUs, 16 CPUs (2 sockets, 2 NUMA nodes, 2 threads a core)
DEVICE  ID            MODEL  NUMA  USED                   WHO, OR WHY NOT
gpu 0   GPU-node-2-0  -      -     core 0 %, 0 of 80 GiB  -
gpu 1   GPU-node-2-1  -      -     core 0 %, 0 of 80 GiB  -
NUMA  CPUS       WHO
0     0-3,8-11   shared pool: class LS, and all others without CPUs of their own
      0-3,8-11   best-effort pool: class BE, and BestEffort
1     4-7,12-15  shared pool: class LS, and all others without CPUs of their own
      4-7,12-15  best-effort pool: class BE, and BestEffort

node-4: CPUs that it does not report
NUMA  CPUS  WHO
-     0-3   else: CPUs 0-3 (LSR)

"""

NARROW = """\
node-1: 2 GPUs, 16 CPUs (2 sockets, 2 NUMA nodes, 2
threads a core)
DEVICE  NUMA  USED                      WHO, OR WHY NOT
gpu 0   -     core 80 %, 64 of 80 GiB   gpu-a: 30 %
                                        gpu-b: 50 %
gpu 1   -     core 100 %, 80 of 80 GiB  gpu-b: whole
NUMA  CPUS         WHO
0     1-2,9        cpus (LSR)
      0,3,8,10-11  shared pool: class LS, and all others
                   without CPUs of their own
      0-3,8-11     best-effort pool: class BE, and
                   BestEffort
1     4,6-7        more (LSR)
      5,12-15      shared pool: class LS, and all others
                   without CPUs of their own
                      in it pooled (LS): 1500m CPU, 1
                   GiB
      4-7,12-15    best-effort pool: class BE, and
                   BestEffort

"""


def show_all(counted: Account) -> None:
    terminal.show(*report.node_parts(counted.reports(), counted))


def test_each_node_has_a_heading_and_tables_of_its_devices_and_cpus(capsys: Captured) -> None:
    show_all(standing())
    assert capsys.readouterr().out == NODES


def test_nodes_without_new_pods_are_counted_or_shown_by_classes(capsys: Captured) -> None:
    new = Result(apiserver.with_defaults(THERE[0]), PodFate.BOUND)
    report.show_nodes(standing(), [new])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("node-")] == ["node-1"]
    assert lines[-1] == "2 nodes without new Pods: 0 of 2 GPUs, 0 of 16 CPUs in use (--all-nodes shows them)"
    report.show_nodes(standing(), [new], rest=True)
    table = capsys.readouterr().out.splitlines()[-4:]
    assert [" ".join(line.split()) for line in table] == [
        "NODES EACH HAS IN USE WHICH",
        "1 2 GPUs, 16 CPUs (2 sockets, 2 NUMA nodes, 2 threads a core) gpu 0/2, CPUs 0/16 node-2",
        "1 CPUs that it does not report - node-4",
        "",
    ]
    report.show_nodes(standing(), [])
    assert capsys.readouterr().out == "No node has new Pods with devices (--all-nodes shows the nodes).\n"


def test_equal_nodes_are_one_line(capsys: Captured) -> None:
    names = [f"n{at}" for at in range(6)]
    counted = account(*(part for name in names for part in full(name)), held("a", "n3", (0, 50)))
    report.show_nodes(counted, [], rest=True)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    has = "2 GPUs, 16 CPUs (2 sockets, 2 NUMA nodes, 2 threads a core)"
    assert lines[1:] == [
        f"5 {has} gpu 0/2, CPUs 0/16 n0, n1, n2, n4 and 1 more",
        f"1 {has} gpu 1/2, CPUs 0/16 n3",
        "",
    ]


def test_many_nodes_with_new_pods_are_shown_by_classes(capsys: Captured) -> None:
    names = [f"n{at}" for at in range(5)]
    pods = [apiserver.with_defaults(held(f"p-{name}", name, (0, 50))) for name in names]
    counted = account(*(part for name in names for part in full(name)), *pods)
    report.show_nodes(counted, [Result(pod, PodFate.BOUND) for pod in pods])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1].endswith("gpu 1/2, CPUs 0/16 n0, n1, n2, n3 and 1 more")


def test_one_node_is_shown_in_a_width_that_folds_the_last_column_alone(capsys: Captured) -> None:
    report.show_nodes(standing(), [], "node-1", most=56)
    assert capsys.readouterr().out == NARROW


def test_the_table_of_devices_is_brief_where_it_would_be_wider_than_it_may_be() -> None:
    wide = len("DEVICE  ID            MODEL  NUMA  USED                      WHO, OR WHY NOT")
    tables = [report.node_parts([standing().report("node-1")], standing(), width)[1] for width in (wide - 1, wide)]
    headers = [[str(column.header) for column in one.columns] for one in tables if isinstance(one, Table)]
    assert headers == [
        ["DEVICE", "NUMA", "USED", "WHO, OR WHY NOT"],
        ["DEVICE", "ID", "MODEL", "NUMA", "USED", "WHO, OR WHY NOT"],
    ]


def odd() -> Account:
    """A node with devices of several types and models, CPUs that are reserved, and Pods that the kubelet serves."""
    place = {"nodeID": 0, "pcieID": "1", "busID": "0000:3b:00.0", "socketID": 0}
    cards = [
        device_entry(0, topology=place, labels={"node.koordinator.sh/gpu-model": "NVIDIA-A10"}),
        device_entry(1, topology={**place, "nodeID": 1}, labels={"node.koordinator.sh/gpu-model": "NVIDIA-L4"}),
        device_entry(2, labels={"node.koordinator.sh/gpu-model": "NVIDIA-A10"}),
        device_entry(3, health=False),
    ]
    devices = device_object(*cards, nic(0), name="odd", annotations={ASSUMED: "labels"})
    cpus = topology(
        "odd",
        nodes=2,
        cores=2,
        kubelet=KubeletCpus(CpuManagerPolicy.STATIC),
        pod_cpu_allocs=(
            PodCpuAlloc("default", "one", "u1", parse("1"), managed_by_kubelet=True),
            PodCpuAlloc("team", "two", "u2", parse("2,6"), managed_by_kubelet=True),
            PodCpuAlloc("team", "three", "u3", parse("3"), managed_by_kubelet=True),
        ),
        reservation=NodeReservation(parse("0,4,7")),
    )
    stray = {"minor": 9, "id": "GPU-gone", "resources": {"kubernetes.io/gpu-core": "30"}}
    pods = [
        holds("stray", on="odd", gpu=[stray]),
        holds("spread", on="odd", qos="LS", status={"numaNodeResources": [*IN_ZONE, *IN_POOL]}),
        holds("other", on="odd", qos="LS", status={"numaNodeResources": IN_ZONE}),
    ]
    return account(node("odd"), devices, cpus, *pods)


ODD = """\
odd: 5 GPUs, 1 rdma device, 8 CPUs (2 sockets, 2 NUMA nodes, 2 threads a core) (assumed from labels)
DEVICE  ID            MODEL  NUMA  USED                   WHO, OR WHY NOT
gpu 0   GPU-0         A10    0     core 0 %, 0 of 80 GiB  -
gpu 1   GPU-1         L4     1     core 0 %, 0 of 80 GiB  -
gpu 2   GPU-2         A10    -     core 0 %, 0 of 80 GiB  -
gpu 3   GPU-3         -      -     core 0 %, 0 of 80 GiB  takes no new Pods: unhealthy
rdma 0  0000:10:00.0  -      -     0 %, 0 of 2 functions  -
gpu 9   GPU-gone      -      -     core 30 %, 0 GiB       takes no new Pods: the node has no such device
                                                          stray: 30 %
NUMA  CPUS  WHO
0     1     one (by the kubelet's static policy)
      0,4   reserved: given to no Pod
      5     shared pool: class LS, and all others without CPUs of their own
               in it other (LS): 3 CPU
               in it spread (LS): 3 CPU
      5     best-effort pool: class BE, and BestEffort
1     2,6   team/two (by the kubelet's static policy)
      3     team/three (by the kubelet's static policy)
      7     reserved: given to no Pod
      none  shared pool: class LS, and all others without CPUs of their own
               in it spread (LS): 1500m CPU, 1 GiB
      none  best-effort pool: class BE, and BestEffort

"""


def test_devices_of_several_models_and_cpus_of_several_holders_are_told_apart(capsys: Captured) -> None:
    show_all(odd())
    assert capsys.readouterr().out == ODD


def test_without_a_column_of_models_the_heading_names_each_once() -> None:
    heading = report.node_parts([odd().report("odd")], odd(), 60)[0]
    assert str(heading) == (
        "odd: 5 GPUs (A10, L4), 1 rdma device, 8 CPUs (2 sockets, 2 NUMA nodes, 2 threads a core) (assumed from labels)"
    )


def test_the_cpus_of_a_pod_are_told_with_its_whole_name_and_those_of_pools_with_none() -> None:
    (cpus,) = cpus_of(odd())
    assert [(row.numa, row.cpus, row.pod) for row in report.cpu_rows(cpus)] == [
        ("0", "1", "default/one"),
        ("0", "0,4", ""),
        ("0", "5", ""),
        ("0", "", "default/other"),
        ("0", "", "default/spread"),
        ("0", "5", ""),
        ("1", "2,6", "team/two"),
        ("1", "3", "team/three"),
        ("1", "7", ""),
        ("1", "none", ""),
        ("1", "", "default/spread"),
        ("1", "none", ""),
    ]


def test_each_numa_node_has_its_number_in_its_first_row() -> None:
    (cpus,) = cpus_of(account(node(), topology(nodes=11, cores=1)))
    numbers = [str(cell) for cell in report.cpus_table(cpus).columns[0].cells]
    assert numbers == [text for at in range(11) for text in (str(at), "")]


# Sums


def test_what_became_of_the_pods_and_what_is_in_use_is_one_line() -> None:
    assert report.summary(results(), standing()) == (
        "9 Pods: 6 there already, 1 bound, 1 refused at admission, 1 without a node; 2 of 4 GPUs, 6 of 32 CPUs in use"
    )
    assert report.summary(results()[:1], standing(), "node-1") == (
        "1 Pod: 1 there already; 2 of 2 GPUs, 6 of 16 CPUs in use"
    )
    assert report.summary([], standing(), "node-3") == "0 Pods: none; no devices"
    assert report.in_use(odd()) == "1 of 5 GPUs, 0 of 1 rdma device, 4 of 8 CPUs in use"


# Objects


def test_the_list_has_the_pods_as_they_are_and_of_refused_ones_the_reason() -> None:
    made = report.as_list(results(), standing())
    assert (made["apiVersion"], made["kind"]) == ("v1", "List")
    assert [item.get("status") for item in made["items"][-3:]] == [
        {"phase": "Pending", "reason": "Denied", "message": "wrong: ask 200"},
        results()[-2].pod.get("status"),
        {"phase": "Pending", "reason": "Unschedulable", "message": "node-1: full; node-2: cordoned"},
    ]
    assert made["items"][0] == results()[0].pod


def test_a_pod_that_holds_assumed_devices_is_marked_with_their_number() -> None:
    objects = full("node-1")
    objects[1]["metadata"]["annotations"] = {ASSUMED: "labels"}
    pods = [
        held("two", "node-1", (0, 30), (1, 30)),
        asking("none", nodeName="node-1"),
        holds("cpus", status={"cpuset": "1-2"}),
        held("stated", "node-1", (0, 10)),
        held("sure", "node-2", (0, 10)),
        gpus("waits", 300),
    ]
    pods[3]["metadata"]["annotations"][ASSUMED] = "7"
    real = [apiserver.with_defaults(pod) for pod in pods]
    counted = account(*objects, *full("node-2"), *pods[:-1])
    items = report.as_list([Result(pod, PodFate.STANDING) for pod in real], counted)["items"]
    assert [(item["metadata"].get("annotations") or {}).get(ASSUMED) for item in items] == [
        "2",
        None,
        None,
        "7",
        None,
        None,
    ]
    assert items[0]["metadata"]["annotations"].keys() == {*real[0]["metadata"]["annotations"], ASSUMED}
    assert [items[at] == real[at] for at in range(6)] == [False, True, True, True, True, True]


def test_yaml_has_each_object_in_full_in_its_order_and_no_broken_lines(capsys: Captured) -> None:
    shared = {"requests": {"z": "1", "a": "ä " * 200}}
    pods = [{"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": shared}]}} for name in "ab"]
    report.write_yaml([Result(pod, PodFate.BOUND) for pod in pods], account())
    out = capsys.readouterr().out
    assert yaml.safe_load(out)["items"] == pods
    assert "&" not in out
    assert out.count("        z: '1'\n          a: ") == out.count("ä " * 199) == 2
