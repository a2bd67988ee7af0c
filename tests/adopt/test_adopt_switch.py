"""`koordgate adopt` against a cluster: what is read, what may not be, and namespaces that are switched."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders import container, device_entry, device_object, pod
from commands import Koordgate
from fake_kube import FakeKube, answer, drop
from foreignpods import hami, install, put_pod, reservation
from kubeconfigs import write_kubeconfig

from koordgate.kube.resource import CONFIG_MAPS, DEVICES, MUTATING_WEBHOOKS, NAMESPACES, NODES, RUNTIME_CLASSES

Raw = dict[str, Any]
MODE = "koordgate.io/mode"


def namespace(name: str, mode: str | None = None) -> Raw:
    labels = {"tier": "a"} if mode is None else {"tier": "a", MODE: mode}
    return {"metadata": {"name": name, "labels": labels}}


def waiting(name: str, space: str = "team") -> Raw:
    limits = {"nvidia.com/gpu": "1"}
    made = pod(container(limits=limits, requests=limits), name=name, namespace=space, uid=f"uid-{name}")
    made["spec"]["schedulerName"] = "default-scheduler"
    return made


@pytest.fixture
def adopt(koordgate: Koordgate, fake: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Koordgate:
    """Run `koordgate adopt` against the fake cluster."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url)))
    return partial(koordgate, "adopt")


@pytest.fixture
def cluster(fake: FakeKube) -> FakeKube:
    """Two nodes with a card each, the webhooks in mode shadow, and three namespaces, of which one is enforced."""
    install(fake, "mode: shadow\n")
    fake.put(MUTATING_WEBHOOKS.path(), {"metadata": {"name": "koordgate"}})
    for name in ("n1", "n2"):
        fake.put(NODES.path(), {"metadata": {"name": name}})
        told = {"koordgate.io/runtime": '{"handlers":["nvidia"],"showing":["nvidia"],"defaultShows":true}'}
        fake.put(DEVICES.path(), device_object(device_entry(0, id=f"GPU-{name}"), name=name, annotations=told))
    for name, mode in (("done", "enforce"), ("late", None), ("team", "off")):
        fake.put(NAMESPACES.path(), namespace(name, mode))
    return fake


def modes(fake: FakeKube) -> dict[str, str | None]:
    found = fake.objects(NAMESPACES.path())
    return {one["metadata"]["name"]: one["metadata"]["labels"].get(MODE) for one in found}


def checked(out: str) -> Raw:
    told: Raw = json.loads(out)
    return told


# Switching


async def test_namespaces_are_switched_together_and_one_that_was_is_told_so(
    cluster: FakeKube, adopt: Koordgate
) -> None:
    said = await adopt("switch", "done", "team", "late", "team", "--to", "enforce")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines() == [
        "done is in mode enforce already",
        "team: off -> enforce",
        "late: no mode of its own -> enforce",
    ]
    assert modes(cluster) == dict.fromkeys(("done", "late", "team"), "enforce")
    assert cluster.get(NAMESPACES.path("team"))["metadata"]["labels"]["tier"] == "a"
    written = cluster.seen("patch", "namespaces")
    assert [one.path.rpartition("/")[2] for one in written] == ["team", "late"]
    assert {one.query["fieldManager"] for one in written} == {"koordgate-adopt"}


async def test_a_dry_run_is_checked_by_the_api_server_and_writes_nothing(cluster: FakeKube, adopt: Koordgate) -> None:
    said = await adopt("switch", "team", "late", "--to", "shadow", "--dry-run")
    assert said.status == 0
    assert said.out.splitlines() == [
        "team: off -> shadow (dry run: nothing is written)",
        "late: no mode of its own -> shadow (dry run: nothing is written)",
    ]
    assert len(cluster.seen("patch", "namespaces")) == 2
    assert modes(cluster) == {"done": "enforce", "late": None, "team": "off"}


async def test_a_namespace_that_others_changed_meanwhile_is_not_switched(cluster: FakeKube, adopt: Koordgate) -> None:
    await adopt("switch", "team", "--to", "shadow")
    (written,) = cluster.seen("patch", "namespaces")
    change = json.loads(written.body)["metadata"]
    assert change["labels"] == {MODE: "shadow"}
    assert int(change["resourceVersion"]) < int(cluster.get(NAMESPACES.path("team"))["metadata"]["resourceVersion"])


async def test_what_is_in_the_way_is_a_3_and_force_switches_all_the_same(cluster: FakeKube, adopt: Koordgate) -> None:
    for name in ("a", "b"):
        put_pod(cluster, waiting(name))
    said = await adopt("switch", "late", "team", "--to", "enforce")
    assert said.status == 3
    assert said.out.splitlines()[0].startswith("in the way: team/a, team/b wait for another scheduler")
    assert said.out.splitlines()[-1] == "nothing was switched; --force switches all the same"
    assert not cluster.seen("patch", "namespaces")
    said = await adopt("switch", "late", "team", "--to", "enforce", "--force")
    assert said.status == 0
    assert said.out.splitlines()[0].startswith("in the way: team/a, team/b wait for another scheduler")
    assert said.out.splitlines()[1:] == ["late: no mode of its own -> enforce", "team: off -> enforce"]
    assert modes(cluster) == dict.fromkeys(("done", "late", "team"), "enforce")


@pytest.mark.parametrize("name", ["nobody", "a/b"])
async def test_where_one_namespace_does_not_exist_none_is_switched(
    cluster: FakeKube, adopt: Koordgate, name: str
) -> None:
    said = await adopt("switch", "team", name, "--to", "shadow")
    assert (said.status, said.out) == (2, "")
    assert said.err == f"koordgate adopt: there is no namespace {name}: name one that exists\n"
    assert not cluster.seen("patch", "namespaces")


# Reading a cluster


async def test_the_settings_and_the_webhooks_of_the_installation_are_read(cluster: FakeKube, adopt: Koordgate) -> None:
    for name, space in (("a", "late"), ("b", "done"), ("c", "team")):
        put_pod(cluster, waiting(name, space))
    said = await adopt("check", "-o", "json")
    assert (said.status, said.err) == (3, "")
    told = checked(said.out)
    assert told["namespaces"] == {"done": "enforce", "late": "shadow", "team": "off"}
    assert [one["node"] for one in told["nodes"]] == ["n1", "n2"]
    assert told["steps"][0]["needed"] == ["no reporter is ready on n1, n2"]
    cluster.remove(MUTATING_WEBHOOKS.path("koordgate"))
    first = checked((await adopt("check", "-o", "json")).out)["steps"][0]
    assert first["needed"][0].startswith("koordgate's webhooks are not installed")


async def test_settings_that_cannot_be_read_are_assumed_and_hold_up_a_switch(
    cluster: FakeKube, adopt: Koordgate
) -> None:
    cluster.remove(CONFIG_MAPS.path("koordgate", "koordgate-system"))
    said = await adopt("switch", "team", "--to", "shadow")
    assert said.status == 3
    assert "in the way: the webhook's settings could not be read" in said.out
    assert "the default settings are assumed" in said.err
    install(cluster, "mode: shadow\n")
    assert (await adopt("switch", "team", "--to", "shadow")).status == 0


async def test_settings_that_are_given_are_used_instead(cluster: FakeKube, adopt: Koordgate, tmp_path: Path) -> None:
    put_pod(cluster, waiting("a", "late"))
    file = tmp_path / "settings.yaml"
    file.write_text("mode: 'off'\n", encoding="utf-8")
    told = checked((await adopt("check", "-o", "json", "--config", str(file))).out)
    assert told["namespaces"] == {"late": "off"}
    assert not cluster.seen("get", "configmaps")


async def test_whether_the_webhooks_are_there_may_not_be_known(cluster: FakeKube, adopt: Koordgate) -> None:
    cluster.faults.always("get", "mutatingwebhookconfigurations", answer(403, "not for you"))
    said = await adopt("check", "-o", "json")
    assert said.status == 3
    assert said.err.startswith("koordgate adopt: whether koordgate's webhooks are installed is not known: ")
    assert checked(said.out)["steps"][0]["needed"] == ["no reporter is ready on n1, n2"]


async def test_how_containers_would_get_their_cards_is_told_by_the_runtime_classes_of_the_cluster(
    cluster: FakeKube, adopt: Koordgate
) -> None:
    runc = {"koordgate.io/runtime": '{"handlers":["runc","nvidia"],"showing":["nvidia"],"defaultShows":false}'}
    for name in ("n1", "n2"):
        cluster.put(DEVICES.path(), device_object(device_entry(0, id=f"GPU-{name}"), name=name, annotations=runc))
    cluster.put(DEVICES.path(), device_object(device_entry(0, id="GPU-n3"), name="n3"))
    cluster.put(NODES.path(), {"metadata": {"name": "n3"}})
    said = await adopt("check", "-o", "json")
    told = checked(said.out)
    assert {one["node"]: one["delivery"] for one in told["nodes"]} == {"n1": "none", "n2": "none", "n3": "environment"}
    (needed,) = [line for line in told["steps"][3]["needed"] if "cards" in line]
    assert needed.startswith(
        "Pods get no cards on 2 nodes (n1, n2): each has a default runtime that shows containers no"
    )
    assert "devices.runtimeClassName" in needed
    assert said.err.startswith("koordgate adopt: it is not known whether containers get their cards on 1 node (n3)")
    cluster.put(RUNTIME_CLASSES.path(), {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    told = checked((await adopt("check", "-o", "json")).out)
    assert [one["delivery"] for one in told["nodes"][:2]] == ["runtimeClass", "runtimeClass"]
    assert [line for line in told["steps"][3]["needed"] if "cards" in line] == []
    assert (await adopt("switch", "team", "--to", "enforce", "--dry-run")).err == ""


async def test_what_is_not_needed_may_be_absent_or_forbidden(cluster: FakeKube, adopt: Koordgate) -> None:
    cluster.absent |= {"resourceslices", "noderesourcetopologies", "podgroups", "runtimeclasses"}
    cluster.faults.always("list", "resourceclaims", answer(403, "no claims for you"))
    put_pod(cluster, waiting("a"))
    said = await adopt("check", "-o", "json")
    assert said.status == 3
    assert said.err.startswith("koordgate adopt: resourceclaims are left out: ")
    assert len(said.err.splitlines()) == 1
    assert [one["name"] for one in checked(said.out)["pods"]] == ["a"]


async def test_without_the_chart_it_is_said_what_the_cluster_lacks(cluster: FakeKube, adopt: Koordgate) -> None:
    cluster.absent |= {"devices", "nodeallocations", "podgroups"}
    put_pod(cluster, waiting("a"))
    said = await adopt("check", "-o", "json")
    assert said.err.splitlines() == [
        f"koordgate adopt: the cluster has no {name}: install koordgate's chart"
        for name in ("devices.scheduling.koordinator.sh", "nodeallocations.koordgate.io")
    ]
    assert checked(said.out)["notes"] == [line.partition(": ")[2] for line in said.err.splitlines()]


@pytest.mark.parametrize("resource", ["nodes", "devices", "nodeallocations", "namespaces", "pods"])
async def test_without_a_right_that_is_needed_it_ends(cluster: FakeKube, adopt: Koordgate, resource: str) -> None:
    cluster.faults.always("list", resource, answer(403, f"no {resource} for you"))
    said = await adopt("check")
    assert (said.status, said.out) == (1, "")
    assert f"no {resource} for you" in said.err
    assert "give objects" not in said.err


@pytest.mark.parametrize("status", [400, 403, 409, 422])
async def test_a_refusal_is_told_as_it_is(cluster: FakeKube, adopt: Koordgate, status: int) -> None:
    cluster.faults.always("list", "pods", answer(status, "not so"))
    said = await adopt("check")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("koordgate adopt: ")
    assert "not so" in said.err
    assert "give objects" not in said.err


async def test_an_api_server_that_does_not_answer_is_a_1(cluster: FakeKube, adopt: Koordgate) -> None:
    cluster.faults.always("list", "nodes", drop())
    said = await adopt("check")
    assert said.status == 1
    assert said.err.startswith("koordgate adopt: the API server of the kubeconfig does not answer: ")


async def test_a_pod_that_states_a_card_by_labels_alone_is_kept(cluster: FakeKube, adopt: Koordgate) -> None:
    put_pod(cluster, hami("GPU-n1,NVIDIA,1024,5:;", name="theirs"))
    put_pod(cluster, reservation("g", "GPU-n2", node="n2"))
    told = checked((await adopt("check", "-o", "json")).out)
    held = {(one["device"], one["product"]) for node in told["nodes"] for one in node["held"]}
    assert held == {("GPU-n1", "HAMi"), ("GPU-n2", "KAI Scheduler and Run:ai")}


async def test_pods_are_read_page_by_page(cluster: FakeKube, adopt: Koordgate) -> None:
    for at in range(251):
        put_pod(cluster, waiting(f"p{at}"))
    assert len(checked((await adopt("check", "-o", "json")).out)["pods"]) == 251
    assert {one.query["limit"] for one in cluster.seen("list", "pods")} == {"250"}
    assert len(cluster.seen("list", "pods")) == 2
