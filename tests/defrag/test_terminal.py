"""`koordgate defrag --apply` on a terminal: it asks, it does what was confirmed, and Ctrl-C ends it."""

import asyncio
import copy
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from defrag.clusters import Raw, usual
from fake_kube import FakeKube
from waiting import until

from webhook.localplane.replicas import this_koordgate

PODS = "/api/v1/namespaces/team/pods"
COLLECTIONS = {
    "Node": "/api/v1/nodes",
    "Device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "Pod": PODS,
}
ASKED = b"Evict this Pod? [y/N] "
LOADED = 120.0  # seconds in which a process starts on a busy machine


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int, seen: bytearray) -> None:
        self.process = process
        self._terminal = terminal
        self._seen = seen

    async def reads(self, text: bytes) -> None:
        await until(lambda: text in self.seen, within=LOADED)

    def types(self, text: bytes) -> None:
        os.write(self._terminal, text)

    async def ends(self) -> int:
        async with asyncio.timeout(LOADED):
            return await self.process.wait()

    @property
    def seen(self) -> bytes:
        """What it wrote, lines joined."""
        return b" ".join(bytes(self._seen).split(b"\r\n"))


@pytest.fixture
def cluster(fake: FakeKube) -> FakeKube:
    """The usual cluster: one Pod must move."""
    for obj in copy.deepcopy(usual()):
        fake.put(COLLECTIONS[obj["kind"]], obj)
    return fake


@pytest.fixture
async def terminal(cluster: FakeKube, tmp_path: Path) -> AsyncIterator[Terminal]:
    config: Raw = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
        "clusters": [{"name": "fake", "cluster": {"server": cluster.url}}],
        "users": [{"name": "me", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    seen = bytearray()
    asyncio.get_running_loop().add_reader(ours, lambda: seen.extend(os.read(ours, 65536)))
    process = await asyncio.create_subprocess_exec(
        *(*this_koordgate(), "defrag", "--for", "4", "--apply"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "KUBECONFIG": str(path), "TERM": "xterm", "PYTHONUTF8": "1"},
    )
    try:
        yield Terminal(process, ours, seen)
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)
        os.close(theirs)


def _evictions(cluster: FakeKube) -> int:
    return len(cluster.seen("create", "pods/eviction"))


@pytest.mark.parametrize("answer", [b"n\n", b"\n"], ids=["n", "nothing"])
async def test_without_a_yes_nothing_is_evicted(cluster: FakeKube, terminal: Terminal, answer: bytes) -> None:
    await terminal.reads(ASKED)
    assert b"1  team/one   ReplicaSet serve  b gpu 0  a gpu 2" in terminal.seen
    terminal.types(answer)
    assert await terminal.ends() == 0
    await terminal.reads(b"koordgate defrag: nothing was evicted")
    assert _evictions(cluster) == 0


async def test_a_yes_makes_the_moves(cluster: FakeKube, terminal: Terminal) -> None:
    moved = copy.deepcopy(cluster.get(f"{PODS}/one"))
    moved["metadata"] = {**moved["metadata"], "name": "one-again", "uid": "u-again"}
    moved["spec"]["nodeName"] = "a"
    await terminal.reads(ASKED)
    assert _evictions(cluster) == 0
    terminal.types(b"y\n")
    await until(lambda: all(pod["metadata"]["name"] != "one" for pod in cluster.objects(PODS)), within=LOADED)
    cluster.put(PODS, moved)
    assert await terminal.ends() == 0
    await terminal.reads(b"1/1 Pod team/one became team/one-again on a, as planned")
    await terminal.reads(b"The move is made.")


async def test_an_interrupt_while_it_waits_ends_it_and_says_what_stays(cluster: FakeKube, terminal: Terminal) -> None:
    await terminal.reads(ASKED)
    terminal.types(b"y\n")
    await terminal.reads(b"Pod team/one: gone")
    terminal.process.send_signal(signal.SIGINT)  # as Ctrl-C does
    assert await terminal.ends() == 130
    await terminal.reads(b"koordgate defrag: interrupted; what was evicted before stays evicted")
    assert b"Traceback" not in terminal.seen
    assert _evictions(cluster) == 1


async def test_an_interrupt_at_the_question_evicts_nothing(cluster: FakeKube, terminal: Terminal) -> None:
    await terminal.reads(ASKED)
    terminal.process.send_signal(signal.SIGINT)
    terminal.types(b"\n")  # the question is read to its end
    assert await terminal.ends() == 130
    assert b"Traceback" not in terminal.seen
    assert _evictions(cluster) == 0
