"""NVIDIA's plain devices, which are always read (NVIDIA/k8s-device-plugin: whole devices)."""

from dialects.plain import rows
from dialects.rows import Row, cards

PLAIN = tuple(row for row in rows("nvidia.com/gpu", "nvidia", "") if not row.name.startswith("beside NVIDIA"))
ROWS = (
    *PLAIN,
    Row(
        "beside MIG",
        ({"nvidia.com/gpu": 1}, {"nvidia.com/mig-2g.10gb": 1}),
        refused="nvidia.com/mig-2g.10gb counts MIG devices",
        source="ours",
    ),
    Row(
        "beside replicas",
        ({"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 1},),
        refused="replicas of a card, whose size only the node knows",
        source="ours",
    ),
    Row(
        "a type without HAMi",
        ({"nvidia.com/gpu": 1},),
        {"a": cards()},
        warned="[nvidia.com/use-gputype]: has no effect, because the dialect hami (HAMi) is off here",
        annotations={"nvidia.com/use-gputype": "A100"},
        source="ours",
    ),
)
