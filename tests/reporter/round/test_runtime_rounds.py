"""What the node's container runtime can do, through the rounds: when it is read, told and reported."""

from dataclasses import replace
from typing import Any

import pytest
from fake_kube import FakeKube, Fault, answer
from nvml_standin import Played
from round_driver import CARDS, Driven, cluster_node, host, reading
from runtimes import CONTAINERD, policy, spec

from allocator.devices.delivery import DeliveryRules
from allocator.vocabulary.delivery import NodeRuntime
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.wire.noderuntime import NODE_RUNTIME, read_runtime
from koordgate.kube.client import KubeClient
from koordgate.settings import SettingsError
from reporter.delivery import ask_operator
from reporter.gpu.facts import MigDevice
from reporter.gpu.health import NOTHING_KNOWN, HealthPolicy
from reporter.reading import GpuView
from reporter.round.decide import Rules, cards_there, slices
from reporter.round.messages import (
    CardsRead,
    CpusWritten,
    HealthSaved,
    HostRead,
    Lane,
    LaneFailed,
    Listed,
    Note,
    ObjectStands,
    PolicyRead,
    Proved,
    ReadPolicy,
    Restored,
    WatchedKind,
)
from reporter.runtimefiles import UNTOLD, Engine, OperatorPolicy, RuntimeReading
from reporter.settings import parse

POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
POLICY = HealthPolicy()
DEVICE = "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"
SAID = OperatorPolicy(cdi=True, nri=False, brings_toolkit=True, toolkit=(1, 18, 1), version=(25, 10, 0))
PLAIN = RuntimeReading(engines={"/etc/containerd": Engine("runc")})
CLASSED = DeliveryRules(runtime_class="nvidia", handler="nvidia")


def started(
    *, label: str = "", handlers: tuple[str, ...] = (), delivery: DeliveryRules = CLASSED, **over: Any
) -> Driven:
    """A machine with three cards that asks for the operator's policy and knows all but the answer."""
    driven = Driven.of(**{"policies": True, "rules": Rules(BUILT_IN, delivery=delivery), **over})
    node = cluster_node()
    node["metadata"]["labels"] = {"koordgate.io/delivery": label} if label else {}
    node["status"] = {"runtimeHandlers": [{"name": name} for name in handlers]}
    driven.feed(ObjectStands(WatchedKind.NODE, node), *map(Listed, WatchedKind), Restored(NOTHING_KNOWN))
    driven.feed(CardsRead(reading()), HealthSaved())
    return driven


def a_round(driven: Driven, runtime: RuntimeReading | None = PLAIN) -> None:
    if Lane.ROUND not in driven.waiting:
        driven.pass_time(max(driven.state.lanes[Lane.ROUND].due - driven.now.steady, 0.0))
    driven.feed(HostRead(replace(host(), runtime=runtime)))
    if Lane.ROUND in driven.waiting:
        driven.feed(CpusWritten())


def settled(driven: Driven, runtime: RuntimeReading | None = PLAIN) -> None:
    """Rounds and a proof, until the objects are to be written."""
    a_round(driven, runtime)
    if Lane.PROOF in driven.waiting:
        driven.feed(Proved({}, (), {}))
    a_round(driven, runtime)


def told(driven: Driven) -> NodeRuntime | None:
    """What the Device object says that is to be written."""
    telling = driven.state.telling
    assert telling is not None
    found, problem = read_runtime(telling.decided.device.body["metadata"]["annotations"].get(NODE_RUNTIME))
    assert problem == ""
    return found


def events(driven: Driven) -> list[tuple[str, str]]:
    noted = [one for effect in driven.asked(Note) for one in effect.occurrences]
    return [(one.about["kind"], one.message) for one in noted if one.reason == "CardsCannotBeShown"]


def bug(driven: Driven) -> None:
    del driven.waiting[Lane.POLICY]
    driven.feed(LaneFailed(Lane.POLICY))


# The operator's policy


def test_the_policy_is_read_at_the_start_and_every_five_minutes() -> None:
    driven = started()

    assert driven.effect(Lane.POLICY, ReadPolicy) == ReadPolicy(UNTOLD)
    driven.feed(PolicyRead(SAID))
    driven.pass_time(299.0)
    assert Lane.POLICY not in driven.waiting
    driven.pass_time(2.0)
    assert driven.effect(Lane.POLICY, ReadPolicy) == ReadPolicy(SAID)


def test_the_policy_is_not_read_where_the_settings_say_so() -> None:
    driven = started(policies=False)
    driven.pass_time(1000.0)

    assert driven.asked(ReadPolicy) == []


def test_the_device_object_waits_for_the_policy_so_that_a_restart_never_tells_less() -> None:
    driven = started()
    settled(driven)
    assert driven.state.telling is not None
    assert not driven.state.telling.with_cards

    driven.feed(PolicyRead(SAID))
    settled(driven)

    assert driven.state.telling.with_cards
    assert told(driven) == NodeRuntime(  # type: ignore[unreachable]
        default_shows=False,
        nri=False,
        toolkit=(1, 18, 1),
        mode="cdi",
        no_limits="it has cgroup v1, with which the driver keeps no memory limits: start it with cgroup v2",
    )


def test_a_bug_in_reading_the_policy_does_not_hold_the_cards_back() -> None:
    driven = started()
    settled(driven)
    bug(driven)
    settled(driven)

    assert driven.state.telling is not None
    assert driven.state.telling.with_cards
    driven.pass_time(301.0)
    assert driven.effect(Lane.POLICY, ReadPolicy) == ReadPolicy(UNTOLD)


@pytest.mark.parametrize(
    ("items", "fault", "read"),
    [
        ([policy()], None, SAID),
        ([], None, UNTOLD),
        ([policy()], answer(404), UNTOLD),
        ([policy()], answer(403), UNTOLD),
        ([policy()], answer(503), replace(SAID, nri=True)),
    ],
    ids=["one", "none", "the kind is not served", "no right", "no answer"],
)
async def test_the_policy_is_read_from_the_cluster_and_kept_while_it_does_not_answer(
    fake: FakeKube, kube: KubeClient, items: list[dict[str, Any]], fault: Fault | None, read: OperatorPolicy
) -> None:
    for one in items:
        fake.put(POLICIES, one)
    fake.faults.always("list", "clusterpolicies", fault)

    assert await ask_operator(kube, replace(SAID, nri=True)) == read


# What is told


def test_a_node_without_nvidias_cards_tells_nothing_of_its_runtime() -> None:
    driven = started()
    driven.feed(PolicyRead(SAID))
    settled(driven, None)

    assert told(driven) is None
    assert events(driven) == []


def test_parts_of_cards_stand_for_those_in_mig_mode_and_cards_that_are_gone_count_no_more() -> None:
    driven = started()
    driven.feed(PolicyRead(UNTOLD))
    cards = driven.state.cards.view.node
    first, second, third = (cards.cards[uuid] for uuid in CARDS)
    migs = (MigDevice("MIG-0", "1g.18gb"), MigDevice("MIG-1", "1g.18gb"))
    sliced = replace(first, facts=replace(first.facts, mig=True, mig_devices=migs))
    gone = replace(third, health=replace(third.health, standing=("GpuLost",)))
    view = GpuView(replace(cards, cards=dict(zip(CARDS, (sliced, second, gone), strict=True))))

    there = cards_there(view)

    assert there.names == {"MIG-0", "MIG-1", CARDS[1]}
    assert (there.mig, there.limits) == (True, None)
    assert slices(view.node) == {"MIG-0": 0, "MIG-1": 0}
    assert not cards_there(driven.state.cards.view).mig


# The Event


@pytest.mark.parametrize(
    ("handlers", "label", "delivery", "runtime", "says"),
    [
        ((), "", CLASSED, PLAIN, "With RuntimeClass nvidia none does either: the node has no runtime handler nvidia"),
        (("runc",), "", DeliveryRules(), PLAIN, "it has a default runtime that shows containers no cards: create a"),
        (("runc", "nvidia"), "", CLASSED, PLAIN, ""),
        (("runc",), "", CLASSED, RuntimeReading(), ""),
        (("runc",), "nvidia-nri", CLASSED, PLAIN, "it has no NRI plugin of NVIDIA's, by which it is to show"),
        (("runc",), "environment", DeliveryRules(), PLAIN, ""),
        (("runc",), "", DeliveryRules("environment"), PLAIN, ""),
    ],
    ids=["no handler", "no class", "a class", "not known", "by label", "a label that says it does", "by the settings"],
)
def test_a_node_that_can_show_no_card_is_an_event_with_the_cure(
    handlers: tuple[str, ...], label: str, delivery: DeliveryRules, runtime: RuntimeReading, says: str
) -> None:
    driven = started(label=label, handlers=("runc", *handlers) if handlers else ("runc",), delivery=delivery)
    driven.feed(PolicyRead(SAID if runtime is PLAIN else UNTOLD))
    settled(driven, runtime)

    found = events(driven)

    assert [kind for kind, _ in found] == (["Node"] if says else [])
    assert all(says in message for _, message in found)
    assert [one for one in driven.state.problems if "no Pod gets a card" in one] == [message for _, message in found]


def test_before_the_cards_and_the_policy_are_known_there_is_no_event() -> None:
    driven = Driven.of(policies=True, rules=Rules(BUILT_IN, delivery=CLASSED))
    node = {**cluster_node(), "status": {"runtimeHandlers": [{"name": "runc"}]}}
    driven.feed(ObjectStands(WatchedKind.NODE, node), *map(Listed, WatchedKind), Restored(NOTHING_KNOWN))
    settled(driven)
    driven.feed(CardsRead(reading()), HealthSaved())
    settled(driven)
    assert events(driven) == []

    driven.feed(PolicyRead(SAID))
    settled(driven)
    assert len(events(driven)) == 1


# A whole reporter


async def test_a_node_is_published_with_what_its_runtime_can_do_and_an_event_if_that_is_nothing(
    site: Any, start: Any, fake: FakeKube, played: Played
) -> None:
    played.play("a100x8")
    site.machine.pci("0000:07:00.0", 0x10DE, 0x20B0, 0x030200)
    for name in ("cdi", "containerd", "dev"):
        (site.folder / name).mkdir()
    (site.folder / "dev" / "null").touch()
    (site.folder / "containerd" / "config.toml").write_text(CONTAINERD.replace("/etc/containerd", str(site.folder)))
    fake.put(POLICIES, policy("v26.3.0", "v1.20.2", cdi={"enabled": True, "nriPluginEnabled": True}))
    site.add_node()
    node = fake.get("/api/v1/nodes/n1")
    node["status"] |= {"runtimeHandlers": [{"name": ""}, {"name": "runc"}]}
    fake.put("/api/v1/nodes", node)

    await start(nvml=played.nvml(), gpus=True, policies=True, own_handler='""', pace={"policy": 0.01})
    await fake.until(lambda: runtime_of(fake) is not None)
    first = runtime_of(fake)
    (site.folder / "cdi" / "nvidia.yaml").write_text(spec("nvidia.com/gpu", "0", *EIGHT))
    await fake.until(lambda: (found := runtime_of(fake)) is not None and found.kinds == ("nvidia.com/gpu",))

    assert first is not None
    assert (first.handlers, first.default_shows, first.nri, first.toolkit) == (("runc",), False, True, (1, 20, 2))
    await fake.until(lambda: reasons(fake))
    assert "the node has no runtime handler nvidia" in reasons(fake)["CardsCannotBeShown"]


EIGHT = [f"GPU-a1000000-0000-4000-8000-00000000000{number}" for number in range(8)]


def runtime_of(fake: FakeKube) -> NodeRuntime | None:
    found = [one for one in fake.objects(DEVICE.rpartition("/")[0]) if one["spec"]["devices"]]
    return read_runtime(found[0]["metadata"]["annotations"].get(NODE_RUNTIME))[0] if found else None


def reasons(fake: FakeKube) -> dict[str, str]:
    return {one["reason"]: one["message"] for one in fake.objects("/api/v1/namespaces/default/events")}


# Settings


@pytest.mark.parametrize(
    ("folder", "fine"),
    [
        ("/etc/cdi", True),
        ("/var/lib/rancher/rke2/agent/etc/containerd", True),
        ("/etc/crio", True),
        ("/usr/local/nvidia/toolkit/.config/nvidia-container-runtime", True),
        ("/etc/docker", False),
        ("cdi", False),
        ("/etc/cdi/", False),
    ],
    ids=str,
)
def test_a_folder_says_by_its_name_what_is_in_it(folder: str, fine: Any) -> None:
    text = f"runtime: {{directories: [{folder}]}}"
    if fine:
        assert parse(text).runtime.directories == (folder,)
    else:
        with pytest.raises(SettingsError, match=rf"runtime\.directories: {folder} is no path"):
            parse(text)
