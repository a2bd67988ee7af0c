"""The last line of every benchmark: one JSON object, the same keys for all."""

import json


def close(*, name: str, value: float, unit: str, reference: float, goal: float, higher_is_better: bool = True) -> None:
    """Print the closing line.

    Args:
        name: the benchmark's name.
        value: koordgate's figure.
        unit: the unit of value and reference.
        reference: the reference's figure for the same work in the same run, or a fixed limit.
        goal: the bound of value / reference.
        higher_is_better: whether the ratio must reach the goal; otherwise it must not exceed it.
    """
    ratio = value / reference
    met = ratio >= goal if higher_is_better else ratio <= goal
    line = {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "reference": round(reference, 2),
        "ratio": round(ratio, 3),
        "goal": goal,
        "met": met,
    }
    print(json.dumps(line), flush=True)
