"""`koordgate snapshot` reads a cluster page by page, and tells what it may not read."""

import gzip
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from builders import device_entry, device_object, pod
from fake_kube import FakeKube, answer

from allocator.vocabulary.names import Mode
from console.simulator.documents import InputError
from console.simulator.objects import read_all
from console.snapshot.command import write
from console.snapshot.read import SnapshotWanted, Taken, settings_text, take
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden
from koordgate.kube.resource import CONFIG_MAPS, DEVICES, NODES, PODS, RESOURCE_QUOTAS
from webhook.settings import WebhookSettings, parse

Raw = dict[str, Any]
SETTINGS = "# the password is hunter2\nmode: shadow\nnuma: {scope: {namespaces: [team-a]}}\n"


def fill(fake: FakeKube) -> None:
    fake.put(
        CONFIG_MAPS.path(namespace="koordgate-system"),
        {"metadata": {"name": "koordgate"}, "data": {"config.yaml": SETTINGS}},
    )
    fake.put("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    for name in ("n2", "n1"):
        fake.put(NODES.path(), {"metadata": {"name": name}, "status": {}})
        fake.put(DEVICES.path(), device_object(device_entry(0), name=name))
    for name in ("b", "a"):
        for namespace in ("team-b", "team-a"):
            fake.put(
                PODS.path(namespace=namespace),
                pod(name=name, namespace=namespace, uid=f"{len(namespace)}-{ord(namespace[-1])}-{name}"),
            )


async def taken(kube: KubeClient, **wanted: Any) -> Taken:
    return await take(kube, SnapshotWanted("koordgate-system", **wanted), "2026-01-01T00:00:00Z")


def of(found: Taken, kind: str) -> list[str]:
    return [obj["metadata"]["name"] for obj in found.items if obj["kind"] == kind]


async def test_objects_stand_in_a_stable_order_with_how_they_came_about(fake: FakeKube, kube: KubeClient) -> None:
    fill(fake)
    found = await taken(kube)
    assert of(found, "Node") == ["n1", "n2"]
    pods = [obj["metadata"] for obj in found.items if obj["kind"] == "Pod"]
    assert [(one["namespace"], one["name"]) for one in pods] == [
        ("team-a", "a"),
        ("team-a", "b"),
        ("team-b", "a"),
        ("team-b", "b"),
    ]
    about, config = found.items[:2]
    assert about["data"]["takenAt"] == "2026-01-01T00:00:00Z"
    assert parse(config["data"]["config.yaml"]).mode is Mode.SHADOW
    assert "hunter2" not in json.dumps(found.items)
    assert found.items == (await taken(kube)).items


async def test_of_other_namespaces_no_pod_is_read_if_some_are_named(fake: FakeKube, kube: KubeClient) -> None:
    fill(fake)
    found = await taken(kube, namespaces=["team-a"])
    assert {obj["metadata"]["namespace"] for obj in found.items if obj["kind"] == "Pod"} == {"team-a"}
    assert of(found, "Node") == ["n1", "n2"]


async def test_what_may_not_be_read_is_told_and_left_out(fake: FakeKube, kube: KubeClient) -> None:
    fill(fake)
    fake.faults.always("list", RESOURCE_QUOTAS.plural, answer(403))
    found = await taken(kube)
    assert [note for note in found.notes if note.startswith("resourcequotas are left out")]


async def test_without_the_right_to_list_pods_there_is_no_snapshot(fake: FakeKube, kube: KubeClient) -> None:
    fill(fake)
    fake.faults.always("list", PODS.plural, answer(403))
    with pytest.raises(Forbidden):
        await taken(kube)


async def test_names_are_replaced_in_the_settings_too(fake: FakeKube, kube: KubeClient) -> None:
    fill(fake)
    found = await taken(kube, anonymize=True)
    text = json.dumps(found.items)
    assert [name for name in ("team-a", "team-b", '"n1"') if name in text] == []
    (hidden,) = parse(found.items[1]["data"]["config.yaml"]).numa.scope.namespaces
    assert hidden in {obj["metadata"].get("namespace") for obj in found.items}


async def test_the_namespaces_of_the_installation_and_of_its_settings_are_replaced_wherever_they_stand(
    fake: FakeKube, kube: KubeClient
) -> None:
    stated = """
      identity: {namespace: acme-gpus}
      scheduler: {username: "system:serviceaccount:acme-gpus:koord-scheduler"}
      numa: {scope: {namespaces: [acme-gone, kube-system]}}
      devices: {defaultSlotResourceFraction: {namespaces: {acme-gone: {gpu: 10}}}}
      quota: {exemptNamespaces: [acme-gone]}
    """
    made = {"metadata": {"name": "koordgate"}, "data": {"config.yaml": stated}}
    fake.put(CONFIG_MAPS.path(namespace="acme-gpus"), made)
    found = await take(kube, SnapshotWanted("acme-gpus", anonymize=True), "2026-01-01T00:00:00Z")
    assert "acme" not in json.dumps(found.items)
    (home,) = {obj["metadata"]["namespace"] for obj in found.items if obj["kind"] == "ConfigMap"}
    read = parse(found.items[1]["data"]["config.yaml"])
    assert read.identity.namespace == home
    assert read.scheduler.username == f"system:serviceaccount:{home}:koord-scheduler"
    gone, known = read.numa.scope.namespaces
    assert (known, {gone: {"gpu": 10}}) == (
        "kube-system",
        read.devices.default_slot_resource_fraction.namespaces,
    )


async def test_a_namespace_that_is_named_twice_is_read_once(fake: FakeKube, kube: KubeClient) -> None:
    fill(fake)
    found = await taken(kube, namespaces=("team-a", "team-b", "team-a"))
    assert of(found, "Pod") == ["a", "b", "a", "b"]


def test_settings_are_read_back_as_they_are() -> None:
    stated = parse("mode: 'off'\nscheduler: {preference: fragmentation}\ndomain: koordinator.sh\n")
    assert parse(settings_text(stated)) == stated
    assert parse(settings_text(WebhookSettings())) == WebhookSettings()


@pytest.mark.parametrize("name", ["cluster.json", "cluster.json.gz"])
def test_a_file_is_read_back_and_nobody_else_may_read_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    items = [{"kind": "Node", "metadata": {"name": "n1"}}, {"kind": "Node", "metadata": {"name": "n2"}}]
    path.write_text("old")
    assert write(str(path), items) == path.stat().st_size
    assert [obj for _, obj, _ in read_all([str(path)])] == items
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("path", ["", ".", "/", "{}", "{}/", "{}/none/file"])
def test_a_path_that_is_no_file_is_an_error_of_the_system_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(OSError, match=r"\[Errno"):
        write(path.format(folder), [])
    assert list(tmp_path.rglob("*")) == [folder]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(gzip.compress(b"{}")[:-4], "is not a whole gzip file", id="cut short"),
        pytest.param(b"no gzip", "cannot be read|is not a whole gzip file", id="no gzip"),
        pytest.param(gzip.compress(b"\xff\xfd"), "is not UTF-8 text", id="no text"),
    ],
)
def test_a_compressed_file_that_is_none_is_refused_with_what_to_do(tmp_path: Path, body: bytes, says: str) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(body)
    with pytest.raises(InputError, match=says):
        list(read_all([str(path)]))


def test_a_file_that_unpacks_to_more_than_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.simulator.documents._MAX_BYTES", 100)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b" " * 101))
    with pytest.raises(InputError, match="has more than 100 bytes when it is unpacked"):
        list(read_all([str(path)]))
