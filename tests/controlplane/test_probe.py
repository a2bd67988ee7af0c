"""`koordgate doctor --probe` on a real API server and kube-scheduler; nodes without a kubelet, which a test plays."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import DEVICES, add_gpu_node, allocated, pods_path, refusal, uuid_of

from koordgate.cli import main
from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.koord import start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas

TEAM, IMAGE, OURS = "team", "registry.example.com/busybox:1.37", "koordgate-doctor"
PROVED = "koordgate.io/delivery-proved"
RUNTIME = '{"handlers":["runc"],"showing":["runc"],"defaultShows":true,"toolkit":"1.20.2","mode":"cdi"}'
UNRESOLVABLE = "unresolvable CDI devices management.nvidia.com/gpu=GPU-1"


def wrote(*minors: int) -> str:
    nodes = "".join(f"/dev/nvidia{minor} {minor}\n" for minor in minors)
    return f"koordgate-probe-begin\nkoordgate-probe-devices\n{nodes}koordgate-probe-end\n"


def container(state: Mapping[str, Any], phase: str = "Pending") -> JsonObject:
    """The status that a kubelet would write of a Pod whose only container is in this state."""
    status = {"name": "main", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": phase, "containerStatuses": [status]}


def ran(message: str) -> JsonObject:
    ended = {"exitCode": 0, "reason": "Completed", "message": message}
    return container({"terminated": ended}, "Succeeded")


def answered(node: str, found: JsonObject) -> JsonObject:
    """What the kubelet of a node writes of a bound Pod."""
    (share,) = allocated(found)
    return {
        "lit": ran(wrote(share["minor"])),
        "dark": ran(wrote()),
        "open": ran(wrote(0, 1)),
        "old": container({"waiting": {"reason": "CreateContainerError", "message": UNRESOLVABLE}}),
        "slow": container({"waiting": {"reason": "ContainerCreating"}}),
    }[node]


@dataclass
class Probed:
    """An installation whose nodes have two cards each.

    Attributes:
        plane: the control plane.
        admin: its administrator.
        seen: the Pods that ran.
    """

    plane: ControlPlane
    admin: AdminClient
    seen: list[JsonObject]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def probed(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Probed]:
    objects = chart.render(binaries, {"doctor": {"tryIn": TEAM, "probe": IMAGE}}, tests=True)
    objects = [one for one in objects if one["kind"] != "Pod"]
    async with ControlPlane(binaries) as plane, contextlib.AsyncExitStack() as stack:
        for space in (TEAM, "kube-system", "kube-node-lease"):
            await plane.ensure_namespace(space)
        await chart.install(plane, objects)
        replicas = await Replicas.installed(plane, objects, tmp_path_factory.mktemp("probed"), count=1)
        await stack.enter_async_context(replicas)
        await start_koord_scheduler(plane, objects, replicas.extender)
        admin = await stack.enter_async_context(plane.admin())
        for name in ("lit", "dark", "open", "old", "slow"):
            await add_gpu_node(plane, admin, name, gpus=2)
            await admin.patch(f"{DEVICES}/{name}", {"metadata": {"annotations": {"koordgate.io/runtime": RUNTIME}}})
        await admin.patch("/api/v1/nodes/lit", {"spec": {"taints": [{"key": "gpus", "effect": "NoSchedule"}]}})
        seen: list[JsonObject] = []
        kubelets = asyncio.create_task(_kubelets(plane, seen))
        stack.callback(kubelets.cancel)
        yield Probed(plane, admin, seen)


async def _kubelets(plane: ControlPlane, seen: list[JsonObject]) -> None:
    """Play the kubelets: write what became of each bound Pod, and let those go that are deleted."""
    async with plane.admin() as admin:
        while True:
            async for event in admin.watch(pods_path(TEAM)):
                found = event["object"]
                path, node = pods_path(TEAM, found["metadata"]["name"]), found["spec"].get("nodeName")
                with contextlib.suppress(ApiError):  # it is gone
                    if event["type"] != "DELETED" and found["metadata"].get("deletionTimestamp"):
                        await admin.delete(path, gracePeriodSeconds="0")
                    elif event["type"] != "DELETED" and node and not found["status"].get("containerStatuses"):
                        seen.append(found)
                        await admin.patch(f"{path}/status", {"status": answered(node, found)})


async def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[JsonObject, str]:
    capsys.readouterr()
    words = ("doctor", "--try-in", TEAM, "--probe", IMAGE, "--probe-timeout", "8", "-o", "json", *arguments)
    status = await asyncio.to_thread(main, list(words))
    said = capsys.readouterr()
    found: JsonObject = json.loads(said.out)
    assert found["exitStatus"] == status == 2
    return found, said.err


async def proofs(admin: AdminClient) -> dict[str, JsonObject]:
    nodes = {one["metadata"]["name"]: one["metadata"] for one in await admin.items("/api/v1/nodes")}
    noted = {name: (one.get("annotations") or {}).get(PROVED) for name, one in nodes.items()}
    return {name: json.loads(text) for name, text in noted.items() if text}


EXPECTED = {
    "lit": ("right", "right"),
    "dark": ("without its card", "missing"),
    "open": ("other cards too", "others"),
    "old": ("not created", "not-created"),
    "slow": ("not run", None),
}


async def test_pods_go_the_whole_way_to_each_node_and_are_gone_afterwards(
    probed: Probed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = await probed.plane.service_account_kubeconfig(chart.NAMESPACE, OURS)
    monkeypatch.setenv("KUBECONFIG", str(config))
    found, err = await doctor(capsys)
    outcomes = {one["node"]: one for one in found["probe"]}
    assert {name: one["verdict"] for name, one in outcomes.items()} == {
        name: verdict for name, (verdict, _) in EXPECTED.items()
    }
    (card,) = outcomes["lit"]["given"]
    assert card["uuid"] == uuid_of("lit", card["minor"])
    assert outcomes["lit"]["seen"] == {"minors": [card["minor"]], "uuids": []}
    assert UNRESOLVABLE in outcomes["old"]["why"]
    assert "ContainerCreating" in outcomes["slow"]["why"]
    todo = {one["what"].partition(" on ")[0]: one["todo"] for one in found["findings"] if one["area"] == "probe"}
    assert "a bare UUID is no name there" in todo["a container could not be created"]
    assert {name: one["result"] for name, one in (await proofs(probed.admin)).items()} == {
        name: result for name, (_, result) in EXPECTED.items() if result
    }
    assert "5 nodes with NVIDIA cards to probe" in err
    assert {one["spec"]["schedulerName"] for one in probed.seen} == {"koord-scheduler"}
    assert len(probed.seen) == len(EXPECTED)

    left = await probed.admin.items(pods_path(TEAM))
    assert [one for one in left if not one["metadata"].get("deletionTimestamp")] == []
    delivery = [one["what"] for one in found["findings"] if one["area"] == "delivery"]
    assert any(what.startswith("Pods proved it on 1 of 5 nodes") for what in delivery), delivery


def harmless(**spec: Any) -> JsonObject:
    """A Pod as the probe makes it."""
    secured = {"allowPrivilegeEscalation": False}
    body = {"containers": [{"name": "main", "image": IMAGE, "securityContext": secured}], **spec}
    metadata = {"name": "thief", "labels": {"app.kubernetes.io/name": "koordgate-probe"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"automountServiceAccountToken": False, **body},
    }


def other(change: Any) -> JsonObject:
    made = harmless()
    change(made)
    return made


STOLEN: dict[str, tuple[str, JsonObject]] = {
    "another image": (TEAM, harmless(containers=[{**harmless()["spec"]["containers"][0], "image": "x"}])),
    "no label": (TEAM, other(lambda one: one["metadata"].pop("labels"))),
    "a privilege": (TEAM, harmless(containers=[{"name": "main", "image": IMAGE}])),
    "the node's files": (TEAM, harmless(volumes=[{"name": "root", "hostPath": {"path": "/"}}])),
    "a token": (TEAM, harmless(automountServiceAccountToken=True)),
    "another namespace": ("default", harmless()),
}


@pytest.mark.parametrize(("namespace", "body"), STOLEN.values(), ids=STOLEN)
async def test_the_account_of_helm_test_creates_nothing_but_probes(
    probed: Probed, namespace: str, body: JsonObject
) -> None:
    token = await probed.plane.service_account_token(chart.NAMESPACE, OURS)
    async with probed.plane.admin(token) as thief:
        with pytest.raises(ApiError, match=f"{OURS}|cannot create resource") as caught:
            await thief.create(pods_path(namespace), body)
        assert caught.value.status == 403


async def test_the_account_of_helm_test_changes_nothing_but_what_was_proved(probed: Probed) -> None:
    token = await probed.plane.service_account_token(chart.NAMESPACE, OURS)
    path = "/api/v1/nodes/lit"
    changes: list[JsonObject] = [
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["example.com/x"]}},
        {"spec": {"taints": None}},
        {"spec": {"unschedulable": True}},
    ]
    async with probed.plane.admin(token) as thief:
        for change in changes:
            assert await refusal(thief.patch(path, change)) == OURS, change
        for text in ("x", None):
            assert await refusal(thief.patch(path, {"metadata": {"annotations": {PROVED: text}}})) == ""
        own = await probed.admin.create(pods_path(TEAM), {**harmless(), "metadata": {"name": "own"}})
        assert await refusal(thief.delete(pods_path(TEAM, own["metadata"]["name"]))) == OURS
        await probed.admin.delete(pods_path(TEAM, "own"))
