"""`koordgate defrag --apply` on a terminal: it asks, it does what was confirmed, and Ctrl-C ends it."""

import copy
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from defrag.clusters import usual
from fake_kube import FakeKube
from kubeconfigs import write_kubeconfig
from terminals import LOADED, Terminal, on_terminal
from waiting import until

PODS = "/api/v1/namespaces/team/pods"
COLLECTIONS = {
    "ConfigMap": "/api/v1/namespaces/koordgate-system/configmaps",
    "Node": "/api/v1/nodes",
    "Device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "Pod": PODS,
}
ASKED = b"Evict this Pod? [y/N] "


@pytest.fixture
def cluster(fake: FakeKube) -> FakeKube:
    """The usual cluster: one Pod must move."""
    for obj in copy.deepcopy(usual()):
        fake.put(COLLECTIONS[obj["kind"]], obj)
    return fake


@pytest.fixture
async def terminal(cluster: FakeKube, tmp_path: Path) -> AsyncIterator[Terminal]:
    kubeconfig = write_kubeconfig(tmp_path, cluster.url)
    async with on_terminal(kubeconfig, "defrag", "--for", "4", "--apply", columns=100) as made:
        yield made


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
