"""Amounts of memory that nobody means: what an author is told, and what is taken as it is written."""

from typing import Any

import pytest
from builders import container, pod_spec
from dialects.rows import types

from allocator.request.devices import read_pod

S = "koordinator.sh/gpu"
H = "nvidia.com/gpu"
OWN, HAMI = types("koordinator"), types("hami")
NO_USE = "of memory of each card, which no program can use; did you mean"

# Amounts in koordgate's own names, or in HAMi's, and what their author is told
TOLD: dict[str, tuple[dict[str, Any], str]] = {
    "64 MiB": ({f"{S}-memory": "64Mi"}, ""),
    "a byte less": ({f"{S}-memory": 67108863}, f"[{S}-memory]: 67108863 is 67108863 bytes {NO_USE} 67108863Ki?"),
    "64 KiB": ({f"{S}-memory": 65536}, f"[{S}-memory]: 65536 is 64Ki {NO_USE} 64Mi?"),
    "a byte less than 64 KiB": ({f"{S}-memory": 65535}, f"[{S}-memory]: 65535 is 65535 bytes {NO_USE} 65535Mi?"),
    "64 bytes": ({f"{S}-memory": 64}, f"[{S}-memory]: 64 is 64 bytes {NO_USE} 64Mi?"),
    "63 bytes": ({f"{S}-memory": 63}, f"[{S}-memory]: 63 is 63 bytes {NO_USE} 63Gi?"),
    "a byte": ({f"{S}-memory": 1}, f"[{S}-memory]: 1 is 1 bytes {NO_USE} 1Gi?"),
    "for two cards": ({f"{S}-memory": 160, f"{S}.shared": 2}, f"[{S}-memory]: 160 is 80 bytes {NO_USE} 160Mi?"),
    "beside compute": ({f"{S}-core": 10, f"{S}-memory": 16}, f"[{S}-memory]: 16 is 16 bytes {NO_USE} 16Gi?"),
    "beside no whole card": ({H: 0, f"{S}-memory": 16}, f"[{S}-memory]: 16 is 16 bytes {NO_USE} 16Gi?"),
    "no memory in bytes": ({f"{S}-core": 1, f"{S}-memory-ratio": 1}, ""),
    "of a type without memory": ({"koordinator.sh/rdma": 9}, ""),
    "one percent": ({S: 1}, f"[{S}]: 1 is 1 percent of a card; a whole card is 100 (or nvidia.com/gpu: 1)"),
    "as many as a node has": (
        {S: "8"},
        f"[{S}]: 8 is 8 percent of a card; 8 whole cards are 800 (or nvidia.com/gpu: 8)",
    ),
    "more than that": ({S: 9}, ""),
    "for two cards each": (
        {S: 2, f"{S}.shared": 2},
        f"[{S}]: 2 is 2 percent of a card; 2 whole cards are 200 (or nvidia.com/gpu: 2)",
    ),
    "one percent of another type": (
        {"koordinator.sh/rdma": 1},
        "[koordinator.sh/rdma]: 1 is 1 percent of a device; a whole device is 100",
    ),
    "a whole card": ({H: 1}, ""),
    "HAMi's 64 MiB": ({f"{H}mem": 64}, ""),
    "HAMi's 63 MiB": ({f"{H}mem": 63}, f"[{H}mem]: 63 is 63Mi {NO_USE} 64512?"),
    "HAMi's 63 MiB of two": ({H: 2, f"{H}mem": 63}, f"[{H}mem]: 63 is 63Mi {NO_USE} 64512?"),
    "HAMi's beside a percentage": ({f"{H}mem-percentage": 50, f"{H}mem": 1}, f"[{H}mem]: 1 is 1Mi {NO_USE} 1024?"),
}


@pytest.mark.parametrize(("limits", "told"), TOLD.values(), ids=TOLD)
def test_less_memory_than_any_program_can_use_is_told_with_what_was_probably_meant(
    limits: dict[str, Any], told: str
) -> None:
    reading = read_pod(pod_spec(container(limits=limits)), types=HAMI if f"{H}mem" in limits else OWN)
    assert reading.problems == ()
    assert reading.warnings == ((f"spec.containers[0].resources.limits{told}",) if told else ())


def test_a_request_that_equals_its_limit_is_told_once() -> None:
    few = {f"{S}-memory": 16}
    (told,) = read_pod(pod_spec(container(requests=few, limits=few), container("b"))).warnings
    assert told.startswith(f"spec.containers[0].resources.requests[{S}-memory]: 16 is 16 bytes")
