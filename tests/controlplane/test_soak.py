"""A short soak: what `make bench NAME=soak` does at volume, once with each kind of event; and what its auditor sees."""

import asyncio
import json
from typing import Any

import pytest
from soaking import cluster
from soaking.auditor import Auditor
from soaking.cluster import soak_cluster
from soaking.plan import ASKS, Findings, Soak

from localplane.binaries import Binaries

SHORT = Soak(
    binds=100,
    seconds=400,
    nodes=4,
    workers=12,
    grace=8,
    api_every=11,
    cut_every=5,
    pause_every=6,
    pause=10,
    etcd_every=4,
    etcd_pause=1,
    edit_every=3,
)


async def test_nothing_is_given_twice_lost_or_leaked_while_everything_is_killed_paused_and_cut(
    binaries: Binaries,
) -> None:
    told: list[str] = []
    found = await soak_cluster(SHORT, binaries, told.append)
    assert (found.twice, found.bare, found.unreachable) == ([], [], []), told
    assert found.bound >= SHORT.binds
    assert found.done.keys() >= SHORT.events


def running(name: str, node: str, asked: int, **gpus: int) -> Any:
    shares = [
        {"minor": 0, "id": gpu.replace("_", "-"), "resources": {"kubernetes.io/gpu-core": str(percent)}}
        for gpu, percent in gpus.items()
    ]
    annotations = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": shares})} if gpus else {}
    metadata = {"name": name, "uid": f"uid-{name}", "labels": {ASKS: str(asked)}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def audited(*pods: Any, gone: tuple[str, ...] = ()) -> Findings:
    findings = Findings()
    auditor = Auditor(None, findings)  # type: ignore[arg-type] # it asks for nothing here
    for one in pods:
        auditor.take(one)
        for uid in gone:
            auditor.drop(uid)
    return findings


async def test_the_auditor_sees_a_card_that_is_given_twice() -> None:
    found = audited(running("a", "n", 60, GPU_n_0=60), running("b", "n", 50, GPU_n_0=50))
    assert found.twice == ["GPU-n-0 has 110 percent given: a 60, b 50"]
    assert (found.bare, found.bound) == ([], 2)


async def test_the_auditor_lets_a_card_be_given_again_once_its_pod_is_gone() -> None:
    found = audited(running("a", "n", 60, GPU_n_0=60), running("b", "n", 50, GPU_n_0=50), gone=("uid-a",))
    assert (found.twice, found.bare, found.bound) == ([], [], 2)


async def test_the_auditor_sees_pods_that_are_bound_without_their_devices() -> None:
    found = audited(
        running("none", "n", 60),
        running("half", "n", 200, GPU_n_0=100),
        running("elsewhere", "n", 50, GPU_m_0=50),
    )
    assert [one.partition(" ")[0] for one in found.bare] == ["none", "half", "elsewhere"]


class Answers:
    """Stands in for the load: each bind gets its answer some turns of the event loop later."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    async def create(self, *_about: object) -> str:
        return "uid"

    async def bind(self, *_about: object) -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        return self.answer


class Nothing:
    """Stands in for an API server that has no objects."""

    async def items(self, _path: str) -> list[Any]:
        return []


@pytest.mark.parametrize(("answer", "unreachable"), [("soak-0", 0), ("", 8)])
async def test_a_card_is_unreachable_if_its_bind_is_refused_and_not_if_the_answer_is_late(
    monkeypatch: pytest.MonkeyPatch, answer: str, unreachable: int
) -> None:
    monkeypatch.setattr(cluster, "_RECONCILE_S", 0)
    monkeypatch.setattr(cluster, "_LEAKED_S", 0)
    load: Any = Answers(answer)
    admin: Any = Nothing()
    assert len(await cluster.hand_out(Soak(nodes=1, grace=0), load, admin)) == unreachable
