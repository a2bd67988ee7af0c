"""What claims hold of a node's devices, and the changes of its record: rows of what is taken, kept and refused."""

from dataclasses import replace

import pytest
from builders import app, gpu, gpus, nic, node, part, request, share
from npus import CAPACITY, NPU

from allocator.bind import PodToBind, bind
from allocator.claimed import (
    ClaimedPart,
    ClaimedToo,
    claimed_shares,
    claimed_too,
    end,
    judge,
    patience,
    release,
    reserve,
    standing,
)
from allocator.gangreservation import Planned, hold
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import GPU_TYPE, RDMA_TYPE
from allocator.vocabulary.holdings import ClaimedDevice, DeviceName, Holding, ResourceClaim, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.nodeallocation import read_spec, write_spec
from koordgate.breaks import at_once

GIB = 2**30
CARDS = tuple(gpu(minor, device_id=f"GPU-{minor}") for minor in range(3))
NODE = node(*CARDS)
TOTAL = CARDS[0].capacity["gpu-memory"]
EIGHTH = TOTAL // 8


def held(parts: list[ClaimedPart], devices: tuple[Device, ...] = CARDS) -> dict[str, tuple[int, int, int]]:
    shares, _ = claimed_shares(parts, devices)
    tails = ("gpu-core", "gpu-memory", "gpu-memory-ratio")
    return {share.id: tuple(share.amounts[tail] for tail in tails) for share in shares}  # type: ignore[misc]


WHOLE = (100, TOTAL, 100)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([ClaimedPart(GPU_TYPE, ("GPU-1",))], {"GPU-1": WHOLE}),
        ([ClaimedPart(GPU_TYPE, ("MIG-x", "GPU-2"))], {"GPU-2": WHOLE}),
        ([ClaimedPart(GPU_TYPE, ("GPU-0",)), ClaimedPart(GPU_TYPE, ("GPU-0",))], {"GPU-0": WHOLE}),
        ([ClaimedPart(GPU_TYPE, ("GPU-0",), EIGHTH)], {"GPU-0": (13, EIGHTH, 12)}),
        ([ClaimedPart(GPU_TYPE, ("GPU-0",), EIGHTH)] * 2, {"GPU-0": (26, 2 * EIGHTH, 24)}),
        ([ClaimedPart(GPU_TYPE, ("GPU-0",), 2 * TOTAL)], {"GPU-0": WHOLE}),
        ([ClaimedPart(GPU_TYPE, ("GPU-0",), 0)], {"GPU-0": (0, 0, 0)}),
        ([ClaimedPart(GPU_TYPE, ())], {"GPU-0": WHOLE, "GPU-1": WHOLE, "GPU-2": WHOLE}),
        ([ClaimedPart(GPU_TYPE, ("GPU-9",), EIGHTH)], {"GPU-0": WHOLE, "GPU-1": WHOLE, "GPU-2": WHOLE}),
        ([ClaimedPart(RDMA_TYPE, ("GPU-0",))], {}),
    ],
)
def test_a_claim_holds_the_card_that_is_named_or_all(
    parts: list[ClaimedPart], expected: dict[str, tuple[int, int, int]]
) -> None:
    assert held(parts) == expected


def test_of_other_types_a_claim_whose_card_is_not_known_holds_nothing() -> None:
    fpga = Device("fpga", "FPGA-0", 0, healthy=True, capacity={"fpga": 100})
    shares, _ = claimed_shares([ClaimedPart(GPU_TYPE, ("GPU-9",))], (fpga, CARDS[0], nic(0)))
    assert [share.id for share in shares] == ["GPU-0"]


def test_a_card_is_known_by_its_pci_address_too() -> None:
    devices = (replace(CARDS[0], bus="0000:3b:00.0"), CARDS[1])
    assert held([ClaimedPart(GPU_TYPE, ("0000:3b:00.0",))], devices) == {"GPU-0": WHOLE}


def test_it_is_told_whether_all_parts_were_found() -> None:
    assert claimed_shares([ClaimedPart(GPU_TYPE, ("GPU-0",)), ClaimedPart(GPU_TYPE, ("GPU-1",))], CARDS)[1]
    assert not claimed_shares([ClaimedPart(GPU_TYPE, ("GPU-9",)), ClaimedPart(GPU_TYPE, ("GPU-1",))], CARDS)[1]
    assert claimed_shares([ClaimedPart(GPU_TYPE, ("GPU-9",))], ())[1], "a node without such devices gives none"


def test_a_device_of_another_unit_is_held_as_a_whole() -> None:
    nic = Device("rdma", "0000:05:00.0", 0, healthy=True, capacity={"rdma": 100})
    shares, _ = claimed_shares([ClaimedPart(RDMA_TYPE, ("0000:05:00.0",), 5)], [nic])
    assert shares == (Share("rdma", "0000:05:00.0", 0, {"rdma": 100}),)


@pytest.mark.parametrize(
    ("memory", "amounts"),
    [
        (3 * GIB, {"core": 8, "cpu": 7, "memory": 3 * GIB, "memory-ratio": 12, "dvpp": 13}),
        (24 * GIB, CAPACITY),
        (None, CAPACITY),
    ],
)
def test_of_what_is_no_percentage_a_claim_holds_all(memory: int | None, amounts: dict[str, int]) -> None:
    device = Device("npu", "npu-0", 0, healthy=True, capacity=CAPACITY)
    assert claimed_shares([ClaimedPart(NPU, ("npu-0",), memory)], [device]) == (
        (Share("npu", "npu-0", 0, amounts),),
        True,
    )


# --- reservations


def wanted(*shares: Share, uid: str = "x", fence: int = 5) -> Holding:
    return Holding(uid, "default", uid, 0, shares, fence=fence)


def pod_with(*shares: Share, uid: str = "p", **fields: object) -> Holding:
    return Holding(uid, "team", uid, 0, shares, **fields)  # type: ignore[arg-type]


def reserving(
    want: Holding, *pods: Holding, there: dict[str, Holding] | None = None, claims: dict[str, Holding] | None = None
) -> tuple[dict[str, Holding] | None, Refusal | None]:
    def snapshot(holdings: object) -> NodeSnapshot:
        return replace(NODE, holdings={one.uid: one for one in pods}, claims=claims or {})

    return reserve(want, snapshot)(there or {})  # type: ignore[return-value]


def test_what_is_free_is_reserved() -> None:
    want = wanted(part(CARDS[0], 100))
    assert reserving(want, pod_with(part(CARDS[1], 100))) == ({"x": want}, None)


@pytest.mark.parametrize(
    ("pod", "share", "refused"),
    [
        (pod_with(part(CARDS[0], 1)), part(CARDS[0], 100), True),
        (pod_with(part(CARDS[0], 60)), part(CARDS[0], 40), False),
        (pod_with(part(CARDS[0], 50)), part(CARDS[0], 40), False),
        (pod_with(part(CARDS[0], 61)), part(CARDS[0], 40), True),
        (pod_with(part(CARDS[0], 1)._replace(unshared=True)), part(CARDS[0], 1), True),
        (pod_with(part(CARDS[0], 1)._replace(alone=True)), part(CARDS[0], 1), True),
        (pod_with(part(CARDS[1], 1)._replace(unshared=True)), part(CARDS[0], 1), False),
    ],
)
def test_what_pods_hold_is_refused(pod: Holding, share: Share, refused: bool) -> None:  # noqa: FBT001 a parameter
    changed, refusal = reserving(wanted(share), pod)
    assert (refusal is not None) is refused
    assert (changed is None) is refused
    if refusal is not None:
        assert refusal.message == f"gpu 0 (GPU-0) of node {NODE.name} is held by team/p"


def test_a_pcie_root_that_a_pod_has_to_itself_is_refused() -> None:
    devices = tuple(replace(card, pcie=f"root-{card.minor // 2}") for card in CARDS)
    holder = pod_with(part(devices[0], 1)._replace(alone=True))
    there = replace(NODE, devices=devices, holdings={"p": holder})
    _, refusal = reserve(wanted(part(devices[1], 100)), lambda _: there)({})
    assert refusal is not None
    assert reserve(wanted(part(devices[2], 100)), lambda _: there)({})[1] is None


def test_a_pod_alone_on_its_root_keeps_claims_off_no_other_root() -> None:
    def refused(want: int, *roots: str | None, holder: int = 1) -> bool:
        devices = tuple(replace(card, pcie=root) for card, root in zip(CARDS, roots, strict=True))
        holds = pod_with(part(gpu(holder), 1)._replace(alone=True))
        there = replace(NODE, devices=devices, holdings={"p": holds})
        return reserve(wanted(part(CARDS[want], 100)), lambda _: there)({})[1] is not None

    assert refused(0, "a", "a", "b")
    assert not refused(0, "a", "b", "b")
    assert not refused(2, "b", "a", "b")
    assert not refused(0, None, None, "a"), "where no root is known"
    assert not refused(0, "a", "b", "b", holder=9), "a card that the node does not list"


@pytest.mark.parametrize(("number", "more"), [(4, ""), (5, " and 1 more"), (9, " and 5 more")])
def test_of_many_holders_four_are_named(number: int, more: str) -> None:
    pods = [pod_with(part(CARDS[1], 10), uid=f"p{at}") for at in range(number)]
    _, refusal = reserving(wanted(part(CARDS[0], 100), part(CARDS[1], 100)), *pods)
    assert refusal is not None
    assert refusal.message.endswith(f"held by team/p0, team/p1, team/p2, team/p3{more}")


def test_what_a_pod_does_not_hold_of_its_card_may_be_claimed() -> None:
    compute = Share("gpu", "GPU-0", 0, {"gpu-core": 40})
    for core, refused in ((60, False), (61, True)):
        claimed = share(CARDS[0], core=core, memory=TOTAL, ratio=100)
        assert (reserving(wanted(claimed), pod_with(compute))[1] is not None) is refused


def test_a_card_that_the_node_does_not_list_is_refused_while_a_pod_holds_any_of_it() -> None:
    gone = part(gpu(9), 50)
    assert reserving(wanted(gone), pod_with(part(CARDS[0], 100))) == ({"x": wanted(gone)}, None)
    refusal = Refusal("gpu 9 (GPU-9) of node node-1 is held by team/p")
    assert reserving(wanted(gone), pod_with(part(gpu(9), 1))) == (None, refusal)


def test_what_the_claim_itself_has_reserved_does_not_count_beside_it() -> None:
    own = wanted(part(CARDS[0], 60))
    others = {uid: wanted(part(CARDS[1], 60), uid=uid) for uid in ("w", "y")}
    holder = pod_with(part(CARDS[0], 40), part(CARDS[1], 40))
    assert reserving(own, holder, claims={"x": own, **others})[1] is None
    for uid in others:
        taken = {"x": own, uid: wanted(part(CARDS[0], 1), uid=uid)}
        assert reserving(own, holder, claims=taken)[1] is not None


def test_claims_share_a_card_as_dra_likes_but_not_what_pods_hold() -> None:
    other = {"y": wanted(part(CARDS[0], 100), uid="y")}
    assert reserving(wanted(part(CARDS[0], 100)), claims=other)[1] is None
    share = {"y": wanted(part(CARDS[0], 30), uid="y")}
    assert reserving(wanted(part(CARDS[0], 30)), pod_with(part(CARDS[0], 40)), claims=share)[1] is None
    assert reserving(wanted(part(CARDS[0], 31)), pod_with(part(CARDS[0], 40)), claims=share)[1] is not None


def test_a_later_revision_replaces_what_was_reserved_and_its_mark() -> None:
    there = {"x": replace(wanted(part(CARDS[0], 100), fence=4), ending="m")}
    want = wanted(part(CARDS[1], 100), fence=5)
    assert reserving(want, there=there) == ({"x": want}, None)


def test_at_one_revision_either_attempt_may_be_performed() -> None:
    there = {"x": wanted(part(CARDS[0], 100), part(CARDS[1], 30))}
    changed, refusal = reserving(wanted(part(CARDS[1], 20), part(CARDS[2], 100)), there=there)
    assert refusal is None
    assert changed is not None
    assert {share.id: share.amounts["gpu-core"] for share in changed["x"].shares} == {
        "GPU-0": 100,
        "GPU-1": 30,
        "GPU-2": 100,
    }


def test_at_one_revision_what_neither_attempt_takes_stays_free() -> None:
    first = Share("gpu", "GPU-0", 0, {"gpu-core": 30})
    second = (share(CARDS[0], memory=5, ratio=1), share(CARDS[1], memory=6, ratio=1))
    changed, _ = reserving(wanted(*second), there={"x": wanted(first)})
    assert changed is not None
    assert changed["x"].shares == (share(CARDS[0], core=30, memory=5, ratio=1), share(CARDS[1], memory=6, ratio=1))


def test_the_same_again_writes_nothing() -> None:
    there = {"x": wanted(part(CARDS[0], 100))}
    assert reserving(there["x"], there=there) == (None, None)


def test_what_is_marked_or_belongs_to_a_later_revision_is_refused() -> None:
    want = wanted(part(CARDS[0], 100))
    _, refusal = reserving(want, there={"x": replace(want, ending="m")})
    assert refusal is not None
    assert "being given back" in refusal.message
    _, refusal = reserving(want, there={"x": replace(want, fence=6)})
    assert refusal is not None
    assert "has changed since revision 5" in refusal.message


def test_binds_and_holds_keep_what_is_reserved() -> None:
    reserved = wanted(part(CARDS[0], 100))
    there = {"x": reserved}

    def snapshot(holdings: object) -> NodeSnapshot:
        return replace(NODE, holdings={}, claims=there)

    asked = request(app("main", gpus(100)))
    changed, decided = at_once(bind(PodToBind("p", "team", "p", asked), snapshot, 7, "m")(there))
    assert isinstance(decided.outcome, Holding)
    assert [share.id for share in decided.outcome.shares] == ["GPU-1"]
    assert changed == {"x": reserved, "p": decided.outcome}
    planned = Planned(PodToBind("p", "team", "p", asked, all_or_nothing=True), decided.outcome)
    changed, refusal = at_once(hold([planned], snapshot, 7, 100)(there))
    assert refusal is None
    assert changed is not None
    assert changed.keys() == {"x", "p"}


# --- their end

NAME = DeviceName("gpu.nvidia.com", "n1", "gpu-0")


def live(revision: int, *, uid: str = "x", allocated: bool = False) -> ResourceClaim:
    return ResourceClaim(uid, "default", "x", revision, "n1", (ClaimedDevice(NAME),) if allocated else ())


RESERVED = wanted(part(CARDS[0], 100))
MARKED = replace(RESERVED, ending="m")


@pytest.mark.parametrize(
    ("known", "stands"),
    [
        (None, True),
        (live(4), True),
        (live(5), True),
        (live(6), False),
        (live(6, uid="other"), True),
        (live(6, uid="z"), True),
    ],
)
def test_a_reservation_stands_until_the_claim_is_seen_later(known: ResourceClaim | None, stands: bool) -> None:  # noqa: FBT001
    assert standing(RESERVED, known) is stands


@pytest.mark.parametrize(
    ("reservation", "found", "here", "seen_s", "how"),
    [
        (RESERVED, None, False, 0, "gone"),
        (RESERVED, live(9, uid="other"), True, 0, "gone"),
        (RESERVED, live(5, uid="z"), True, 0, "gone"),
        (RESERVED, live(6, allocated=True), True, 1000, None),
        (MARKED, live(6, allocated=True), True, 1000, None),
        (RESERVED, live(6, allocated=True), False, 0, "deallocated"),
        (RESERVED, live(6), False, 0, "deallocated"),
        (RESERVED, live(5), False, 59, None),
        (RESERVED, live(5), False, 60, None),
        (RESERVED, live(5), False, 61, "end"),
        (MARKED, live(5), False, 120, None),
        (MARKED, live(5), False, 121, "unperformed"),
        (RESERVED, live(4), False, 61, "end"),
    ],
)
def test_what_is_done_about_a_reservation(
    reservation: Holding,
    found: ResourceClaim | None,
    here: bool,  # noqa: FBT001 a parameter
    seen_s: float,
    how: str | None,
) -> None:
    assert judge(reservation, found, here=here, seen_s=seen_s, grace=120) == how
    assert patience(reservation, 120) == (120 if reservation.ending else 60)


def test_marks_and_releases_leave_what_has_changed_since() -> None:
    there = {"x": RESERVED, "p": pod_with(part(CARDS[1], 100)), "z": pod_with(part(CARDS[2], 100), uid="z")}
    assert end(RESERVED, "m")(there) == ({**there, "x": MARKED}, True)
    for fence in (4, 6):
        assert end(replace(RESERVED, fence=fence), "m")(there) == (None, False)
        assert release(replace(RESERVED, fence=fence))(there) == (None, False)
    assert end(RESERVED, "n")({"x": MARKED}) == (None, False)
    assert end(RESERVED, "m")({}) == (None, False)
    assert release(RESERVED)(there) == ({"p": there["p"], "z": there["z"]}, True)
    assert release(RESERVED)({"x": MARKED}) == (None, False)
    assert release(MARKED)({"x": MARKED}) == ({}, True)
    assert release(MARKED)({}) == (None, False)


def test_a_reservation_is_written_and_read_back() -> None:
    spec = write_spec([MARKED, pod_with(part(CARDS[1], 100))])
    assert read_spec({"metadata": {"name": "n1"}, "spec": spec}) == {"x": MARKED, "p": pod_with(part(CARDS[1], 100))}
    assert [entry.get("claimRevision") for entry in spec["allocations"]] == [None, 5]


def test_a_snapshot_counts_claims_and_names_their_cards() -> None:
    snapshot = replace(NODE, claims={"x": wanted(part(CARDS[0], 30))}, holdings={"p": pod_with(part(CARDS[0], 50))})
    assert snapshot.free(CARDS[0], ("gpu-core",)) == (20,)
    assert snapshot.claimed == {"GPU-0"}
    assert snapshot.without(["p"]).free(CARDS[0], ("gpu-core",)) == (70,)
    snapshot.check_invariants()


def test_what_pods_and_claims_hold_together_beyond_a_card_is_found() -> None:
    both = replace(
        NODE,
        claims={"x": wanted(part(CARDS[0], 51)), "y": wanted(part(CARDS[1], 50), part(CARDS[2], 100), uid="y")},
        holdings={"p": pod_with(part(CARDS[0], 50), part(CARDS[1], 50))},
    )
    assert claimed_too(both) == [ClaimedToo(NODE.name, "gpu", "GPU-0", ("p",), ("default/x",))]


def test_what_pods_alone_or_claims_alone_hold_beyond_a_card_is_found_elsewhere() -> None:
    pods = {uid: pod_with(part(CARDS[0], 60), part(CARDS[2], 40), uid=uid) for uid in ("p", "q")}
    claims = {uid: wanted(part(CARDS[1], 60), part(CARDS[2], 20), uid=uid) for uid in ("x", "y")}
    pods["r"], claims["w"] = pod_with(part(CARDS[0], 1), uid="r"), wanted(part(CARDS[1], 1), uid="w")
    found = claimed_too(replace(NODE, holdings=pods, claims=claims))
    assert found == [ClaimedToo(NODE.name, "gpu", "GPU-2", ("p", "q"), ("default/x", "default/y"))]


@pytest.mark.parametrize(
    ("given", "claimed", "found"),
    [
        ({"gpu-core": 40, "gpu-memory": 5}, {"gpu-core": 40, "gpu-memory": 5}, False),
        ({"gpu-core": 60}, {"gpu-core": 40, "gpu-memory": TOTAL}, False),
        ({"gpu-core": 60, "gpu-memory": TOTAL}, {"gpu-core": 40}, False),
        ({"gpu-core": 61}, {"gpu-core": 40}, True),
        ({"gpu-memory": 5}, {"gpu-core": 101}, True),
        ({"gpu-core": 101}, {"gpu-memory": 5}, True),
    ],
    ids=["less", "all memory a claim's", "all memory a Pod's", "compute alone", "too many claims", "too many Pods"],
)
def test_each_resource_of_a_card_is_counted_by_itself(
    given: dict[str, int], claimed: dict[str, int], *, found: bool
) -> None:
    pods, claims = (wanted(Share("gpu", "GPU-0", 0, amounts)) for amounts in (given, claimed))
    assert bool(claimed_too(replace(NODE, holdings={"x": pods}, claims={"x": claims}))) is found
