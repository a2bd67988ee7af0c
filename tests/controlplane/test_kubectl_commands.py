"""`koordgate top`, `pod`, `cordon` and `drain` on a real API server, with Pods that koordgate bound."""

import asyncio
import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from commands import Koordgate
from controlplane.gpu_cluster import DEVICES, add_gpu_node, pod, pods_path, remove, uuid_of

from console.completion import script
from localplane.admin import AdminClient
from localplane.binaries import find_or_build
from localplane.plane import ControlPlane
from localplane.versions import KUBERNETES
from localplane.waiting import until

CORDONED = "koordgate.io/cordoned-devices"
BUS = "0000:3B:00.0"


@pytest_asyncio.fixture(loop_scope="session")
async def node(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[str]:
    """A node of two cards, the second of which states its PCI address."""
    name = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, name, gpus=2)
    device = await admin.get(f"{DEVICES}/{name}")
    device["spec"]["devices"][1]["topology"] = {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:3a", "busID": BUS}
    await admin.replace(f"{DEVICES}/{name}", device)
    yield name
    await remove(admin, namespace, [name])


@pytest.mark.usefixtures("as_administrator")
async def test_a_card_is_seen_cordoned_and_drained_by_its_short_names(
    scheduler,
    admin: AdminClient,
    namespace: str,
    node: str,
    koordgate: Koordgate,
) -> None:
    async def states() -> list[str]:
        (shown,) = json.loads((await koordgate("top", node, "-o", "json")).out)["nodes"]
        return [card["state"] for card in shown["devices"]]

    async def cordoned() -> str | None:
        found = await admin.get(f"{DEVICES}/{node}")
        return (found["metadata"].get("annotations") or {}).get(CORDONED)

    made = pod("half", namespace, {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"})
    await admin.create(pods_path(namespace), made)

    async def bound() -> bool:
        return bool((await admin.get(pods_path(namespace, "half")))["spec"].get("nodeName"))

    await until(bound, "the Pod is bound")
    assert sorted(await states()) == ["free", "inParts"]
    rows = (await koordgate("top", node)).out.splitlines()
    (row,) = [row for row in rows if f"{namespace}/half"[:20] in row]
    assert " 50% " in row
    assert " 40/80 GiB " in row
    assert max(map(len, rows)) <= 100
    assert rows[-1] == "1 node, 2 devices: 1 free, 1 in parts"
    said = await koordgate("pod", "half", "-n", namespace)
    assert said.out.startswith(f"Pod {namespace}/half is on {node} (Pending)\n")
    (held,) = json.loads((await koordgate("pod", "-n", namespace, "-o", "json")).out)["pods"]
    (device,) = held["devices"]

    several = await koordgate("cordon", f"GPU-{node}")
    assert several.status == 2
    assert f"{node}/gpu/0 {uuid_of(node, 0)}, {node}/gpu/1 {uuid_of(node, 1)}" in several.err
    assert (await koordgate("cordon", BUS.lower())).status == 0
    assert await cordoned() == uuid_of(node, 1)
    assert (await koordgate("uncordon", f"{node}/1")).status == 0
    assert await cordoned() is None

    drained = await koordgate("drain", device["id"], "--timeout", "60")
    assert (drained.status, drained.err) == (0, "")
    assert f"Pod {namespace}/half: gone" in drained.out
    assert await cordoned() == device["id"]

    async def released() -> bool:
        return sorted(await states()) == ["free", "outOfService"]

    await until(released, "the card is released", poll_s=0.2)
    assert (await koordgate("uncordon", f"{node}/gpu/{device['minor']}")).status == 0


async def test_kubectl_finds_the_plugin_and_completes_it(plane: ControlPlane, node: str, tmp_path: Path) -> None:
    """The plugin is a file as pip writes it for the entry point."""
    kubectl = find_or_build(("kubectl",), kubernetes=KUBERNETES)["kubectl"]
    program = f"#!{sys.executable}\nimport sys\nfrom koordgate.cli import main\nsys.exit(main())\n"
    for name, text in (("kubectl-koordgate", program), ("kubectl_complete-koordgate", script("kubectl"))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(plane.admin_kubeconfig),
    }

    async def run(*words: str) -> str:
        command = [str(kubectl), *words]
        call = functools.partial(subprocess.run, command, env=environment, capture_output=True, text=True, check=True)
        done: subprocess.CompletedProcess[str] = await asyncio.to_thread(call)
        return done.stdout

    assert (await run("koordgate", "cordon", "--help")).startswith("usage: kubectl koordgate cordon ")
    (shown,) = json.loads(await run("koordgate", "top", node, "-o", "json"))["nodes"]
    assert [card["id"] for card in shown["devices"]] == [uuid_of(node, 0), uuid_of(node, 1)]
    assert (await run("__complete", "koordgate", "uncor")).splitlines() == ["uncordon", ":4"]
