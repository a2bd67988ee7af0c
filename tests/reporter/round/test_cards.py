"""The cards as followed: what is known before NVML answers, cards that come back, errors of no card, and metrics."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from nvml_standin import Played

from reporter.cards import Cards
from reporter.gpu.facts import DriverFacts, GpuFacts, Wear
from reporter.gpu.guarded import Patience
from reporter.gpu.health import NOTHING_KNOWN, CardRecord, CardState, GpuHealth, HealthPolicy, NodeRecord
from reporter.metrics import ReporterMetrics

A100 = "GPU-a1000000-0000-4000-8000-00000000000{}"
DRIVER = DriverFacts("580", "13.0", None)
PATIENT = Patience(answer=30.0, first_answer=30.0, first_pause=0.001, longest_pause=0.01, end=30.0, renewal=0.0)


async def at_once(work: Callable[[], str]) -> str:
    return work()


def follow(nvml: Any, metrics: ReporterMetrics | None = None, **more: Any) -> Cards:
    heard = metrics.heard_xid if metrics is not None else lambda _xid, _known: None
    policy = more.pop("policy", HealthPolicy())
    return Cards(nvml, policy, lambda _: "", at_once, heard=heard, **more)


def metric(metrics: ReporterMetrics, name: str, **labels: str) -> float | None:
    found: float | None = metrics._registry.get_sample_value(f"koordgate_reporter_{name}", labels)
    return found


async def test_a_card_that_is_not_listed_any_more_and_comes_back_is_seen(played: Played) -> None:
    played.play("a100x8")
    cards = follow(played.nvml(PATIENT))

    def present() -> int:
        return sum(card.health.present for card in cards.view.node.cards.values())

    await cards.read()
    assert present() == 8
    played.change({"count": "7", "gpu.7.lost": "1"})
    for _ in range(3):
        await cards.read()
        assert (present(), len(cards.view.node.cards)) == (7, 8)

    played.change({"count": "8", "gpu.7.lost": None})
    await cards.read()
    assert present() == 8


# Before NVML answers


async def test_what_is_restored_has_the_driver(played: Played) -> None:
    cards = follow(played.nvml(PATIENT))

    cards.start_from(NodeRecord("boot", {}, DRIVER))

    assert cards.view.driver == DRIVER


async def test_the_view_is_settled_by_a_reading(played: Played) -> None:
    played.play("h200")
    cards = follow(played.nvml(PATIENT))
    cards.start_from(NOTHING_KNOWN)
    assert not cards.settled

    await cards.read()

    assert cards.settled


async def test_the_view_is_settled_by_what_was_kept(played: Played) -> None:
    cards = follow(played.nvml(PATIENT))
    cards.start_from(NodeRecord("boot", {}))

    assert cards.settled


@pytest.mark.parametrize(("seconds", "settled"), [(0.0, True), (1e6, False)])
async def test_the_view_is_settled_by_an_outage_that_lasts(played: Played, seconds, settled) -> None:
    played.play("h200")
    played.change({"error.nvmlInitWithFlags": "9"})
    cards = follow(played.nvml(PATIENT), outage_seconds=seconds)

    await cards.read()

    assert cards.view.outage is not None
    assert cards.settled is settled


def test_the_view_is_settled_where_gpus_are_switched_off() -> None:
    assert follow(None).settled


# Xid errors of no card


@pytest.mark.parametrize("at_a_reading", [True, False], ids=["taken with a reading", "heard at once"])
async def test_a_grave_error_of_no_card_is_counted_logged_and_a_problem_for_a_while(
    played: Played, caplog, at_a_reading
) -> None:
    played.play("a100x8")
    metrics = ReporterMetrics()
    nvml = played.nvml(PATIENT)
    cards = follow(nvml, metrics)
    await cards.read()
    before = cards.view.node.cards
    hearing = None if at_a_reading else asyncio.create_task(cards._hear(nvml))
    with caplog.at_level(logging.WARNING, "reporter.cards"):
        played.happen(-1, 79, times=2)
        played.happen(-1, 31)
        played.happen(2, 13)
        async with asyncio.timeout(30.0):
            while metric(metrics, "xids_total", **{"class": "application", "known": "true"}) != 1:
                if hearing is None:
                    await cards.read()
                await asyncio.sleep(0.005)
    if hearing is not None:
        hearing.cancel()

    assert metric(metrics, "xids_total", **{"class": "fatal", "known": "false"}) == 2
    assert metric(metrics, "xids_total", **{"class": "application", "known": "false"}) == 1
    assert cards.problem.startswith("Xid 79 (GPU has fallen off the bus), 2 times, of no card")
    assert "Xid 31" not in cards.problem
    warnings = [record.getMessage() for record in caplog.records]
    assert "Xid 79 (GPU has fallen off the bus) on no known card (NVML names none)" in warnings
    assert f"Xid 13 on card {A100.format(2)}" in warnings
    assert not [text for text in warnings if "Xid 31" in text]
    assert {uuid: card.health.state for uuid, card in cards.view.node.cards.items()} == dict.fromkeys(
        before, CardState.HEALTHY
    )

    cards._policy = replace(cards._policy, quiet=0.0)
    assert cards.problem == ""


# ReporterMetrics


def test_what_a_card_tells_of_its_memory_is_shown_and_goes_with_it() -> None:
    metrics = ReporterMetrics()
    told = GpuFacts(uuid="GPU-a", minor=0, wear=Wear(corrected=5, uncorrected=0, retired_pages=2, remapped_rows=3))
    silent = GpuFacts(uuid="GPU-b", minor=1)
    worn = CardRecord(told, GpuHealth(CardState.SUSPECT, 5.0, last_error=1234.0), 7.0)
    metrics.show_cards(
        NodeRecord("", {"GPU-a": worn, "GPU-b": CardRecord(silent, GpuHealth(CardState.HEALTHY, 5.0), 7.0)})
    )

    assert metric(metrics, "gpu_ecc_errors", uuid="GPU-a", kind="corrected") == 5
    assert metric(metrics, "gpu_ecc_errors", uuid="GPU-a", kind="uncorrected") == 0
    assert metric(metrics, "gpu_remapped_rows", uuid="GPU-a") == 3
    assert metric(metrics, "gpu_retired_pages", uuid="GPU-a") == 2
    assert metric(metrics, "gpu_last_error_timestamp_seconds", uuid="GPU-a") == 1234
    assert b"GPU-b" not in metrics.exposition()

    metrics.show_cards(NOTHING_KNOWN)
    assert b"GPU-a" not in metrics.exposition()
