"""docs/shares.md: its messages are those of admission, and its figures are what containers get."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from builders import container
from npus import TYPES
from sharings import CARD, Raw, cards, groups, held, parts, quotas, read, serves, sharing, uses

from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import DEVICE_QUOTAS, DEVICE_SHARING
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.devicequotas import read_quotas
from allocator.wire.devicesharing import read_sharing
from webhook.admission.translate import TranslationPolicy, translate

TEXT = (Path(__file__).parents[2] / "docs" / "shares.md").read_text(encoding="utf-8")
PAGE = (Path(__file__).parents[2] / "docs" / "annotations.md").read_text(encoding="utf-8")
KOORDINATOR = TranslationPolicy("koordinator.sh", "koord-scheduler", split=True)


REFUSED: dict[str, Raw] = {
    "amounts in some containers, and users": sharing(uses("a", 50), uses("b"), users=["b"], slot=50),
    "users without a slot, and no default": sharing(uses("a"), users=["a"]),
    "`slot` without users": sharing(uses("a", 50), slot=50),
    "`weights` of a container that is no user": sharing(uses("a", 50), weights={"a": 2}),
    "a container that the Pod does not have": sharing(uses("a"), users=["x"], slot=50),
    "a group with a container that uses none": sharing(uses("a", 50), uses("x"), groups={"g": ["a", "x"]}),
    "a container in two groups": sharing(uses("a", 50), groups={"g": ["a"], "h": ["a"]}),
    "`gpu: 60` twice in one group": sharing(uses("a", 60), uses("b", 60)),
    "bytes in one container, percent in another": sharing(uses("a", memory="8Gi"), uses("b", ratio=10)),
    "`gpu.shared: 2` in a group of several": sharing(uses("a", 50, shared=2), uses("b", 10)),
    "users of a type that is not given in percent": sharing(uses("a"), types={"npu": {"users": ["a"], "slot": 50}}),
    "`allocateStrategy` of the same type": sharing(
        uses("a", 50), annotations={DEVICE_ALLOCATE_HINT: '{"gpu":{"allocateStrategy":"ApplyForAll"}}'}
    ),
    "a group of several, where Koordinator's own scheduler is used": sharing(
        *(container(name, limits={"koordinator.sh/gpu": "20"}) for name in "ab")
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_each_refusal_is_reported_in_its_words(what: str) -> None:
    (told,) = re.findall(rf"^\| {re.escape(what)} \| `(.+)` \|$", TEXT, re.MULTILINE)
    own = "Koordinator" in what
    reading = read_asks(REFUSED[what], TYPES, implied=False)
    problems = translate(REFUSED[what], KOORDINATOR, None).problems if own else reading.problems
    assert told.replace("type queue", "type npu").removesuffix("...") in "; ".join(one.message for one in problems)


def test_every_refusal_of_the_page_is_tried() -> None:
    table = TEXT.split("## What is refused")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| `", table, re.MULTILINE)
    assert set(rows) == set(REFUSED)


FIGURES = {
    "apps `gpu: 60` and `gpu: 20`": (sharing(uses("a", 60), uses("b", 20)), 80, ["3/4", "1/4"]),
    "init container `gpu: 30`, apps `gpu: 60` and `gpu: 20`": (
        sharing(uses("a", 60), uses("b", 20), init=[uses("i", 30)]),
        80,
        ["1", "3/4", "1/4"],
    ),
    "sidecar `gpu: 10`, init container `gpu: 70`, app `gpu: 60`": (
        sharing(uses("a", 60), init=[serves("s", 10), uses("i", 70)]),
        80,
        ["1/8", "7/8", "3/4"],
    ),
    "apps `gpu: 100` and `gpu: 100`": (sharing(uses("a", 100), uses("b", 100)), 200, ["1/2", "1/2"]),
    "apps `gpu: 60` and `gpu: 20`, `exclusivePolicy: DeviceLevel`": (
        sharing(
            uses("a", 60),
            uses("b", 20),
            annotations={DEVICE_ALLOCATE_HINT: '{"gpu":{"exclusivePolicy":"DeviceLevel"}}'},
        ),
        100,
        ["3/4", "1/4"],
    ),
    "three apps": (sharing(*map(uses, "abc"), users=list("abc"), slot=50), 50, ["1/3", "1/3", "1/3"]),
    "an init container and two apps": (
        sharing(*map(uses, "ab"), init=[uses("i")], users=["i", "a", "b"], slot=50),
        50,
        ["1", "1/2", "1/2"],
    ),
    "a sidecar, an init container after it, two apps": (
        sharing(*map(uses, "ab"), init=[serves("s"), uses("i")], users=["s", "i", "a", "b"], slot=50),
        50,
        ["1/3", "2/3", "1/3", "1/3"],
    ),
}


@pytest.mark.parametrize("what", FIGURES)
def test_each_figure_is_what_the_containers_get(what: str) -> None:
    obj, percent, wanted = FIGURES[what]
    assert f"| {what} |" in TEXT
    assert sum(share.amounts["gpu-core"] for share in held(obj)) == percent
    assert list(parts(read(obj).groups).values()) == [Fraction(one) for one in wanted]


def test_the_example_is_right() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)\n```", TEXT, re.DOTALL)
    obj = yaml.safe_load(example)
    assert groups(obj) == {("trainer", "loader"): 50}
    assert quotas(obj, "gpu-memory", cards(1, CARD)) == {"trainer": [30 * 2**30], "loader": [10 * 2**30]}
    assert quotas(obj, "gpu-core") == {"trainer": [38], "loader": [12]}


def test_the_examples_of_the_annotations_are_of_their_formats() -> None:
    (told,) = re.findall(r"```json\n(.*?)\n```", TEXT, re.DOTALL)
    examples = re.findall(
        r"```json\n(.*?)\n```",
        PAGE.split(f"### `{DEVICE_SHARING}`")[1].split("### `koordgate.io/device-order`")[0],
        re.DOTALL,
    )
    said, quoted = examples
    for text in (told, quoted):
        (quota,) = read_quotas({DEVICE_QUOTAS: text}, BUILT_IN)["loader"]
        assert quota.amounts == {"gpu-core": 12, "gpu-memory": 10 * 2**30, "gpu-memory-ratio": 12}
    assert isinstance(read_sharing({DEVICE_SHARING: said}, BUILT_IN.by_name), dict)
    assert json.loads(said)["gpu"]["slot"] == 50
