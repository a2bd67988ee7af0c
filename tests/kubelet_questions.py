"""Random nodes and Pods, as koordgate and as a kubelet see them: whatever `place()` binds, the kubelet must admit."""

import json
import random
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from builders import container, gpu, holding, pod
from machines_cpu import build, shuffled, siblings_far, siblings_near, siblings_of_four

from allocator.cpu.resolve import NUMA_TOPOLOGY_POLICIES, CpuDefaults, resolve
from allocator.place import Placement, place
from allocator.request.cpus import QOS_LABEL
from allocator.request.pod import read_request
from allocator.vocabulary.cpunode import CpuShare, NumaPolicy, NumaShare
from allocator.vocabulary.cputopology import CpuTopology, format_cpuset, members
from allocator.vocabulary.names import NUMA_SCOPE
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.nodetopology import (
    CPU_MANAGER_POLICY,
    CPU_TOPOLOGY,
    NODE_RESERVATION,
    POD_CPU_ALLOCS,
    read_node_topology,
)
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC

PLUGINS = ("example.com/nic", "example.com/fpga")
POLICIES = {
    "none": NumaPolicy.NONE,
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}
SCOPES = {"container": "ContainerLevel", "pod": "PodLevel"}
# Options of the static policy that go together.
OPTIONS = (
    (),
    ("full-pcpus-only",),
    ("distribute-cpus-across-numa",),
    ("full-pcpus-only", "distribute-cpus-across-numa"),
    ("align-by-socket",),
    ("align-by-socket", "distribute-cpus-across-numa"),
    ("strict-cpu-reservation",),
    ("distribute-cpus-across-cores",),
    ("prefer-align-cpus-by-uncorecache",),
    ("full-pcpus-only", "prefer-align-cpus-by-uncorecache", "strict-cpu-reservation"),
)


class Case(NamedTuple):
    """A node and a Pod.

    Attributes:
        node: as koordgate sees it.
        pod: the Pod.
        question: both, as localplane/module/admission reads them.
        schedulable: whether the node has what the Pod requests of each resource, as kube-scheduler counts.
    """

    node: NodeSnapshot
    pod: dict[str, Any]
    question: dict[str, Any]
    schedulable: bool

    def placed(self) -> Placement | Refusal:
        """What koordgate decides."""
        reading = read_request(self.pod, {})
        assert not reading.problems, reading.problems
        return place(reading.request, self.node)


def cases(seed: int) -> Iterator[Case]:
    """Random cases without end, always the same for a seed."""
    draw = random.Random(seed)
    while True:
        yield case(draw)


def case(draw: random.Random) -> Case:
    topology = _machine(draw)
    policy = draw.choices(tuple(POLICIES), (1, 1, 4, 4))[0]
    scope = draw.choice(tuple(SCOPES))
    static = draw.random() < 0.85
    fits = len(topology.sockets) <= len(topology.nodes)
    options = [
        one for one in OPTIONS if "align-by-socket" not in one or (fits and policy not in {"single-numa-node", "none"})
    ]
    chosen = dict.fromkeys(draw.choice(options), "true") if static else {}
    reserved = _some(draw, topology, 1, cores=draw.random() < 0.7)
    left = topology.all & ~reserved & ~_some(draw, topology, 2, cores=True)  # the kubelet keeps a shared pool
    crowd = draw.choice((0, 1, 2, 4))
    kubelets = _some(draw, topology, crowd, cores=draw.random() < 0.5) & left if static else 0
    ours = _some(draw, topology, crowd, cores=draw.random() < 0.5) & left & ~kubelets
    seen = static and draw.random() < 0.7  # whether the kubelet knows what Pods hold here
    kept = _some(draw, topology, 2, cores=True) & left & ~kubelets & ~ours if draw.random() < 0.2 else 0
    plugins = {name: {at: draw.randrange(4) for at in topology.nodes} for name in PLUGINS if draw.random() < 0.4}
    plugins = {name: has for name, has in plugins.items() if any(has.values())}
    held = {name: {at: draw.randint(0, much) // 2 for at, much in has.items()} for name, has in plugins.items()}
    made = _pod(draw, tuple(plugins))
    zones = [
        {
            "name": f"node-{at}",
            "type": "Node",
            "resources": [
                {"name": name, "allocatable": has[at], "available": has[at], "capacity": has[at]}
                for name, has in plugins.items()
                if has[at]
            ],
        }
        for at in topology.nodes
    ]
    told = {
        "metadata": {
            "name": "node-1",
            "annotations": {
                CPU_TOPOLOGY: json.dumps({"detail": [one._asdict() for one in topology.cpus]}),
                CPU_MANAGER_POLICY: json.dumps(
                    {
                        "policy": "static" if static else "none",
                        "options": chosen,
                        "reservedCPUs": format_cpuset(reserved),
                    }
                ),
                POD_CPU_ALLOCS: json.dumps(
                    [{"uid": "kubelets", "cpuset": format_cpuset(kubelets), "managedByKubelet": True}]
                    if kubelets
                    else []
                ),
                **({NODE_RESERVATION: json.dumps({"reservedCPUs": format_cpuset(kept)})} if kept else {}),
            },
        },
        "topologyPolicies": [POLICIES[policy].value + (SCOPES[scope] if policy != "none" else "")],
        "zones": zones if plugins else [],
    }
    labels = {NUMA_TOPOLOGY_POLICIES[0]: draw.choice(tuple(NumaPolicy)).value} if draw.random() < 0.3 else {}
    read = read_node_topology(told)
    assert not read.problems, read.problems
    of_plugins = tuple(
        NumaShare(at, 0, 0, 0, others)
        for at in topology.nodes
        if (others := tuple((name, has[at]) for name, has in held.items() if has[at]))
    )
    node = NodeSnapshot(
        "node-1",
        tuple(gpu(minor, numa_node=minor % len(topology.nodes)) for minor in range(4)),
        {
            "ours": holding("ours", cpus=CpuShare("LSR", ours)),
            "plugins": holding("plugins", cpus=CpuShare("BE", numa=of_plugins)),
        },
        cpu=resolve(read, labels, CpuDefaults()),
    )
    question = {
        "CPUs": [{**one._asdict(), "Cache": one.node * 64 + one.core % 2} for one in topology.cpus],
        "Distances": _distances(draw, topology),
        "Static": static,
        "Options": chosen,
        "Reserved": format_cpuset(reserved),
        "Held": {
            uid: format_cpuset(cpus) for uid, cpus in (("kubelets", kubelets), ("ours", ours if seen else 0)) if cpus
        },
        "Topology": policy,
        "Scope": scope,
        "TopologyOptions": {
            **({"prefer-closest-numa-nodes": "true"} if draw.random() < 0.3 else {}),
            **({"max-allowable-numa-nodes": "16"} if len(topology.nodes) > 8 or draw.random() < 0.1 else {}),
        },
        "Devices": {
            name: [{"Node": at, "Held": number < held[name][at]} for at, much in has.items() for number in range(much)]
            for name, has in plugins.items()
        },
        "Pod": made,
    }
    free = {
        "cpu": 1000 * (topology.all & ~reserved & ~kubelets & ~ours).bit_count(),
        **{name: sum(has.values()) - sum(held[name].values()) for name, has in plugins.items()},
    }
    ask = read_request(made, {}).request.cpu
    asked = {"cpu": ask.milli, **dict(ask.others)} if ask is not None else {}
    return Case(node, made, question, all(amount <= free.get(name, 0) for name, amount in asked.items()))


def _machine(draw: random.Random) -> CpuTopology:
    threads = draw.choice((1, 2, 2, 2, 4))
    numbering = siblings_of_four if threads == 4 else draw.choice((siblings_far, siblings_near, shuffled))
    if threads == 1:
        numbering = siblings_far
    sockets, nodes = draw.choice(
        ((1, 1), (2, 1), (2, 1), (2, 1), (1, 2), (2, 2), (1, 4), (4, 1), (2, 3), (1, 8), (3, 3))
    )
    return build(sockets, nodes, draw.choice((2, 2, 4, 4, 6) if sockets * nodes < 4 else (1, 2, 3)), threads, numbering)


def _distances(draw: random.Random, topology: CpuTopology) -> dict[int, list[int]]:
    socket = topology.socket_of_node
    far = {frozenset((a, b)): draw.choice((12, 16)) for a in socket for b in socket}
    return {
        a: [10 if a == b else far[frozenset((a, b))] + 10 * (socket[a] != socket[b]) for b in socket] for a in socket
    }


def _some(draw: random.Random, topology: CpuTopology, count: int, *, cores: bool) -> int:
    """Some CPUs or some whole cores."""
    groups = list(topology.cores) if cores else [1 << cpu for cpu in members(topology.all)]
    return sum(draw.sample(groups, min(count, len(groups))))


def _pod(draw: random.Random, plugins: tuple[str, ...]) -> dict[str, Any]:
    qos = draw.choice(("LSR", "LSR", "LSE", "LS", "BE", ""))
    whole = qos in {"LSR", "LSE"}
    guaranteed = whole or draw.random() < 0.8
    gpus = draw.random() < 0.3
    cards = 0

    def one(name: str, **fields: Any) -> dict[str, Any]:
        nonlocal cards
        cpu = draw.choice((1, 2, 2, 3, 4, 4, 6, 8)) if whole or draw.random() < 0.7 else "1500m"
        limits: dict[str, Any] = {"cpu": cpu, "memory": "1Gi"}
        requests = dict(limits) if guaranteed or draw.random() < 0.5 else {**limits, "memory": "512Mi"}
        for plugin in plugins:
            if draw.random() < 0.4:
                limits[plugin] = requests[plugin] = draw.choice((1, 1, 2, 3))
        if gpus and cards < 2 and draw.random() < 0.5:
            cards += 1
            limits["koordinator.sh/gpu"] = requests["koordinator.sh/gpu"] = 100
        return container(name, requests=requests, limits=limits, **fields)

    first = [
        one(f"i{at}", **({"restartPolicy": "Always"} if draw.random() < 0.4 else {}))
        for at in range(draw.choice((0, 0, 1, 1, 2, 3)))
    ]
    apps = [one(f"a{at}") for at in range(draw.choice((1, 1, 2, 3)))]
    annotations = {} if qos else {NUMA_SCOPE: "true"}
    if draw.random() < 0.2:
        annotations[NUMA_TOPOLOGY_SPEC] = json.dumps({"numaTopologyPolicy": draw.choice(tuple(NumaPolicy)[1:]).value})
    return pod(*apps, init=first, uid="asked", annotations=annotations, labels={QOS_LABEL: qos} if qos else {})


def asked_of_kubelet(program: Path, questions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The kubelet's answers: whether it admits each Pod, and why not."""
    lines = "".join(json.dumps(one) + "\n" for one in questions)
    done = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
