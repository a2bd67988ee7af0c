"""What `--once` prints for people: every device, pool, Pod and problem."""

import pytest
from round_driver import DRIVER, host, node_pod, reading

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.wire.podallocated import ResourceStatus
from reporter.cgroup.layout import KubernetesQos
from reporter.command import show
from reporter.files import FileReading
from reporter.gpu.health import NOTHING_KNOWN, HealthPolicy, advance
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.pods import NodeIdentity
from reporter.proof.agree import ContainerSeen, Evidence
from reporter.reading import GpuView, HostReading
from reporter.round.decide import Rules, StandingObjects, decide


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


def test_no_line_of_a_table_is_longer_than_160(shown: list[str]) -> None:
    tables = shown[: shown.index("---")]
    assert max(len(line) for line in tables) == 160


def test_the_longest_name_is_shown_whole(shown: list[str]) -> None:
    assert "".join(shown).count("x") >= 253
    assert "…" not in "".join(shown)
