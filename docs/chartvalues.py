"""The table of the chart's values in its README, from values.yaml and the comments there."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parents[1] / "charts" / "koordgate"
_KEY: Final = re.compile(r"( *)([A-Za-z][\w-]*):(?: |$)")
_COMMENT: Final = re.compile(r" *# (\S.*)")  # two spaces after the mark: an example in YAML, which is passed over
_PAGE: Final = re.compile(r"\bdocs/([a-z]+/)([a-z-]+\.md)\b")


@dataclass
class Key:
    """A key of values.yaml.

    Attributes:
        path: Its keys from the root.
        comment: The comment above it, as one line; empty if there is none.
        below: The keys in it that stand on lines of their own.
    """

    path: tuple[str, ...]
    comment: str
    below: list["Key"] = field(default_factory=list)

    @property
    def described(self) -> bool:
        """Whether a key in it has a comment: those keys get rows of their own."""
        return any(key.comment or key.described for key in self.below)


def read(text: str) -> list[Key]:
    """The keys of values.yaml with their comments, in their order."""
    root = Key((), "")
    above: list[tuple[int, Key]] = [(-1, root)]
    comment: list[str] = []
    for line in text.splitlines():
        if found := _COMMENT.fullmatch(line):
            comment.append(found[1])
        elif key := _KEY.match(line):
            while above[-1][0] >= len(key[1]):
                above.pop()
            parent = above[-1][1]
            made = Key((*parent.path, key[2]), " ".join(comment))
            parent.below.append(made)
            above.append((len(key[1]), made))
            comment = []
        elif not line.lstrip().startswith("#"):
            comment = []  # an empty line: what stands above it is about no key
    return root.below


def rows(keys: list[Key], values: Mapping[str, Any], inherited: str = "") -> Iterator[tuple[list[Key], str]]:
    """The rows: keys that share a comment, and the comment. A key without one belongs to the row before it."""
    row: list[Key] = []
    comment = inherited
    for key in keys:
        if key.described:
            if row:
                yield row, comment
            row, comment = [], ""
            first = key.below[0]
            passed = key.comment if not first.comment and not first.described else ""
            if key.comment and not passed:
                yield [Key(key.path, "", key.below)], key.comment
            yield from rows(key.below, values, passed)
        elif key.comment or not (row or comment):
            if row:
                yield row, comment
            row, comment = [key], key.comment
        else:
            row.append(key)
    if row:
        yield row, comment


def table(text: str) -> str:
    """The table, in Markdown.

    Args:
        text: Of values.yaml.

    Raises:
        ValueError: A value has no comment.
    """
    values = yaml.safe_load(text)
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for keys, comment in rows(read(text), values):
        names = ", ".join(f"`{'.'.join(key.path)}`" for key in keys)
        if not comment:
            raise ValueError(f"charts/koordgate/values.yaml: {names} has no comment above it")
        defaults = ", ".join(f"`{_default(values, key.path)}`" for key in keys if not key.described)
        meaning = _PAGE.sub(r"[\2](../../docs/\1\2)", comment).replace("|", "\\|")
        lines.append(f"| {names} | {defaults} | {meaning} |")
    return "\n".join(lines)


def _default(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value: Any = values
    for key in path:
        value = value[key]
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def readme(text: str) -> str:
    """The README with the table as it must be."""
    head, mark, rest = text.partition("\n## Values\n")
    _, following, tail = rest.partition("\n## ")
    made = table((FOLDER / "values.yaml").read_text())
    said = "`make generate` writes this table from the comments of `values.yaml`, which also has examples."
    return f"{head}{mark}\n{said}\n\n{made}\n{following}{tail}"
