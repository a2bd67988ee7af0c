"""The process around the reporter: settings, the command, Events, health kept."""

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_kube import FakeKube, answer
from kubeconfigs import write_kubeconfig
from round_driver import DRIVER, host, node_pod, reading
from waiting import until

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.wire.podallocated import ResourceStatus
from koordgate.kube.client import KubeClient
from koordgate.settings import SettingsError
from reporter import settings
from reporter.agent import ObjectWatch, PodWatch
from reporter.cgroup.layout import KubernetesQos
from reporter.cgroup.plan import KubeletRules, SharedCpus
from reporter.command import node_name, show
from reporter.files import FileReading
from reporter.gpu.facts import GpuFacts
from reporter.gpu.health import NOTHING_KNOWN, CardRecord, CardState, GpuHealth, HealthPolicy, NodeRecord, advance
from reporter.host import Host
from reporter.inventory import FPGAS, PciMatch
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.pods import NodeIdentity
from reporter.proof.agree import ContainerSeen, Evidence
from reporter.publish.events import EventWriter, Occurrence
from reporter.reading import GpuView, HostReading
from reporter.round.decide import Rules, StandingObjects, decide
from reporter.round.messages import ObjectGone, ObjectStands, PodsChanged, RoundEvent, WatchedKind
from reporter.round.state import ClusterState

ABOUT = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}
DSP = "types: [{name: dsp, resource: example.com/dsp}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds: 1", "rounds: there is no such key"),
        ("roundSeconds: 0", "roundSeconds"),
        ("roundSeconds: .inf", "roundSeconds"),
        ("devices: {pci: [{type: dsp, vendor: '0x10ee'}]}", "name it there"),
        ("devices: {pci: [{type: gpu, vendor: '0x10de'}]}", "name it there"),
        (f"devices: {{{DSP}, pci: [{{type: dsp, vendor: 10ee}}]}}", "vendor"),
        ("devices: {types: [{name: gpu, resource: example.com/x}]}", "gpu exists already"),
        ("a: [", "not YAML"),
        ("x" * 2**21, "longer than"),
    ],
    ids=["misspelt", "zero", "infinite", "unknown type", "cards by PCI", "no hex", "a type twice", "no YAML", "huge"],
)
def test_settings_that_make_no_sense_are_refused_with_the_key(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings.parse(text, "file")


@pytest.mark.parametrize(
    ("match", "read"),
    [
        ("vendor: '0x10ee'", PciMatch("dsp", 0x10EE)),
        ("vendor: '0x10EE', device: '0x5'", PciMatch("dsp", 0x10EE, 5)),
        ("vendor: '0x1', class: '0x12'", PciMatch("dsp", 1, base_class=0x12)),
        ("vendor: '0x1', class: '0x0280'", PciMatch("dsp", 1, base_class=2, sub_class=0x80)),
    ],
    ids=["vendor", "device", "class", "sub-class"],
)
def test_pci_ids_are_read_as_hexadecimal_and_come_before_what_is_built_in(match: str, read: PciMatch) -> None:
    made = settings.parse(f"devices: {{{DSP}, pci: [{{type: dsp, {match}}}]}}")

    assert settings.pci_matches(made) == (read, *FPGAS)


def test_an_empty_file_means_the_defaults_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.touch()

    assert settings.load(file) == settings.ReporterSettings()
    with pytest.raises(SettingsError, match="existing YAML file"):
        settings.load(tmp_path / "none")


def test_the_nodes_name_is_that_of_the_settings_then_of_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("NODE_NAME", "from-pod")

    assert node_name(settings.ReporterSettings(node="stated")) == "stated"
    assert node_name(settings.ReporterSettings()) == "from-pod"


# The command


CODE = (
    "import argparse, sys; from reporter.command import COMMAND; parser = argparse.ArgumentParser();"
    "COMMAND.arguments(parser); sys.exit(COMMAND.run(parser.parse_args()))"
)
COMMAND_LINE = (sys.executable, "-c", CODE)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND_LINE, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def config(site, tmp_path: Path) -> Path:
    roots = {name: str(tmp_path / name) for name in ("cgroup", "kubelet", "state")}
    roots |= {"sysfs": str(site.machine.sysfs), "proc": str(site.machine.proc)}
    path = tmp_path / "reporter.yaml"
    path.write_text(yaml.safe_dump({"node": "n1", "roots": roots, "serve": {"port": 0}, "gpus": {"enabled": False}}))
    return path


def test_one_look_prints_tables_and_yaml_and_changes_nothing(config: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    done = run("--config", str(config), "--once", "--dry-run", "--offline")

    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    tables, _, rest = done.stdout.partition("\n---\n")
    assert "0000:3b:00.0" in tables
    kinds = [one["kind"] for one in yaml.safe_load_all(rest)]
    assert kinds == ["Device", "NodeResourceTopology", "Node"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [(["--once"], 2, "go together"), (["--config", "/nowhere/x.yaml"], 2, "existing YAML file")],
    ids=["a look that would change something", "no file"],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], status: int, said: str) -> None:
    done = run(*arguments)

    assert (done.returncode, said in done.stderr) == (status, True)


def test_without_a_cluster_one_look_shows_the_machine_and_the_service_ends(
    config: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))

    looked = run("--config", str(config), "--once", "--dry-run")
    served = run("--config", str(config))

    assert looked.returncode == 0, looked.stderr
    assert "problem: the API server: " in looked.stdout
    assert "0000:3b:00.0" in looked.stdout
    assert served.returncode == 1
    assert served.stderr.splitlines()[-1].startswith("koordgate serve reporter: ")
    assert "Traceback" not in served.stderr


async def test_the_service_reports_until_it_is_told_to_end(
    site, fake: FakeKube, config: Path, tmp_path: Path, monkeypatch
) -> None:
    site.add_node()
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url)))
    process = await asyncio.create_subprocess_exec(*COMMAND_LINE, "--config", str(config))

    await until(lambda: fake.objects("/apis/scheduling.koordinator.sh/v1alpha1/devices"))
    process.send_signal(signal.SIGTERM)

    assert await process.wait() == 0


# Events


async def test_what_occurs_again_is_counted_up_and_what_has_expired_is_written_again(
    fake: FakeKube, kube: KubeClient
) -> None:
    now = [0.0]
    writer = EventWriter(kube, lambda: now[0])
    worn = Occurrence(ABOUT, "Xid79", "fell off the bus", count=2)

    writer.note([worn])
    await writer.write()
    now[0] = 60.0
    writer.note([worn, Occurrence(ABOUT, "Xid79", "another card")])
    await writer.write()

    counted, other = sorted(fake.objects("/api/v1/events"), key=lambda one: one["message"], reverse=True)
    assert (counted["count"], counted["lastTimestamp"]) == (4, "1970-01-01T00:01:00Z")
    assert (other["count"], counted["metadata"]["namespace"]) == (1, "default")
    fake.remove(f"/api/v1/namespaces/default/events/{counted['metadata']['name']}")
    writer.note([worn])
    await writer.write()
    assert len(fake.objects("/api/v1/events")) == 2


async def test_an_event_that_is_refused_permanently_stops_no_other(fake: FakeKube, kube: KubeClient) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    writer.note(Occurrence(ABOUT, "Xid79", str(number)) for number in range(2))
    fake.faults.add("create", "events", answer(403))

    await writer.write()

    assert [one["message"] for one in fake.objects("/api/v1/events")] == ["1"]


# The objects in the cluster


def obj(revision: str, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": uid, "resourceVersion": revision}}


def test_a_watch_that_is_behind_our_own_write_is_passed_over() -> None:
    cluster = ClusterState().with_object(WatchedKind.NODE, obj("5")).with_object(WatchedKind.NODE, obj("9"))

    assert cluster.with_object(WatchedKind.NODE, obj("7")) is cluster
    assert cluster.with_object(WatchedKind.NODE, obj("9")) is cluster
    anew = obj("3", uid="made anew")
    assert cluster.with_object(WatchedKind.NODE, anew).objects[WatchedKind.NODE] == anew


def test_a_kind_that_is_listed_again_stays_listed() -> None:
    once = ClusterState().with_list(WatchedKind.NODE)

    assert once.with_list(WatchedKind.NODE).with_list(WatchedKind.PODS).listed == {WatchedKind.NODE, WatchedKind.PODS}


def test_what_a_list_does_not_name_is_gone() -> None:
    said: list[RoundEvent] = []
    watch = ObjectWatch(WatchedKind.NODE, "n1", said.append)
    watch.put(obj("5"))
    watch.begin_list()
    watch.put({"metadata": {"name": "another", "uid": "x", "resourceVersion": "1"}})
    watch.end_list()
    watch.begin_list()
    watch.put(obj("6"))
    watch.end_list()
    watch.drop({"metadata": {"name": "another", "uid": "x", "resourceVersion": "7"}})
    watch.drop(obj("8"))

    gone = ObjectGone(WatchedKind.NODE)
    assert said == [ObjectStands(WatchedKind.NODE, obj("5")), gone, ObjectStands(WatchedKind.NODE, obj("6")), gone]


def listed(*names: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}} for name in names]


def test_pods_are_reported_whole_after_a_list_and_one_by_one_after_that() -> None:
    said: list[RoundEvent] = []
    watch = PodWatch(BUILT_IN, said.append)

    def reported() -> list[list[str]]:
        return [[pod.name for pod in event.pods] for event in said if isinstance(event, PodsChanged)]

    watch.begin_list()
    for one in listed("c", "a", "b"):
        watch.put(one)
    assert not said, "half a list would show Pods as gone"
    watch.end_list()
    watch.put(listed("b")[0])
    watch.put(listed("d")[0])
    watch.drop(listed("x")[0])
    watch.drop(listed("a")[0])
    watch.begin_list()
    for one in listed("d", "c"):
        watch.put(one)
    watch.end_list()
    watch.begin_list()
    for one in listed("c", "d"):
        watch.put(one)
    watch.end_list()

    assert reported() == [["a", "b", "c"], ["a", "b", "c", "d"], ["b", "c", "d"], ["c", "d"]]


# Health


def test_the_health_of_cards_outlives_the_process_whole_or_not_at_all(tmp_path: Path) -> None:
    host = Host(settings.parse(f"roots: {{state: {tmp_path / 'made' / 'here'}}}"))
    card = CardRecord(GpuFacts(uuid="GPU-0", minor=0), GpuHealth(CardState.UNHEALTHY, 5.0, count=2), 7.0)
    node = NodeRecord("boot", {"GPU-0": card})

    assert host.load_health() == (NOTHING_KNOWN, ())
    assert host.save_health(node) == ""
    assert host.load_health() == (node, ())
    problems: tuple[str, ...] = ()
    for rubbish in ("{", " " * (2**20 + 1)):
        (tmp_path / "made" / "here" / "gpus.json").write_text(rubbish)
        kept, problems = host.load_health()
        assert kept == NOTHING_KNOWN
        assert problems
    assert problems == (f"{tmp_path / 'made' / 'here' / 'gpus.json'}: larger than 1048576 bytes; it is not read",)
    assert [path.name for path in (tmp_path / "made" / "here").iterdir()] == ["gpus.json"]


def test_health_that_cannot_be_kept_says_what_must_be_mounted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    host = Host(settings.parse(f"roots: {{state: {tmp_path / 'file'}}}"))

    assert "mount it read-write" in host.save_health(NOTHING_KNOWN)


def test_health_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").mkdir()
    host = Host(settings.parse(f"roots: {{state: {tmp_path}}}"))

    assert "(Is a directory); mount it read-write" in host.save_health(NOTHING_KNOWN)
    assert [path.name for path in tmp_path.iterdir()] == ["gpus.json"]


# Cpusets


def test_where_cpusets_are_not_found_the_reason_is_told_and_they_are_looked_for_again(tmp_path: Path) -> None:
    host = Host(settings.parse(f"roots: {{cgroup: {tmp_path}}}"))

    def said(cgroup_root: str = "/") -> str:
        findings, problem = host.enforce((), SharedCpus(1, 1), KubeletRules(), cgroup_root)
        assert (findings is None) is bool(problem)
        return problem

    def make(name: str) -> None:
        (tmp_path / name).mkdir(parents=True)
        for file in ("cgroup.procs", "cpuset.cpus", "cpuset.mems"):
            (tmp_path / name / file).write_text("0\n")

    assert "no cpuset hierarchy" in said()
    (tmp_path / "cgroup.controllers").touch()
    make("kubepods")
    assert said() == ""
    make("other/kubepods")
    assert said("/other") == ""
    assert said("/..") == "cgroupRoot '/..' is not a path of cgroups"
    assert said("/other") == ""
    shutil.rmtree(tmp_path)
    assert "No such file or directory" in said("/other")


@pytest.fixture
def shown() -> list[str]:
    pods = (
        node_pod(1, status=ResourceStatus(0b0010), qos="LSR"),
        node_pod(2, status=ResourceStatus(0b0100), qos="LSE"),
        node_pod(3, qos_class=KubernetesQos.BEST_EFFORT),
        node_pod(4, name="x" * 253),
    )
    seen = {f"{number:064x}": ContainerSeen(cpus=0b0010) for number in (1, 2)}
    given = {"theirs": {"main": 0b1000, "side": 0b0001}}
    state = FileReading(CpuState(StateLayout.V2, "static", 0b0110, given), None)
    found = host()
    files = HostReading(found.cpus, devices=found.devices, nvidia=True, cpu_state=state)
    cards = GpuView(advance(NOTHING_KNOWN, reading(), (), 5.0, HealthPolicy()), DRIVER)
    decided = decide(
        NodeIdentity("n1", "u"), files, cards, pods, Evidence(seen), Rules(BUILT_IN), StandingObjects(), 5.0
    )
    return show(decided, ("the first problem", "the second [b]problem[/b]")).splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("Devices",),
        ("gpu", "0", "GPU-0", "yes", "Healthy"),
        ("gpu", "2", "GPU-2", "yes", "Healthy"),
        ("rdma", "0", "0000:3b:00.0", "?", "yes"),
        ("rdma", "1", "0000:3c:00.0", "?", "yes"),
        ("CPUs",),
        ("shared pool",),
        ("best-effort pool", "1"),
        ("CPU manager", "static"),
        ("theirs main", "3"),
        ("theirs side", "0"),
        ("ns/pod-1", "LSR", "1", "yes"),
        ("ns/pod-2", "LSE", "2", "no", "container main has CPUs 1; 2"),
        ("ns/pod-3", "BestEffort"),
        ("problem: the first problem",),
        ("problem: the second [b]problem[/b]",),
        ("kind: Device",),
        ("kind: NodeResourceTopology",),
        ("kind: Node",),
    ],
    ids=" ".join,
)
def test_tables_and_objects_name_everything(shown: list[str], words: tuple[str, ...]) -> None:
    assert any(all(word in line for word in words) for line in shown), "\n".join(shown)


def test_the_longest_name_is_shown_whole(shown: list[str]) -> None:
    assert "".join(shown).count("x") >= 253
    assert "…" not in "".join(shown)
