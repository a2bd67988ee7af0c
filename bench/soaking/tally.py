"""Several runs of the soak, added up."""

import json
from collections import Counter
from pathlib import Path
from typing import Any


def add_up(summary: dict[str, Any], tally: Path | None) -> str:
    """The summary line of a run; with a tally it is appended there, and the sum of all runs follows."""
    line = json.dumps(summary)
    if tally is None:
        return line
    with tally.open("a") as file:
        print(line, file=file)
    runs = [json.loads(each) for each in tally.read_text().splitlines()]
    total: dict[str, Any] = {"runs": len(runs)}
    for key in ("seconds", "binds"):
        total[key] = sum(run[key] for run in runs)
    for key in ("events", "requests", "faults"):
        total[key] = Counter[str]()
        for run in runs:
            total[key].update(run[key])
    return f"{line}\n{json.dumps(total)}"
