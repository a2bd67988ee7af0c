"""`koordgate packing` and `koordgate defrag` as they are written, line by line."""

import copy
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from builders import gpu, holding, part
from commands import Koordgate
from defrag.clusters import PACKS, Raw, Run, bound, node, usual
from defrag.test_commands import gone_first
from defrag.test_packing_words import several
from fake_kube import FakeKube
from kubeconfigs import write_kubeconfig

from allocator.wire.nodeallocation import API_VERSION, write_spec
from console.packing import command, running
from console.packing.command import COMMAND as PACKING
from console.packing.defrag import COMMAND as DEFRAG
from koordgate.cli import Command

GONE = """\
2 Pods could move, in this order, to make room on a:
   EVICT POD  OF                FROM     IT WOULD GO TO
1  team/half  ReplicaSet serve  a gpu 1  b gpu 2
2  team/one   ReplicaSet serve  a gpu 0  b gpu 1
But team/half must be gone before its controller makes the next Pod, which goes
elsewhere otherwise.
By hand: scale the controller to 0, and back once its Pods are gone; or give its
Deployment the strategy Recreate, and restart it (kubectl rollout restart).
Either ends all Pods of the controller at once. Then run koordgate defrag again:
what is left of the moves may be certain.
The nearest node is a (lack 150 %): 2 GPUs fit 4 x (core 100 %, memory 100 %).
2 Pods there may be moved.
"""
SEVERAL = """\
Free: 2.5 of 10 cards on 3 nodes; 2 of them whole, and parts of 1 more.

MODEL  NODES  CARDS  WHOLE FREE  PARTLY FREE  FREE IN SUM  OUT
A100   2      8      1           1            1.5          4
H100   1      2      1           0            1            0

How much of it Pods of a size can use, and why not the rest (in cards)
MODEL  SIZE     FIT  USABLE  NO CPU  NO MEMORY  REMAINDER  OUT
A100   10%      15   1.5     0       0          0          4
       25%      6    1.5     0       0          0          4
       50%      3    1.5     0       0          0          4
       1        1    1       0       0          0.5        4
       2        0    0       0       0          1.5        4
       4        0    0       0       0          1.5        4
       8        0    0       0       0          1.5        4
       typical       0.8     0       0          0.6        4
H100   10%      10   1       0       0          0          0
       25%      4    1       0       0          0          0
       50%      2    1       0       0          0          0
       1        1    1       0       0          0          0
       2        0    0       0       0          1          0
       4        0    0       0       0          1          0
       8        0    0       0       0          1          0
       typical       0.6     0       0          0.3        0
A Pod of one card requests 1.5 CPUs and 6.0 GiB of memory.

A Pod of 4 cards fits on no node now.
No room can be made by moving Pods: no further move helps.
The nearest node is a (lack 250 %): 1 GPU fits 4 x (core 100 %, memory 100 %).
2 Pods there may be moved.
"""
PLAN = """\
1 Pod would move to make room for a Pod of 4 cards. It fits once now, and 2
times after that.
   EVICT POD  OF                FROM     IT WOULD GO TO
1  team/one   ReplicaSet serve  b gpu 0  a gpu 2
Room for: 1 more, on b.
Nothing was changed. Each move is an eviction; to do them one by one: --apply
"""
MORE = PLAN.replace("on b.\n", "on b.\nThere is no room for more: no further move helps.\n")
NO_MOVES = "No moves make room for a Pod of 4 cards: no move helps for which it is certain\n"
TEXTS: dict[str, tuple[Command, list[Raw], tuple[str, ...], str]] = {
    "several models": (PACKING, several(), ("--cpu", "1500m", "--memory", "6Gi", "--for", "4"), SEVERAL),
    "gone first": (DEFRAG, gone_first(), ("--for", "4"), f"{NO_MOVES}where the Pod goes. It fits nowhere now.\n{GONE}"),
    "a plan": (DEFRAG, [*usual(), *node("c")], ("--for", "4"), PLAN),
    "a plan for fewer than wanted": (DEFRAG, [*usual(), *node("c")], ("--for", "4", "--count", "2"), MORE),
}


@pytest.mark.parametrize(("command", "objects", "words", "text"), TEXTS.values(), ids=TEXTS)
def test_it_is_written_line_by_line(
    run: Run, command: Command, objects: list[Raw], words: tuple[str, ...], text: str
) -> None:
    answer = run(command, objects, *words)
    assert (answer.out, answer.err) == (text, "")


def test_what_is_typical_counts_where_its_model_has_none_free(run: Run) -> None:
    cluster = [PACKS, *node("a", 1), *node("b", 1)]
    cluster += [bound(name, name, cluster, "100") for name in "ab"]
    lines = run(PACKING, cluster).out.splitlines()
    assert lines[0] == "Free: 0 of 2 cards on 2 nodes; 0 of them whole, and parts of 0 more."
    assert [line.split() for line in lines if line.startswith("typical")] == [["typical", "0", "0", "0", "0", "0"]]


@pytest.mark.parametrize(
    ("notes", "more"), [(8, []), (9, ["1 more notes; -o json has all"]), (17, ["9 more notes; -o json has all"])]
)
def test_eight_notes_are_told_and_the_others_counted(run: Run, notes: int, more: list[str]) -> None:
    cluster = [PACKS]
    for at in range(notes):
        cluster += node(f"n{at:02}")
        cluster[-1]["spec"]["devices"][1]["id"] = ""
    answer = run(PACKING, cluster)
    told = [line.removeprefix("koordgate packing: ") for line in answer.err.splitlines()]
    assert [line.partition(": ")[0] for line in told[:8]] == [f"Device n{at:02}" for at in range(8)]
    assert told[8:] == more


def test_what_a_pod_of_one_card_requests_is_told_to_a_tenth(run: Run) -> None:
    told = run(PACKING, [PACKS, *node("a", 1, cpu=256)], "--cpu", "96", "--memory", "100Gi").out
    assert "A Pod of one card requests 96.0 CPUs and 100.0 GiB of memory." in told.splitlines()
    told = run(PACKING, [PACKS, *node("a", 1)], "--cpu", "1").out
    assert "A Pod of one card requests 1.0 CPUs and 0.0 GiB of memory." in told.splitlines()
    told = run(PACKING, [PACKS, *node("a", 1)], "--memory", "1Gi").out
    assert "A Pod of one card requests 0.0 CPUs and 1.0 GiB of memory." in told.splitlines()


def test_the_report_of_a_small_cluster_is_data(run: Run) -> None:
    told = run(PACKING, [PACKS, *node("a", 1)], "-o", "json").data
    lost = {"cpu": 0, "memory": 0, "remainder": 0, "out": 0}
    fits = {"10%": 10, "25%": 4, "50%": 2, "1": 1, "2": 0, "4": 0, "8": 0}
    rows = [
        {"model": "", "fit": fit, "usableMilli": 1000 if fit else 0}
        | {"lostMilli": {**lost, "remainder": 0 if fit else 1000}}
        for fit in fits.values()
    ]
    plans = told.pop("plans")
    assert told == {
        "type": "gpu",
        "models": [
            {"model": "", "nodes": 1, "devices": 1, "outOfService": 0, "idle": 1, "partlyFree": 0}
            | {"freeMilli": 1000, "freeOutOfServiceMilli": 0}
        ],
        "sizes": [
            {"size": size, "milliCPU": 0, "memory": 0, "models": [row]} for size, row in zip(fits, rows, strict=True)
        ],
        "typical": None,
        "stays": [],
        "notes": [],
    }
    assert plans == [
        {"for": "1", "fitsNow": [{"node": "a", "count": 1}], "fitBefore": 1, "fitAfter": 1, "ended": "noMoveHelps"}
        | {"rooms": [], "ifGoneFirst": None, "nearest": None}
    ]


def test_the_report_looks_for_64_moves_and_lines_have_80_columns_in_a_file(run: Run) -> None:
    assert max(map(len, run(PACKING, usual(), "--for", "4").out.splitlines())) <= 80
    assert (command._MOST_MOVES, running._ON_TERMINALS, running._ELSEWHERE) == (64, 100, 80)


def test_each_pod_that_stays_is_told_though_another_could_not_be_read(run: Run) -> None:
    """A holding of the ledger whose Pod is not among the objects comes before others on the node, and between them."""
    cluster = [PACKS, *node("a", 4)]
    for name in ("b", "d"):
        cluster.append(bound(name, "a", cluster, "100", owner=None))
    shares = [part(gpu(at, device_id=f"GPU-a-{at}"), 100) for at in range(4)]
    held = [replace(holding(f"u-{name}", shares[at]), namespace="team", name=name) for at, name in enumerate("bdac")]
    metadata = {"name": "a", "resourceVersion": "1"}
    cluster.append(
        {"apiVersion": API_VERSION, "kind": "NodeAllocation", "metadata": metadata, "spec": write_spec(held)}
    )
    told = run(DEFRAG, cluster, "--for", "4", "-o", "json").data["stays"]
    assert [(one["pod"], one["why"]) for one in told] == [
        ("team/a", "its Pod was not read"),
        ("team/b", "it has no controller that would make it again"),
        ("team/c", "its Pod was not read"),
        ("team/d", "it has no controller that would make it again"),
    ]


# With --apply


COLLECTIONS = {
    "ConfigMap": "/api/v1/namespaces/koordgate-system/configmaps",
    "Node": "/api/v1/nodes",
    "Device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "Pod": "/api/v1/namespaces/team/pods",
}
BEGUN = """\
1 Pod would move to make room for a Pod of 4 cards. It fits 0 times now, and
once after that.
   EVICT POD  OF                FROM     IT WOULD GO TO
1  team/one   ReplicaSet serve  b gpu 0  a gpu 2
Room for: 1 more, on b.
"""
STEPS = [
    "    Pod team/one: evicted, ending",
    "    Pod team/one: gone",
    "1/1 Pod team/one is gone, and no new Pod of ReplicaSet serve was bound within 0 s",
]
STOPPED = (
    "Stopped: 0 of 1 moves are made, and nothing else was evicted. The cluster is not as it was when the plan was "
    "made: run koordgate defrag again for a new one."
)


@pytest.fixture
def defrag(koordgate: Koordgate, fake: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Koordgate:
    """Run `koordgate defrag` against the usual cluster, in which one Pod must move."""
    for obj in copy.deepcopy(usual()):
        fake.put(COLLECTIONS[obj["kind"]], obj)
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url)))
    return partial(koordgate, "defrag", "--for", "4")


async def test_moves_that_are_made_are_told_and_where_they_stopped(fake: FakeKube, defrag: Koordgate) -> None:
    said = await defrag("--apply", "--yes", "--timeout", "0")
    assert (said.status, said.err) == (3, "")
    assert said.out.startswith(BEGUN)
    told = " ".join(said.out.removeprefix(BEGUN).split())
    assert told == " ".join(" ".join([*STEPS, STOPPED]).split())
    assert [one["metadata"]["name"] for one in fake.objects(COLLECTIONS["Pod"])] == ["big"]


async def test_moves_that_are_made_are_data_and_their_steps_are_told_beside_it(defrag: Koordgate) -> None:
    said = await defrag("--apply", "--yes", "--timeout", "0", "-o", "json")
    assert said.status == 3
    assert said.err.splitlines() == [f"koordgate defrag: {line}" for line in STEPS]
    data = json.loads(said.out)
    assert data["made"] == [
        {"namespace": "team", "name": "one", "outcome": "notBound", "became": "", "node": ""}
        | {"text": STEPS[2].removeprefix("1/1 ")}
    ]
    assert (data["for"], data["fitBefore"], data["fitAfter"], len(data["rooms"]), data["notes"]) == ("4", 0, 1, 1, [])


async def test_without_moves_nothing_is_applied(fake: FakeKube, defrag: Koordgate) -> None:
    fake.remove(f"{COLLECTIONS['Pod']}/one")
    said = await defrag("--apply", "--yes")
    assert (said.status, said.err) == (3, "")
    assert " ".join(said.out.split()).endswith("It fits once now.")
    assert fake.seen("create", "pods/eviction") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--apply",), "--apply asks before it evicts Pods: run it on a terminal, or add --yes"),
        (("--apply", "-o", "json"), "--apply asks before it evicts Pods: run it on a terminal, or add --yes"),
        (("--yes",), "--yes confirms --apply: add that, or leave --yes out"),
        (("--yes", "--plan"), "--yes confirms --apply: add that, or leave --yes out"),
    ],
)
async def test_options_that_do_not_fit_together_are_told(
    fake: FakeKube, defrag: Koordgate, words: tuple[str, ...], told: str
) -> None:
    said = await defrag(*words)
    assert (said.status, said.out, said.err) == (2, "", f"koordgate defrag: {told}\n")
    assert fake.requests == []


async def test_a_plan_of_a_live_cluster_evicts_nobody(fake: FakeKube, defrag: Koordgate) -> None:
    nothing = "Nothing was changed. Each move is an eviction; to do them one by one: --apply\n"
    for words in ((), ("--plan",)):
        said = await defrag(*words)
        assert (said.status, said.out, said.err) == (0, f"{BEGUN}{nothing}", "")
    assert fake.seen("create", "pods/eviction") == []
