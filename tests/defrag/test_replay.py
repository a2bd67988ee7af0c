"""Plans of random clusters, played with the webhook's own admission, filter and bind: each next Pod goes as planned."""

import copy
import random
from typing import Any

from builders import container, pod
from defrag.clusters import SET, Raw, node

from allocator.packing.defrag import Move, MovePlan, PlanBounds, plan
from allocator.packing.sizes import SIZES, guest_of
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.names import DEVICE_ALLOCATED
from allocator.wire.deviceallocated import read_allocation
from console.explain.reading import Reading
from console.packing.state import PackingState, read_state
from console.simulator.cluster import OfflineCluster

SEEDS = 12


def asking(name: str, gpus: str) -> Raw:
    asks = {"kubernetes.io/gpu": gpus}
    return pod(container(limits=asks, requests={**asks, "cpu": "4"}), name=name, namespace="team", uid=f"u-{name}")


def running(bound: Raw, kind: str) -> Raw:
    owner = {**SET, "kind": kind, "name": f"of-{bound['metadata']['name']}"}
    return {
        **bound,
        "kind": "Pod",
        "metadata": {**bound["metadata"], "ownerReferences": [owner]},
        "status": {"phase": "Running"},
    }


async def scattered(seed: int) -> list[Raw]:
    """A cluster of a few nodes on which Pods came to random nodes, and every other one ended."""
    chance = random.Random(seed)
    nodes = [obj for at in range(chance.randint(1, 2)) for obj in node(f"n{at}", cards=chance.choice([2, 4]))]
    offline = OfflineCluster.in_process()
    await offline.load([{"apiVersion": "v1", **obj} for obj in nodes])
    left: list[Raw] = []
    for number in range(chance.randint(5, 9)):
        offline.only = f"n{chance.randrange(len(nodes) // 2)}"
        made = (await offline.submit(asking(f"p{number}", chance.choice(["25", "50", "50", "75"])))).pod
        if made["spec"].get("nodeName"):
            left.append(running(copy.deepcopy(made), chance.choice(["ReplicaSet", "ReplicaSet", "StatefulSet"])))
    return [*nodes, *(one for one in left if chance.random() < 0.6)]


def planned(state: PackingState, *, gone_first: bool) -> MovePlan:
    """The plan for the largest size for which moves help."""
    for size in reversed(SIZES):
        bounds = PlanBounds(2)
        of = guest_of(size, GPU_TYPE, state.mix, asks={})
        made = plan(state.rooms, state.tenants, of, state.compared, bounds, gone_first=gone_first)
        if made.moves:
            break
    return made


async def played(cluster: list[Raw], gpus: str, name: str) -> tuple[str, set[str], Raw]:
    """Create a Pod in a cluster: where it is bound, and on which devices."""
    offline = OfflineCluster.in_process()
    await offline.load([{"apiVersion": "v1", **copy.deepcopy(one)} for one in cluster])
    made = (await offline.submit(asking(name, gpus))).pod
    annotations: dict[str, Any] = made["metadata"].get("annotations") or {}
    given = {share.id for share in read_allocation(annotations).shares} if DEVICE_ALLOCATED in annotations else set()
    for name_of in offline.node_names:
        offline.parts.cluster.snapshot(name_of).check_invariants()
    return made["spec"].get("nodeName") or "", given, made


async def check(cluster: list[Raw], move: Move, number: int) -> list[Raw]:
    """Check a move with the old Pod there and gone; returns the cluster after it."""
    (old,) = [one for one in cluster if one["metadata"].get("uid") == move.tenant.guest.uid]
    gpus = old["spec"]["containers"][0]["resources"]["requests"]["kubernetes.io/gpu-core"]
    want = move.to, {share.id for share in move.after.shares}
    rest = [one for one in cluster if one is not old]
    *there, _ = await played(cluster, gpus, f"next{number}")
    *gone, made = await played(rest, gpus, f"next{number}")
    assert tuple(gone) == want
    assert move.certain == (tuple(there) == want or move.tenant.late)
    return [*rest, running(made, "ReplicaSet")]


async def test_each_next_pod_is_bound_where_it_was_planned_with_the_old_one_there_and_gone() -> None:
    moves: list[Move] = []
    for seed in range(SEEDS):
        cluster = await scattered(seed)
        state = read_state(Reading([("the test", one, one["kind"]) for one in cluster]), None)
        for gone_first in (False, True):
            now = cluster
            for number, move in enumerate(planned(state, gone_first=gone_first).moves):
                now = await check(now, move, number)
                moves.append(move)
    assert any(move.to == move.tenant.node for move in moves)
    assert any(move.to != move.tenant.node for move in moves)
    assert not all(move.certain for move in moves)
