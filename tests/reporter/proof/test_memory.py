"""Whether containers are kept to their memory of cards, and what they use: from what the driver and NVML say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocator.vocabulary.delivery import Keeping, MemoryUse
from allocator.vocabulary.holdings import Share
from reporter.cgroup.cpusets import Hierarchy
from reporter.cgroup.layout import CgroupLayout, Driver, KubernetesQos, Version
from reporter.gpu.facts import CgroupMemory
from reporter.pods import NodePod, read_pod
from reporter.proof import evidence
from reporter.proof.agree import CardUse, ContainerSeen, Evidence, agreements
from reporter.proof.memory import Judged, Question, judged, problems, questions, steadied, with_cards
from reporter.round.occurrences import EventMemory, memory_occurrences, without_memory

GIB = 2**30
UID = "11111111-2222-3333-4444-555555555555"
MAIN, SIDE, DONE = "a" * 64, "b" * 64, "c" * 64
CARDS = {0: "GPU-0", 1: "GPU-1"}


def share(card: int, *containers: str, memory: int = 8 * GIB) -> Share:
    return Share("gpu", f"GPU-{card}", card, {"gpu-core": 50, "gpu-memory": memory, "gpu-memory-ratio": 50}, containers)


def pod(*shares: Share, **over: Any) -> NodePod:
    plain = NodePod(UID, "ns", "p", UID, KubernetesQos.BURSTABLE, containers={MAIN: "main", SIDE: "side"})
    return replace(plain, shares=shares, **over)


ONE = pod(share(0, "main"))
LIMITED = replace(ONE, limits={"main": 8 * GIB})


def seen(answer: CgroupMemory | None = None, *uses: CardUse, card: int = 0, running: str = MAIN) -> Evidence:
    memory = {} if answer is None else {(f"GPU-{card}", MAIN): answer}
    return Evidence(uses=uses, cards=CARDS, running=frozenset({running}), memory=memory)


def row(keeping: Keeping, used: int | None, limit: int | None = None, wanted: int | None = None) -> MemoryUse:
    return MemoryUse("GPU-0", "ns", "p", "main", keeping, used, limit, wanted, 8 * GIB)


IN_PROCESSES = (CardUse("GPU-0", UID, 1, GIB, MAIN), CardUse("GPU-0", UID, 2, GIB, MAIN))
JUDGED: dict[str, tuple[NodePod, Evidence, MemoryUse | None]] = {
    "the limit that was decided": (
        LIMITED,
        seen(CgroupMemory(8 * GIB, GIB)),
        row(Keeping.ENFORCED, GIB, 8 * GIB, 8 * GIB),
    ),
    "no limit": (LIMITED, seen(CgroupMemory()), row(Keeping.MISSING, 0, None, 8 * GIB)),
    "no limit, on a kernel that counts": (
        LIMITED,
        seen(CgroupMemory(None, 9 * GIB)),
        row(Keeping.MISSING, 9 * GIB, None, 8 * GIB),
    ),
    "another limit": (LIMITED, seen(CgroupMemory(4 * GIB, 0)), row(Keeping.MISSING, 0, 4 * GIB, 8 * GIB)),
    "no limit decided": (ONE, seen(CgroupMemory()), row(Keeping.ACCOUNTING, 0)),
    "no limit decided, and somebody set one": (
        ONE,
        seen(CgroupMemory(4 * GIB, 1)),
        row(Keeping.ACCOUNTING, 1, 4 * GIB),
    ),
    "the driver does not count: its processes do": (
        ONE,
        seen(CgroupMemory(), *IN_PROCESSES),
        row(Keeping.ACCOUNTING, 2 * GIB),
    ),
    "the driver counts: its processes do not": (
        ONE,
        seen(CgroupMemory(None, 5), *IN_PROCESSES),
        row(Keeping.ACCOUNTING, 5),
    ),
    "the driver was not asked, and no limit was decided": (
        ONE,
        seen(None, *IN_PROCESSES),
        row(Keeping.ACCOUNTING, 2 * GIB),
    ),
    "one process has an unknown amount": (ONE, seen(None, *IN_PROCESSES, CardUse("GPU-0", UID, 3, None, MAIN)), None),
    "processes of others": (
        ONE,
        seen(None, CardUse("GPU-1", UID, 1, 1, MAIN), CardUse("GPU-0", UID, 2, 1, SIDE), CardUse("GPU-0", UID, 3, 1)),
        row(Keeping.ACCOUNTING, 0),
    ),
    "the driver was not asked, and a limit was decided": (LIMITED, seen(None), None),
    "the driver cannot say": (LIMITED, seen(CgroupMemory(problem="Insufficient Permissions")), None),
    "the container has no cgroup": (LIMITED, seen(CgroupMemory(), running=SIDE), None),
    "the card is gone": (pod(share(7, "main")), seen(CgroupMemory(), card=7), None),
    "its part of the card is stated": (
        replace(ONE, parts={("main", "GPU-0"): 2 * GIB, ("side", "GPU-0"): GIB}),
        seen(CgroupMemory()),
        replace(row(Keeping.ACCOUNTING, 0), held=2 * GIB),
    ),
    "another type": (pod(Share("rdma", "NIC-0", 0, {"rdma": 100}, ("main",))), seen(CgroupMemory()), None),
}


@pytest.mark.parametrize(("one", "found", "use"), JUDGED.values(), ids=JUDGED)
def test_a_container_is_judged_by_what_the_driver_says_of_it(
    one: NodePod, found: Evidence, use: MemoryUse | None
) -> None:
    assert judged([one], found, keeps=True) == ((Judged(one, MAIN, use),) if use is not None else ())


def test_each_container_is_judged_on_each_of_its_cards_and_each_pod_by_itself() -> None:
    two = pod(share(0, "main", "side"), share(1, "main"), name="q", uid="u2", limits={"main": GIB})
    other = replace(pod(share(1, "main")), name="a", uid="u1", containers={DONE: "main"})
    answers = {("GPU-0", MAIN): CgroupMemory(GIB, 1), ("GPU-1", MAIN): CgroupMemory(), ("GPU-0", SIDE): CgroupMemory()}
    all_seen = Evidence(cards=CARDS, running=frozenset({MAIN, SIDE, DONE}), memory=answers)
    found = judged([two, other], all_seen, keeps=True)
    assert [(one.use.pod, one.use.container, one.use.card, one.use.keeping.value) for one in found] == [
        ("a", "main", "GPU-1", "accounting"),
        ("q", "main", "GPU-0", "enforced"),
        ("q", "side", "GPU-0", "accounting"),
        ("q", "main", "GPU-1", "missing"),
    ]


# What the driver is asked


def test_the_driver_is_asked_for_running_containers_of_pods_with_cards_on_cards_that_answer() -> None:
    pods = [pod(share(0, "main", "side"), share(1, "main")), replace(pod(), name="none", containers={DONE: "main"})]
    assert with_cards(pods) == (pods[0],)
    assert questions(pods, {MAIN: "/m", DONE: "/d"}, frozenset({"GPU-0", "GPU-1"})) == (
        Question("GPU-0", MAIN, "/m"),
        Question("GPU-1", MAIN, "/m"),
    )
    assert questions(pods, {MAIN: "/m"}, frozenset({"GPU-1"})) == (Question("GPU-1", MAIN, "/m"),)
    assert questions(pods, {MAIN: ""}, frozenset({"GPU-0"})) == (), "cgroup v1"


def test_no_more_than_1024_are_asked_for() -> None:
    ids = {f"{number:064x}": f"c{number}" for number in range(1100)}
    many = pod(share(0, *ids.values()), containers=ids)
    assert len(questions([many], dict.fromkeys(ids, "/x"), frozenset({"GPU-0"}))) == 1024


@pytest.mark.parametrize(
    ("driver", "name"),
    [(Driver.CGROUPFS, MAIN), (Driver.SYSTEMD, f"cri-containerd-{MAIN}.scope"), (Driver.SYSTEMD, f"crio-{MAIN}.scope")],
)
@pytest.mark.parametrize("inner", ["", "container", "init.scope"])
def test_the_cgroup_of_a_container_is_the_one_that_its_runtime_made_for_it(
    tmp_path: Path, driver: Driver, name: str, inner: str
) -> None:
    layout = CgroupLayout(driver)
    path = f"{layout.pod(KubernetesQos.BURSTABLE, UID)}/{name}"
    (tmp_path / path / inner).mkdir(parents=True)
    (tmp_path / path).with_name("d" * 64).mkdir()
    (tmp_path / path).with_name(f"crio-conmon-{MAIN}.scope").mkdir()
    found = evidence.cgroups(Hierarchy(tmp_path, Version.V2), layout, [ONE, replace(ONE, cgroup="no/uid")])
    assert found == {MAIN: f"{path}/container" if inner == "container" else path}


# What is told


def test_what_the_driver_cannot_say_is_told_once_for_each_reason() -> None:
    answers = {
        ("GPU-0", MAIN): CgroupMemory(problem="Unknown Error"),
        ("GPU-0", SIDE): CgroupMemory(),
        ("GPU-1", MAIN): CgroupMemory(problem="Unknown Error"),
        ("GPU-1", SIDE): CgroupMemory(problem="Insufficient Permissions"),
    }
    assert problems(Evidence(memory=answers)) == (
        "the driver does not tell the memory limits of containers (1): Insufficient Permissions",
        "the driver does not tell the memory limits of containers (2): Unknown Error",
    )


STEADY: dict[str, tuple[MemoryUse, bool]] = {
    "a little more": (row(Keeping.ACCOUNTING, 4 * GIB + GIB // 2 - 1), True),
    "a sixteenth more": (row(Keeping.ACCOUNTING, 4 * GIB + GIB // 2), False),
    "a sixteenth less": (row(Keeping.ACCOUNTING, 4 * GIB - GIB // 2), False),
    "unknown": (row(Keeping.ACCOUNTING, None), False),
    "another word": (row(Keeping.MISSING, 4 * GIB + 1, None, 8 * GIB), False),
    "another limit": (row(Keeping.ACCOUNTING, 4 * GIB + 1, 9 * GIB), False),
}


@pytest.mark.parametrize(("now", "kept"), STEADY.values(), ids=STEADY)
def test_a_use_that_changed_little_is_not_told_anew(now: MemoryUse, kept: bool) -> None:  # noqa: FBT001
    before = row(Keeping.ACCOUNTING, 4 * GIB)
    other = replace(before, container="side")
    assert steadied([other, before], [now]) == ((before if kept else now),)
    assert steadied([], [now]) == (now,)


def test_a_use_that_begins_to_exceed_the_share_is_told_at_once() -> None:
    full, more = row(Keeping.ACCOUNTING, 8 * GIB), row(Keeping.ACCOUNTING, 8 * GIB + 1)
    assert steadied([full], [more]) == (more,)
    assert steadied([more], [full]) == (full,)


# Events


def told(*proofs: Evidence, one: NodePod = LIMITED) -> list[list[tuple[str, str]]]:
    """The Events of each proof, and of one more round after each."""
    memory, found = EventMemory(), []
    for number, proof in enumerate(proofs, 1):
        events = []
        for _ in range(2):
            memory, more = memory_occurrences(memory, judged([one], proof, keeps=True), number)
            events += [(event.reason, event.about["name"]) for event in more]
        found.append(events)
    return found


NONE, SET = seen(CgroupMemory()), seen(CgroupMemory(8 * GIB, 0))


def test_a_missing_limit_is_told_when_two_proofs_miss_it_and_again_after_it_was_there() -> None:
    missing = [("LimitMissing", "p")]
    assert told(NONE, NONE, NONE, SET, NONE, NONE) == [[], missing, [], [], [], missing]
    assert told(NONE, SET, NONE, SET) == [[]] * 4


def test_a_container_that_was_started_again_has_two_proofs_of_its_own() -> None:
    again = replace(LIMITED, containers={SIDE: "main"})
    memory = EventMemory()
    counts = []
    for number, (one, box) in enumerate([(LIMITED, MAIN), (again, SIDE), (again, SIDE)], 1):
        found = Evidence(cards=CARDS, running=frozenset({box}), memory={("GPU-0", box): CgroupMemory()})
        memory, events = memory_occurrences(memory, judged([one], found, keeps=True), number)
        counts.append(len(events))
    assert counts == [0, 0, 1]


def test_too_much_memory_is_told_once_while_it_lasts() -> None:
    more, less = seen(CgroupMemory(None, 9 * GIB)), seen(CgroupMemory(None, 8 * GIB))
    exceeded = [("ShareExceeded", "p")]
    assert told(more, more, less, more, one=ONE) == [exceeded, [], [], exceeded]
    assert told(more, one=replace(ONE, limits={"main": 10 * GIB})) == [[]], "it was granted"


def test_a_pod_of_which_a_container_exceeds_its_share_is_no_mismatch_beside_it() -> None:
    uses = tuple(CardUse("GPU-0", UID, number, 5 * GIB, MAIN) for number in (1, 2))
    found = Evidence({MAIN: ContainerSeen()}, uses, CARDS, running=frozenset({MAIN}))
    compared = agreements([ONE], found)
    assert [one.kind for one in compared[0].mismatches] == ["memory"]
    assert without_memory(compared, judged([ONE], found, keeps=False))[0].mismatches == ()
    assert without_memory(compared, ()) == compared


def test_memory_that_was_granted_beyond_a_share_is_no_mismatch() -> None:
    uses = (CardUse("GPU-0", UID, 1, 10 * GIB, MAIN),)
    granted = replace(ONE, limits={"main": 10 * GIB, "side": 20 * GIB})
    assert [len(agreements([one], Evidence(uses=uses))[0].mismatches) for one in (ONE, granted)] == [1, 0]


# What of a Pod says so

PREFIX = "nvidia-gpu-memory-limit.koordgate.io/"
FRACTIONS = "nvidia.com/container.main"


@pytest.mark.parametrize(
    ("annotations", "limits"),
    [
        ({f"{PREFIX}main": "1024", f"{PREFIX}side": "0"}, {"main": GIB, "side": 0}),
        (
            {
                f"{PREFIX}main": "1Gi",
                f"{PREFIX}side": "-1",
                f"{PREFIX}a": "1" * 10,
                f"{PREFIX}b": "٣",
                f"{PREFIX}c": "",
            },
            {},
        ),
        ({"nvidia-gpu-memory-request.koordgate.io/main": "1024"}, {}),
        ({f"{FRACTIONS}.gpu-memory.limit": "1024Mi", f"{FRACTIONS}.gpus.devices": "GPU-0"}, {"main": GIB}),
        ({f"{FRACTIONS}.gpu-memory.limit": "1024Mi", "nvidia.com/container.side.gpus.devices": "GPU-0"}, {}),
    ],
    ids=["whole MiB", "no number of MiB", "a request", "for the operator", "by the author alone"],
)
def test_the_limit_of_a_container_is_what_the_bind_wrote(annotations: dict[str, str], limits: dict[str, int]) -> None:
    assert read_pod({"metadata": {"uid": UID, "name": "p", "annotations": annotations}}).limits == limits


def test_the_part_of_a_container_is_what_its_quota_says() -> None:
    quotas = {
        "main": {"gpu": [{"id": "GPU-0", "resources": {"kubernetes.io/gpu-memory": "2Gi"}}]},
        "side": {"gpu": [{"id": "GPU-0", "resources": {"kubernetes.io/gpu-memory": "unlimited"}}]},
        "nic": {"rdma": [{"id": "NIC-0", "resources": {"kubernetes.io/rdma": "100"}}]},
    }
    annotations = {"koordgate.io/device-quotas": json.dumps(quotas)}
    read = read_pod({"metadata": {"uid": UID, "name": "p", "annotations": annotations}})
    assert read.parts == {("main", "GPU-0"): 2 * GIB}
