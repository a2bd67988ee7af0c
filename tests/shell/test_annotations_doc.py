"""docs/annotations.md names everything that allocator/names.py declares, and its table of requests is true."""

import re
from pathlib import Path
from typing import Any

import pytest

from allocator import names
from allocator.quantity import format_bytes
from allocator.request import DeviceAsk
from allocator.wire.deviceallocated import read_annotations
from webhook.translate import Policy, canonical, translate

TEXT = (Path(__file__).parents[2] / "docs" / "annotations.md").read_text(encoding="utf-8")
DECLARED = {
    text
    for name, value in vars(names).items()
    if name.isupper()
    for text in ([value] if isinstance(value, str) else value)
}


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    section = TEXT.split(f"\n### {heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def amounts(cell: str, domain: str) -> dict[str, str]:
    """The resources that a cell tells: `gpu: 50`, `nvidia.com/gpu: 1`."""
    found = re.findall(r"`([\w./-]+): ([^`]+)`", cell)
    return {name if "/" in name else f"{domain}/{name}": amount for name, amount in found}


def translated(resources: dict[str, str], domain: str) -> Any:
    pod = {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"limits": resources}}]}}
    return translate(pod, Policy(domain, names.KOORD_SCHEDULER), None)


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_each_declared_name_stands_there(name: str) -> None:
    assert f"`{name}" in TEXT, name


def test_each_device_resource_is_in_the_table_of_names() -> None:
    told = {name for row in rows("Resource names") for name in re.findall(r"`([^`]+)`", row[0])}
    assert told == set(names.DEVICE_RESOURCES)


@pytest.mark.parametrize("domain", names.DOMAINS)
@pytest.mark.parametrize("row", rows("What a request becomes"), ids=lambda row: row[0].replace("`", ""))
def test_each_request_becomes_what_is_told(row: list[str], domain: str) -> None:
    asked, becomes, cards, _ = row
    ask: DeviceAsk | None = translated(amounts(asked, domain), domain).reading.containers[0].request
    assert (ask.count if ask else 0) == int(cards)
    if ask is None:
        return
    wanted = amounts(asked if becomes == "the same" else becomes, domain)
    if domain == names.KUBERNETES_DOMAIN:
        wanted.pop(f"{domain}/{names.GPU_SHARED}", None)
    assert canonical(ask, domain, None) == wanted


@pytest.mark.parametrize(
    "row",
    [row for row in rows("When a Pod is created") if amounts(row[0], "x") and "or only" not in row[0]],
    ids=lambda row: row[0].replace("`", ""),
)
def test_each_refusal_of_a_request_is_told_in_its_words(row: list[str]) -> None:
    asked, message = row[0], row[1].strip("`")
    problems = [
        str(problem) for problem in translated(amounts(asked, names.KUBERNETES_DOMAIN), "kubernetes.io").problems
    ]
    begin, _, end = message.partition("(...)")
    assert any(begin in problem and problem.endswith(end or begin) for problem in problems), problems


def test_the_example_of_device_allocated_is_of_the_format() -> None:
    example = next(line for line in TEXT.splitlines() if line.startswith('{"gpu"'))
    (share,) = read_annotations({names.DEVICE_ALLOCATED: example})
    assert (share.minor, share.amounts[names.GPU_CORE]) == (1, 50)
    assert format_bytes(share.amounts[names.GPU_MEMORY]) == "40Gi"


def test_the_examples_of_rounding_are_right() -> None:
    total = 80 * 2**30
    assert f"33 % is {total * 33 // 100} bytes" in TEXT
    assert -(-8 * 2**30 * 100 // total) == 10
    assert -(-(8 * 2**30 + 1) * 100 // total) == 11
