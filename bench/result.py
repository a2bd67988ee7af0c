"""The last line of every benchmark: one JSON object, the same keys for all."""

import json


def close(
    *,
    name: str,
    value: float,
    unit: str,
    reference: float,
    goal: float,
    higher_is_better: bool = True,
    goal_of_value: bool = False,
) -> None:
    """Print the closing line.

    The reference is the figure for the same work in the same run, or a fixed limit. `goal` bounds value / reference,
    or the value itself with `goal_of_value`.
    """
    ratio = value / reference
    bounded = value if goal_of_value else ratio
    met = bounded >= goal if higher_is_better else bounded <= goal
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
