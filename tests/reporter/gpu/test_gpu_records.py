"""What is kept over a restart of the reporter is read back whole, and nothing else is taken for it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_near, json_values

from reporter.gpu.facts import DriverFacts, GpuFacts, Link, MigDevice, NodeReading, Peer, RecoveryAction, XidEvent
from reporter.gpu.health import NOTHING_KNOWN, HealthPolicy, NodeRecord, advance, decode, encode

POLICY = HealthPolicy()
CARDS = tuple(
    GpuFacts(
        uuid=f"GPU-{minor}",
        minor=minor,
        model="NVIDIA H200",
        memory=150754820096,
        bus=f"0000:{minor:02x}:00.0",
        compute_capability=(9, 0),
        mig=minor == 1,
        mig_devices=(MigDevice("MIG-a", "1g.18gb"),) if minor == 1 else (),
        links=(Link(Peer.SWITCH, None), Link(Peer.GPU, "0000:01:00.0")),
        recovery=RecoveryAction.RESET if minor == 2 else None,
    )
    for minor in range(4)
)
READING = NodeReading(DriverFacts("580", "13.0"), CARDS, (), "one")


def lived() -> NodeRecord:
    """A node with five cards: healthy, in MIG mode, unhealthy by its readings, unhealthy by an error, missing."""
    first = advance(NOTHING_KNOWN, READING, [XidEvent("GPU-3", 79, 5.0, 4)], 10.0, POLICY)
    return advance(first, replace(READING, gpus=CARDS[1:]), (), 11.5, POLICY)


def test_a_record_comes_back_whole() -> None:
    assert decode(encode(lived())) == (lived(), ())


NO_RECORDS = {
    "empty": b"",
    "cut short": encode(lived())[:-20],
    "not text": b"\xff\xfe",
    "another object": b'{"boot": 1, "cards": {}}',
    "a list": b"[]",
    "no cards": b'{"boot": ""}',
    "nested without end": b'{"boot":"","cards":' + b"[" * 100_000,
    "a lone surrogate": b'{"boot":"\\ud800","cards":{}}',
    "too large": b'{"boot":"","cards":{}}' + b" " * 2**21,
}


@pytest.mark.parametrize("data", NO_RECORDS.values(), ids=NO_RECORDS)
def test_what_is_no_record_starts_again_and_says_so(data) -> None:
    record, problems = decode(data)

    assert record == NOTHING_KNOWN
    assert len(problems) == 1
    assert "a new one is started" in problems[0]


def test_a_record_may_have_a_mebibyte_and_no_more() -> None:
    data = encode(lived())

    assert decode(data.ljust(2**20)) == (lived(), ())
    record, problems = decode(data.ljust(2**20 + 1))
    assert record == NOTHING_KNOWN
    assert problems == ("1048577 bytes are no record of a node's cards; a new one is started",)


def test_the_driver_outlives_the_reporter_and_an_older_record_without_it_is_read() -> None:
    raw = json.loads(encode(lived()))
    assert decode(json.dumps(raw).encode())[0].driver == READING.driver

    del raw["driver"]
    assert decode(json.dumps(raw).encode()) == (replace(lived(), driver=None), ())


def test_a_driver_that_makes_no_sense_is_forgotten_and_the_cards_count() -> None:
    raw = json.loads(encode(lived())) | {"driver": {"version": 580}}

    record, problems = decode(json.dumps(raw).encode())

    assert record == replace(lived(), driver=None)
    assert len(problems) == 1
    assert problems[0].startswith("the driver: ")


WRONG: dict[str, tuple[list[str], object]] = {
    "a state that there is not": (["health", "state"], "fine"),
    "a count below zero": (["health", "count"], -1),
    "falls below zero": (["health", "falls"], -1),
    "a remedy that there is not": (["health", "owed"], 9),
    "a time that is text": (["health", "since"], "now"),
    "facts of another card": (["facts", "uuid"], "GPU-other"),
    "no facts": (["facts"], None),
}


@pytest.mark.parametrize(("path", "value"), WRONG.values(), ids=WRONG)
def test_a_card_that_makes_no_sense_is_forgotten_and_named_and_the_others_count(path, value) -> None:
    raw = json.loads(encode(lived()))
    place = raw["cards"]["GPU-2"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value

    record, problems = decode(json.dumps(raw).encode())

    assert record == replace(lived(), cards={k: v for k, v in lived().cards.items() if k != "GPU-2"})
    assert len(problems) == 1
    assert problems[0].startswith("card GPU-2: ")


def test_a_fault_that_this_version_does_not_know_is_dropped() -> None:
    raw = json.loads(encode(lived()))
    for uuid in ("GPU-0", "GPU-1"):
        raw["cards"][uuid]["health"]["standing"] = ["FromAnotherVersion"]
    record, _ = decode(json.dumps(raw).encode())

    after = advance(record, replace(READING, gpus=CARDS[1:]), (), 20.0, POLICY)

    assert [after.cards[f"GPU-{minor}"].health.standing for minor in (0, 1)] == [("GpuLost",), ()]


KEYS = [
    "boot",
    "cards",
    "driver",
    "version",
    "cuda",
    "nvml",
    "GPU-1",
    "facts",
    "health",
    "uuid",
    "minor",
    "state",
    "since",
    "falls",
    "read",
    "standing",
]


@given(json_values() | json_near(KEYS, ["GPU-1", "healthy", 0, 1.5, -1, None, [], {}]))
def test_any_json_is_read_or_refused_and_what_is_read_can_be_lived_with(value) -> None:
    record, _ = decode(json.dumps(value).encode())

    after = advance(record, READING, [XidEvent("GPU-1", 79, 1.0)], 1e6, POLICY)

    assert decode(encode(after)) == (after, ())


@given(st.binary(max_size=64))
def test_any_bytes_are_refused_in_words(data) -> None:
    record, problems = decode(data)

    assert problems or record == NodeRecord(record.boot, {})
