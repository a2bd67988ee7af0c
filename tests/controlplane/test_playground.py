"""The playground's control plane: the demo's cards are those of the demo in memory, and the first hour runs on it."""

import asyncio
import contextlib
import io
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest_asyncio
from shell.test_commands_doc import FIRST_HOUR, blocks, folder, ran

from console.simulator import demo
from koordgate.cli import main, parser_of
from localplane.binaries import Binaries, find_or_build
from localplane.democluster import PlaneCluster, real_cluster
from localplane.playground import TRY, VALUES, move_in
from localplane.versions import KUBERNETES


@dataclass
class Played:
    """A real cluster on which the demo has run, whether it passed, and what it printed."""

    cluster: PlaneCluster
    right: bool
    told: str


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def played(binaries: Binaries) -> AsyncIterator[Played]:
    del binaries  # built, or named as missing
    given = demo.given_by(parser_of("demo").parse_args(["--no-map-server"]))
    async with real_cluster(given.settings, VALUES) as cluster:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            right = await demo.play(cluster, given, lambda: "a real control plane")
        yield Played(cluster, right, told.getvalue())


def cards(told: str) -> str:
    return told[told.index("a100-1: 8 GPUs") : told.index("What was shown")]


async def test_a_real_control_plane_gives_the_same_cards(played: Played) -> None:
    """Who holds what, card by card, is the same on etcd, kube-apiserver and kube-scheduler as in memory."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert await asyncio.to_thread(main, ["demo"]) == 0
    assert cards(played.told) == cards(told.getvalue())
    assert re.search(r"it ran on +a real control plane\n +given twice +no device and no CPU\n", played.told)
    assert "\ndemo: passed\n" in played.told
    assert played.right


async def test_the_first_hour_runs_in_the_playground_as_it_is_written(played: Played, tmp_path: Path) -> None:
    cluster = played.cluster
    for pod in await cluster.admin.items("/api/v1/namespaces/default/pods"):
        await cluster.delete("default", pod["metadata"]["name"])
    await move_in(cluster)
    script = "\n".join(blocks(FIRST_HOUR, {"sh"}))
    kubectl = await asyncio.to_thread(find_or_build, ("kubectl",), None, lambda _line: None, KUBERNETES)
    path = f"{kubectl['kubectl'].parent}{os.pathsep}{os.environ['PATH']}"
    done = await asyncio.to_thread(
        ran, script, folder(tmp_path), PATH=path, KUBECONFIG=str(cluster.plane.admin_kubeconfig)
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for command, _ in TRY:
        assert command in script, f"{command} is printed by the playground, and not in {FIRST_HOUR}"
    for seen in (
        "legacy/classifier (hami)",
        "Pod train/next fits on none of 4 nodes; the nearest is h200-1: only 1 of 2 whole GPUs is free.",
        "pod/next condition met",
        "h100-1: no Pod holds GPU-54dc7651",
        "exceeded quota: cards",
        "legacy: shadow -> enforce",
        "0 failures, 2 warnings, 0 not known",
    ):
        assert seen in done.stdout, f"not seen: {seen}\n{done.stdout}"
