"""docs/use/shares.md: its figures are what containers get, and its examples are right."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from sharings import CARD, cards, groups, held, parts, quotas, read, serves, sharing, uses

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import DEVICE_QUOTAS, DEVICE_SHARING
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.podallocated import read_quotas
from allocator.wire.podannotations import read_sharing

TEXT = (Path(__file__).parents[2] / "docs" / "use" / "shares.md").read_text(encoding="utf-8")
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")


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
    (said,) = re.findall(
        r"```json\n(.*?)\n```",
        PAGE.split(f"### `{DEVICE_SHARING}`")[1].split("### `koordgate.io/device-order`")[0],
        re.DOTALL,
    )
    (quota,) = read_quotas({DEVICE_QUOTAS: told}, BUILT_IN)["loader"]
    assert quota.amounts == {"gpu-core": 12, "gpu-memory": 10 * 2**30, "gpu-memory-ratio": 12}
    assert isinstance(read_sharing({DEVICE_SHARING: said}, BUILT_IN.by_name), dict)
    assert json.loads(said)["gpu"]["slot"] == 50
