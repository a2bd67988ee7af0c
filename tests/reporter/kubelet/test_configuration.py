"""How the kubelet is configured, and which CPUs it reserves."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from allocator.vocabulary.cputopology import Cpu, CpuTopology, format_cpuset
from koordgate.kube.client import KubeClient
from reporter.kubelet.configuration import (
    ConfigurationError,
    KubeletConfiguration,
    ask_configz,
    parse,
    reserved_cpus,
    take_reserved,
)

FILE = b"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerPolicyOptions:
  full-pcpus-only: "true"
  distribute-cpus-across-numa: "false"
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
memoryManagerPolicy: Static
cgroupDriver: systemd
cgroupRoot: /nodes
systemReserved: {cpu: 500m, memory: 1Gi}
kubeReserved: {cpu: "1"}
"""

READ = KubeletConfiguration(
    cpu_policy="static",
    cpu_options={"full-pcpus-only": "true", "distribute-cpus-across-numa": "false"},
    reserved_milli=1500,
    topology_policy="single-numa-node",
    topology_scope="pod",
    memory_policy="Static",
    cgroup_driver="systemd",
    cgroup_root="/nodes",
)


def two_sockets() -> CpuTopology:
    """Two sockets, 12 CPUs: the machine of Koordinator's own tests; CPU n and n+6 are threads of one core."""
    return CpuTopology.of(Cpu(cpu, cpu % 6, cpu % 2, cpu % 2) for cpu in range(12))


def test_a_file_is_read() -> None:
    assert parse(FILE) == READ


def test_configz_says_the_same() -> None:
    assert parse(json.dumps({"kubeletconfig": yaml.safe_load(FILE)}).encode()) == READ


def test_what_is_left_out_has_the_kubelets_default() -> None:
    assert parse(b"kind: KubeletConfiguration") == KubeletConfiguration(cpu_options={})


def test_options_that_yaml_took_for_booleans_are_texts() -> None:
    found = parse(
        b"cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: true}\nsystemReserved: {cpu: 2}"
    )
    assert found.option("full-pcpus-only")
    assert found.reserved_milli == 2000


TOPOLOGIES = {
    "nothing stated": ("", "None"),
    "none": ("topologyManagerPolicy: none\ntopologyManagerScope: pod", "None"),
    "best effort, the default scope": ("topologyManagerPolicy: best-effort", "BestEffortContainerLevel"),
    "restricted by Pod": ("topologyManagerPolicy: restricted\ntopologyManagerScope: pod", "RestrictedPodLevel"),
    "single by container": (
        "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: container",
        "SingleNUMANodeContainerLevel",
    ),
    "single by Pod": ("topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod", "SingleNUMANodePodLevel"),
}


@pytest.mark.parametrize(("text", "policy"), TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_the_topology_policy_is_named_as_in_noderesourcetopology(text, policy) -> None:
    assert parse(f"kind: KubeletConfiguration\n{text}".encode()).topology_policies == (policy,)


BROKEN = {
    "empty": b"",
    "a list": b"- 1",
    "a text": b"hello",
    "no UTF-8": b"\xff\xfe",
    "another kind": b"kind: Pod",
    "a tag": b"cpuManagerPolicy: !!python/object/apply:os.system [id]",
    "aliases merged over and over": b"a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}",
    "nested too deeply as YAML": b"[" * 50_000,
    "nested too deeply as JSON": b'{"a":' * 50_000,
    "cut off": b'{"kubeletconfig": {"cpuManagerPolicy": "sta',
    "a policy that is unknown": b"cpuManagerPolicy: dynamic",
    "a policy that is a list": b"cpuManagerPolicy: [static]",
    "a scope that is unknown": b"topologyManagerScope: galaxy",
    "options that are a text": b"cpuManagerPolicyOptions: full-pcpus-only",
    "options that are numbered": b"cpuManagerPolicyOptions: {1: 'true'}",
    "reserved CPUs that are none": b"reservedSystemCPUs: all",
    "reserved CPUs without end": b"reservedSystemCPUs: 0-999999999",
    "a negative reservation": b"systemReserved: {cpu: -1}",
    "a reservation that is no quantity": b"kubeReserved: {cpu: lots}",
    "configz without a configuration": b'{"kubeletconfig": []}',
    "half a character as JSON": b'{"cpuManagerPolicyOptions":{"\\ud800":"x"}}',
    "half a character as YAML": b'cpuManagerPolicyOptions: {"\\ud800": "x"}',
    "half a character in a set": b'cpuManagerPolicyOptions: {}\nx: !!set {"\\ud800"}',
    "a driver that is unknown": b"cgroupDriver: runc",
    "a date that is none": b"cgroupRoot: 2024-99-99",
    "a number without end": b"cgroupRoot: " + b"9" * 5000,
    "a number of more than 64 bits": b"cgroupRoot: 9223372036854775808",
    "too large": b"#" * (256 * 1024 + 1),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_configuration_that_makes_no_sense_is_refused(data) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(data)
    assert str(caught.value).encode()


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775807"])
def test_a_number_in_the_place_of_a_text_is_the_text(number: str) -> None:
    assert parse(f"cgroupRoot: {number}".encode()).cgroup_root == number


def test_a_file_may_have_256_kib() -> None:
    assert parse(b"cgroupDriver: systemd\n".ljust(256 * 1024, b"#")).cgroup_driver == "systemd"


KEYS = (
    *("kubeletconfig", "kind", "cpuManagerPolicy", "cpuManagerPolicyOptions", "topologyManagerPolicy", "cgroupRoot"),
    *("topologyManagerScope", "memoryManagerPolicy", "cgroupDriver", "systemReserved", "kubeReserved", "cpu"),
    "reservedSystemCPUs",
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["static", "0-3", "1"])
NEAR = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner), max_leaves=20
)


@given(st.dictionaries(st.sampled_from(KEYS), NEAR))
def test_no_yaml_raises_anything_else(value) -> None:
    for data in (json.dumps(value), yaml.safe_dump(value)):
        try:
            parse(data.encode())
        except ConfigurationError:
            continue


# reserved CPUs


@pytest.mark.parametrize(
    ("count", "cpus"), [(0, ""), (1, "0"), (2, "0,6"), (3, "0,2,6"), (6, "0,2,4,6,8,10"), (12, "0-11")]
)
def test_reserved_cpus_are_taken_in_the_kubelets_order(count, cpus) -> None:
    assert format_cpuset(take_reserved(two_sockets(), count)) == cpus


# Socket 0 has NUMA nodes 0 (CPUs 0-2) and 1 (3-5), socket 1 has node 2 (6-9); each core has one thread.
SOCKETS = CpuTopology.of(Cpu(cpu, cpu, int(node == 2), node) for cpu, node in enumerate([0] * 3 + [1] * 3 + [2] * 4))
# Node 0 has two cores with two threads each, node 1 has five cores with one.
CORES = CpuTopology.of(
    Cpu(cpu, core, int(cpu > 3), int(cpu > 3)) for cpu, core in enumerate([0, 0, 1, 1, 2, 3, 4, 5, 6])
)


@pytest.mark.parametrize(
    ("topology", "count", "cpus"),
    [
        pytest.param(SOCKETS, 4, "6-9", id="the smaller socket, whole"),
        pytest.param(SOCKETS, 3, "0-2", id="a NUMA node that fits, although the smaller socket comes first"),
        pytest.param(SOCKETS, 1, "6", id="a thread of the smaller socket"),
        pytest.param(SOCKETS, 5, "0,6-9", id="a whole socket, then threads of the other"),
        pytest.param(SOCKETS, 6, "0-1,6-9", id="the smaller socket first, although the other would fit"),
        pytest.param(SOCKETS, 7, "0-2,6-9", id="a whole socket, then a whole NUMA node of the other"),
        pytest.param(SOCKETS, 9, "0-4,6-9", id="a socket, a NUMA node, and threads beside it"),
        pytest.param(CORES, 1, "4", id="a whole core, although a part of another comes first"),
        pytest.param(CORES, 2, "0-1", id="a whole core of two threads"),
        pytest.param(CORES, 3, "0-1,4", id="a whole core that fits into what is left"),
        pytest.param(CORES, 5, "0-4", id="a whole NUMA node, then a core of the other"),
        pytest.param(CORES, 6, "0-5", id="the smaller NUMA node, although the other would fit nearly"),
    ],
)
def test_on_uneven_machines_whole_parts_that_fit_come_before_threads(
    topology: CpuTopology, count: int, cpus: str
) -> None:
    assert format_cpuset(take_reserved(topology, count)) == cpus


# With the option distribute-cpus-across-cores. Of two NUMA nodes, the first has sockets 0 (CPUs 0-2) and 1 (3-5), the
# second socket 2 (6-9); and of one socket, NUMA node 0 has CPUs 0-3 and node 1 has 4-5, socket 1 is node 2 (6-9).
IN_NODES = CpuTopology.of(Cpu(cpu, cpu, min(cpu // 3, 2), int(cpu > 5)) for cpu in range(10))
IN_SOCKETS = CpuTopology.of(
    Cpu(cpu, cpu, int(node == 2), node) for cpu, node in enumerate([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2])
)


@pytest.mark.parametrize(
    ("topology", "count", "cpus"),
    [
        pytest.param(IN_NODES, 1, "6", id="sockets within the smaller NUMA node"),
        pytest.param(IN_NODES, 5, "0,6-9", id="then within the other"),
        pytest.param(IN_SOCKETS, 1, "0", id="a socket's CPUs by number, whatever their NUMA node"),
        pytest.param(IN_SOCKETS, 3, "0,4-5", id="a NUMA node that fits comes first"),
    ],
)
def test_where_cpus_are_spread_over_cores_the_larger_parts_keep_their_order(
    topology: CpuTopology, count: int, cpus: str
) -> None:
    assert format_cpuset(take_reserved(topology, count, spread=True)) == cpus


CASES = json.loads((Path(__file__).parent / "reserved.json").read_bytes())


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{len(case['cpus'])}-{case['count']}-{n}" for n, case in enumerate(CASES)]
)
def test_reserved_cpus_are_those_that_the_kubelets_own_code_takes(case) -> None:
    """The cases were computed by takeByTopologyNUMAPacked of Kubernetes v1.36.3."""
    topology = CpuTopology.of(Cpu(*cpu) for cpu in case["cpus"])
    assert format_cpuset(take_reserved(topology, case["count"], spread=case["spread"])) == case["want"]


STATIC = "cpuManagerPolicy: static\n"
RESERVED = {
    "no static policy": ("systemReserved: {cpu: 2}", ""),
    "a list wins over quantities": (STATIC + "reservedSystemCPUs: 3-4\nsystemReserved: {cpu: 8}", "3-4"),
    "quantities are summed, then rounded up": (
        STATIC + "systemReserved: {cpu: 600m}\nkubeReserved: {cpu: 600m}",
        "0,6",
    ),
    "less than a CPU": (STATIC + "kubeReserved: {cpu: 100m}", "0"),
    "more than there are": (STATIC + "kubeReserved: {cpu: 99}", "0-11"),
    "within one NUMA node, spread over NUMA nodes makes no difference": (
        STATIC + "kubeReserved: {cpu: 2}\ncpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}",
        "0,6",
    ),
}


@pytest.mark.parametrize(("text", "cpus"), RESERVED.values(), ids=RESERVED)
def test_the_kubelets_reserved_cpus(text, cpus) -> None:
    found, note = reserved_cpus(parse(text.encode()), two_sockets())
    assert (format_cpuset(found), note) == (cpus, None)


ACROSS, BY_CACHE = "distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache"
UNSURE = {
    "over NUMA nodes": (
        "kubeReserved: {cpu: 8}",
        [ACROSS],
        f"8 CPUs are reserved by number, and the kubelet's option {ACROSS} may",
    ),
    "by cache": (
        "kubeReserved: {cpu: 2}",
        [BY_CACHE],
        f"2 CPUs are reserved by number, and the kubelet's option {BY_CACHE} may",
    ),
    "over NUMA nodes and by cache": ("kubeReserved: {cpu: 8}", [BY_CACHE, ACROSS], f"option {ACROSS} may"),
    "in one NUMA node, by cache": ("kubeReserved: {cpu: 2}", [BY_CACHE, ACROSS], f"option {BY_CACHE} may"),
    "a CPU that is missing": (
        "reservedSystemCPUs: 0,99",
        [],
        "reservedSystemCPUs names CPUs 99, which this machine lacks",
    ),
}


@pytest.mark.parametrize(("text", "options", "told"), UNSURE.values(), ids=UNSURE)
def test_where_it_is_not_certain_which_cpus_are_reserved_the_administrator_is_told(text, options, told) -> None:
    stated = ", ".join(f"{option}: 'true'" for option in options)
    _, note = reserved_cpus(parse(f"{STATIC}{text}\ncpuManagerPolicyOptions: {{{stated}}}".encode()), two_sockets())
    assert note is not None
    assert told in note
    assert "reservedSystemCPUs" in note


def test_over_numa_nodes_of_unlike_sizes_it_is_never_certain() -> None:
    unlike = CpuTopology.of([Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0), Cpu(2, 2, 1, 1)])
    text = f"{STATIC}kubeReserved: {{cpu: 1}}\ncpuManagerPolicyOptions: {{{ACROSS}: 'true'}}"
    cpus, note = reserved_cpus(parse(text.encode()), unlike)
    assert cpus.bit_count() == 1
    assert note is not None
    assert f"1 CPUs are reserved by number, and the kubelet's option {ACROSS} may" in note
    none, note = reserved_cpus(parse(text.replace("cpu: 1", "cpu: 0").encode()), unlike)
    assert (none, note) == (0, None)


async def test_a_kubelet_that_does_not_answer_keeps_its_last_answer(kube: KubeClient) -> None:
    for before in (None, READ):
        answer = await ask_configz(kube, "n1", before)
        assert answer.value is before
        assert (answer.problem or "").startswith("the kubelet's /configz: ")
