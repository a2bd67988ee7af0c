"""Pods of observed namespaces: judged as where koordgate enforces, placed in memory, compared with the truth."""

import json
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from builders import container, device_entry, device_object, pod
from world import asks

from allocator.vocabulary.mode import Mode
from allocator.vocabulary.names import DEVICES_CHECKPOINTS
from console.simulator.cluster import Pods
from webhook.assembly import Parts, assemble
from webhook.dialectsettings import DialectSettings
from webhook.ledger.memory import MemoryStore
from webhook.quotas.mirror import read_quota
from webhook.settings import WebhookSettings, types_of
from webhook.shadow.keeper import ObservedPodFeed
from webhook.view.feed import DeviceFeed, NodeFeed
from webhook.view.namespaces import NamespaceFeed
from webhook.view.podinfo import PodInfo

Raw = dict[str, Any]
SHADOW = WebhookSettings(mode=Mode.SHADOW, dialects={"hami": DialectSettings(enabled=True)})
ROOM: Mapping[str, str] = MappingProxyType(
    {"cpu": "64", "memory": "512Gi", "pods": "100", "kubernetes.io/gpu-core": "200"}
    | {"kubernetes.io/gpu-memory-ratio": "200", "kubernetes.io/gpu-memory": "160Gi", "nvidia.com/gpu": "2"}
)


def gpus(
    name: str = "a", *, uid: str = "", namespace: str = "team", of: Mapping[str, str] | None = None, **spec: Any
) -> Raw:
    limits = dict(of or {"nvidia.com/gpu": "1"})
    made = pod(
        container(limits=limits, requests=limits), name=name, namespace=namespace, uid=uid or f"uid-{name}", **spec
    )
    made["spec"].setdefault("schedulerName", "default-scheduler")
    return made


class Shadow:
    """One replica that observes, and the Events that it would write."""

    def __init__(self, settings: WebhookSettings = SHADOW) -> None:
        self.listed: dict[str, list[Raw]] = {}

        async def list_pods(namespace: str) -> AsyncIterator[Raw]:
            for obj in self.listed.get(namespace, []):
                yield obj

        self.parts: Parts = assemble(settings, MemoryStore(), Pods(types_of(settings)), list_pods=list_pods)
        parts, self.told = self.parts, dict[tuple[str, str], str]()
        parts.reporter.observed = self._tell  # type: ignore[method-assign, assignment]
        self.namespaces = NamespaceFeed(parts.modes)
        self.nodes = NodeFeed(parts.cluster, parts.types)
        self.devices = DeviceFeed(parts.cluster, parts.types, lambda _name, _problems: None)
        self.pods = ObservedPodFeed(
            parts.cluster, parts.reconciler.ended, parts.reconciler.bound, parts.types, parts.shadow_keeper
        )

    def _tell(self, about: PodInfo, reason: str, message: str) -> None:
        self.told[about.name, reason] = message

    def node(self, name: str, *, held: Mapping[int, str] | None = None, cards: int = 2) -> None:
        """A node; `held` says which card the kubelet gave to the Pod with which UID."""
        entries = [device_entry(minor, id=f"GPU-{name}-{minor}", domain="kubernetes.io") for minor in range(cards)]
        checkpoint = [
            {"podUID": uid, "resourceName": "nvidia.com/gpu", "deviceIDs": [f"GPU-{name}-{minor}"]}
            for minor, uid in (held or {}).items()
        ]
        self.devices.put(
            device_object(*entries, name=name, annotations={DEVICES_CHECKPOINTS[0]: json.dumps(checkpoint)})
        )
        self.nodes.put({"metadata": {"name": name}, "status": {"allocatable": dict(ROOM)}})

    def label(self, namespace: str, mode: str) -> None:
        self.namespaces.put({"metadata": {"name": namespace, "labels": {"koordgate.io/mode": mode}}})

    async def create(self, made: Raw) -> Any:
        """Create a Pod, as the API server asks and then tells."""
        answer = self.parts.shadow.pod(asks(made))
        assert answer.allowed
        assert not answer.patch
        self.pods.put(made)
        await self.parts.shadow_keeper.round()
        return answer

    def would_be(self, uid: str) -> str:
        found = self.parts.shadow_keeper.followed.get(uid)
        assert found is not None
        return found.node

    def count(self, name: str, **labels: str) -> float:
        value = getattr(self.parts.metrics, name).labels(**labels)._value.get()
        assert isinstance(value, float)
        return value


async def test_a_pod_is_told_where_it_would_be_and_counted_by_its_dialect() -> None:
    shadow = Shadow()
    shadow.node("n1")
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
    answer = await shadow.create(gpus("a", of=share))
    assert answer.audit == {"would-translate": "hami"}
    assert shadow.told["a", "WouldBePlaced"] == "koordgate would place this Pod on n1: gpu:0:GPU-n1-0"
    assert shadow.count("shadow_pods", outcome="translated", dialect="hami") == 1
    assert shadow.count("shadow_placements", outcome="fits") == 1


REFUSED: dict[str, tuple[Raw, str, str]] = {
    "what cannot be asked": (gpus(of={"kubernetes.io/gpu": "250"}), "translation", "gpu 250"),
    "a node of its own": (gpus(nodeName="n1"), "validation", "spec.nodeName"),
    "a forged allocation": (
        gpus(annotations={"scheduling.koordinator.sh/device-allocated": "{}"}),
        "validation",
        "device-allocated",
    ),
}


@pytest.mark.parametrize(("made", "reason", "message"), REFUSED.values(), ids=REFUSED)
async def test_a_pod_that_would_be_refused_is_allowed_and_its_author_warned(
    made: Raw, reason: str, message: str
) -> None:
    shadow = Shadow()
    answer = shadow.parts.shadow.pod(asks(made))
    assert answer.allowed
    assert message in answer.audit["would-refuse"]
    assert "only observes this namespace: would refuse" in answer.warnings[0]
    assert shadow.count("shadow_refused", reason=reason) == 1


async def test_a_dry_run_is_not_counted() -> None:
    shadow = Shadow()
    shadow.parts.shadow.pod(asks(gpus(), dry_run=True))
    shadow.parts.shadow.pod(asks(gpus(of={"kubernetes.io/gpu": "250"}), dry_run=True))
    assert shadow.count("shadow_pods", outcome="translated", dialect="own") == 0
    assert shadow.count("shadow_refused", reason="translation") == 0


async def test_a_pod_beyond_a_quota_would_be_refused_counting_the_observed_ones() -> None:
    shadow = Shadow()
    shadow.node("n1")
    hard = {"requests.nvidia.com/gpu": "1"}
    metadata = {"name": "cards", "namespace": "team", "uid": "q", "resourceVersion": "1"}
    quota = read_quota({"metadata": metadata, "spec": {"hard": hard}}, shadow.parts.types)
    shadow.parts.limits.put_quota(("team", "cards"), quota)
    assert not (await shadow.create(gpus("a"))).warnings
    answer = await shadow.create(gpus("b"))
    assert "exceeded quota: cards" in answer.audit["would-refuse"]
    assert shadow.count("shadow_refused", reason="quota") == 1
    assert "exceeded quota" in shadow.told["b", "WouldBeRefused"]
    shadow.pods.drop(gpus("a"))
    assert "would-refuse" not in (await shadow.create(gpus("c"))).audit


async def test_observed_pods_fill_the_cards_in_memory_and_free_them_when_they_end() -> None:
    shadow = Shadow()
    shadow.node("n1")
    for name in "abc":
        await shadow.create(gpus(name))
    assert [shadow.would_be(f"uid-{name}") for name in "abc"] == ["n1", "n1", ""]
    assert "would not place this Pod now" in shadow.told["c", "WouldWait"]
    shadow.pods.drop(gpus("a"))
    await shadow.parts.shadow_keeper.round()
    assert shadow.would_be("uid-c") == "n1"
    assert shadow.parts.cluster.snapshot("n1").used == {}, "the true view knows nothing of it"


async def test_what_observed_pods_hold_in_truth_is_free_in_memory_and_what_others_hold_is_not() -> None:
    shadow = Shadow()
    for name in ("a", "b"):
        await shadow.create(gpus(name))
        shadow.pods.put(gpus(name, nodeName="n1"))
    shadow.node("n1", held={0: "uid-a", 1: "uid-b"})
    shadow.node("n2", held={0: "uid-a", 1: "uid-of-another-namespace"})
    await shadow.parts.shadow_keeper.round()
    assert sorted(shadow.would_be(f"uid-{name}") for name in "ab") == ["n1", "n1"]


async def test_a_pod_that_runs_elsewhere_than_it_would_is_counted_once() -> None:
    shadow = Shadow()
    shadow.node("n1", cards=1)
    await shadow.create(gpus("a"))
    for _ in range(2):
        shadow.pods.put(gpus("a", nodeName="n2"))
    await shadow.create(gpus("b"))
    shadow.pods.put(gpus("b", nodeName="n2"))
    assert shadow.count("shadow_compared", outcome="other_node") == 1
    assert shadow.count("shadow_compared", outcome="would_wait") == 1


async def test_a_replica_that_was_not_asked_places_a_pod_alike_and_tells_nothing() -> None:
    shadow = Shadow()
    shadow.node("n1")
    shadow.pods.put(gpus("a"))
    await shadow.parts.shadow_keeper.round()
    assert shadow.would_be("uid-a") == "n1"
    assert shadow.told == {}
    assert shadow.count("shadow_placements", outcome="fits") == 0


IGNORED: dict[str, Raw] = {
    "no devices": pod(container(), namespace="team"),
    "another namespace": gpus(namespace="enforced"),
    "koordgate's own scheduler": gpus(schedulerName="koord-scheduler"),
    "an exempt namespace": gpus(namespace="kube-system"),
    "finished": {**gpus(), "status": {"phase": "Succeeded"}},
    "a mirror of a static Pod": gpus(annotations={"kubernetes.io/config.mirror": "x"}),
}


@pytest.mark.parametrize("made", IGNORED.values(), ids=IGNORED)
async def test_only_pods_that_ask_in_an_observed_namespace_are_followed(made: Raw) -> None:
    shadow = Shadow()
    shadow.label("enforced", "enforce")
    shadow.pods.put(made)
    assert len(shadow.parts.shadow_keeper.followed) == 0


async def test_a_switched_namespace_is_followed_from_then_on_and_forgotten_when_it_is_switched_back() -> None:
    shadow = Shadow(msgspec.structs.replace(SHADOW, mode=Mode.ENFORCE))
    shadow.node("n1")
    shadow.pods.put(gpus("a"))
    shadow.listed["team"] = [gpus("a")]
    keeper = shadow.parts.shadow_keeper
    await keeper.round()
    assert len(keeper.followed) == 0
    shadow.label("team", "shadow")
    await keeper.round()
    assert shadow.would_be("uid-a") == "n1"
    shadow.label("team", "enforce")
    await keeper.round()
    assert len(keeper.followed) == 0


async def test_a_pod_that_replaces_another_of_its_name_is_another_pod() -> None:
    shadow = Shadow()
    shadow.node("n1", cards=1)
    await shadow.create(gpus("a"))
    await shadow.create(gpus("a", uid="uid-later"))
    assert shadow.parts.shadow_keeper.followed.get("uid-a") is None
    assert shadow.would_be("uid-later") == "n1"


async def test_of_pods_that_wait_the_one_of_the_highest_priority_comes_first() -> None:
    shadow = Shadow()
    shadow.node("n1", cards=1)
    await shadow.create(gpus("first"))
    for name, priority in (("low", 0), ("high", 9)):
        await shadow.create(gpus(name, priority=priority))
    shadow.pods.drop(gpus("first"))
    await shadow.parts.shadow_keeper.round()
    assert (shadow.would_be("uid-low"), shadow.would_be("uid-high")) == ("", "n1")


async def test_cpu_counts_where_pods_would_be_and_not_where_they_are() -> None:
    shadow = Shadow()
    shadow.node("n1")
    big = {"nvidia.com/gpu": "1", "cpu": "40"}
    await shadow.create(gpus("a", of=big))
    await shadow.create(gpus("b", of=big))
    assert (shadow.would_be("uid-a"), shadow.would_be("uid-b")) == ("n1", "")
    shadow.node("n2")
    shadow.pods.put(gpus("a", of=big, nodeName="n2"))
    await shadow.parts.shadow_keeper.round()
    assert shadow.would_be("uid-b") == "n2"


async def test_an_author_does_not_name_a_label_of_a_metric() -> None:
    shadow = Shadow()
    made = gpus(of={"kubernetes.io/gpu": "50"}, annotations={"koordgate.io/dialect": "made-up"})
    shadow.parts.shadow.pod(asks(made))
    assert shadow.count("shadow_pods", outcome="translated", dialect="own") == 1
