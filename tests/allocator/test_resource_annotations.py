"""The annotations about a Pod's CPUs: its author's wishes, and what it was given."""

import json
from typing import Any

import pytest
from builders import GIB
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import json_near, json_values

from allocator.vocabulary.cpunode import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy, PoolCpus
from allocator.vocabulary.names import RESOURCE_STATUS
from allocator.vocabulary.outcome import Problem
from allocator.wire.podallocated import (
    AnnotationError,
    NumaResources,
    ResourceStatus,
    read_resource_status,
    write_resource_status,
)
from allocator.wire.podannotations import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    NumaTopologySpec,
    ResourceSpec,
    read_numa_topology_spec,
    read_resource_spec,
)

DEEP = "[" * 100_000

# resource-spec and numa-topology-spec

SPECS: dict[str, tuple[str, ResourceSpec]] = {
    "the CPU proposal's example": (
        '{\n"preferredCPUBindPolicy": "SpreadByPCPUs",\n"preferredCPUExclusivePolicy": "PCPULevel"\n}',
        ResourceSpec(None, BindPolicy.SPREAD_BY_PCPUS, ExclusivePolicy.PCPU_LEVEL),
    ),
    "a required policy": (
        '{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUBindPolicy":"ConstrainedBurst"}',
        ResourceSpec(BindPolicy.FULL_PCPUS, BindPolicy.CONSTRAINED_BURST),
    ),
    "defaults": (
        '{"preferredCPUBindPolicy":"Default","preferredCPUExclusivePolicy":"Default"}',
        ResourceSpec(None, BindPolicy.DEFAULT, ExclusivePolicy.DEFAULT),
    ),
    "no exclusivity": ('{"preferredCPUExclusivePolicy":"None"}', ResourceSpec(exclusive=ExclusivePolicy.NONE)),
    "empty texts and null": (
        '{"requiredCPUBindPolicy":"","preferredCPUBindPolicy":null,"preferredCPUExclusivePolicy":""}',
        ResourceSpec(),
    ),
    "nothing": ("{}", ResourceSpec()),
}


@pytest.mark.parametrize(("text", "expected"), SPECS.values(), ids=SPECS)
def test_a_resource_spec_is_read(text: str, expected: ResourceSpec) -> None:
    problems: list[Problem] = []
    assert read_resource_spec({RESOURCE_SPEC: text}, problems) == expected
    assert problems == []


NUMA_SPECS: dict[str, tuple[str, NumaTopologySpec]] = {
    "a policy": ('{"numaTopologyPolicy":"SingleNUMANode"}', NumaTopologySpec(NumaPolicy.SINGLE_NUMA_NODE)),
    "both": (
        '{"numaTopologyPolicy":"Restricted","singleNUMANodeExclusive":"Preferred"}',
        NumaTopologySpec(NumaPolicy.RESTRICTED, NumaExclusive.PREFERRED),
    ),
    "none, by name": (
        '{"numaTopologyPolicy":"None","singleNUMANodeExclusive":"Required"}',
        NumaTopologySpec(NumaPolicy.NONE, NumaExclusive.REQUIRED),
    ),
    "none, by the empty text": ('{"numaTopologyPolicy":""}', NumaTopologySpec()),
}


@pytest.mark.parametrize(("text", "expected"), NUMA_SPECS.values(), ids=NUMA_SPECS)
def test_a_numa_topology_spec_is_read(text: str, expected: NumaTopologySpec) -> None:
    problems: list[Problem] = []
    assert read_numa_topology_spec({NUMA_TOPOLOGY_SPEC: text}, problems) == expected
    assert problems == []


NO_SPEC: dict[str, tuple[Any, list[str]]] = {
    "empty": ("", ["must be a JSON object (Expecting value"]),
    "no text": (5, ["must be a JSON object (a int where text must be)"]),
    "a list": ("[]", ["must be a JSON object"]),
    "a key twice": (
        '{"preferredCPUBindPolicy":"FullPCPUs","preferredCPUBindPolicy":"SpreadByPCPUs"}',
        ["(a key occurs twice)"],
    ),
    "an unknown key": (
        '{"preferredCpuBindPolicy":"FullPCPUs"}',
        ["unknown key 'preferredCpuBindPolicy'; use requiredCPUBindPolicy or preferredCPUBindPolicy or"],
    ),
    "an unknown policy": (
        '{"requiredCPUBindPolicy":"fullpcpus"}',
        [".requiredCPUBindPolicy: 'fullpcpus' is not allowed; use Default or FullPCPUs or SpreadByPCPUs or Con"],
    ),
    "policies of no text": (
        '{"preferredCPUBindPolicy":["FullPCPUs"],"preferredCPUExclusivePolicy":true}',
        [".preferredCPUBindPolicy: ", ".preferredCPUExclusivePolicy: what is written here is not allowed; use None or"],
    ),
    "very long": (json.dumps({"preferredCPUBindPolicy": "F" * 60_000}), [f"'{'F' * 80}' is not allowed"]),
    "a thousand unknown keys": (json.dumps({f"key-{index}": 1 for index in range(1000)}), ["unknown key 'key-"] * 16),
    "policies of NUMA nodes": ('{"numaTopologyPolicy":"Restricted"}', ["unknown key 'numaTopologyPolicy'"]),
}


@pytest.mark.parametrize(("value", "expected"), NO_SPEC.values(), ids=NO_SPEC)
def test_a_resource_spec_that_is_wrong_is_reported_with_what_is_allowed(value: Any, expected: list[str]) -> None:
    problems: list[Problem] = []
    assert read_resource_spec({RESOURCE_SPEC: value}, problems) == ResourceSpec()
    assert [part in str(problem) for part, problem in zip(expected, problems, strict=True)] == [True] * len(expected)
    assert all(problem.path.startswith(f"metadata.annotations[{RESOURCE_SPEC}]") for problem in problems)


def test_a_numa_topology_spec_that_is_wrong_is_reported_with_what_is_allowed() -> None:
    problems: list[Problem] = []
    value = '{"numaTopologyPolicy":"Single","singleNUMANodeExclusive":"Always","policy":1}'
    assert read_numa_topology_spec({NUMA_TOPOLOGY_SPEC: value}, problems) == NumaTopologySpec()
    where = f"metadata.annotations[{NUMA_TOPOLOGY_SPEC}]"
    assert [str(problem) for problem in problems] == [
        f"{where}: unknown key 'policy'; use numaTopologyPolicy or singleNUMANodeExclusive",
        f"{where}.numaTopologyPolicy: 'Single' is not allowed; use None or BestEffort or Restricted or SingleNUMANode",
        f"{where}.singleNUMANodeExclusive: 'Always' is not allowed; use Preferred or Required",
    ]


KEYS = ["requiredCPUBindPolicy", "preferredCPUBindPolicy", "preferredCPUExclusivePolicy", "numaTopologyPolicy"]
LEAVES = ["FullPCPUs", "Default", "PCPULevel", "Restricted", "Preferred", "", None, 1, "\ud800"]


@given((json_values() | json_near(KEYS, LEAVES)).map(json.dumps) | st.text(max_size=30) | json_values())
@example(DEEP)
@example('{"preferredCPUBindPolicy":' * 100_000)
def test_any_wish_is_read_or_refused(value: Any) -> None:
    for key, read in ((RESOURCE_SPEC, read_resource_spec), (NUMA_TOPOLOGY_SPEC, read_numa_topology_spec)):
        problems: list[Problem] = []
        read({key: value}, problems)
        assert all(len(problem.message) < 300 and problem.message.encode() for problem in problems)


# resource-status

STATUSES: dict[str, tuple[ResourceStatus, str]] = {
    "CPUs": (ResourceStatus(0b1111), '{"cpuset":"0-3"}'),
    "CPUs in a NUMA node": (
        ResourceStatus(0b1111, (NumaResources(0, {"cpu": 4000}),)),
        '{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}]}',
    ),
    "two NUMA nodes in order, resources by name": (
        ResourceStatus(0, (NumaResources(0), NumaResources(1, {"cpu": 1500, "memory": 8 * GIB}))),
        '{"numaNodeResources":[{"node":0},{"node":1,"resources":{"cpu":"1500m","memory":"8Gi"}}]}',
    ),
    "other resources, whatever their names": (
        ResourceStatus(0, (NumaResources(0, {"a/nic": 3000, "z/nic": 1024}),)),
        '{"numaNodeResources":[{"node":0,"resources":{"a/nic":"3000","z/nic":"1024"}}]}',
    ),
    "a shared pool": (ResourceStatus(pools=(PoolCpus(0, 1),)), '{"cpuSharedPools":[{"socket":0,"node":1}]}'),
    "an aligned LS Pod": (
        ResourceStatus(0, (NumaResources(1, {"cpu": 500}),), (PoolCpus(1, 1),)),
        '{"numaNodeResources":[{"node":1,"resources":{"cpu":"500m"}}],"cpuSharedPools":[{"socket":1,"node":1}]}',
    ),
    "nothing": (ResourceStatus(), "{}"),
}


@pytest.mark.parametrize(("status", "text"), STATUSES.values(), ids=STATUSES)
def test_a_resource_status_is_written_as_koordinator_does_and_read_back(status: ResourceStatus, text: str) -> None:
    assert write_resource_status(status) == text
    assert read_resource_status({RESOURCE_STATUS: text}) == status


def test_numa_nodes_and_pools_are_written_in_order_and_pools_without_cpus() -> None:
    status = ResourceStatus(0, (NumaResources(1), NumaResources(0)), (PoolCpus(1, 1, 0b10), PoolCpus(0, 0, 0b1)))
    assert write_resource_status(status) == (
        '{"numaNodeResources":[{"node":0},{"node":1}],"cpuSharedPools":[{"socket":0,"node":0},{"socket":1,"node":1}]}'
    )


FOREIGN: dict[str, tuple[str, ResourceStatus]] = {
    "the CPU proposal's example": ('{\n"cpuset": "0-3"\n}', ResourceStatus(0b1111)),
    "a pool with its CPUs": (
        '{"cpuSharedPools":[{"socket":0,"node":1,"cpuset":"4-7"}]}',
        ResourceStatus(pools=(PoolCpus(0, 1, 0b1111_0000),)),
    ),
    "batch CPU in a NUMA node": (
        '{"numaNodeResources":[{"node":1,"resources":{"kubernetes.io/batch-cpu":"1500"}}]}',
        ResourceStatus(0, (NumaResources(1, {"kubernetes.io/batch-cpu": 1500}),)),
    ),
    "null and a field of later": (
        '{"cpuset":null,"numaNodeResources":null,"cpuSharedPools":null,"later":1}',
        ResourceStatus(),
    ),
    "null": ("null", ResourceStatus()),
}


@pytest.mark.parametrize(("text", "expected"), FOREIGN.values(), ids=FOREIGN)
def test_what_others_write_is_read(text: str, expected: ResourceStatus) -> None:
    assert read_resource_status({RESOURCE_STATUS: text}) == expected


def test_without_the_annotation_nothing_was_given() -> None:
    assert read_resource_status({}) is None


BROKEN: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "not JSON"),
    "nested too deeply": (DEEP[:60_000], "not JSON (nested too deeply)"),
    "no text": (5, "a int where text must be"),
    "a list": ("[]", "a list where an object must be"),
    "CPUs that are no list": ('{"cpuset":"all"}', "not a CPU or a range of CPUs: 'all'"),
    "CPUs that are a number": ('{"cpuset":3}', "a int where text must be"),
    "an absurd CPU": ('{"cpuset":"0-999999999"}', "CPU 999999999 is above the largest taken"),
    "a NUMA node that is text": ('{"numaNodeResources":[{"node":"0"}]}', "node is no whole number"),
    "a NUMA node without number": ('{"numaNodeResources":[{}]}', "node is no whole number"),
    "a NUMA node twice": ('{"numaNodeResources":[{"node":0},{"node":0}]}', "names one NUMA node twice"),
    "an amount that is none": ('{"numaNodeResources":[{"node":0,"resources":{"cpu":"x"}}]}', "'x' is not a Kubernetes"),
    "resources in a list": ('{"numaNodeResources":[{"node":0,"resources":[1]}]}', "a list where an object must be"),
    "a pool of no socket": ('{"cpuSharedPools":[{"node":0}]}', "socket is no whole number"),
}


@pytest.mark.parametrize(("value", "message"), BROKEN.values(), ids=BROKEN)
def test_a_status_that_is_not_of_the_format_is_refused_whole(value: Any, message: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        read_resource_status({RESOURCE_STATUS: value})
    assert str(caught.value).startswith(RESOURCE_STATUS)
    assert message in str(caught.value)


STATUS_KEYS = ["cpuset", "numaNodeResources", "cpuSharedPools", "node", "socket", "resources", "cpu"]
STATUS_LEAVES = ["0-3", "3-0", 0, 1, -1, 0.5, "4", "1500m", [], {}, {"node": 0}, [{"node": 0}], None, "\ud800"]


@given((json_values() | json_near(STATUS_KEYS, STATUS_LEAVES)).map(json.dumps) | json_values())
def test_any_status_is_read_or_refused(value: Any) -> None:
    try:
        told = read_resource_status({RESOURCE_STATUS: value})
    except AnnotationError:
        return
    if told is None:
        assert value is None
        return
    assert told.cpus >= 0
    assert all(amount >= 0 for one in told.numa for amount in one.amounts.values())
    again = read_resource_status({RESOURCE_STATUS: write_resource_status(told)})
    assert again is not None
    assert (again.cpus, {one.node: one.amounts for one in again.numa}) == (
        told.cpus,
        {one.node: one.amounts for one in told.numa},
    )


NODES = st.integers(0, 2**31 - 1)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu"]), st.integers(0, 2**50))
GIVEN = st.builds(
    ResourceStatus,
    st.integers(0, 2**128),
    st.dictionaries(NODES, AMOUNTS, max_size=4).map(
        lambda by_node: tuple(NumaResources(node, by_node[node]) for node in sorted(by_node))
    ),
    st.lists(st.tuples(NODES, NODES), max_size=3).map(
        lambda places: tuple(PoolCpus(*place) for place in sorted(places))
    ),
)


@given(GIVEN)
def test_whatever_was_given_reads_back_the_same(status: ResourceStatus) -> None:
    assert read_resource_status({RESOURCE_STATUS: write_resource_status(status)}) == status
