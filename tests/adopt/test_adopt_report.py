"""`koordgate adopt report`: Pods placed in memory; what is kept of the objects of a cluster; who holds what of it."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from adopt.objects import Raw, cluster, devices, found, gpu_pod, node
from builders import container, gpu, holding, part, pod
from msgspec.structs import astuple

from allocator.vocabulary.names import Mode
from allocator.wire.nodeallocation import write_spec
from console.adopt.findings import find
from console.adopt.report import NamespaceReport, PlacedOn, PlacedPod, report
from console.cluster import ReadCluster, Reading, cluster_of
from console.simulator.documents import InputError
from webhook.settings import WebhookSettings


def record(name: str, *held: Any) -> Raw:
    metadata = {"name": name, "resourceVersion": "1"}
    return {"kind": "NodeAllocation", "metadata": metadata, "spec": write_spec(held)}


async def reported(objects: Iterable[Raw], *namespaces: str) -> list[NamespaceReport]:
    made = cluster(*objects)
    seen = ReadCluster(made)
    return await report(made, seen, find(made, seen), namespaces)


async def test_the_oldest_pods_are_placed_first_and_those_of_a_second_by_name() -> None:
    pods = [
        gpu_pod("late", at="2026-03-01T12:00:01Z"),
        gpu_pod("b", at="2026-03-01T12:00:00Z"),
        gpu_pod("c", at="2026-03-01T12:00:00Z"),
        gpu_pod("a", "other", at="2026-03-01T12:00:00Z"),
    ]
    other, team = await reported([node("n1"), devices("n1"), *pods], "team", "other")
    assert list(other.placed) == ["other/a"]
    assert list(team.placed) == ["team/b"]
    assert (team.namespace, team.mode, team.pods, team.translated) == ("team", Mode.SHADOW, 3, 3)
    assert (sum(team.waiting.values()), other.waiting, team.refused) == (2, {}, {})
    assert (other.cards_now, other.cards_then, team.cards_then) == (0, 1, 1)


async def test_a_report_says_on_which_cards_pods_would_be_and_how_many_stay_where_they_are() -> None:
    both = {"nvidia.com/gpu": "2"}
    checkpoint = json.dumps(
        [
            {"podUID": "uid-here", "deviceIDs": ["GPU-n1-0"]},
            {"podUID": "uid-two", "deviceIDs": ["GPU-n2-0", "GPU-n2-1"]},
        ]
    )
    pods = [
        gpu_pod("two", limits=both, at="1", on="n2", nodeSelector={"kubernetes.io/hostname": "n2"}),
        gpu_pod("here", at="2", on="n1", nodeSelector={"kubernetes.io/hostname": "n1"}),
        gpu_pod("there", at="3", on="n2", nodeSelector={"kubernetes.io/hostname": "n1"}),
    ]
    nodes = [node(name) for name in ("n1", "n2")]
    for one in nodes:
        one["metadata"]["labels"] = {"kubernetes.io/hostname": one["metadata"]["name"]}
    (told,) = await reported([*nodes, devices("n1", checkpoint), devices("n2", checkpoint), *pods], "team")
    assert set(told.placed) == {"team/two", "team/here", "team/there"}
    assert told.placed["team/two"] == PlacedPod("n2", (PlacedOn("gpu", 0, "GPU-n2-0"), PlacedOn("gpu", 1, "GPU-n2-1")))
    assert {told.placed[name].node for name in ("team/here", "team/there")} == {"n1"}
    assert (told.same_node, told.cards_now, told.cards_then) == (2, 3, 4)


async def test_pods_that_would_change_places_are_not_on_their_node() -> None:
    nodes = [node(name) for name in ("n1", "n2")]
    for one in nodes:
        one["metadata"]["labels"] = {"kubernetes.io/hostname": one["metadata"]["name"]}
    pods = [
        gpu_pod("up", on="n1", nodeSelector={"kubernetes.io/hostname": "n2"}),
        gpu_pod("down", on="n2", nodeSelector={"kubernetes.io/hostname": "n1"}),
    ]
    (told,) = await reported([*nodes, devices("n1"), devices("n2"), *pods], "team")
    assert {name: on.node for name, on in told.placed.items()} == {"team/up": "n2", "team/down": "n1"}
    assert told.same_node == 0


async def test_pods_that_koordgate_placed_and_those_of_other_namespaces_stay_where_they_are() -> None:
    held = json.dumps([{"podUID": "uid-b", "deviceIDs": ["GPU-n1-1"]}, {"podUID": "uid-a", "deviceIDs": ["GPU-n1-0"]}])
    pods = [gpu_pod("a", on="n1"), gpu_pod("c"), gpu_pod("b", "other", on="n1"), gpu_pod("w", "other")]
    (told,) = await reported([node("n1"), devices("n1", held), *pods], "team")
    assert told.placed == {"team/a": PlacedPod("n1", (PlacedOn("gpu", 0, "GPU-n1-0"),))}
    assert (told.pods, sum(told.waiting.values()), told.same_node) == (2, 1, 1)


@pytest.mark.parametrize("text", ["{", "7", "null", "[7]", "[" * 100_000])
async def test_a_checkpoint_that_cannot_be_read_stays_as_it_is(text: str) -> None:
    (told,) = await reported([node("n1"), devices("n1", text), gpu_pod("a", on="n1")], "team")
    assert told.pods == 1


async def test_ten_reasons_are_told_the_most_frequent_first_and_without_the_names_of_pods() -> None:
    wrong = [gpu_pod(f"p{at}", limits={"kubernetes.io/gpu": f"{at}50"}) for at in range(2, 14)]
    again = [gpu_pod(f"q{at}", limits={"kubernetes.io/gpu": "1350"}) for at in range(2)]
    (told,) = await reported([node("n1"), devices("n1"), *wrong, *again], "team")
    assert list(told.refused.values()) == [3, *[1] * 9]
    assert "1350" in next(iter(told.refused))
    assert not any("team/" in reason for reason in told.refused)
    assert (told.pods, told.translated, told.placed) == (14, 0, {})
    waits = [gpu_pod(f"p{at}", limits={"nvidia.com/gpu": str(at)}) for at in range(3, 15)]
    (told,) = await reported([node("n1"), devices("n1"), *waits], "team")
    assert len(told.waiting) <= 10
    assert (told.pods, told.translated, told.refused) == (12, 12, {})


async def test_a_namespace_without_such_pods_is_reported_as_empty() -> None:
    first, second = await reported([node("n1"), devices("n1"), gpu_pod("a")], "team", "empty")
    assert (first.namespace, first.pods, first.placed, first.cards_now, first.cards_then) == ("empty", 0, {}, 0, 0)
    assert (second.namespace, second.pods) == ("team", 1)


# What is kept of a cluster


def reporter(on: str | None, label: tuple[str, str], ready: str = "True", kind: str = "Ready") -> Raw:
    made = pod(container(), name=f"r-{on}-{ready}-{kind}", labels=dict([label]))
    made["spec"] |= {"nodeName": on} if on else {}
    other = {"type": "Initialized", "status": "False"}
    return {**made, "status": {"conditions": [other, {"type": kind, "status": ready}, other]}}


OURS, KOORDLET = ("app.kubernetes.io/name", "koordgate-reporter"), ("koord-app", "koordlet")


def test_a_node_has_a_reporter_and_it_is_ready_if_one_of_its_pods_is() -> None:
    made = cluster(
        reporter("n1", OURS),
        reporter("n1", OURS, "False"),
        reporter("n2", OURS, "False"),
        reporter("n2", KOORDLET),
        reporter("n3", KOORDLET, "False"),
        reporter("n4", OURS, "True", "ContainersReady"),
        reporter("n5", ("app.kubernetes.io/name", "koordlet")),
        reporter("n6", OURS, "True", "Reboot"),
        reporter("n7", OURS, "Unknown"),
        reporter(None, OURS),
    )
    assert made.reporters == {"n1": True, "n2": True, "n3": False, "n4": False, "n6": False, "n7": False}


def test_objects_but_pods_are_kept_whole_and_as_they_are() -> None:
    kinds = ("Node", "Device", "NodeResourceTopology", "NodeAllocation", "Namespace", "ResourceSlice", "PodGroup")
    objects = [{"kind": kind, "metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {"of": kind}} for kind in kinds]
    made = cluster(*objects, {"kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": {"of": "ResourceClaim"}})
    assert {kind: made.objects(kind)[0]["spec"] for kind in (*kinds, "ResourceClaim")} == {
        kind: {"of": kind} for kind in (*kinds, "ResourceClaim")
    }


def test_only_the_ledgers_objects_and_claims_get_a_revision_and_no_other_a_namespace() -> None:
    kinds = ("Device", "Namespace", "Node", "NodeResourceTopology", "PodGroup", "ResourceSlice")
    plain = [(kind, {"kind": kind, "metadata": {"name": "x"}}, kind) for kind in kinds]
    ledger: Raw = {"kind": "NodeAllocation", "metadata": {"name": "x"}, "spec": {}}
    made = cluster_of(Reading([*plain, ("ledger", ledger, "NodeAllocation")]), WebhookSettings())
    assert [made.objects(kind)[0]["metadata"] for kind in kinds] == [{"name": "x"}] * len(kinds)
    assert made.objects("NodeAllocation")[0]["metadata"] == {"name": "x", "resourceVersion": "1"}


def test_objects_of_files_get_what_an_api_server_would_have_written() -> None:
    config = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": "mode: shadow"}}
    stranger = {"kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"config.yaml": "mode: 7"}}
    hook: Any = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "koordgate"}}
    bare = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container()]}}
    claim: Raw = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {}}
    before = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"config.yaml": "mode: 7"}}
    objects = [
        before,
        stranger,
        config,
        {"kind": "Secret", "metadata": {"name": "s"}},
        bare,
        claim,
        {"kind": "Service"},
    ]
    made = cluster_of(Reading([(f"file:{at}", one, one["kind"]) for at, one in enumerate(objects)]), None)
    assert (made.settings.mode, made.notes, made.installed, made.assumed) == (Mode.SHADOW, [], None, False)
    assert made.objects("Pod")[0]["metadata"] == {"name": "p", "namespace": "default", "uid": "default/p"}
    assert made.objects("ResourceClaim")[0]["metadata"] == {
        "name": "c",
        "namespace": "default",
        "uid": "default/c",
        "resourceVersion": "1",
    }
    assert set(made.of) == {"Pod", "ResourceClaim"}
    assert cluster_of(Reading([("file", hook, hook["kind"])]), None).installed is True
    for name in ("another", "other"):
        other: Any = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": name}}
        assert cluster_of(Reading([("file", other, other["kind"])]), None).installed is None
    given = cluster_of(Reading([("file", config, "ConfigMap")]), WebhookSettings(mode=Mode.OFF))
    assert (given.settings.mode, given.notes) == (Mode.OFF, [])


@pytest.mark.parametrize("text", ["mode: 7", "{"])
def test_settings_in_a_file_that_are_wrong_are_refused(text: str) -> None:
    config = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": text}}
    with pytest.raises(InputError, match="ConfigMap koordgate"):
        cluster_of(Reading([("file", config, "ConfigMap")]), None)


# Who holds what


def test_the_ledger_the_kubelet_and_claims_are_told_by_device_and_holder() -> None:
    card = [gpu(at, device_id=f"GPU-n1-{at}") for at in range(2)]
    held = [holding("b", part(card[0], 10), part(card[1], 10)), holding("a", part(card[0], 10))]
    checkpoint = json.dumps(
        [{"podUID": uid, "deviceIDs": ["GPU-n2-1"]} for uid in ("uid-x", "gone")]
        + [{"podUID": "uid-x", "deviceIDs": ["GPU-n2-0"]}]
    )
    told = found(
        node("n1"),
        devices("n1"),
        record("n1", *held),
        node("n2"),
        devices("n2", checkpoint),
        gpu_pod("x", on="n2"),
    )
    first, second = told.nodes
    assert [astuple(one) for one in first.held] == [
        ("GPU-n1-0", "default/pod-a", "a", "koordgate", "ledger"),
        ("GPU-n1-0", "default/pod-b", "b", "koordgate", "ledger"),
        ("GPU-n1-1", "default/pod-b", "b", "koordgate", "ledger"),
    ]
    assert [astuple(one) for one in second.held] == [
        ("GPU-n2-0", "team/x", "uid-x", "device plugin", "kubelet's checkpoint"),
        ("GPU-n2-1", "UID gone", "gone", "device plugin", "kubelet's checkpoint"),
        ("GPU-n2-1", "team/x", "uid-x", "device plugin", "kubelet's checkpoint"),
    ]


def test_more_than_a_card_has_clashes_and_all_of_it_does_not() -> None:
    cards = [gpu(at, device_id=f"GPU-n1-{at}") for at in range(2)]
    whole = [holding("a", part(cards[0], 60)), holding("b", part(cards[0], 40))]
    assert found(node("n1"), devices("n1"), record("n1", *whole)).clashes == []
    more = [*whole, holding("c", part(cards[0], 1)), holding("d", part(cards[1], 100))]
    assert found(node("n1"), devices("n1"), record("n1", *more)).clashes == [
        (
            "n1: more of gpu GPU-n1-0 is held than it has (gpu-core, gpu-memory, gpu-memory-ratio), by default/pod-a, "
            "default/pod-b, default/pod-c: delete one of them"
        )
    ]


def test_what_koordgate_and_the_device_plugin_both_gave_clashes_card_by_card() -> None:
    cards = [gpu(at, device_id=f"GPU-n1-{at}") for at in range(3)]
    held = [holding("b", part(cards[1], 10), part(cards[2], 10)), holding("a", part(cards[1], 10))]
    checkpoint = json.dumps(
        [{"podUID": uid, "deviceIDs": ["GPU-n1-0", "GPU-n1-1"]} for uid in ("uid-y", "uid-x", "gone")]
        + [{"podUID": "b", "deviceIDs": ["GPU-n1-2"]}]
    )
    pods = [gpu_pod("x", on="n1"), gpu_pod("y", on="n1")]
    told = found(node("n1"), devices("n1", checkpoint, cards=3), record("n1", *held), *pods)
    assert told.clashes == [
        (
            "n1: gpu GPU-n1-1 is held by default/pod-a, default/pod-b through koordgate, and by UID gone, team/x, "
            "team/y through the device plugin: delete one of the Pods"
        )
    ]


def test_pods_of_which_nothing_is_stated_clash_on_nodes_with_devices_alone() -> None:
    stated = json.dumps([{"podUID": "uid-b", "deviceIDs": ["GPU-n1-0"]}])
    pods = [gpu_pod(name, on="n1") for name in "abc"] + [gpu_pod("d", on="n2"), gpu_pod("e", on="n3")]
    told = found(node("n1"), devices("n1", stated), node("n2"), node("n3"), devices("n3", cards=0), *pods)
    assert [clash.partition(" (")[0] for clash in told.clashes] == ["n1: Pod team/a", "n1: Pod team/c"]
    assert [(one.name, one.listed) for one in told.nodes] == [("n1", True), ("n2", False), ("n3", True)]


def test_nodes_without_devices_offers_or_holdings_are_left_out() -> None:
    plain = [node("cpu"), gpu_pod("waits"), {**pod(container(), name="x", nodeName="cpu"), "kind": "Pod"}]
    held = holding("a", part(gpu(0, device_id="GPU-gone"), 10))
    offering = [node("old", **{"nvidia.com/gpu": "8"}), node("zero", **{"nvidia.com/gpu": "0"})]
    told = found(*plain, *offering, node("held"), record("held", held), node("listed"), devices("listed"))
    assert [one.name for one in told.nodes] == ["held", "listed", "old"]
    assert [dict(one.offers) for one in told.nodes] == [{}, {}, {"nvidia.com/gpu": "8"}]


def test_cards_that_are_out_of_service_are_counted_by_reason() -> None:
    sick = [{"type": "Healthy", "status": "False", "reason": "XID", "message": "79"}]
    obj = devices("n1", cards=4)
    for entry in obj["spec"]["devices"][1:]:
        entry["health"] = False
    for entry in obj["spec"]["devices"][2:]:
        entry["conditions"] = sick
    (one,) = found(node("n1"), obj).nodes
    assert one.devices == 4
    assert one.sick["XID"] == 2
    assert sum(one.sick.values()) == 3


def test_pods_that_wait_for_koordgate_do_not_wait_for_another_scheduler() -> None:
    ours = gpu_pod("ours")
    ours["spec"]["schedulerName"] = "koord-scheduler"
    told = found(node("n1"), gpu_pod("b"), gpu_pod("a", "zoo"), gpu_pod("a"), ours, gpu_pod("c", on="n1"))
    assert [str(pod) for pod in told.pods] == ["team/a", "team/b", "team/c", "team/ours", "zoo/a"]
    assert [str(pod) for pod in told.waiting] == ["team/a", "team/b", "zoo/a"]
