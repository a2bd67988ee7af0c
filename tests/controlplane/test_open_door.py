"""The documented command that lets Pods be created while no replica lives, run as it is written."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from controlplane.gpu_cluster import pod, pods_path

from allocator.vocabulary.names import DEVICE_ALLOCATED
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import find_or_build
from localplane.plane import ControlPlane
from localplane.waiting import until

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "operations.md"
_SECTION = "### Opening the door by hand"
CPU, GPU = {"cpu": "100m"}, {"nvidia.com/gpu": "1"}


async def kubectl(plane: ControlPlane, script: str) -> None:
    program = Path(find_or_build(("kubectl",))["kubectl"])
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(plane.admin_kubeconfig), "PATH": path}
    command = ["sh", "-euc", script]
    done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_without_a_replica_pods_that_ask_are_created_only_once_an_administrator_opens_the_door(
    plane: ControlPlane, installed: list[JsonObject], admin: AdminClient, namespace: str
) -> None:
    path = pods_path(namespace)
    await admin.create(path, pod("plain", namespace, CPU))
    labelled = pod("labelled", namespace, CPU)
    labelled["metadata"]["labels"] = {"koordinator.sh/qosClass": "LS"}
    for made in (labelled, pod("card", namespace, GPU)):
        with pytest.raises(ApiError, match=r"failed calling webhook .*pods\.mutate\.koordgate\.io"):
            await admin.create(path, made)
    commands = _PAGE.read_text().partition(_SECTION)[2].split("```")[1]

    await kubectl(plane, commands)
    try:

        async def passed() -> bool:
            try:
                await admin.create(path, labelled, dryRun="All")
            except ApiError as error:
                assert "failed calling webhook" in error.message  # noqa: PT017 until the API server has seen the change
                return False
            return True

        await until(passed, "the API server goes by the opened entries")
        stored = await admin.create(path, pod("card", namespace, GPU))
        assert stored["spec"]["schedulerName"] == "default-scheduler", "nobody translates it"
        forged = pod("forged", namespace, GPU)
        forged["metadata"]["annotations"] = {DEVICE_ALLOCATED: "{}"}

        async def refused() -> bool:
            try:
                await admin.create(path, forged, dryRun="All")
            except ApiError as error:
                return "ValidatingAdmissionPolicy 'koordgate-allocations'" in error.message
            return False

        await until(refused, "the API server has read the policies, which need no replica")
    finally:
        await kubectl(plane, commands.replace("Ignore", "Fail"))

    async def shut() -> bool:
        try:
            await admin.create(path, labelled, dryRun="All")
        except ApiError as error:
            return "failed calling webhook" in error.message
        return False

    await until(shut, "the same commands with Fail shut it")
