"""Which Pods are subject to CPU orchestration, what they request, and every way in which a request can be wrong."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, container, pod, sidecar_container
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import json_near, json_values

from allocator.quantity import to_milli
from allocator.request.cpus import PRIORITY_CLASS_LABEL, QOS_LABEL, names_cpus, read_cpu_ask
from allocator.vocabulary.cpunode import (
    BindPolicy,
    CpuAsk,
    ExclusivePolicy,
    KubeletAsk,
    NumaExclusive,
    NumaPolicy,
    QosClass,
)
from allocator.vocabulary.names import OWN_CPUS, Phase
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC


def same(cpu: Any = None, memory: Any = None) -> dict[str, Any]:
    """Requests that equal limits."""
    amounts = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"requests": amounts, "limits": amounts}


def classed(
    qos: str | None, *containers: Mapping[str, Any], spec: Any = None, numa: Any = None, **fields: Any
) -> dict[str, Any]:
    """A Pod of a QoS class (none without one) and with these annotations."""
    annotations = {
        key: json.dumps(value)
        for key, value in ((RESOURCE_SPEC, spec), (NUMA_TOPOLOGY_SPEC, numa))
        if value is not None
    }
    labels = {**({} if qos is None else {QOS_LABEL: qos}), **fields.pop("labels", {})}
    return pod(*containers, labels=labels, annotations=annotations, **fields)


FULL, SPREAD, BURST = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS, BindPolicy.CONSTRAINED_BURST
TWO = container(**same("2", "4Gi"))


def lsr(cpus: int, gib: int, **wishes: Any) -> CpuAsk:
    return CpuAsk(QosClass.LSR, cpus, 1000 * cpus, gib * GIB, 1000 * cpus, **wishes)


def lse(cpus: int, gib: int, **wishes: Any) -> CpuAsk:
    return replace(lsr(cpus, gib, **wishes), qos=QosClass.LSE)


ASKS: dict[str, tuple[dict[str, Any], CpuAsk]] = {
    "two CPUs": (classed("LSR", TWO), lsr(2, 4)),
    "two CPUs, exclusive class": (classed("LSE", TWO), lse(2, 4)),
    "limits alone, as Kubernetes fills requests": (
        classed("LSR", container(limits={"cpu": 2, "memory": "1Gi"})),
        lsr(2, 1),
    ),
    "memory that is not limited": (
        classed("LSR", container(requests={"cpu": 2, "memory": "1Gi"}, limits={"cpu": 2})),
        lsr(2, 1),
    ),
    "two apps": (classed("LSR", TWO, container("other", **same(3))), lsr(5, 4)),
    "an app without CPU beside": (
        classed("LSR", TWO, container("other", **same(memory="1Gi"))),
        CpuAsk(QosClass.LSR, 2, 2000, 5 * GIB, 0),
    ),
    "a sidecar counts throughout": (
        classed("LSR", TWO, init=[sidecar_container("mesh", **same(1, "1Gi")), container("first", **same(2, "1Gi"))]),
        lsr(3, 5),
    ),
    "a large init container": (
        classed("LSR", TWO, init=[container("first", **same(8, "1Gi")), sidecar_container("mesh", **same(1))]),
        lsr(8, 4),
    ),
    "an init container without limit": (classed("LSR", TWO, init=[container("first")]), lsr(2, 4)),
    "whole overhead": (classed("LSR", TWO, overhead={"cpu": "1", "memory": "1Gi"}), lsr(3, 5)),
    "the Pod's own resources win": (
        classed("LSR", container(**same(1, "1Gi")), container("other"), resources=same(4, "8Gi")),
        lsr(4, 8),
    ),
    "the Pod's limit, where no container requests": (
        classed("LSR", container(), resources={"limits": {"cpu": 4, "memory": "8Gi"}}),
        lsr(4, 8),
    ),
    "the Pod's resources state memory only": (classed("LSR", TWO, resources=same(memory="8Gi")), lsr(2, 8)),
    # policies
    "preferred policies, the CPU proposal's example": (
        classed(
            "LSR", TWO, spec={"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}
        ),
        lsr(2, 4, preferred=SPREAD, exclusive=ExclusivePolicy.PCPU_LEVEL),
    ),
    "a required policy is the preferred one, too": (
        classed("LSR", TWO, spec={"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUBindPolicy": "SpreadByPCPUs"}),
        lsr(2, 4, required=FULL, preferred=FULL),
    ),
    "Default policies": (
        classed(
            "LSR",
            TWO,
            spec={
                "requiredCPUBindPolicy": "Default",
                "preferredCPUBindPolicy": "Default",
                "preferredCPUExclusivePolicy": "Default",
            },
        ),
        lsr(2, 4, required=BindPolicy.DEFAULT),
    ),
    "a required Default comes before what is preferred": (
        classed("LSR", TWO, spec={"requiredCPUBindPolicy": "Default", "preferredCPUBindPolicy": "SpreadByPCPUs"}),
        lsr(2, 4, required=BindPolicy.DEFAULT),
    ),
    "explicitly not exclusive": (
        classed("LSR", TWO, spec={"preferredCPUExclusivePolicy": "None"}),
        lsr(2, 4, exclusive=ExclusivePolicy.NONE),
    ),
    "production priority": (
        classed("LSE", TWO, labels={PRIORITY_CLASS_LABEL: "koord-prod"}, priorityClassName="koord-batch"),
        lse(2, 4),
    ),
    # shared pools
    "constrained burst": (
        classed(
            None,
            container(requests={"cpu": "1500m", "memory": "1Gi"}, limits={"cpu": 4}),
            spec={"preferredCPUBindPolicy": "ConstrainedBurst"},
        ),
        CpuAsk(QosClass.LS, 0, 1500, GIB, 4000, preferred=BURST),
    ),
    "constrained burst, required, labelled": (
        classed(
            "LS",
            container(requests={"cpu": "100m"}, limits={"cpu": "2500m"}),
            init=[sidecar_container("mesh", limits={"cpu": "500m"}), container("first")],
            spec={"requiredCPUBindPolicy": "ConstrainedBurst", "preferredCPUExclusivePolicy": "PCPULevel"},
            overhead={"cpu": "250m"},
        ),
        CpuAsk(QosClass.LS, 0, 850, 0, 3250, required=BURST, preferred=BURST),
    ),
    "constrained burst by the Pod's own limit": (
        classed(
            None, container(), resources={"limits": {"cpu": 3}}, spec={"preferredCPUBindPolicy": "ConstrainedBurst"}
        ),
        CpuAsk(QosClass.LS, 0, 3000, 0, 3000, preferred=BURST),
    ),
    # a class alone: the node may require alignment
    "LS": (classed("LS", TWO), CpuAsk(QosClass.LS, 0, 2000, 4 * GIB, 2000)),
    "LS, in fractions, without a limit": (
        classed("LS", container(requests={"cpu": "1500m", "memory": "1Gi"})),
        CpuAsk(QosClass.LS, 0, 1500, GIB),
    ),
    "BE": (classed("BE", container()), CpuAsk(QosClass.BE, 0, 0, 0)),
    "a preferred policy on an LS Pod": (
        classed("LS", TWO, spec={"preferredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}),
        CpuAsk(QosClass.LS, 0, 2000, 4 * GIB, 2000),
    ),
    "no alignment of its own, said so": (
        classed("LS", TWO, numa={"numaTopologyPolicy": "None"}),
        CpuAsk(QosClass.LS, 0, 2000, 4 * GIB, 2000),
    ),
    # NUMA alignment
    "aligned, no class": (
        classed(None, container(requests={"cpu": "500m"}), numa={"numaTopologyPolicy": "SingleNUMANode"}),
        CpuAsk(
            QosClass.LS,
            0,
            500,
            0,
            numa_policy=NumaPolicy.SINGLE_NUMA_NODE,
            single_numa_exclusive=NumaExclusive.REQUIRED,
        ),
    ),
    "aligned, a preferred bind policy of no effect beside": (
        classed("LS", TWO, numa={"numaTopologyPolicy": "Restricted"}, spec={"preferredCPUBindPolicy": "FullPCPUs"}),
        CpuAsk(
            QosClass.LS,
            0,
            2000,
            4 * GIB,
            2000,
            numa_policy=NumaPolicy.RESTRICTED,
            single_numa_exclusive=NumaExclusive.REQUIRED,
        ),
    ),
    "aligned, best effort": (
        classed(None, numa={"numaTopologyPolicy": "BestEffort", "singleNUMANodeExclusive": "Preferred"}),
        CpuAsk(QosClass.BE, 0, 0, 0, numa_policy=NumaPolicy.BEST_EFFORT, single_numa_exclusive=NumaExclusive.PREFERRED),
    ),
    "bound and aligned": (
        classed("LSR", TWO, numa={"numaTopologyPolicy": "Restricted", "singleNUMANodeExclusive": "Preferred"}),
        lsr(2, 4, numa_policy=NumaPolicy.RESTRICTED, single_numa_exclusive=NumaExclusive.PREFERRED),
    ),
    "the node's policy, exclusivity its own": (
        classed("LS", TWO, numa={"numaTopologyPolicy": "None", "singleNUMANodeExclusive": "Required"}),
        CpuAsk(QosClass.LS, 0, 2000, 4 * GIB, 2000, single_numa_exclusive=NumaExclusive.REQUIRED),
    ),
}


@pytest.mark.parametrize(("made", "expected"), ASKS.values(), ids=ASKS)
def test_every_ask_is_read(made: dict[str, Any], expected: CpuAsk) -> None:
    told = read_cpu_ask(made)
    assert told.problems == ()
    assert told.ask is not None
    assert replace(told.ask, of_kubelet=()) == expected
    assert names_cpus(made)
    assert isinstance(hash(told.ask), int)
    assert told.ask.constrained_burst == (expected.preferred is BURST)


# What the kubelet's static policy would give containers, regardless of labels: their phases, and whole CPUs

APP, INIT, SIDECAR = Phase.APP, Phase.INIT, Phase.SIDECAR
STATIC: dict[str, tuple[dict[str, Any], list[tuple[Phase, int]]]] = {
    "of class LSR": (classed("LSR", TWO), [(APP, 2)]),
    "of class LS": (classed("LS", TWO), [(APP, 2)]),
    "of class BE": (classed("BE", TWO), [(APP, 2)]),
    "requests that Kubernetes fills in": (classed("LS", container(limits={"cpu": 3, "memory": "1Gi"})), [(APP, 3)]),
    "every container, in the order they start": (
        classed(
            "LSR",
            TWO,
            container("b", **same(4, "1Gi")),
            init=[container("i", **same(1, "1Gi")), sidecar_container("s", **same(6, "1Gi"))],
        ),
        [(INIT, 1), (SIDECAR, 6), (APP, 2), (APP, 4)],
    ),
    "not those that ask a fraction": (
        classed("LS", TWO, container("b", **same("500m", "1Gi")), container("c", **same("1000m", "1Gi"))),
        [(APP, 2), (APP, 1)],
    ),
    "none of a Pod that may use more memory than it requests": (
        classed("LSR", container(requests={"cpu": 2, "memory": "1Gi"}, limits={"cpu": 2, "memory": "2Gi"})),
        [],
    ),
    "none of a Pod without a limit of memory": (classed("LSR", container(**same(2))), []),
    "none of a Pod with a container without limits": (classed("LSR", TWO, container("b")), []),
    "none of a Pod with an init container without limits": (classed("LSR", TWO, init=[container("i")]), []),
    "none of a Pod that may burst": (
        classed("LS", container(requests={"cpu": 2, "memory": "1Gi"}, limits={"cpu": 3, "memory": "1Gi"})),
        [],
    ),
    "none of a Pod that states resources for itself": (classed("LSR", TWO, resources=same(4, "8Gi")), []),
    "none of a Pod that states memory for itself": (classed("LSR", TWO, resources=same(memory="8Gi")), []),
}


@pytest.mark.parametrize(("made", "expected"), STATIC.values(), ids=STATIC)
def test_what_the_kubelet_itself_would_give_is_known_by_container(
    made: dict[str, Any], expected: list[tuple[Phase, int]]
) -> None:
    told = read_cpu_ask(made)
    assert told.ask is not None, told.problems
    assert list(told.ask.of_kubelet) == [KubeletAsk(*one) for one in expected]


def test_devices_of_plugins_are_known_by_container_and_huge_pages_are_none() -> None:
    nics = {"cpu": "500m", "example.com/nic": 2, "hugepages-2Mi": "4Mi", "example.com/fpga": 1}
    made = classed("LS", container(**same(1, "1Gi")), container("b", requests=nics, limits=nics))
    told = read_cpu_ask(made)
    assert told.ask is not None
    assert told.ask.of_kubelet == (KubeletAsk(APP, 0, (("example.com/fpga", 1), ("example.com/nic", 2))),)
    assert dict(told.ask.others)["hugepages-2Mi"] == 4 * 2**20


NOTHING: dict[str, dict[str, Any]] = {
    "an ordinary Pod": pod(),
    "a Guaranteed Pod without a class is LS (CPU proposal, QoS principle 8)": pod(TWO),
    "SYSTEM": classed("SYSTEM", TWO),
    "an empty class": classed("", TWO),
    "a preferred policy on an ordinary Pod": classed(None, TWO, spec={"preferredCPUBindPolicy": "FullPCPUs"}),
    "a preferred policy on a SYSTEM Pod": classed("SYSTEM", TWO, spec={"preferredCPUBindPolicy": "FullPCPUs"}),
    "an exclusive policy on an ordinary Pod": classed(None, TWO, spec={"preferredCPUExclusivePolicy": "PCPULevel"}),
    "an empty resource-spec": classed(None, TWO, spec={}),
    "an empty numa-topology-spec": classed(None, TWO, numa={}),
    "no alignment, said so": classed(None, TWO, numa={"numaTopologyPolicy": "None"}),
    "fractions of CPUs without a class": pod(container(**same("1500m"))),
    "reclaimed priority without a class": pod(TWO, priorityClassName="koord-batch"),
}


@pytest.mark.parametrize("made", NOTHING.values(), ids=NOTHING)
def test_a_pod_that_needs_no_orchestration_asks_nothing(made: dict[str, Any]) -> None:
    told = read_cpu_ask(made)
    assert (told.ask, told.problems) == (None, ())


def test_a_pod_is_in_scope_by_its_class_or_its_annotations() -> None:
    scope = {name: names_cpus(made) for name, made in NOTHING.items()}
    assert {name for name, seen in scope.items() if seen} == {
        "a preferred policy on an ordinary Pod",
        "a preferred policy on a SYSTEM Pod",
        "an exclusive policy on an ordinary Pod",
        "an empty resource-spec",
        "an empty numa-topology-spec",
        "no alignment, said so",
    }


REQUESTS, LIMITS = "spec.containers[main].resources.requests[cpu]", "spec.containers[main].resources.limits[cpu]"
OR_SHARED = ", or name only other containers in the annotation koordgate.io/own-cpus: this one then runs on shared CPUs"
SPEC_PATH = f"metadata.annotations[{RESOURCE_SPEC}]"

BURSTS, WHOLE = {"preferredCPUBindPolicy": "ConstrainedBurst"}, "is no whole number of CPUs; write"
OVERHEAD = "spec.overhead[cpu]: 250m is not a whole number of CPUs, so the Pod's sum is not either"
NO_CPU = "spec.containers: a Pod of class LSE requests no CPU"

# a Pod, and a part of each problem

WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a fraction": (
        classed("LSR", container(**same("1500m"))),
        [f"{REQUESTS}: 1500m {WHOLE} 1 or 2", f"{LIMITS}: 1500m {WHOLE} 1 or 2"],
    ),
    "less than one": (classed("LSE", container(limits={"cpu": "0.5"})), [f"{LIMITS}: 500m {WHOLE} 1"]),
    "fractions that add up": (
        classed("LSR", container(limits={"cpu": "1.5"}), container("other", limits={"cpu": "0.5"})),
        [f"1500m {WHOLE} 1 or 2{OR_SHARED}", f"containers[other].resources.limits[cpu]: 500m {WHOLE} 1{OR_SHARED}"],
    ),
    "a limit above the request": (
        classed("LSR", container(requests={"cpu": 2}, limits={"cpu": 4})),
        [f"{REQUESTS}: request 2 and limit 4 differ; in a Pod of class LSE or LSR write 2 or 4 in both"],
    ),
    "a request without limit": (
        classed("LSR", container(requests={"cpu": 2})),
        [f"{LIMITS}: missing; in a Pod of class LSE or LSR it must equal the request: write 2"],
    ),
    "a sidecar's fraction": (
        classed("LSR", TWO, init=[container("first"), sidecar_container("mesh", **same("1100m"))]),
        [f"spec.initContainers[mesh].resources.{key}[cpu]: 1100m {WHOLE} 1 or 2" for key in ("requests", "limits")],
    ),
    "an init container's request without limit": (
        classed("LSR", TWO, init=[container("first", requests={"cpu": 1})]),
        ["spec.initContainers[first].resources.limits[cpu]: missing"],
    ),
    "a container's fraction beside the Pod's own CPUs": (
        classed("LSR", container(requests={"cpu": "1500m"}, limits={"cpu": 2}), resources=same(4)),
        [f"{REQUESTS}: 1500m {WHOLE} 1 or 2"],
    ),
    "a container that may use more than it requests of the Pod's own CPUs": (
        classed("LSR", container(requests={"cpu": 1}, limits={"cpu": 2}), resources={"limits": {"cpu": 4}}),
        [f"{REQUESTS}: request 1 and limit 2 differ"],
    ),
    "the Pod's limit above what its containers request, which is its request": (
        classed("LSR", TWO, init=[sidecar_container("mesh", **same(1))], resources={"limits": {"cpu": 4}}),
        ["spec.resources.requests[cpu]: request 3 and limit 4 differ"],
    ),
    "the Pod's own request without limit": (
        classed("LSR", TWO, resources={"requests": {"cpu": 2}}),
        ["spec.resources.limits[cpu]: missing"],
    ),
    "the Pod's own fraction": (
        classed("LSR", TWO, resources={"limits": {"cpu": "2.5"}}),
        [f"spec.resources.limits[cpu]: 2500m {WHOLE} 2 or 3"],
    ),
    "overhead of a fraction": (classed("LSR", TWO, overhead={"cpu": "250m"}), [OVERHEAD]),
    "overhead of a fraction beside no CPU": (
        classed("LSR", container(**same(memory="1Gi")), overhead={"cpu": "250m"}),
        [OVERHEAD],
    ),
    "no CPU": (classed("LSE", container(**same(memory="1Gi"))), [NO_CPU]),
    "zero CPUs": (classed("LSE", container(requests={"cpu": 0})), [NO_CPU]),
    "no quantity": (
        classed("LSR", container(**same("two"))),
        [f"{REQUESTS}: 'two' is not a Kubernetes quantity", f"{LIMITS}: 'two' is not a Kubernetes quantity"],
    ),
    "negative memory": (
        classed("LSR", container(limits={"cpu": 2, "memory": "-1"})),
        ["spec.containers[main].resources.limits[memory]: '-1' is negative"],
    ),
    "reclaimed priority": (
        classed("LSE", TWO, priorityClassName="koord-mid"),
        ["spec.priorityClassName: a Pod of class LSE has CPUs of its own, which needs koord-prod; write koord-prod"],
    ),
    "ConstrainedBurst with CPUs of its own": (
        classed("LSR", TWO, spec=BURSTS),
        [f"{SPEC_PATH}: ConstrainedBurst chooses a shared pool for LS Pods, but a Pod of class LSR gets CPUs of its"],
    ),
    "ConstrainedBurst on the best-effort pool": (
        classed("BE", container(limits={"cpu": 1}), spec=BURSTS),
        [f"{SPEC_PATH}: ConstrainedBurst is for LS Pods; a Pod of class BE does not run in the shared pool; remove it"],
    ),
    "ConstrainedBurst without a limit": (
        classed("LS", container(limits={"cpu": 1}), container("other", requests={"cpu": 1}), spec=BURSTS),
        ["spec.containers[other].resources.limits[cpu]: missing; ConstrainedBurst chooses a pool"],
    ),
    "ConstrainedBurst with a limit of zero": (
        classed("LS", container(limits={"cpu": 0}), spec=BURSTS),
        ["spec.containers: no CPU limit is above 0"],
    ),
    "a required policy on an LS Pod": (
        classed(None, TWO, spec={"requiredCPUBindPolicy": "FullPCPUs"}),
        [f"{SPEC_PATH}: requiredCPUBindPolicy FullPCPUs is for Pods that get CPUs of their own; label the Pod"],
    ),
    "an unknown policy": (
        classed("LSR", TWO, spec={"preferredCPUBindPolicy": "FullPCPU"}),
        [f"{SPEC_PATH}.preferredCPUBindPolicy: 'FullPCPU' is not allowed; use Default or FullPCPUs or"],
    ),
    "an unknown class": (
        classed("lsr", TWO),
        [f"metadata.labels[{QOS_LABEL}]: 'lsr' is no QoS class; write one of LSE, LSR, LS, BE, SYSTEM"],
    ),
    "all at once": (
        classed("LSR", container(**same("1.5")), spec=BURSTS, priorityClassName="koord-free"),
        [f"{SPEC_PATH}: ConstrainedBurst", "spec.priorityClassName: ", f"{REQUESTS}: 1500m", f"{LIMITS}: 1500m"],
    ),
}


@pytest.mark.parametrize(("made", "expected"), WRONG.values(), ids=WRONG)
def test_everything_wrong_is_reported_with_what_would_be_right(made: dict[str, Any], expected: list[str]) -> None:
    told = read_cpu_ask(made)
    problems = list(map(str, told.problems))
    assert [part in one for part, one in zip(expected, problems, strict=True)] == [True] * len(expected), problems
    assert told.ask is None
    assert names_cpus(made)


NAMELESS: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({}, "0"),
    "a name that is no text": ({"name": 7}, "0"),
    "a name that nobody can have": ({"name": "a]: all is well; [" * 99}, "0"),
    "a name with an end of line": ({"name": "main\n"}, "0"),
    "a name": ({"name": "gpu-0"}, "gpu-0"),
}


@pytest.mark.parametrize(("named", "told"), NAMELESS.values(), ids=NAMELESS)
def test_a_container_is_called_by_its_name_or_if_it_has_none_by_its_place(named: dict[str, Any], told: str) -> None:
    made = classed("LSR", {**named, "resources": {"limits": {"cpu": "0.5"}}})
    assert [problem.path for problem in read_cpu_ask(made).problems] == [
        f"spec.containers[{told}].resources.limits[cpu]"
    ]


# Recomputed

CPUS = st.sampled_from([0, 1, 2, 3, 8, "1", "2000m", "1500m", "1e1"])  # for smaller ones see test_own_cpus.py


@st.composite
def containers(draw: st.DrawFn, prefix: str, restarts: tuple[str | None, ...], least: int) -> list[dict[str, Any]]:
    made = []
    for index in range(draw(st.integers(least, 3))):
        request, limit = draw(st.none() | CPUS), draw(st.none() | CPUS)
        if draw(st.booleans()):
            limit = request
        resources = {
            key: {"cpu": amount} for key, amount in (("requests", request), ("limits", limit)) if amount is not None
        }
        one: dict[str, Any] = {"name": f"{prefix}{index}", "resources": resources}
        restart = draw(st.sampled_from(restarts))
        if restart is not None:
            one["restartPolicy"] = restart
        made.append(one)
    return made


def stated(one: Mapping[str, Any], key: str) -> int | None:
    amount = one["resources"].get(key, {}).get("cpu")
    return None if amount is None else to_milli(amount)


def requested(one: Mapping[str, Any]) -> int:
    request = stated(one, "requests")
    return (stated(one, "limits") or 0) if request is None else request


def busiest_moment(
    init: list[dict[str, Any]], apps: list[dict[str, Any]], amount_of: Callable[[Mapping[str, Any]], int] = requested
) -> int:
    """The peak of a Pod's requests, found by listing which containers run together at each step of its life."""
    moments = [[one for one in init if "restartPolicy" in one] + apps]
    for index, one in enumerate(init):
        before = [earlier for earlier in init[:index] if "restartPolicy" in earlier]
        moments.append([*before, one])
    return max(sum(amount_of(one) for one in moment) for moment in moments)


@given(containers("init", (None, "Always"), 0), containers("app", (None,), 1), st.sampled_from(["LSE", "LSR"]))
def test_a_bound_pod_is_refused_exactly_if_its_cpus_are_not_whole_or_not_limited_to_the_request(
    init: list[dict[str, Any]], apps: list[dict[str, Any]], qos: str
) -> None:
    most = busiest_moment(init, apps)
    sound = most > 0
    for one in (*init, *apps):
        request, limit = stated(one, "requests"), stated(one, "limits")
        if request is not None:
            sound = sound and (limit == request or (limit is None and request == 0))
        sound = sound and requested(one) % 1000 == 0
    told = read_cpu_ask(classed(qos, *apps, init=init))
    assert (told.problems == ()) == sound
    if sound:
        assert told.ask is not None
        assert (told.ask.qos, told.ask.count * 1000, told.ask.milli) == (qos, most, most)


@given(containers("init", (None, "Always"), 0), containers("app", (None,), 1), st.sampled_from(["LS", "BE"]))
def test_an_unbound_pod_asks_what_kubernetes_would_count(
    init: list[dict[str, Any]], apps: list[dict[str, Any]], qos: str
) -> None:
    told = read_cpu_ask(classed(qos, *apps, init=init))
    assert told.ask is not None
    assert told.ask.qos == qos
    assert (told.ask.count, told.ask.milli) == (0, busiest_moment(init, apps))
    throughout = [*(one for one in init if "restartPolicy" in one), *apps]
    limited = all(stated(one, "limits") is not None for one in throughout)
    most = busiest_moment(init, apps, lambda one: stated(one, "limits") or 0)
    assert told.ask.limit_milli == (most if limited else 0)


KEYS = [
    *("metadata", "labels", "annotations", "spec", "containers", "initContainers", "resources", "requests", "limits"),
    *("cpu", "memory", "overhead", "priorityClassName", "restartPolicy", QOS_LABEL, PRIORITY_CLASS_LABEL),
    *(RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC, OWN_CPUS),
]
LEAVES: list[Any] = ["LSR", "main", "LS", "Always", "koord-free", 1, "1500m", "", None, {}, [], TWO, [TWO], same(2)]
LEAVES += ['{"preferredCPUBindPolicy":"ConstrainedBurst"}', '{"numaTopologyPolicy":"Restricted"}', "{", "[" * 100_000]
ANYTHING = json_values() | json_near(KEYS, LEAVES)


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=4))
@example({"metadata": {"labels": {QOS_LABEL: ["LSR"]}}})
@example({"metadata": {"labels": {QOS_LABEL: "LSR"}, "annotations": []}, "spec": {"containers": [None, {}, 5]}})
def test_any_object_is_read_or_refused(made: dict[str, Any]) -> None:
    told = read_cpu_ask(made)
    assert told.ask is None or not told.problems
    if not names_cpus(made):
        assert (told.ask, told.problems) == (None, ())


@given(
    st.fixed_dictionaries({}, optional={"spec": ANYTHING, "more": ANYTHING}), st.sampled_from(["LSR", "LS"]), ANYTHING
)
def test_whatever_stands_in_a_bound_pod_it_is_read_or_refused(made: dict[str, Any], qos: str, notes: Any) -> None:
    spec = {"preferredCPUBindPolicy": "ConstrainedBurst"} if qos == "LS" else {}
    labels = {QOS_LABEL: qos, PRIORITY_CLASS_LABEL: notes}
    annotations = {RESOURCE_SPEC: json.dumps(spec), NUMA_TOPOLOGY_SPEC: notes}
    told = read_cpu_ask({**made, "metadata": {"labels": labels, "annotations": annotations}})
    assert (told.ask is None) == bool(told.problems)
    if told.ask is not None:
        assert (told.ask.count > 0) == (qos == "LSR")
        assert told.ask.milli == told.ask.count * 1000 or qos == "LS"


CASES: dict[str, tuple[str, dict[str, str], dict[str, Any], str]] = {
    "no priority": ("LSR", {}, {}, ""),
    "prod": ("LSR", {}, {"priority": 9999}, ""),
    "batch": ("LSR", {}, {"priority": 5500}, "spec.priority"),
    "free": ("LSR", {}, {"priority": 3000, "priorityClassName": "mine"}, "spec.priority"),
    "a system priority": ("LSR", {}, {"priority": 2_000_000_000}, ""),
    "the label comes before the band": ("LSR", {PRIORITY_CLASS_LABEL: "koord-prod"}, {"priority": 5500}, ""),
    "the name comes before the band": ("LSR", {}, {"priority": 5500, "priorityClassName": "koord-prod"}, ""),
    "a name of its own": ("LSR", {}, {"priorityClassName": "mine", "priority": 100}, ""),
    "BE without a priority": ("BE", {}, {}, ""),
    "BE of batch": ("BE", {}, {"priority": 5500}, ""),
    "BE of prod, by band": ("BE", {}, {"priority": 9500}, "spec.priority"),
    "BE of prod, by name": ("BE", {}, {"priorityClassName": "koord-prod"}, "spec.priorityClassName"),
    "BE of prod, by label": ("BE", {PRIORITY_CLASS_LABEL: "koord-prod"}, {}, "metadata.labels"),
    "a label that names no class": ("LSR", {PRIORITY_CLASS_LABEL: "zzz"}, {}, "metadata.labels"),
    "BE of a label that names no class": ("BE", {PRIORITY_CLASS_LABEL: "zzz"}, {}, ""),
    "an empty label and a name": (
        "LSR",
        {PRIORITY_CLASS_LABEL: ""},
        {"priorityClassName": "koord-mid"},
        "spec.priorityClassName",
    ),
    "LS of any": ("LS", {}, {"priority": 5500}, ""),
}


@pytest.mark.parametrize(("qos", "labels", "spec", "path"), CASES.values(), ids=CASES)
def test_a_priority_that_contradicts_the_class_is_refused(
    qos: str, labels: dict[str, str], spec: dict[str, Any], path: str
) -> None:
    two = {"cpu": 2}
    reading = read_cpu_ask(pod(container(requests=two, limits=two), labels={QOS_LABEL: qos, **labels}, **spec))
    assert [problem.path.startswith(path) for problem in reading.problems] == ([True] if path else [])


@pytest.mark.parametrize(("qos", "first"), [("LSR", 7000), ("LSE", 5000), ("LSR", 3000), ("BE", 9000)])
def test_a_band_has_a_thousand_priorities(qos: str, first: int) -> None:
    two = {"cpu": 2}
    refused = [
        priority
        for priority in (first - 1, first, first + 999, first + 1000)
        if read_cpu_ask(pod(container(requests=two, limits=two), labels={QOS_LABEL: qos}, priority=priority)).problems
    ]
    assert refused == [first, first + 999]
