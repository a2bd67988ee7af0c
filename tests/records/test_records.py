"""What each release wrote is read by today's code: an upgrade loses no holding, and gives nothing twice.

Each folder has the name of a release. `cluster.yaml` has a cluster as that release left it, as `koordgate snapshot`
writes one: a Node with what its reporter published, bound Pods, and the ledger; and the ledger of a node n2 with every
field. `health.json` is what the reporter keeps of its cards. `held.yaml` says who holds what, in plain figures.
"""

import tomllib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import container, pod
from fake_kube import FakeKube
from world import World, admitted

from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.holdings import Holding
from allocator.wire.nodeallocation import read_spec
from allocator.wire.noderuntime import NODE_RUNTIME, read_runtime
from allocator.wire.podallocated import read_allocation
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS, TOPOLOGIES
from reporter.gpu.health import NOTHING_KNOWN, decode

Raw = dict[str, Any]
HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
RELEASES = sorted(path.parent.name for path in HERE.glob("*/cluster.yaml"))
EACH = pytest.mark.parametrize("release", RELEASES)
_PATHS = {
    "Node": NODES.path(),
    "Device": DEVICES.path(),
    "NodeResourceTopology": TOPOLOGIES.path(),
    "NodeAllocation": NODE_ALLOCATIONS.path(),
}


def objects(release: str) -> list[Raw]:
    return list(yaml.safe_load_all((HERE / release / "cluster.yaml").read_text(encoding="utf-8")))


def of_kind(release: str, kind: str) -> dict[str, Raw]:
    return {obj["metadata"]["name"]: obj for obj in objects(release) if obj["kind"] == kind}


def held(release: str, node: str) -> Raw:
    found: Raw = yaml.safe_load((HERE / release / "held.yaml").read_text(encoding="utf-8"))[node]
    return found


def plain(holdings: Iterable[Holding]) -> Raw:
    """Holdings as `held.yaml` has them: everything that is not empty."""
    return {one.name: _plain(one) for one in sorted(holdings, key=lambda one: one.name)}


def _plain(one: Holding) -> Raw:
    devices = {
        share.id: {
            "amounts": dict(share.amounts),
            "containers": list(share.containers),
            "functions": [list(function) for function in share.functions],
            "alone": share.alone,
            "unshared": share.unshared,
        }
        for share in one.shares
    }
    cpus = one.cpus and {
        "class": str(one.cpus.qos),
        "cpus": format_cpuset(one.cpus.cpus),
        "bind": one.cpus.bind and one.cpus.bind.value,
        "exclusive": one.cpus.exclusive.value,
        "numa": {at.node: [at.milli, at.memory, at.socket, dict(at.others)] for at in one.cpus.numa},
    }
    told = {"devices": devices, "cpus": cpus, "gang": one.gang, "until": one.until}
    told |= {"ending": one.ending, "revision": one.fence}
    return {key: value for key, value in told.items() if value}


@pytest.fixture
async def upgraded(release: str, fake: FakeKube, kube: KubeClient) -> AsyncIterator[World]:
    """Today's replica in the cluster that the release left."""
    world = World(fake, kube)
    for obj in objects(release):
        fake.put(_PATHS.get(obj["kind"]) or PODS.path(namespace=obj["metadata"]["namespace"]), obj)
    world.see()
    yield world
    await world.idle()


def test_this_version_keeps_its_records_for_later_ones() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] in RELEASES


@EACH
async def test_every_object_is_read_without_a_problem(release: str, upgraded: World) -> None:
    await upgraded.parts.reconciler.reconcile()
    assert {key: problems for key, problems in upgraded.complaints.items() if problems} == {}
    assert [event["reason"] for event in upgraded.fake.objects("/api/v1/events")] == []


@EACH
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_the_ledger_means_what_it_meant(release: str, node: str) -> None:
    assert plain(read_spec(of_kind(release, "NodeAllocation")[node]).values()) == held(release, node)


@EACH
def test_the_annotations_of_pods_name_the_same_devices_as_the_ledger(release: str) -> None:
    for name, obj in of_kind(release, "Pod").items():
        read = read_allocation(obj["metadata"]["annotations"])
        assert (read.problem, read.unread) == ("", ())
        told = {share.id: dict(share.amounts) for share in read.shares}
        assert told == {key: one["amounts"] for key, one in held(release, "n1")[name].get("devices", {}).items()}


@EACH
async def test_nothing_is_released_and_only_what_is_free_is_given(release: str, upgraded: World) -> None:
    before = plain(upgraded.holdings().values())
    await upgraded.parts.reconciler.reconcile()
    assert plain(upgraded.holdings().values()) == before == held(release, "n1")

    cards = [one["id"] for one in of_kind(release, "Device")["n1"]["spec"]["devices"] if one["type"] == "gpu"]
    used = {card for one in before.values() for card in one.get("devices", {})}
    answers = [await _bind(upgraded, f"new-{number}") for number in range(len(cards))]

    free = len(set(cards) - used)
    assert 0 < free < len(cards)
    assert answers == [True] * free + [False] * (len(cards) - free)
    upgraded.audit()


async def _bind(world: World, name: str) -> bool:
    asked = pod(container(limits={"kubernetes.io/gpu": "100"}), name=name, uid=f"uid-{name}")
    (answer,) = await world.start(admitted(asked))
    return answer.allowed


@EACH
def test_what_the_reporter_told_of_the_node_is_read(release: str) -> None:
    annotations = of_kind(release, "Device")["n1"]["metadata"]["annotations"]
    runtime, problem = read_runtime(annotations[NODE_RUNTIME])
    assert runtime is not None
    assert problem == ""


@EACH
def test_what_the_reporter_kept_of_its_cards_is_read(release: str) -> None:
    record, problems = decode((HERE / release / "health.json").read_bytes())
    assert record != NOTHING_KNOWN
    assert problems == ()
