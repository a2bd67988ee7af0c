"""The kubelet's CPU state taken over by the whole reporter: written, written again, reported, refused, undone."""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_kube import FakeKube, answer

from allocator.vocabulary.cputopology import parse
from koordgate.kube.client import KubeClient
from reporter.command import look
from reporter.host import Host
from reporter.kubelet import cpustate
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.pods import read_pod
from reporter.reading import HostReading
from reporter.takeover import TakeOverError, WantedState, backup_of, take_over, wish

Raw = dict[str, Any]
Given = Mapping[str, Mapping[str, str]]
PODS = "/api/v1/namespaces/ns/pods"
A, B, C = (f"{digit * 8}-2222-3333-4444-555555555555" for digit in "abc")
BOX = "d" * 64
STATIC = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
WHOLE = {"main": {"requests": {"cpu": "2"}}}


def pod(
    name: str, uid: str, cpus: str, containers: Mapping[str, Any] = WHOLE, init: Mapping[str, Any] | None = None
) -> Raw:
    """A Guaranteed LSR Pod that runs on the node."""
    about = {
        "name": name,
        "namespace": "ns",
        "uid": uid,
        "labels": {"koordinator.sh/qosClass": "LSR"},
        "annotations": {"scheduling.koordinator.sh/resource-status": f'{{"cpuset":"{cpus}"}}'} if cpus else {},
    }
    spec = {
        "nodeName": "n1",
        "initContainers": [{"name": one, "resources": asks} for one, asks in (init or {}).items()],
        "containers": [{"name": one, "resources": asks} for one, asks in containers.items()],
    }
    return {"metadata": about, "spec": spec, "status": {"qosClass": "Guaranteed", "phase": "Running"}}


class Kubelet:
    """A kubelet's handling of its state file: kept in memory, written from there, read at the start."""

    def __init__(self, folder: Path, given: Given) -> None:
        self.path = folder / cpustate.FILE
        self._socket = folder / "pod-resources" / "kubelet.sock"
        self._socket.parent.mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump(STATIC))
        self.entries = given
        self.write()
        self.restart()

    @property
    def in_file(self) -> dict[str, dict[str, int]]:
        return {uid: dict(sets) for uid, sets in cpustate.parse(self.path.read_bytes()).entries.items()}

    def write(self) -> None:
        """Write the file, as when it allocates or releases CPUs."""
        entries = {uid: {name: parse(cpus) for name, cpus in sets.items()} for uid, sets in self.entries.items()}
        empty = CpuState(StateLayout.V2, "static", 0xFF, entries)
        state = CpuState(StateLayout.V2, "static", 0xFF & ~empty.given, entries)
        temporary = self.path.with_name(".new")
        temporary.write_bytes(cpustate.render(state))
        temporary.replace(self.path)

    def restart(self) -> None:
        """Create the socket again, and read the file into memory."""
        self._socket.unlink(missing_ok=True)
        self._socket.touch()
        now = max(self._socket.stat().st_mtime_ns, self.path.stat().st_mtime_ns + 1)
        os.utime(self._socket, ns=(now, now))

    @property
    def backed_up(self) -> bool:
        return backup_of(self.path).exists()


@pytest.fixture
def kubelet(site) -> Kubelet:
    """A kubelet with the static policy that gave CPUs 1-2 to the Pod A, on a node that the cluster knows."""
    site.add_node()
    return Kubelet(site.folder / "kubelet", {A: {"main": "1-2"}})


def told(fake: FakeKube, reason: str) -> list[str]:
    return [event["message"] for event in fake.objects("/api/v1/events") if event["reason"] == reason]


async def rounds_until(site, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await site.more_rounds(1)


def counted(site) -> float:
    return float(site.metrics.take_overs._value.get())


async def test_decided_cpus_are_put_in_reported_once_and_put_in_again_until_the_kubelet_restarts(
    site, start, fake: FakeKube, kubelet: Kubelet
) -> None:
    fake.put(PODS, pod("a", A, "4-5"))
    site.cgroup(f"kubepods/pod{A}")
    main = site.cgroup(f"kubepods/pod{A}/{BOX}", "1-2")
    await start(take_over="write")
    await rounds_until(site, lambda: told(fake, "CpuStateTakenOver"))
    await site.settled()
    ours = {A: {"main": parse("4-5")}}
    assert kubelet.in_file == ours
    (message,) = told(fake, "CpuStateTakenOver")
    assert "ns/a" in message
    assert "restart the kubelet" in message
    assert (main / "cpuset.cpus").read_text() == "1-2\n", "the kubelet owns it until it restarts"

    kubelet.entries = {A: {"main": "1-2"}, C: {"main": "6"}}
    kubelet.write()
    await rounds_until(site, lambda: kubelet.in_file == {**ours, C: {"main": parse("6")}})
    await site.settled()

    assert len(told(fake, "CpuStateTakenOver")) == 1
    assert counted(site) == 2
    assert site.metrics.problems._value.get() > 0
    kubelet.restart()
    await rounds_until(site, lambda: not site.metrics.problems._value.get())
    await rounds_until(site, lambda: (main / "cpuset.cpus").read_text() == "4-5\n")
    await site.more_rounds(5)
    assert (len(told(fake, "CpuStateTakenOver")), counted(site)) == (1, 2)


async def test_nothing_is_put_in_or_taken_out_before_the_pods_are_known(
    site, start, fake: FakeKube, kubelet: Kubelet
) -> None:
    fake.put(PODS, pod("a", A, "4-5"))
    fake.put(PODS, pod("b", B, "6"))
    take_over(kubelet.path, WantedState({A: {"main": parse("4-5")}}, {A}, 1))
    before = kubelet.path.read_bytes()
    fake.faults.always("list", "pods", answer(500))
    await start(take_over="write")

    await site.more_rounds(5)

    assert kubelet.path.read_bytes() == before


async def test_a_refusal_is_reported_and_counts_and_stops_nothing_else(
    site, start, fake: FakeKube, kubelet: Kubelet
) -> None:
    fake.put(PODS, pod("a", A, "0,4"))
    fake.put(PODS, pod("b", B, "5"))
    burstable = fake.put(PODS, pod("shares", C, "", {"main": {}}))
    burstable["status"]["qosClass"] = "Burstable"
    burstable["metadata"]["labels"] = {}
    fake.put(PODS, burstable)
    shares = site.cgroup(f"kubepods/burstable/pod{C}/{BOX}")
    site.cgroup(f"kubepods/burstable/pod{C}")
    await start(take_over="write")
    await rounds_until(site, lambda: told(fake, "CpuStateNotTakenOver"))
    await site.settled()

    (message,) = told(fake, "CpuStateNotTakenOver")
    assert message.endswith("Pod ns/a was given CPUs 0, which the kubelet reserves; reserve them for us as well")
    assert kubelet.in_file == {A: {"main": parse("1-2")}, B: {"main": parse("5")}}
    assert (shares / "cpuset.cpus").read_text() != "0-7\n"
    assert counted(site) == 1
    assert site.metrics.bugs.labels("round")._value.get() == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda obj: obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
        lambda obj: obj["status"].update(phase="Failed"),
        None,
    ],
    ids=["is being deleted", "has ended", "is gone"],
)
async def test_what_the_kubelet_took_back_of_a_pod_that_ends_is_never_put_in_again(
    site, start, fake: FakeKube, kubelet: Kubelet, change
) -> None:
    obj = fake.put(PODS, pod("a", A, "4-5"))
    agent = await start(take_over="write")
    await rounds_until(site, lambda: kubelet.in_file == {A: {"main": parse("4-5")}})
    if change is None:
        fake.remove(f"{PODS}/a")
        await rounds_until(site, lambda: not agent.state.cluster.pods)
    else:
        change(obj)
        fake.put(PODS, obj)
        await rounds_until(site, lambda: any(one.deleted or one.finished for one in agent.state.cluster.pods))
    await site.more_rounds(2)

    kubelet.entries = {}
    kubelet.write()
    before = kubelet.path.read_bytes()
    await site.more_rounds(5)

    assert kubelet.path.read_bytes() == before


async def test_a_pod_that_ended_unknown_to_the_kubelet_keeps_its_cpus_from_nobody(
    site, start, fake: FakeKube, kubelet: Kubelet
) -> None:
    fake.put(PODS, pod("b", B, "4-5"))
    await start(take_over="write")
    await rounds_until(site, lambda: B in kubelet.in_file)

    fake.remove(f"{PODS}/b")
    fake.put(PODS, pod("c", C, "5-6"))
    await rounds_until(site, lambda: C in kubelet.in_file)

    assert kubelet.in_file == {A: {"main": parse("1-2")}, C: {"main": parse("5-6")}}
    assert not told(fake, "CpuStateNotTakenOver")


async def test_undoing_is_reported_done_again_until_the_kubelet_restarts_and_then_leaves_all_alone(
    site, start, fake: FakeKube, kubelet: Kubelet
) -> None:
    fake.put(PODS, pod("a", A, "4-5"))
    await start(take_over="write")
    await rounds_until(site, lambda: kubelet.in_file == {A: {"main": parse("4-5")}})
    kubelet.restart()
    await site.end()
    await start(take_over="undo")
    await rounds_until(site, lambda: told(fake, "CpuStateGivenBack"))
    assert kubelet.in_file == {A: {"main": parse("1-2")}}

    kubelet.entries = {A: {"main": "4-5"}, C: {"main": "6"}}
    kubelet.write()
    await rounds_until(site, lambda: kubelet.in_file == {A: {"main": parse("1-2")}, C: {"main": parse("6")}})
    assert kubelet.backed_up
    kubelet.restart()
    await rounds_until(site, lambda: len(told(fake, "CpuStateGivenBack")) == 2)

    assert not kubelet.backed_up
    before = kubelet.path.read_bytes()  # type: ignore[unreachable]
    await site.more_rounds(5)
    assert kubelet.path.read_bytes() == before
    said = told(fake, "CpuStateGivenBack")
    assert sorted("restart the kubelet" in message for message in said) == [False, True]
    assert sorted("set cpus.takeOver to leave" in message for message in said) == [False, True]


async def test_left_alone_a_state_that_was_taken_over_is_reported_and_not_touched(
    site, start, fake: FakeKube, kubelet: Kubelet
) -> None:
    fake.put(PODS, pod("a", A, "4-5"))
    await start(take_over="write")
    await rounds_until(site, lambda: kubelet.in_file == {A: {"main": parse("4-5")}})
    await site.end()
    kubelet.restart()
    kubelet.write()
    files = {file: file.read_bytes() for file in (kubelet.path, backup_of(kubelet.path))}

    await start()
    await rounds_until(site, lambda: told(fake, "CpuStateNotTakenOver"))
    await site.more_rounds(5)

    (message,) = told(fake, "CpuStateNotTakenOver")
    assert "set cpus.takeOver to undo" in message
    assert {file: file.read_bytes() for file in files} == files


@pytest.mark.parametrize("mode", ["leave", "write", "undo"])
async def test_where_there_is_nothing_to_take_over_or_undo_nothing_is_said_or_touched(
    site, start, fake: FakeKube, mode: str
) -> None:
    site.add_node()
    path = site.folder / "kubelet" / cpustate.FILE
    path.write_bytes(cpustate.render(cpustate.absent()))
    before = path.read_bytes()
    fake.put(PODS, pod("a", A, "4-5"))

    await start(take_over=mode)
    await site.settled()

    assert (path.read_bytes(), backup_of(path).exists()) == (before, False)
    assert not [event for event in fake.objects("/api/v1/events") if event["reason"].startswith("CpuState")]


@pytest.mark.parametrize("mode", ["leave", "write", "undo"])
async def test_a_backup_that_cannot_be_read_is_reported_and_nothing_is_touched(
    site, start, fake: FakeKube, kubelet: Kubelet, mode: str
) -> None:
    fake.put(PODS, pod("a", A, "4-5"))
    backup_of(kubelet.path).write_text("{")
    before = kubelet.path.read_bytes()

    await start(take_over=mode)
    await rounds_until(site, lambda: told(fake, "CpuStateNotTakenOver"))
    await site.settled()

    assert kubelet.path.read_bytes() == before
    assert backup_of(kubelet.path).read_text() == "{"
    assert site.metrics.bugs.labels("round")._value.get() == 0


@pytest.mark.parametrize(
    ("mode", "said"), [("write", "allocated to ns/a would be in it"), ("undo", "would be taken out"), ("leave", "undo")]
)
async def test_one_look_says_what_would_be_done_and_does_nothing(
    site, fake: FakeKube, kube: KubeClient, kubelet: Kubelet, mode: str, said: str
) -> None:
    fake.put(PODS, pod("a", A, "4-5"))
    if mode != "write":
        take_over(kubelet.path, WantedState({A: {"main": parse("3")}}, {A}, 1))
    files = {file: file.read_bytes() for file in kubelet.path.parent.iterdir() if file.is_file()}

    _, problems = await look(site.settings(take_over=mode), kube)

    assert said in "\n".join(problems)
    assert {file: file.read_bytes() for file in kubelet.path.parent.iterdir() if file.is_file()} == files


# Which CPUs of which containers


def read(site, *, said: Mapping[str, Any] = STATIC) -> HostReading:
    """The machine of eight CPUs in two NUMA nodes, with a kubelet of this configuration."""
    (site.folder / "kubelet" / "config.yaml").write_text(yaml.safe_dump(dict(said)))
    return Host(site.settings()).read()


def asked(pods: list[Raw], host: HostReading, memory: Given | None = None) -> tuple[WantedState, tuple[str, ...]]:
    sets = {uid: {name: parse(cpus) for name, cpus in entry.items()} for uid, entry in (memory or {}).items()}
    return wish([read_pod(obj) for obj in pods], host, CpuState(StateLayout.V2, "static", 0xFF, sets))


def test_every_container_on_the_pods_own_cpus_has_them_whatever_it_asks_for_and_whenever_it_runs(site) -> None:
    init = {"prepare": {"requests": {"cpu": "2"}}, "sidecar": {}}
    containers = {"main": {"requests": {"cpu": "2"}}, "small": {"requests": {"cpu": "100m"}}, "none": {}}

    wanted, left_out = asked([pod("a", A, "4-5", containers, init)], read(site))

    assert wanted.ours == {A: dict.fromkeys(("prepare", "sidecar", "main", "none"), parse("4-5"))}
    assert (wanted.reserved, wanted.strict, left_out) == (1, False, ())


def test_a_pod_is_not_put_in_where_the_kubelet_gives_cpus_to_a_container_on_shared_ones(site) -> None:
    proxied = {**WHOLE, "istio-proxy": {"requests": {"cpu": "1"}}}
    small = {**WHOLE, "istio-proxy": {"requests": {"cpu": "100m"}}}

    wanted, left_out = asked([pod("a", A, "4-5", proxied), pod("b", B, "6-7", small)], read(site))

    assert wanted.ours == {B: {"main": parse("6-7")}}
    assert left_out == (
        (
            "Pod ns/a has container istio-proxy, which runs on shared CPUs and asks for whole ones, so that the "
            "kubelet gives it CPUs of its own; let it ask for less than one CPU, or for a limit above its request"
        ),
    )


def test_pods_without_cpus_of_their_own_and_those_that_end_are_not_put_in_but_those_that_still_run_stay(site) -> None:
    deleted, ended, plain = pod("a", A, "4"), pod("b", B, "5"), pod("c", C, "")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ended["status"]["phase"] = "Succeeded"

    wanted, left_out = asked([deleted, ended, plain], read(site))

    assert (wanted.ours, wanted.live, left_out) == ({}, {A, C}, ())


def test_of_many_pods_that_wait_for_the_kubelet_five_are_named(site) -> None:
    Kubelet(site.folder / "kubelet", {})
    uids = [f"{number}{A[1:]}" for number in range(1, 7)]
    pods = [read_pod(pod(f"p{uid[0]}", uid, uid[0])) for uid in uids]

    def notice(count: int) -> str:
        host = Host(site.settings(take_over="write"))
        return host.take_over(pods[:count], host.read(), dry=True).notice

    assert "to ns/p1, ns/p2, ns/p3, ns/p4, ns/p5 would be in it" in notice(5)
    assert "to ns/p1, ns/p2, ns/p3, ns/p4, ns/p5 and 1 more would be in it" in notice(6)


def test_a_static_pod_goes_by_the_name_that_the_kubelet_has_for_it(site) -> None:
    obj = pod("a", A, "4-5")
    obj["metadata"]["annotations"]["kubernetes.io/config.hash"] = "f" * 32

    wanted, _ = asked([obj], read(site))

    assert set(wanted.ours) == {"f" * 32}


@pytest.mark.parametrize(
    ("said", "reserved", "strict"),
    [
        (STATIC | {"cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}}, 0b1, True),
        ({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "1500m"}}, 0b10001, False),
    ],
    ids=["by number, strict", "by quantity"],
)
def test_the_reserved_cpus_are_those_of_the_kubelets_configuration(site, said, reserved, strict) -> None:
    wanted, _ = asked([], read(site, said=said))

    assert (wanted.reserved, wanted.strict) == (reserved, strict)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "set kubelet.configz"),
        ({"cpuManagerPolicy": "static"}, "reserves no CPUs"),
        (STATIC | {"reservedSystemCPUs": "0,99"}, "which this machine lacks"),
        (
            {
                "cpuManagerPolicy": "static",
                "kubeReserved": {"cpu": "1"},
                "cpuManagerPolicyOptions": {"prefer-align-cpus-by-uncorecache": "true"},
            },
            "may have taken others",
        ),
    ],
    ids=["a policy that its file does not know of", "none", "of another machine", "a guess"],
)
def test_where_the_reserved_cpus_are_not_known_for_certain_nothing_is_put_in(site, said, why) -> None:
    with pytest.raises(TakeOverError, match=why):
        asked([pod("a", A, "4-5")], read(site, said=said))


SMALL = {"main": {"requests": {"cpu": "1"}}, "side": {"requests": {"cpu": "1"}}}
ADMITTED = {
    "as many CPUs on the same NUMA node": (pod("a", A, "4-5"), {"main": "1,5"}, ""),
    "as many on another": (pod("a", A, "4-5"), {"main": "2-3"}, "on other NUMA nodes than the kubelet's 2-3"),
    "given nothing yet": (pod("a", A, "4-5"), {}, ""),
    "each container all of the Pod's": (pod("a", A, "4-5", SMALL), {"main": "6", "side": "7"}, "ask for less than all"),
    "an init container that asks for less": (
        pod("a", A, "4-5", init={"first": {"requests": {"cpu": "1"}}}),
        {"main": "6-7"},
        "ask for less than all",
    ),
    "no whole CPUs": (pod("a", A, "4-5", {"main": {"requests": {"cpu": "1500m"}}}), {}, ""),
    "one that runs on shared CPUs": (pod("a", A, "4-5", WHOLE | {"side": {"requests": {"cpu": "100m"}}}), {}, ""),
}


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
@pytest.mark.parametrize(("obj", "had", "why"), ADMITTED.values(), ids=ADMITTED)
def test_a_pod_that_a_restarting_kubelet_might_reject_is_left_out(site, policy, obj, had, why) -> None:
    host = read(site, said=STATIC | {"topologyManagerPolicy": policy})

    wanted, left_out = asked([obj], host, {A: had})

    assert (why in "".join(left_out), bool(left_out), bool(wanted.ours)) == (True, bool(why), not why)


@pytest.mark.parametrize("policy", ["none", "best-effort"])
@pytest.mark.parametrize(("obj", "had", "why"), ADMITTED.values(), ids=ADMITTED)
def test_where_the_topology_manager_does_not_insist_every_pod_is_put_in(site, policy, obj, had, why) -> None:
    host = read(site, said=STATIC | {"topologyManagerPolicy": policy})

    wanted, left_out = asked([obj], host, {A: had})

    assert (set(wanted.ours), left_out) == ({A}, ())


def test_a_burstable_pod_is_put_in_whatever_the_topology_manager_says(site) -> None:
    obj = pod("a", A, "4-5", SMALL)
    obj["status"]["qosClass"] = "Burstable"

    wanted, left_out = asked([obj], read(site, said=STATIC | {"topologyManagerPolicy": "restricted"}))

    assert (set(wanted.ours), left_out) == ({A}, ())
