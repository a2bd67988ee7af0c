"""CPUs and memory, read from realistic trees of sysfs."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sysfs_tree import Machine

from allocator.vocabulary.cputopology import members
from reporter.inventory import CpuReader, read_cpus, read_zones


def test_cores_are_numbered_through_the_machine_though_each_socket_starts_again(machine: Machine) -> None:
    machine.cpus(sockets=2, nodes=2, cores=2, threads=2)

    topology = read_cpus(machine.sysfs, machine.proc).topology

    assert topology is not None
    rows = [tuple(cpu) for cpu in topology.cpus]
    assert rows == [
        (0, 0, 0, 0),
        (1, 1, 0, 0),
        (2, 2, 1, 1),
        (3, 3, 1, 1),
        (4, 0, 0, 0),
        (5, 1, 0, 0),
        (6, 2, 1, 1),
        (7, 3, 1, 1),
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    sockets=st.integers(1, 2),
    split=st.integers(1, 2),
    cores=st.sampled_from([2, 4, 6]),
    threads=st.integers(1, 2),
    chosen=st.integers(0, 2**24 - 1),
)
def test_every_cpu_that_is_online_is_reported_once_with_its_siblings(
    tmp_path_factory, sockets: int, split: int, cores: int, threads: int, chosen: int
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    total = sockets * cores * threads
    offline = chosen & ((1 << total) - 1) & ~1  # the first CPU is always online
    machine.cpus(sockets, sockets * split, cores, threads, offline)

    topology = read_cpus(machine.sysfs, machine.proc).topology

    assert topology is not None
    assert topology.all == ((1 << total) - 1) & ~offline
    for cpu in members(topology.all):
        siblings = {other for other in members(topology.all) if other % (sockets * cores) == cpu % (sockets * cores)}
        assert set(members(topology.cores_of(1 << cpu))) == siblings


def test_the_first_processor_describes_all(machine: Machine) -> None:
    machine.cpus()
    machine.file("devices/system/cpu/intel_pstate/no_turbo", 0)
    machine.file("fs/resctrl/info/L3/cbm_mask", "fffff")

    basic = read_cpus(machine.sysfs, machine.proc).basic

    assert (basic.model, basic.vendor) == ("AMD EPYC 9654", "AuthenticAMD")
    assert (basic.hyper_threading, basic.turbo, basic.cat_l3_mask) == (True, True, "fffff")


@pytest.mark.parametrize(
    ("no_turbo", "boost", "turbo"),
    [(0, None, True), (0, 0, True), (1, 1, False), (None, 1, True), (None, 0, False), (None, None, False)],
)
def test_turbo_is_what_intels_driver_says_or_any_other(
    machine: Machine, no_turbo: int | None, boost: int | None, *, turbo: bool
) -> None:
    machine.cpus()
    for file, said in (("intel_pstate/no_turbo", no_turbo), ("cpufreq/boost", boost)):
        if said is not None:
            machine.file(f"devices/system/cpu/{file}", said)

    assert read_cpus(machine.sysfs, machine.proc).basic.turbo is turbo


def test_cpus_of_which_no_siblings_are_known_are_cores_of_their_own(machine: Machine) -> None:
    machine.cpus(sockets=1, nodes=1, cores=2, threads=2)
    for cpu in range(4):
        for name in ("core_cpus_list", "thread_siblings_list"):
            (machine.sysfs / f"devices/system/cpu/cpu{cpu}/topology/{name}").unlink(missing_ok=True)

    topology = read_cpus(machine.sysfs, machine.proc).topology

    assert topology is not None
    assert sorted(topology.cores) == [0b0001, 0b0010, 0b0100, 0b1000]


def test_a_machine_without_numa_nodes_and_with_unknown_sockets_is_one_of_each(machine: Machine) -> None:
    machine.file("devices/system/cpu/online", "0-1")
    machine.file("devices/system/cpu/cpu0/topology/physical_package_id", -1)

    topology = read_cpus(machine.sysfs, machine.proc).topology

    assert topology is not None
    assert [tuple(cpu) for cpu in topology.cpus] == [(0, 0, 0, 0), (1, 1, 0, 0)]


@pytest.mark.parametrize("online", [None, "", "x-y", "9-3"], ids=["missing", "empty", "no list", "descending"])
def test_without_a_list_of_cpus_there_is_no_topology_but_a_reason(machine: Machine, online: str | None) -> None:
    if online is not None:
        machine.file("devices/system/cpu/online", online)

    reading = read_cpus(machine.sysfs, machine.proc)

    assert reading.topology is None
    assert reading.problem is not None
    assert "names no CPU" in reading.problem


def test_a_contradiction_is_a_reason_too(machine: Machine) -> None:
    machine.cpus(sockets=1, nodes=2, cores=2, threads=2)
    machine.file("devices/system/node/node0/cpulist", "0-1")
    machine.file("devices/system/node/node1/cpulist", "2-3")

    reading = read_cpus(machine.sysfs, machine.proc)

    assert reading.topology is None
    assert "NUMA nodes" in str(reading.problem)


def test_cpus_are_read_again_only_when_others_are_online(machine: Machine) -> None:
    machine.cpus(sockets=1, nodes=1, cores=4, threads=1)
    reader = CpuReader(machine.sysfs, machine.proc)

    first = reader.read()
    assert reader.read() is first
    machine.file("devices/system/cpu/online", "0-2")

    topology = reader.read().topology
    assert topology is not None
    assert topology.all == 0b111


def test_what_could_not_be_read_is_read_again(machine: Machine) -> None:
    reader = CpuReader(machine.sysfs, machine.proc)
    assert reader.read().topology is None
    machine.cpus()

    assert reader.read().topology is not None


def test_a_zone_has_cpus_huge_pages_and_the_memory_that_these_leave(machine: Machine) -> None:
    machine.cpus(sockets=2, nodes=2, cores=4, threads=2)
    machine.memory(0, kib=64 * 2**20, pages_2m=512, pages_1g=4)
    machine.memory(1, kib=64 * 2**20)

    zones = read_zones(machine.sysfs, read_cpus(machine.sysfs, machine.proc).topology)

    assert zones[0].allocatable == {
        "cpu": 8000,
        "memory": 59 * 2**30,
        "hugepages-2Mi": 2**30,
        "hugepages-1Gi": 4 * 2**30,
    }
    assert zones[1].capacity == {"cpu": 8000, "memory": 64 * 2**30, "hugepages-2Mi": 0, "hugepages-1Gi": 0}


def test_what_cannot_be_read_of_a_zone_is_left_out_of_it(machine: Machine) -> None:
    machine.file("devices/system/node/node0/meminfo", "Node 0 MemFree: 1 kB")
    machine.file("devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", -4)
    machine.memory(1, kib=1024)

    zones = read_zones(machine.sysfs, None)

    assert list(zones) == [1]
    assert zones[1].allocatable["memory"] == 2**20
