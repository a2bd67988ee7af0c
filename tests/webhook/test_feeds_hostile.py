"""What strangers store (labels, annotations, Device objects) never ends a watch, and costs nobody else anything."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_kube import FakeKube
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import json_values
from trials import examples
from world import World, plain_pod

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import DEVICES, NODES, PODS, TOPOLOGIES, Resource
from koordgate.kube.watch import Reflector
from webhook.view.feed import DeviceFeed, NodeFeed, PodFeed, TopologyFeed

Raw = dict[str, Any]
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_KEYS = st.sampled_from(
    [
        "koordgate.io/classes",
        "koordgate.io/device-order",
        "koordgate.io/gang-all-or-nothing",
        "koordgate.io/original-request",
        "koordinator.sh/qosClass",
        "node.koordinator.sh/gpu-partition-policy",
        "node.koordinator.sh/numa-topology-policy",
        "pod-group.scheduling.sigs.k8s.io",
        "scheduling.koordinator.sh/device-allocated",
        "scheduling.koordinator.sh/gpu-partitions",
        "scheduling.koordinator.sh/resource-spec",
        "scheduling.koordinator.sh/resource-status",
        "visible-devices.koordgate.io/main",
    ]
)
_VALUES = st.one_of(
    _TEXT, json_values().map(str), st.sampled_from(["{", "[[[[", "-1", "9" * 400, "null", '{"gpu":[{"minor":-1}]}'])
)
_WRITTEN = st.dictionaries(_KEYS | _TEXT, _VALUES, max_size=4)


def node(written: Raw) -> Raw:
    return {"metadata": {"name": "n1", "uid": "u-n1", "labels": written, "annotations": written}, "spec": {}}


def hostile_pod(written: Raw) -> Raw:
    made = plain_pod("p")
    made["metadata"] |= {"uid": "u-p", "labels": written, "annotations": written}
    made["spec"] |= {"nodeName": "n1", "schedulerName": "koord-scheduler"}
    return made


def with_spec(written: Raw) -> Raw:
    return {"metadata": {"name": "n1", "annotations": written, "labels": written}, "spec": written}


MADE: dict[str, tuple[Resource, Callable[[World], Any], Callable[[Raw], Raw]]] = {
    "nodes": (NODES, lambda world: NodeFeed(world.parts.cluster, world.parts.types), node),
    "pods": (
        PODS,
        lambda world: PodFeed(world.parts.cluster, lambda _: None, lambda _: None, world.parts.types),
        hostile_pod,
    ),
    "devices": (DEVICES, lambda world: DeviceFeed(world.parts.cluster, world.parts.types, lambda *_: None), with_spec),
    "topologies": (TOPOLOGIES, lambda world: TopologyFeed(world.parts.cluster, lambda *_: None), with_spec),
}


@pytest.mark.parametrize("kind", MADE)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(written=_WRITTEN)
def test_labels_and_annotations_of_strangers_are_taken_in_without_an_exception(
    world: World, kind: str, written: Raw
) -> None:
    _, feed, make = MADE[kind]
    handler = feed(world)
    handler.begin_list()
    handler.put(make(written))
    handler.end_list()
    handler.drop(make(written))


@pytest.mark.parametrize("kind", MADE)
async def test_an_object_on_which_a_feed_fails_hides_no_other_and_its_bug_is_told(
    kube: KubeClient, fake: FakeKube, world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource, feed, make = MADE[kind]
    handler, seen, told = feed(world), list[str](), list[Exception]()
    whole = handler.there

    def there(obj: Raw) -> None:
        if obj["metadata"]["name"] == "b":
            raise LookupError("b")
        whole(obj)
        seen.append(obj["metadata"]["name"])

    monkeypatch.setattr(handler, "there", there)
    for name in ("a", "b", "c"):
        made = make({})
        made["metadata"] |= {"name": name, "uid": f"u-{name}"}
        fake.put(resource.path(namespace=made["metadata"].get("namespace")), made)
    reflector = Reflector(kube, resource, handler, on_error=lambda _about, error: told.append(error))
    await reflector._list()
    assert sorted(set(seen) - {"n1"}) == ["a", "c"]  # n1 is the world's own
    assert [type(error) for error in told] == [LookupError]
    assert not any(isinstance(error, KubeError) for error in told)


async def test_what_fails_as_it_is_forgotten_keeps_no_other_in_the_view(world: World) -> None:
    class Failing(NodeFeed):
        forgotten: list[str] = []  # noqa: RUF012 of this one test

        def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 as of the feed
            if name == "b":
                raise LookupError(name)
            self.forgotten.append(name)

    feed = Failing(world.parts.cluster, world.parts.types)
    feed.begin_list()
    for name in ("a", "b", "c"):
        made = node({})
        made["metadata"]["name"] = name
        feed.put(made)
    feed.end_list()
    feed.begin_list()
    with pytest.raises(ExceptionGroup, match="objects that are gone are not forgotten"):
        feed.end_list()
    assert sorted(feed.forgotten) == ["a", "c"]
