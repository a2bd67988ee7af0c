"""Pods of observed namespaces: judged as where koordgate enforces, placed in memory, compared with the truth."""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from builders import container, device_entry, device_object, pod
from world import asks, binding

from allocator.vocabulary.names import DEVICES_CHECKPOINTS, Mode
from console.simulator.cluster import Pods
from koordgate.kube.errors import KubeError
from webhook.assembly import Parts
from webhook.ledger.store import MemoryStore
from webhook.quotas.mirror import read_quota
from webhook.review import Request, Response
from webhook.settings import DialectSettings, WebhookSettings, types_of
from webhook.shadow import controller as controller_module
from webhook.shadow.controller import ObservedPodFeed
from webhook.shadow.followed import Followed, FollowedPods
from webhook.shadow.judge import ShadowWebhooks, _shadow, _told, as_submitted, created
from webhook.view.feed import DeviceFeed, NodeFeed
from webhook.view.namespaces import NamespaceFeed
from webhook.view.podinfo import PodInfo, read_pod_info

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


class Listed(Pods):
    """The Pods of each namespace, as the API server lists them."""

    def __init__(self, settings: WebhookSettings, listed: Mapping[str, list[Raw]]) -> None:
        super().__init__(types_of(settings))
        self._listed = listed

    async def list(self, namespace: str) -> AsyncIterator[Raw]:
        for obj in self._listed.get(namespace, []):
            yield obj


class Shadow:
    """One replica that observes, and the Events that it would write."""

    def __init__(self, settings: WebhookSettings = SHADOW) -> None:
        self.listed: dict[str, list[Raw]] = {}

        self.parts = Parts(settings, MemoryStore(), Listed(settings, self.listed))
        parts, self.told = self.parts, dict[tuple[str, str], str]()
        parts.reporter.observed = self._tell  # type: ignore[method-assign, assignment]
        self.namespaces = NamespaceFeed(parts.modes)
        self.nodes = NodeFeed(parts.cluster, parts.types)
        self.devices = DeviceFeed(parts.cluster, parts.types, lambda _name, _problems: None)
        self.pods = ObservedPodFeed(
            parts.cluster, parts.reconciler.ended, parts.reconciler.bound, parts.types, parts.shadow_controller
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
        await self.parts.shadow_controller.round()
        return answer

    def would_be(self, uid: str) -> str:
        found = self.parts.shadow_controller.followed.get(uid)
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
    await shadow.parts.shadow_controller.round()
    assert shadow.would_be("uid-c") == "n1"
    assert shadow.parts.cluster.snapshot("n1").used == {}, "the true view knows nothing of it"


async def test_what_observed_pods_hold_in_truth_is_free_in_memory_and_what_others_hold_is_not() -> None:
    shadow = Shadow()
    for name in ("a", "b"):
        await shadow.create(gpus(name))
        shadow.pods.put(gpus(name, nodeName="n1"))
    shadow.node("n1", held={0: "uid-a", 1: "uid-b"})
    shadow.node("n2", held={0: "uid-a", 1: "uid-of-another-namespace"})
    await shadow.parts.shadow_controller.round()
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
    await shadow.parts.shadow_controller.round()
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
    assert len(shadow.parts.shadow_controller.followed) == 0


async def test_a_switched_namespace_is_followed_from_then_on_and_forgotten_when_it_is_switched_back() -> None:
    shadow = Shadow(msgspec.structs.replace(SHADOW, mode=Mode.ENFORCE))
    shadow.node("n1")
    shadow.pods.put(gpus("a"))
    shadow.listed["team"] = [gpus("a")]
    controller = shadow.parts.shadow_controller
    await controller.round()
    assert len(controller.followed) == 0
    shadow.label("team", "shadow")
    await controller.round()
    assert shadow.would_be("uid-a") == "n1"
    shadow.label("team", "enforce")
    await controller.round()
    assert len(controller.followed) == 0


async def test_a_pod_that_replaces_another_of_its_name_is_another_pod() -> None:
    shadow = Shadow()
    shadow.node("n1", cards=1)
    await shadow.create(gpus("a"))
    await shadow.create(gpus("a", uid="uid-later"))
    assert shadow.parts.shadow_controller.followed.get("uid-a") is None
    assert shadow.would_be("uid-later") == "n1"


async def test_of_pods_that_wait_the_one_of_the_highest_priority_comes_first() -> None:
    shadow = Shadow()
    shadow.node("n1", cards=1)
    await shadow.create(gpus("first"))
    for name, priority in (("low", 0), ("high", 9)):
        await shadow.create(gpus(name, priority=priority))
    shadow.pods.drop(gpus("first"))
    await shadow.parts.shadow_controller.round()
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
    await shadow.parts.shadow_controller.round()
    assert shadow.would_be("uid-b") == "n2"


async def test_an_author_does_not_name_a_label_of_a_metric() -> None:
    shadow = Shadow()
    made = gpus(of={"kubernetes.io/gpu": "50"}, annotations={"koordgate.io/dialect": "made-up"})
    shadow.parts.shadow.pod(asks(made))
    assert shadow.count("shadow_pods", outcome="translated", dialect="own") == 1


# At the bounds: quotas, lists, rounds, and what is told of Bindings

GPU = "requests.nvidia.com/gpu"


def quota(shadow: Shadow, name: str, most: str, namespace: str = "team", **about: Any) -> None:
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", **about.pop("metadata", {})}
    spec = {"hard": {GPU: most}, **about}
    read = read_quota({"metadata": metadata, "spec": spec}, shadow.parts.types)
    shadow.parts.limits.put_quota((namespace, name), read)


async def test_of_several_quotas_the_first_that_does_not_allow_a_pod_is_named() -> None:
    shadow = Shadow()
    shadow.node("n1", cards=4)
    quota(shadow, "a-scoped", "0", scopes=["NotTerminating"])
    quota(shadow, "b-enough", "3")
    quota(shadow, "c-few", "2")
    quota(shadow, "d-fewer", "2")
    quota(shadow, "none", "0", namespace="other")
    for name in ("a", "b"):
        assert not (await shadow.create(gpus(name))).warnings
    answer = await shadow.create(gpus("c"))
    assert "exceeded quota: c-few, requested: " in answer.audit["would-refuse"]
    assert ", used: 200, limited: 200" in answer.audit["would-refuse"]


async def test_a_round_tries_64_pods_and_the_next_one_the_others() -> None:
    shadow = Shadow()
    controller = shadow.parts.shadow_controller
    for at in range(65):
        shadow.pods.put(gpus(f"p{at:02}"))
    await controller.round()
    assert [one.pod.name for one in controller.followed if not one.tried] == ["p64"]
    await controller.round()
    assert all(one.tried for one in controller.followed)


async def test_no_more_pods_than_the_bound_are_followed_until_one_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller_module, "_MAX", 2)
    shadow = Shadow()
    controller = shadow.parts.shadow_controller
    for name in "abcd":
        shadow.pods.put(gpus(name))
    assert [one.pod.name for one in controller.followed] == ["a", "b"]
    assert [one.message for one in caplog.records if one.levelno == logging.WARNING] == [
        "more than 2 Pods are observed; no more are followed until some end"
    ]
    shadow.pods.drop(gpus("a"))
    shadow.pods.put(gpus("c"))
    assert [one.pod.name for one in controller.followed] == ["b", "c"]
    shadow.pods.put(gpus("d"))
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 2


async def test_pods_are_counted_by_what_would_be_of_them() -> None:
    shadow = Shadow()
    shadow.node("n1")
    for name in ("a", "b", "c"):
        await shadow.create(gpus(name))
    await shadow.create(gpus("wrong", of={"kubernetes.io/gpu": "250"}))
    metric = shadow.parts.metrics.shadow_followed
    found = {one.labels["state"]: one.value for one in next(iter(metric.collect())).samples}
    assert found == {"placed": 2, "waiting": 1, "refused": 1}


async def test_a_pod_is_told_once_that_it_would_wait_and_again_where_it_would_be() -> None:
    shadow = Shadow()
    await shadow.create(gpus("a"))
    assert shadow.told["a", "WouldWait"] == (
        "koordgate would not place this Pod now: no node that it selects, and that tolerates it, has what it requests"
    )
    shadow.told.clear()
    shadow.node("n0", cards=0)
    await shadow.parts.shadow_controller.round()
    assert shadow.told == {}
    assert shadow.count("shadow_placements", outcome="waits") == 1
    shadow.node("n1")
    await shadow.parts.shadow_controller.round()
    assert ("a", "WouldBePlaced") in shadow.told
    assert shadow.count("shadow_placements", outcome="fits") == 1


async def test_the_reasons_of_three_nodes_are_told() -> None:
    shadow = Shadow()
    for name in ("n1", "n2", "n3", "n4"):
        shadow.node(name, cards=1)
    await shadow.create(gpus("a", of={"nvidia.com/gpu": "2"}))
    told = shadow.told["a", "WouldWait"]
    assert [f"{name}: " in told for name in ("n1", "n2", "n3", "n4")] == [True, True, True, False]


async def test_where_a_pod_runs_as_it_would_is_counted() -> None:
    shadow = Shadow()
    shadow.node("n1")
    for name in ("a", "b"):
        await shadow.create(gpus(name))
        shadow.pods.put(gpus(name, nodeName="n1"))
    shadow.pods.put(gpus("unasked"))
    await shadow.parts.shadow_controller.round()
    shadow.pods.put(gpus("unasked", nodeName="n1"))
    assert shadow.count("shadow_compared", outcome="same_node") == 2


async def test_pods_that_end_or_become_koordgates_are_forgotten() -> None:
    shadow = Shadow()
    shadow.node("n1")
    followed = shadow.parts.shadow_controller.followed
    for name in ("a", "b", "c"):
        await shadow.create(gpus(name))
    shadow.pods.put({**gpus("a"), "status": {"phase": "Failed"}})
    shadow.pods.put(gpus("b", schedulerName="koord-scheduler"))
    assert [one.pod.name for one in followed] == ["c"]
    assert (followed.named("team", "a"), followed.named("team", "c")) == (None, followed.get("uid-c"))
    shadow.pods.drop(gpus("nobody"))
    shadow.pods.drop(gpus("c"))
    assert (len(followed), followed.within("team")) == (0, [])


async def test_a_namespace_whose_pods_cannot_be_listed_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    shadow = Shadow()
    controller = shadow.parts.shadow_controller
    listed = controller._parts.list_pods
    failing = True

    async def list_pods(namespace: str) -> Any:
        if failing and namespace == "team":
            raise KubeError("not now")
        async for obj in listed(namespace):
            yield obj

    object.__setattr__(controller._parts, "list_pods", list_pods)
    for namespace in ("team", "other"):
        shadow.listed[namespace] = [gpus("a", uid=f"of-{namespace}", namespace=namespace)]
        shadow.label(namespace, "enforce")
        shadow.label(namespace, "shadow")
    await controller.round()
    assert [one.pod.namespace for one in controller.followed] == ["other"]
    assert "Pods of namespace team are not observed yet: not now" in caplog.messages
    failing = False
    await controller.round()
    assert sorted(one.pod.namespace for one in controller.followed) == ["other", "team"]


async def test_what_was_released_is_tried_for_once() -> None:
    shadow = Shadow()
    shadow.node("n1", cards=1)
    for name in ("a", "b", "c"):
        await shadow.create(gpus(name))
    shadow.pods.drop(gpus("a"))
    controller = shadow.parts.shadow_controller
    await controller.round()
    assert (shadow.would_be("uid-b"), shadow.would_be("uid-c")) == ("n1", "")
    waits = controller.followed.get("uid-c")
    assert waits is not None
    waits.tried = False
    await controller.round()
    assert not waits.tried
    shadow.node("n2", cards=1)
    await controller.round()
    assert (waits.tried, waits.node) == (True, "n2")


@pytest.mark.parametrize("scheduler", ["a-scheduler", "default-scheduler", "volcano"])
async def test_a_pod_of_any_other_scheduler_is_observed(scheduler: str) -> None:
    shadow = Shadow()
    shadow.pods.put(gpus("a", schedulerName=scheduler))
    assert [one.pod.name for one in shadow.parts.shadow_controller.followed] == ["a"]


@pytest.mark.parametrize("uid", ["uid-0", "uid-z"])
async def test_of_two_pods_of_one_name_the_later_one_is_followed(uid: str) -> None:
    shadow = Shadow()
    for made in (gpus("a"), gpus("a", uid=uid)):
        shadow.pods.put(made)
    assert [one.pod.uid for one in shadow.parts.shadow_controller.followed] == [uid]


@pytest.mark.parametrize("nodes", [("n1", "n2"), ("n2", "n1")])
async def test_a_pod_counts_where_it_was_bound_last(nodes: tuple[str, str]) -> None:
    shadow = Shadow()
    for node in nodes:
        shadow.pods.put(gpus("a", nodeName=node))
    followed = shadow.parts.shadow_controller.followed
    assert [followed.on(node) for node in nodes] == [frozenset(), {"uid-a"}]


@pytest.mark.parametrize("other", ["m1", "n2"])
async def test_a_pod_on_another_node_than_it_would_be_is_counted_whichever_comes_first(other: str) -> None:
    shadow = Shadow()
    shadow.node("n1")
    await shadow.create(gpus("a"))
    shadow.pods.put(gpus("a", nodeName=other))
    assert shadow.count("shadow_compared", outcome="other_node") == 1
    assert shadow.count("shadow_compared", outcome="same_node") == 0


# What is kept of Pods


def followed(name: str, requests: Mapping[str, int], priority: int = 0, at: str = "") -> Followed:
    made = pod(container(limits={"nvidia.com/gpu": "1"}), name=name, uid=f"uid-{name}", priority=priority)
    info: PodInfo | None = read_pod_info(made)
    assert info is not None
    return Followed(info, b"{}", at, tuple(requests.items()))


async def test_of_those_that_wait_the_most_important_and_then_the_oldest_come_first() -> None:
    ones = [followed("a", {}, 0, "2"), followed("b", {}, 0, "1"), followed("c", {}, 5, "3"), followed("d", {}, 0, "1")]
    assert [one.pod.name for one in sorted(ones, key=lambda one: one.turn)] == ["c", "b", "d", "a"]
    assert [one.waits for one in ones] == [True] * 4


async def test_what_pods_request_is_counted_where_they_would_be_and_not_where_they_are() -> None:
    shadow = Shadow()
    kept = FollowedPods(shadow.parts.limits, frozenset())
    one, two = followed("a", {"cpu": 3, "gone": 1}), followed("b", {"cpu": 5})
    for each in (one, two):
        kept.put(each)
        kept.bind(each, "n1")
    assert kept.on("n1") == {"uid-a", "uid-b"}
    assert kept.on("n2") == frozenset()
    asks_cpu = followed("c", {})
    asks_cpu.pod = read_pod_info(pod(container(requests={"cpu": "1", "nvidia.com/gpu": "1"}), uid="c")) or asks_cpu.pod
    assert ("cpu", -8) in list(kept.needed(asks_cpu, "n1"))
    kept.bind(one, "n2")
    assert ("cpu", -5) in list(kept.needed(asks_cpu, "n1"))
    assert ("cpu", -3) in list(kept.needed(asks_cpu, "n2"))
    kept.drop(two)
    assert not [amount for name, amount in kept.needed(asks_cpu, "n1") if name == "cpu" and amount < 0]
    assert kept.on("n1") == frozenset()
    assert [each.pod.name for each in kept.within("default")] == ["a"]


# Reviews


async def test_messages_have_a_thousand_characters() -> None:
    told = _told("would-refuse", "x" * 2000)
    assert told.audit == {"would-refuse": "x" * 1000}
    assert [len(one) for one in told.warnings] == [1000]
    assert _shadow("y") == "koordgate only observes this namespace: y"


class Guard:
    """Judges every Binding alike."""

    def __init__(self, answer: Response) -> None:
        self.answer = answer

    async def validate(self, _request: Request, _deadline: float) -> Response:
        return self.answer


def reviewed(shadow: Shadow, answer: Response) -> ShadowWebhooks:
    parts = shadow.parts
    return ShadowWebhooks(parts.pods, Guard(answer), parts.metrics, lambda _namespace, _charged: "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "audit", "counted"),
    [
        (Response(allowed=True, warnings=["w"]), {}, 0),
        (Response(allowed=False, code=HTTPStatus.FORBIDDEN, message="m" * 1001), {"would-refuse": "m" * 1000}, 1),
        (
            Response(allowed=False, code=HTTPStatus.TOO_MANY_REQUESTS, message="no"),
            {"would-refuse": "no"},
            1,
        ),
    ],
)
async def test_a_binding_that_the_guard_would_refuse_is_allowed_and_noted(
    answer: Response, audit: dict[str, str], counted: int
) -> None:
    shadow = Shadow()
    webhooks = reviewed(shadow, answer)
    for dry_run in (True, False):
        request = asks(binding("a", "n1"), resource="pods", subresource="binding", dry_run=dry_run)
        found = await webhooks.binding(request, 1.0)
        assert (found.allowed, found.audit, list(found.warnings)) == (True, audit, [])
    assert shadow.count("shadow_refused", reason="binding") == counted


@pytest.mark.parametrize("code", [HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE])
async def test_a_failure_of_our_own_is_told_as_it_is(code: HTTPStatus) -> None:
    failed = Response(allowed=False, code=code, message="the ledger")
    assert await reviewed(Shadow(), failed).binding(asks(binding("a", "n1")), 1.0) is failed


async def test_a_pod_without_anything_of_koordgates_is_unchanged() -> None:
    shadow = Shadow()
    answer = shadow.parts.shadow.pod(asks(pod(container(), namespace="team")))
    assert (answer.audit, list(answer.warnings)) == ({}, [])
    assert shadow.count("shadow_pods", outcome="unchanged", dialect="own") == 1
    assert shadow.count("shadow_pods", outcome="translated", dialect="own") == 0


def test_a_pod_is_reviewed_as_it_was_before_its_bind() -> None:
    annotations = {"scheduling.koordinator.sh/device-allocated": "{}", "own": "x"}
    made = gpus(nodeName="n1", annotations=annotations, ephemeralContainers=[{"name": "debug"}])
    made["status"] = {"phase": "Running"}
    found = as_submitted(made)
    assert found["metadata"]["annotations"] == {"own": "x"}
    assert not {"nodeName", "ephemeralContainers"} & found["spec"].keys()
    assert "status" not in found
    assert made["spec"]["nodeName"] == "n1"
    asked = created(made)
    assert (asked.operation, asked.resource, asked.namespace, asked.name, asked.dry_run) == (
        "CREATE",
        "pods",
        "team",
        "a",
        True,
    )
    assert as_submitted({"metadata": {"name": "x"}}) == {"metadata": {"name": "x"}, "spec": {}}
    beside = as_submitted({"metadata": {"name": "x"}, "status": {}, "kind": "Pod", "zone": 1})
    assert beside == {"metadata": {"name": "x"}, "spec": {}, "kind": "Pod", "zone": 1}


async def test_a_card_beside_an_observed_pods_own_stays_its_holders() -> None:
    shadow = Shadow()
    await shadow.create(gpus("a"))
    shadow.pods.put(gpus("a", nodeName="n1"))
    shadow.node("n1", held={0: "uid-a", 1: "uid-of-another-namespace"})
    await shadow.parts.shadow_controller.round()
    await shadow.create(gpus("b"))
    assert (shadow.would_be("uid-a"), shadow.would_be("uid-b")) == ("n1", "")
    shadow.node("n1", held={0: "uid-a"})
    await shadow.parts.shadow_controller.round()
    assert (shadow.would_be("uid-a"), shadow.would_be("uid-b")) == ("n1", "n1")


async def test_a_quota_of_which_no_mirror_can_be_written_refuses_no_pod() -> None:
    shadow = Shadow()
    shadow.node("n1")
    quota(shadow, "odd", "many")
    assert not (await shadow.create(gpus("a"))).warnings
    assert shadow.would_be("uid-a") == "n1"
