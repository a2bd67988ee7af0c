"""Events that cannot be written as they are."""

import asyncio

import pytest
from fake_kube import FakeKube, Fault, hold

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, Forbidden
from koordgate.kube.resource import NODES
from reporter.publish.events import EventWriter, Occurrence
from reporter.publish.keep import Target, apply

ABOUT = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}


def messages(fake: FakeKube) -> list[str]:
    return [one["message"] for one in fake.objects("/api/v1/events")]


async def test_half_a_character_is_reported_as_its_escape(fake: FakeKube, kube: KubeClient) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    writer.note([Occurrence(ABOUT, "KubeletFileUnusable", "entries[\ud800]")])

    await writer.write()

    assert messages(fake) == ["entries[\\ud800]"]


async def test_an_occurrence_that_is_no_json_is_dropped_and_stops_no_other(fake: FakeKube, kube: KubeClient) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    writer.note([Occurrence({**ABOUT, "name": "\ud800"}, "Xid79", "0"), Occurrence(ABOUT, "Xid79", "1")])

    await writer.write()

    assert messages(fake) == ["1"]


async def test_events_that_come_while_one_is_written_push_it_out_and_no_other(fake: FakeKube, kube: KubeClient) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    writer.note([Occurrence(ABOUT, "Xid79", "first")])
    fake.faults.add("create", "events", creating := hold())
    writing = asyncio.create_task(writer.write())
    await creating.reached.wait()
    writer.note(Occurrence({**ABOUT, "name": f"n{number}"}, "Xid79", str(number)) for number in range(512))
    assert creating.gate
    creating.gate.set()
    await writing

    assert sorted(messages(fake)) == sorted(["first", *map(str, range(512))])


async def test_of_the_last_512_events_it_is_known_that_they_were_written(fake: FakeKube, kube: KubeClient) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    for some in (range(512), range(512, 513), (1, 0)):
        writer.note(Occurrence(ABOUT, "Xid79", str(number)) for number in some)
        await writer.write()

    counts = sorted((one["message"], one["count"]) for one in fake.objects("/api/v1/events"))
    assert counts == sorted([("0", 1), ("0", 1), ("1", 2), *((str(number), 1) for number in range(2, 513))])


BODY = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}}}


@pytest.mark.parametrize("conflicts", [0, 1, 3])
async def test_after_up_to_three_conflicts_it_is_written(fake: FakeKube, kube: KubeClient, conflicts: int) -> None:
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})
    fake.faults.add("patch", "nodes", *[Fault(status=409)] * conflicts)

    written = await apply(kube, Target(NODES), BODY)

    assert written["metadata"]["labels"] == fake.get(NODES.path("n1"))["metadata"]["labels"] == {"a": "b"}
    by_force = {"fieldManager": "koordgate-reporter", "force": "true"}
    assert [request.query for request in fake.seen("patch", "nodes")] == [by_force] * (conflicts + 1)


@pytest.mark.parametrize(
    ("statuses", "error"),
    [([409] * 4, Conflict), ([409, 409, 403], Forbidden)],
    ids=["four conflicts", "no right after two conflicts"],
)
async def test_what_is_still_refused_is_raised(
    fake: FakeKube, kube: KubeClient, statuses: list[int], error: type[Exception]
) -> None:
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})
    fake.faults.add("patch", "nodes", *(Fault(status=status) for status in statuses))

    with pytest.raises(error):
        await apply(kube, Target(NODES), BODY)

    assert "labels" not in fake.get(NODES.path("n1"))["metadata"]
