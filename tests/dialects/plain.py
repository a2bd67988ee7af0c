"""Whole devices of one vendor (koordinator-sh/koordinator at a7a1b76b, pkg/scheduler/plugins/deviceshare/utils.go)."""

from dialects.rows import Row, cards

_SOURCE = "koordinator, pkg/scheduler/plugins/deviceshare/utils.go: ResourceCombinationsMapper"


def rows(name: str, vendor: str, title: str) -> tuple[Row, ...]:
    """The rows of a device plugin's name."""
    one, two = cards(1, vendor), cards(2, vendor)
    return (
        Row("one", ({name: 1},), {"a": one}, source=_SOURCE),
        Row("two", ({name: 2},), {"a": two}, source=_SOURCE),
        Row("eight", ({name: 8},), {"a": cards(8, vendor)}, source=_SOURCE),
        Row("none", ({name: 0},), {}, source=_SOURCE),
        Row("two containers", ({name: 1}, {name: 2}), {"a": one, "b": two}, source=_SOURCE),
        Row("a container without", ({}, {name: 2}), {"b": two}, source=_SOURCE),
        Row("none beside two", ({name: 0}, {name: 2}), {"b": two}, source=_SOURCE),
        Row("an init container", ({name: 1},), {"i": two, "a": one}, init=({name: 2},), source="ours"),
        Row("a sidecar", ({name: 1},), {"s": one, "a": one}, sidecars=({name: 1},), source="ours"),
        Row("beside an RDMA device", ({name: 1, "cpu": 1},), {"a": one}, source=_SOURCE),
        Row("129", ({name: 129},), refused="129 is more devices than any node has", source="ours"),
        Row(
            "beside NVIDIA's", ({name: 1}, {"nvidia.com/gpu": 1}), refused=f"asks for {name} of {title}", source=_SOURCE
        ),
        Row(
            "beside Koordinator's",
            ({name: 1, "koordinator.sh/gpu": 50},),
            refused="in 2 dialects at once",
            source=_SOURCE,
        ),
        Row(
            "beside cores", ({name: 1, "koordinator.sh/gpu-core": 50},), refused="in 2 dialects at once", source=_SOURCE
        ),
    )
