"""The kept corpus: inputs as JSON files, a folder for each target, named by what each shows."""

import json
import re
from pathlib import Path
from typing import Any, Final

CORPUS: Final = Path(__file__).parent / "corpus"
Case = Any
"""An input: a JSON value, whose form is the target's."""


def load(target: str, corpus: Path = CORPUS) -> dict[str, Case]:
    """The kept inputs of a target by name, in the order of their names."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((corpus / target).glob("*.json"))}


def save(target: str, name: str, case: Case, corpus: Path = CORPUS) -> Path:
    """Keep an input; its file is named by `name`, reduced to letters, digits and hyphens."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "case"
    path = corpus / target / f"{stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(case, indent=1) + "\n")
    return path
