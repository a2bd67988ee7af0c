"""NodeResourceTopology objects: as Koordinator's proposal and koordlet write them, and safe against anything else."""

import json
from typing import Any

import orjson
import pytest
from builders import GIB
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import json_near, json_values

from allocator.vocabulary.cpunode import NumaPolicy, PoolCpus
from allocator.vocabulary.cputopology import Cpu, CpuTopology, parse
from allocator.wire.nodetopology import (
    BE_CPU_SHARED_POOLS,
    CPU_BASIC_INFO,
    CPU_MANAGER_POLICY,
    CPU_SHARED_POOLS,
    CPU_TOPOLOGY,
    DISTRIBUTE_ACROSS_NUMA,
    FULL_PCPUS_ONLY,
    MANAGED_BY,
    NODE_RESERVATION,
    POD_CPU_ALLOCS,
    SYSTEM_QOS_RESOURCE,
    CpuBasicInfo,
    CpuManagerPolicy,
    KubeletCpus,
    NodeReservation,
    NodeTopology,
    NumaScope,
    NumaZone,
    PodCpuAlloc,
    SystemCpus,
    read_node_topology,
    write_node_topology,
)

DEEP = "[" * 100_000


def topology_object(*, annotations: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """An object with these annotations: text as it is, anything else as JSON."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in (annotations or {}).items()}
    return {"metadata": {"name": "node-1", "annotations": texts}, **fields}


def zone(name: str, nic: str, cpu: tuple[int, int, int], nics: int) -> dict[str, Any]:
    amounts = (("cpu", *cpu), (nic, nics, nics, nics))
    return {
        "name": name,
        "type": "Node",
        "resources": [
            {"name": resource, "capacity": capacity, "allocatable": allocatable, "available": available}
            for resource, capacity, allocatable, available in amounts
        ],
    }


# CPU proposal, "NodeResourceTopology CRD", Example; annotations with the text that is written there.
SEED: dict[str, Any] = {
    "apiVersion": "topology.node.k8s.io/v1alpha1",
    "kind": "NodeResourceTopology",
    "metadata": {
        "annotations": {
            "kubelet.koordinator.sh/cpu-manager-policy": (
                '{\n"policy": "static",\n"options": {\n"full-pcpus-only": "true",\n'
                '"distribute-cpus-across-numa": "true"\n}\n}'
            ),
            "node.koordinator.sh/cpu-topology": (
                '{\n"detail": [\n{\n"id": 0,\n"core": 0,\n"socket": 0,\n"node": 0\n},\n'
                '{\n"id": 1,\n"core": 1,\n"socket": 1,\n"node": 1\n}\n]\n}'
            ),
            "node.koordinator.sh/cpu-shared-pools": '[\n{\n"socket": 0,\n"node": 0,\n"cpuset": "0-3"\n}\n]',
            "node.koordinator.sh/pod-cpu-allocs": (
                '[\n{\n"namespace": "default",\n"name": "static-guaranteed-pod",\n'
                '"uid": "32b14702-2efe-4be9-a9da-f3b779175846",\n"cpu": "4-8",\n"managedByKubelet": "true"\n}\n]'
            ),
        },
        "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
        "name": "node1",
    },
    "topologyPolicies": ["SingleNUMANodePodLevel"],
    "zones": [
        zone("node-0", "vendor/nic1", (20, 15, 10), 3),
        zone("node-1", "vendor/nic2", (30, 25, 15), 6),
        zone("node-2", "vendor/nic1", (30, 25, 15), 3),
        zone("node-3", "vendor/nic1", (30, 25, 15), 3),
    ],
}


def test_the_example_of_seed_document_4_is_read_whole() -> None:
    told = read_node_topology(SEED)
    assert told == NodeTopology(
        node="node1",
        cpu=CpuTopology.of([Cpu(0, 0, 0, 0), Cpu(1, 1, 1, 1)]),
        kubelet=KubeletCpus(CpuManagerPolicy.STATIC, {FULL_PCPUS_ONLY: "true", DISTRIBUTE_ACROSS_NUMA: "true"}),
        numa_policy=NumaPolicy.SINGLE_NUMA_NODE,
        numa_scope=NumaScope.POD,
        pod_cpu_allocs=(
            PodCpuAlloc(
                "default",
                "static-guaranteed-pod",
                "32b14702-2efe-4be9-a9da-f3b779175846",
                parse("4-8"),
                managed_by_kubelet=True,
            ),
        ),
        shared_pools=(PoolCpus(0, 0, parse("0-3")),),
        zones={
            0: NumaZone({"cpu": 15_000, "vendor/nic1": 3}, {"cpu": 20_000, "vendor/nic1": 3}),
            1: NumaZone({"cpu": 25_000, "vendor/nic2": 6}, {"cpu": 30_000, "vendor/nic2": 6}),
            2: NumaZone({"cpu": 25_000, "vendor/nic1": 3}, {"cpu": 30_000, "vendor/nic1": 3}),
            3: NumaZone({"cpu": 25_000, "vendor/nic1": 3}, {"cpu": 30_000, "vendor/nic1": 3}),
        },
        managed_by="Koordinator",
    )
    assert told.kubelet.full_pcpus_only
    assert told.kubelet.distribute_across_numa
    assert told.reserved == parse("4-8")


FOUR = CpuTopology.of(Cpu(cpu, cpu // 2, 0, 0) for cpu in range(4))
WHOLE = NodeTopology(
    node="node-1",
    cpu=FOUR,
    basic=CpuBasicInfo("XYZ", hyper_threading=True, turbo=True, cat_l3_mask="7ff", vendor="GenuineIntel"),
    kubelet=KubeletCpus(CpuManagerPolicy.STATIC, {FULL_PCPUS_ONLY: "true", DISTRIBUTE_ACROSS_NUMA: "true"}, 0b11),
    numa_policy=NumaPolicy.BEST_EFFORT,
    pod_cpu_allocs=(
        PodCpuAlloc("default", "pod", "uid-1", 0b1000, managed_by_kubelet=True),
        PodCpuAlloc("default", "other", "uid-2", 0b0100),
    ),
    shared_pools=(PoolCpus(0, 0, 0b0111), PoolCpus(1, 1)),
    best_effort_pools=(PoolCpus(0, 0, 0b1111),),
    reservation=NodeReservation(0b1, 1500),
    system=SystemCpus(0b1000, exclusive=False),
    zones={
        1: NumaZone({"cpu": 500}, {"cpu": 500}),
        0: NumaZone(
            {"memory": 8 * GIB, "hugepages-2Mi": 0, "cpu": 4000, "example.org/nic": 1024},
            {"memory": 9 * GIB, "hugepages-2Mi": 2**21, "cpu": 4000, "example.org/nic": 2048},
        ),
    },
    managed_by="koordgate",
)


def test_an_object_is_written_as_koordlet_writes_it() -> None:
    written = write_node_topology(WHOLE)
    assert written["metadata"].pop("annotations") == {
        CPU_BASIC_INFO: (
            '{"cpuModel":"XYZ","hyperThreadEnabled":true,"turboEnabled":true,"catL3CbmMask":"7ff",'
            '"vendorID":"GenuineIntel"}'
        ),
        CPU_MANAGER_POLICY: (
            '{"policy":"static","options":{"distribute-cpus-across-numa":"true","full-pcpus-only":"true"},'
            '"reservedCPUs":"0-1"}'
        ),
        CPU_TOPOLOGY: (
            '{"detail":[{"id":0,"core":0,"socket":0,"node":0},{"id":1,"core":0,"socket":0,"node":0},'
            '{"id":2,"core":1,"socket":0,"node":0},{"id":3,"core":1,"socket":0,"node":0}]}'
        ),
        POD_CPU_ALLOCS: (
            '[{"namespace":"default","name":"pod","uid":"uid-1","cpuset":"3","managedByKubelet":true},'
            '{"namespace":"default","name":"other","uid":"uid-2","cpuset":"2"}]'
        ),
        CPU_SHARED_POOLS: '[{"socket":0,"node":0,"cpuset":"0-2"},{"socket":1,"node":1}]',
        BE_CPU_SHARED_POOLS: '[{"socket":0,"node":0,"cpuset":"0-3"}]',
        NODE_RESERVATION: '{"resources":{"cpu":"1500m"},"reservedCPUs":"0"}',
        SYSTEM_QOS_RESOURCE: '{"cpuset":"3","cpusetExclusive":false}',
    }
    assert written == {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "node-1", "labels": {MANAGED_BY: "koordgate"}},
        "topologyPolicies": ["BestEffortContainerLevel"],
        "zones": [
            {
                "name": "node-0",
                "type": "Node",
                "resources": [
                    {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"},
                    {"name": "example.org/nic", "capacity": "2048", "allocatable": "1024", "available": "1024"},
                    {"name": "hugepages-2Mi", "capacity": "2Mi", "allocatable": "0", "available": "0"},
                    {"name": "memory", "capacity": "9Gi", "allocatable": "8Gi", "available": "8Gi"},
                ],
            },
            {
                "name": "node-1",
                "type": "Node",
                "resources": [{"name": "cpu", "capacity": "500m", "allocatable": "500m", "available": "500m"}],
            },
        ],
    }


def test_what_is_empty_is_left_out() -> None:
    written = write_node_topology(NodeTopology("node-1"))
    assert written["metadata"] == {
        "name": "node-1",
        "annotations": {
            CPU_BASIC_INFO: "{}",
            CPU_MANAGER_POLICY: "{}",
            POD_CPU_ALLOCS: "null",
            CPU_SHARED_POOLS: "[]",
            BE_CPU_SHARED_POOLS: "[]",
            NODE_RESERVATION: "{}",
        },
    }
    assert (written["topologyPolicies"], written["zones"]) == (["None"], [])


@pytest.mark.parametrize("whole", [WHOLE, NodeTopology("node-1")], ids=["all", "nothing"])
def test_what_was_written_is_read_the_same(whole: NodeTopology) -> None:
    assert read_node_topology(write_node_topology(whole)) == whole


# Reserved CPUs: the figures of Koordinator's own test

KUBELET_POD = {"cpuset": "0-3", "managedByKubelet": True}
RESERVED: dict[str, tuple[dict[str, Any], str]] = {
    "the kubelet's Pods, its own, the administrator's, the system's": ({}, "0-7"),
    "without the kubelet's Pods": ({POD_CPU_ALLOCS: "null"}, "0-1,4-7"),
    "a Pod that somebody else bound": ({POD_CPU_ALLOCS: [{**KUBELET_POD, "managedByKubelet": False}]}, "0-1,4-7"),
    "a Pod of no manager": ({POD_CPU_ALLOCS: [{"cpuset": "0-3"}]}, "0-1,4-7"),
    "the kubelet's Pods, of an earlier policy": (
        {CPU_MANAGER_POLICY: {"policy": "none"}, POD_CPU_ALLOCS: [{**KUBELET_POD, "cpuset": "0-3"}]},
        "4-7",
    ),
    "the kubelet's Pods, its policy not reported": ({CPU_MANAGER_POLICY: "{}"}, "0-7"),
    "system CPUs that are not exclusive": ({SYSTEM_QOS_RESOURCE: {"cpuset": "6-7", "cpusetExclusive": False}}, "0-5"),
    "system CPUs that are said to be exclusive": (
        {SYSTEM_QOS_RESOURCE: {"cpuset": "6-7", "cpusetExclusive": True}},
        "0-7",
    ),
}


@pytest.mark.parametrize(("changed", "reserved"), RESERVED.values(), ids=RESERVED)
def test_reserved_cpus_are_those_that_nobody_may_be_given(changed: dict[str, Any], reserved: str) -> None:
    annotations = {
        CPU_TOPOLOGY: {"detail": [{"id": cpu, "core": cpu, "socket": 0, "node": 0} for cpu in range(8)]},
        POD_CPU_ALLOCS: [KUBELET_POD],
        CPU_MANAGER_POLICY: {"policy": "static", "reservedCPUs": "0-1"},
        NODE_RESERVATION: {"reservedCPUs": "4-5"},
        SYSTEM_QOS_RESOURCE: {"cpuset": "6-7"},
    }
    told = read_node_topology(topology_object(annotations={**annotations, **changed}))
    assert told.problems == ()
    assert told.reserved == parse(reserved)
    assert not told.holders_unknown


# If any part of it cannot be read, a CPU that a Pod has might be given again

UNREAD: dict[str, dict[str, Any]] = {
    "the kubelet's policy, no JSON": {CPU_MANAGER_POLICY: "{bad"},
    "the kubelet's policy, an unknown one": {CPU_MANAGER_POLICY: {"policy": "dynamic"}},
    "an option of the kubelet that is no text": {
        CPU_MANAGER_POLICY: {"policy": "static", "options": {FULL_PCPUS_ONLY: True}}
    },
    "the kubelet's reserved CPUs": {CPU_MANAGER_POLICY: {"policy": "static", "reservedCPUs": "0-x"}},
    "the list of Pods, no JSON": {POD_CPU_ALLOCS: "["},
    "a Pod of the kubelet without CPUs": {POD_CPU_ALLOCS: [{"cpus": "4-8", "managedByKubelet": "true"}]},
    "a Pod of the kubelet with an empty set": {POD_CPU_ALLOCS: [{"cpuset": "", "managedByKubelet": True}]},
    "a Pod of an unclear manager": {POD_CPU_ALLOCS: [{"cpuset": "4-8", "managedByKubelet": "True"}]},
    "a Pod that has a manager": {POD_CPU_ALLOCS: [{"cpuset": "4-8", "managedByKubelet": "yes"}]},
    "the administrator's CPUs": {NODE_RESERVATION: {"reservedCPUs": "0-1,"}},
    "the administrator's amount": {NODE_RESERVATION: {"resources": {"cpu": "-1"}}},
    "the administrator's amounts, no object": {NODE_RESERVATION: {"resources": "4"}},
    "the system's CPUs": {SYSTEM_QOS_RESOURCE: {"cpuset": "a"}},
    "whether the system's CPUs are its own": {SYSTEM_QOS_RESOURCE: {"cpuset": "7", "cpusetExclusive": 0.5}},
}


@pytest.mark.parametrize("annotations", UNREAD.values(), ids=UNREAD)
def test_where_reserved_cpus_cannot_be_read_the_holders_are_unknown(annotations: dict[str, Any]) -> None:
    told = read_node_topology(topology_object(annotations=annotations))
    assert told.holders_unknown
    assert len(told.problems) == 1


def test_kept_cpus_that_cannot_be_read_are_left_out() -> None:
    kept = {"reservedCPUs": "0-x", "resources": {"cpu": "x"}}
    annotations = {CPU_MANAGER_POLICY: kept, NODE_RESERVATION: kept, SYSTEM_QOS_RESOURCE: {"cpuset": "x"}}
    told = read_node_topology(topology_object(annotations=annotations))
    assert (told.kubelet.reserved, told.reservation, told.system) == (0, NodeReservation(0, 0), SystemCpus(0, True))
    assert len(told.problems) == 4


def test_an_amount_that_nobody_made_cpus_of_leaves_the_holders_unknown() -> None:
    amount, both = (
        read_node_topology(topology_object(annotations={NODE_RESERVATION: {"resources": {"cpu": "2500m"}, **more}}))
        for more in ({}, {"reservedCPUs": "0-1"})
    )
    assert (amount.reservation, amount.holders_unknown) == (NodeReservation(0, 2500), True)
    assert amount.problems == (
        f"annotation {NODE_RESERVATION}: an amount of CPUs, but no CPU numbers; state reservedCPUs",
    )
    assert (both.reservation, both.holders_unknown) == (NodeReservation(0b11, 2500), False)


@pytest.mark.parametrize(
    "changed",
    [{"annotations": {CPU_SHARED_POOLS: "["}}, {"annotations": {CPU_BASIC_INFO: "["}}, {"zones": 5}],
    ids=["pools", "processors", "zones"],
)
def test_what_else_cannot_be_read_leaves_the_holders_known(changed: dict[str, Any]) -> None:
    told = read_node_topology(topology_object(**changed))
    assert told.problems
    assert not told.holders_unknown


POLICIES: dict[str, tuple[NumaPolicy, NumaScope]] = {
    "None": (NumaPolicy.NONE, NumaScope.CONTAINER),
    "BestEffortContainerLevel": (NumaPolicy.BEST_EFFORT, NumaScope.CONTAINER),
    "BestEffortPodLevel": (NumaPolicy.BEST_EFFORT, NumaScope.POD),
    "RestrictedContainerLevel": (NumaPolicy.RESTRICTED, NumaScope.CONTAINER),
    "RestrictedPodLevel": (NumaPolicy.RESTRICTED, NumaScope.POD),
    "SingleNUMANodeContainerLevel": (NumaPolicy.SINGLE_NUMA_NODE, NumaScope.CONTAINER),
    "SingleNUMANodePodLevel": (NumaPolicy.SINGLE_NUMA_NODE, NumaScope.POD),
}


@pytest.mark.parametrize(("text", "expected"), POLICIES.items(), ids=POLICIES)
def test_every_policy_of_the_topology_manager_is_read_and_written(
    text: str, expected: tuple[NumaPolicy, NumaScope]
) -> None:
    told = read_node_topology(topology_object(topologyPolicies=[text]))
    assert (told.numa_policy, told.numa_scope, told.problems) == (*expected, ())
    assert write_node_topology(told)["topologyPolicies"] == [text]


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED], ids=str)
def test_a_policy_without_scope_aligns_containers(policy: NumaPolicy) -> None:
    told = read_node_topology(topology_object(topologyPolicies=[policy.value]))
    assert (told.numa_policy, told.numa_scope, told.problems) == (policy, NumaScope.CONTAINER, ())


OPTIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "true": ({"policy": "static", "options": {FULL_PCPUS_ONLY: "true"}}, True),
    "as Go reads it": ({"policy": "static", "options": {FULL_PCPUS_ONLY: "1"}}, True),
    "false": ({"policy": "static", "options": {FULL_PCPUS_ONLY: "false"}}, False),
    "absent": ({"policy": "static"}, False),
    "of another policy": ({"policy": "none", "options": {FULL_PCPUS_ONLY: "true"}}, False),
    "of an unknown policy": ({"options": {FULL_PCPUS_ONLY: "true"}}, False),
}


@pytest.mark.parametrize(("value", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_an_option_of_the_kubelet_counts_under_its_static_policy(value: dict[str, Any], expected: bool) -> None:  # noqa: FBT001 - a case's expected answer
    told = read_node_topology(topology_object(annotations={CPU_MANAGER_POLICY: value}))
    assert told.problems == ()
    assert told.kubelet.full_pcpus_only is expected
    assert told.kubelet.distribute_across_numa is False


# What cannot be read

CPU0 = {"id": 0, "core": 0, "socket": 0, "node": 0}
UNUSABLE: dict[str, tuple[Any, str]] = {
    "a CPU twice": ({"detail": [CPU0, CPU0]}, "CPU 0 is described twice"),
    "a core in two NUMA nodes": (
        {"detail": [CPU0, {**CPU0, "id": 1, "node": 1}]},
        "core 0 of socket 0 is in the NUMA nodes 0 and 1",
    ),
    "a CPU without number": ({"detail": [{"core": 0}]}, "id is no whole number from 0 to 2^31-1"),
    "a CPU of a fraction": ({"detail": [{**CPU0, "id": 0.5}]}, "id is no whole number from 0 to 2^31-1"),
    "a CPU of true": ({"detail": [{**CPU0, "id": True}]}, "id is no whole number from 0 to 2^31-1"),
    "a negative node": ({"detail": [{**CPU0, "node": -1}]}, "node is no whole number from 0 to 2^31-1"),
    "a CPU of an absurd number": ({"detail": [{**CPU0, "id": 10**9}]}, "CPU 1000000000 is not within 0 to 4095"),
    "a CPU that is text": ({"detail": ["0"]}, "a str where an object must be"),
    "a list for the whole": ([CPU0], "a list where an object must be"),
    "an object for the list": ({"detail": CPU0}, "a dict where a list must be"),
}


@pytest.mark.parametrize(("value", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_topology_that_makes_no_sense_is_not_used_at_all(value: Any, message: str) -> None:
    told = read_node_topology(topology_object(annotations={CPU_TOPOLOGY: value}))
    assert told.cpu is None
    assert told.problems == (f"annotation {CPU_TOPOLOGY}: {message}; the CPU topology cannot be used",)


GOOD_POD = {"uid": "uid-1", "cpuset": "0-3", "managedByKubelet": True}
LEFT_OUT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # annotation or field, the part that is still read, the problem
    "no JSON": (
        {"annotations": {CPU_TOPOLOGY: "{"}},
        {"cpu": None},
        (
            f"annotation {CPU_TOPOLOGY}: not JSON (Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1)); left out"
        ),
    ),
    "nested too deeply": (
        {"annotations": {CPU_MANAGER_POLICY: DEEP}},
        {"kubelet": KubeletCpus()},
        f"annotation {CPU_MANAGER_POLICY}: not JSON (nested too deeply); left out",
    ),
    "one Pod of two": (
        {"annotations": {POD_CPU_ALLOCS: [{"cpuset": "3-0"}, GOOD_POD]}},
        {"pod_cpu_allocs": (PodCpuAlloc("", "", "uid-1", 0b1111, managed_by_kubelet=True),)},
        f"annotation {POD_CPU_ALLOCS}[0]: a range of CPUs that descends: '3-0'; left out",
    ),
    "a Pod with two spellings that differ": (
        {"annotations": {POD_CPU_ALLOCS: [{"cpuset": "0", "cpu": "1"}, GOOD_POD]}},
        {"pod_cpu_allocs": (PodCpuAlloc("", "", "uid-1", 0b1111, managed_by_kubelet=True),)},
        f"annotation {POD_CPU_ALLOCS}[0]: cpuset and cpu differ; left out",
    ),
    "a Pod of an unclear manager": (
        {"annotations": {POD_CPU_ALLOCS: [{**GOOD_POD, "managedByKubelet": "perhaps"}]}},
        {"pod_cpu_allocs": ()},
        f"annotation {POD_CPU_ALLOCS}[0]: neither true nor false; left out",
    ),
    "a Pod whose UID no object can hold": (
        {"annotations": {POD_CPU_ALLOCS: '[{"uid":"\\ud800","cpuset":"0"}]'}},
        {"pod_cpu_allocs": ()},
        (
            f"annotation {POD_CPU_ALLOCS}[0]: 'utf-8' codec can't encode character '\\ud800' in position 0: "
            "surrogates not allowed; left out"
        ),
    ),
    "a pool of no NUMA node": (
        {"annotations": {CPU_SHARED_POOLS: [{"socket": 0, "cpuset": "0"}, {"socket": 0, "node": 1}]}},
        {"shared_pools": (PoolCpus(0, 1),)},
        f"annotation {CPU_SHARED_POOLS}[0]: node is no whole number from 0 to 2^31-1; left out",
    ),
    "an unknown CPU manager policy, reserved CPUs beside": (
        {"annotations": {CPU_MANAGER_POLICY: {"policy": "dynamic", "reservedCPUs": "0-1"}}},
        {"kubelet": KubeletCpus(reserved=0b11)},
        f"annotation {CPU_MANAGER_POLICY}: policy: 'dynamic' is none of static, none; left out",
    ),
    "an option that is no text": (
        {"annotations": {CPU_MANAGER_POLICY: {"policy": "static", "options": {FULL_PCPUS_ONLY: 1}}}},
        {"kubelet": KubeletCpus(CpuManagerPolicy.STATIC)},
        f"annotation {CPU_MANAGER_POLICY}: options: a int where text must be; left out",
    ),
    "a reserved amount that is none, CPUs beside": (
        {"annotations": {NODE_RESERVATION: {"reservedCPUs": "0-1", "resources": {"cpu": "much", "memory": "1Gi"}}}},
        {"reservation": NodeReservation(0b11)},
        (
            f"annotation {NODE_RESERVATION}: resources: cpu: 'much' is not a Kubernetes quantity such as 1, 500m or "
            "16Gi; left out"
        ),
    ),
    "an unclear exclusivity, which counts as exclusive": (
        {"annotations": {SYSTEM_QOS_RESOURCE: {"cpuset": "7", "cpusetExclusive": 0.5}}},
        {"system": SystemCpus(0b1000_0000)},
        f"annotation {SYSTEM_QOS_RESOURCE}: cpusetExclusive: neither true nor false; left out",
    ),
    "an unknown policy of the topology manager": (
        {"topologyPolicies": ["Perfect", "RestrictedPodLevel"]},
        {"numa_policy": NumaPolicy.RESTRICTED, "numa_scope": NumaScope.POD},
        "topologyPolicies[0]: 'Perfect' is no policy of the kubelet's topology manager; left out",
    ),
    "two policies": (
        {"topologyPolicies": ["RestrictedPodLevel", "BestEffortPodLevel"]},
        {"numa_policy": NumaPolicy.RESTRICTED},
        "topologyPolicies: more than one policy; the first counts",
    ),
    "a zone without number": (
        {"zones": [{"name": "numa-0", "type": "Node"}]},
        {"zones": {}},
        "zones[0]: the name of a NUMA node is node- and its number; left out",
    ),
    "a zone twice": (
        {"zones": [{"name": "node-0", "type": "Node", "resources": []}, {"name": "node-0", "type": "Node"}]},
        {"zones": {0: NumaZone({}, {})}},
        "zones[1]: NUMA node 0 occurs twice; left out",
    ),
    "a zone's resource without amount": (
        {
            "zones": [
                {
                    "name": "node-0",
                    "type": "Node",
                    "resources": [{"name": "memory"}, {"name": "cpu", "allocatable": "1500m"}],
                }
            ]
        },
        {"zones": {0: NumaZone({"cpu": 1500}, {"cpu": 1500})}},
        "zones[0].resources[0]: None is not a Kubernetes quantity such as 1, 500m or 16Gi; left out",
    ),
    "a zone's resource twice": (
        {
            "zones": [
                {"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "allocatable": n} for n in (1, 2)]}
            ]
        },
        {"zones": {0: NumaZone({"cpu": 1000}, {"cpu": 1000})}},
        "zones[0].resources: 'cpu' occurs twice; the first counts",
    ),
}


@pytest.mark.parametrize(("made", "read", "problem"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_makes_no_sense_is_left_out_and_named(made: dict[str, Any], read: dict[str, Any], problem: str) -> None:
    told = read_node_topology(topology_object(**made))
    assert told.problems == (problem,)
    assert {name: getattr(told, name) for name in read} == read


def test_zones_that_are_no_numa_nodes_are_passed_over() -> None:
    told = read_node_topology(topology_object(zones=[{"name": "socket-0", "type": "Socket", "resources": 5}, None]))
    assert (told.zones, told.problems) == ({}, ())


def test_a_zone_and_a_resource_that_are_left_out_hide_none_behind_them() -> None:
    resources = [{"name": name, "allocatable": amount} for name, amount in (("cpu", 1), ("cpu", 2), ("memory", 3))]
    listed = [
        {"name": "socket-0", "type": "Socket"},
        {"name": "core-0", "type": "Core"},
        {"name": "node", "type": "Node"},
        {"name": "node-1", "type": "Node"},
        {"name": "node-1", "type": "Node", "resources": resources},
        {"name": "node-0", "type": "Node", "resources": resources},
    ]
    amounts = {"cpu": 1000, "memory": 3}
    told = read_node_topology(topology_object(zones=listed))
    assert told.zones == {0: NumaZone(amounts, amounts), 1: NumaZone({}, {})}
    assert [problem.partition(":")[0] for problem in told.problems] == ["zones[2]", "zones[4]", "zones[5].resources"]


@pytest.mark.parametrize("value", ["", "null"])
def test_an_annotation_that_says_nothing_is_no_problem(value: str) -> None:
    keys = (
        *(CPU_BASIC_INFO, CPU_TOPOLOGY, CPU_MANAGER_POLICY, POD_CPU_ALLOCS, CPU_SHARED_POOLS, BE_CPU_SHARED_POOLS),
        *(NODE_RESERVATION, SYSTEM_QOS_RESOURCE),
    )
    assert read_node_topology(topology_object(annotations=dict.fromkeys(keys, value))) == NodeTopology("node-1")


# Any object at all

KEYS = [
    *("id", "core", "socket", "node", "detail", "cpuset", "cpu", "managedByKubelet", "policy", "options", "uid"),
    *("reservedCPUs", "resources", "applyPolicy", "cpusetExclusive", "name", "type", "allocatable", "capacity"),
]
LEAVES: list[Any] = [0, 1, -1, 2**31, "0-3", "3-0", "cpu", "1500m", "8Gi", "static", "Node", "node-0", True, None]
LEAVES += ["\ud800", CPU0, [CPU0], GOOD_POD, [GOOD_POD], {"detail": [CPU0]}, SEED["zones"], SEED["metadata"]]
ANYTHING = json_values() | json_near(KEYS, LEAVES)
ANNOTATION_KEYS = st.sampled_from(
    [CPU_BASIC_INFO, CPU_TOPOLOGY, CPU_MANAGER_POLICY, POD_CPU_ALLOCS, CPU_SHARED_POOLS, NODE_RESERVATION]
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": ANYTHING
        | st.fixed_dictionaries(
            {"annotations": st.dictionaries(ANNOTATION_KEYS, ANYTHING.map(json.dumps) | ANYTHING, max_size=4)},
            optional={"name": ANYTHING, "labels": ANYTHING},
        ),
        "topologyPolicies": ANYTHING,
        "zones": ANYTHING | st.lists(json_near(KEYS, LEAVES), max_size=3),
    },
)


@given(OBJECTS)
@example(topology_object(annotations={POD_CPU_ALLOCS: '[{"uid":"\\ud800"}]', CPU_TOPOLOGY: DEEP}))
@example(topology_object(annotations={CPU_TOPOLOGY: '{"detail":[{"id":' + "9" * 5000 + "}]}"}))
def test_any_object_is_read_and_what_was_read_can_be_written(made: dict[str, Any]) -> None:
    told = read_node_topology(made)
    assert told.reserved >= 0
    assert orjson.loads(orjson.dumps(told.problems)) == list(told.problems)
    written = write_node_topology(told)
    assert orjson.loads(orjson.dumps(written)) == written


SETS = st.integers(0, 2**12 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
NUMBERS = st.integers(0, 2**31 - 1)
POOLS = st.lists(st.builds(PoolCpus, NUMBERS, NUMBERS, SETS), max_size=3).map(tuple)
AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-1Gi", "example.org/nic"]), st.integers(0, 2**50), max_size=3
)
TOPOLOGIES = st.builds(
    NodeTopology,
    node=TEXTS,
    cpu=st.none()
    | st.sets(st.integers(0, 4095), min_size=1, max_size=8).map(
        lambda ids: CpuTopology.of(Cpu(cpu, cpu // 3, cpu // 9, cpu // 9) for cpu in ids)
    ),
    basic=st.builds(CpuBasicInfo, TEXTS, st.booleans(), st.booleans(), TEXTS, TEXTS),
    kubelet=st.builds(KubeletCpus, st.sampled_from(CpuManagerPolicy), st.dictionaries(TEXTS, TEXTS, max_size=2), SETS),
    numa_policy=st.sampled_from([policy for policy in NumaPolicy if policy is not NumaPolicy.NONE]),
    numa_scope=st.sampled_from(NumaScope),
    pod_cpu_allocs=st.lists(
        st.builds(PodCpuAlloc, TEXTS, TEXTS, TEXTS, SETS)
        | st.builds(PodCpuAlloc, TEXTS, TEXTS, TEXTS, st.integers(1, 2**12 - 1), st.just(value=True)),
        max_size=3,
    ).map(tuple),
    shared_pools=POOLS,
    best_effort_pools=POOLS,
    reservation=st.just(NodeReservation())
    | st.builds(NodeReservation, st.integers(1, 2**12 - 1), st.integers(0, 2**50)),
    system=st.just(SystemCpus()) | st.builds(SystemCpus, st.integers(1, 2**12 - 1), st.booleans()),
    zones=st.dictionaries(
        st.integers(0, 999_999_999),
        AMOUNTS.map(lambda amounts: NumaZone(amounts, {name: 2 * amount for name, amount in amounts.items()})),
        max_size=3,
    ),
    managed_by=TEXTS,
    holders_unknown=st.just(value=False),
    problems=st.just(()),
)


@given(TOPOLOGIES)
def test_whatever_was_written_is_read_the_same(whole: NodeTopology) -> None:
    written = write_node_topology(whole)
    assert read_node_topology(orjson.loads(orjson.dumps(written))) == whole
