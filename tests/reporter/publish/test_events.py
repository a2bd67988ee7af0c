"""Events that cannot be written as they are."""

import asyncio

from fake_kube import FakeKube, hold

from koordgate.kube.client import KubeClient
from reporter.publish.events import EventWriter, Occurrence

ABOUT = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}


def messages(fake: FakeKube) -> list[str]:
    return [one["message"] for one in fake.objects("/api/v1/events")]


async def test_half_a_character_is_reported_as_its_escape(fake: FakeKube, kube: KubeClient) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    writer.note([Occurrence(ABOUT, "KubeletFileUnusable", "entries[\ud800]")])

    await writer.write()

    assert messages(fake) == ["entries[\\ud800]"]


async def test_1024_characters_of_a_message_are_written(fake: FakeKube, kube: KubeClient) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    writer.note([Occurrence(ABOUT, "Xid79", "x" * 2000)])

    await writer.write()

    assert messages(fake) == ["x" * 1024]


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


async def test_the_name_of_an_event_begins_with_200_characters_of_what_it_is_about(
    fake: FakeKube, kube: KubeClient
) -> None:
    writer = EventWriter(kube, lambda: 0.0)
    writer.note(Occurrence({**ABOUT, "name": name * 101, "uid": name}, "Xid79", name) for name in ("ab", "cd"))

    await writer.write()

    begun = sorted(one["metadata"]["name"].partition(".")[0] for one in fake.objects("/api/v1/events"))
    assert begun == ["ab" * 100, "cd" * 100]
