"""The end of `koordgate demo`: what was shown, the verdict, and where to look next."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from console.data import data_folder
from console.simulator import report
from console.simulator.account import Account
from console.simulator.cluster import Result
from console.terminal import counted

_PROGRAM: Final = "koordgate"
_PAGES: Final = ("first-hour.md", "concepts.md", "install.md")


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What the demo has shown.

    Attributes:
        results: the outcome for each Pod.
        account: who holds what.
        overgiven: devices and CPUs that are given twice, in words; empty as it should be.
        guarded: whether the Binding by another user was refused.
        foreign: what became of that Binding, in words.
        means: on what it ran, in words.
    """

    results: Sequence[Result]
    account: Account
    overgiven: Sequence[str]
    guarded: bool
    foreign: str
    means: str

    @property
    def right(self) -> bool:
        """Whether everything was as it must be."""
        return self.guarded and not self.overgiven


def parts(shown: DemoOutcome) -> list[Table | Text | str]:
    """Make the sums, the verdict, and the next steps."""
    pods = counted(len(shown.results), "Pod")
    twice = "; ".join(shown.overgiven) or "no device and no CPU"
    sums = _grid(
        (pods, report.fates(shown.results), ""),
        ("in use", report.in_use(shown.account).removesuffix(" in use"), ""),
        ("it ran on", shown.means, ""),
        ("given twice", twice, "red" if shown.overgiven else "green"),
        ("foreign Binding", shown.foreign, "green" if shown.guarded else "red"),
    )
    verdict = ("passed", "bold green") if shown.right else ("FAILED: see the red lines above", "bold red")
    return [
        Text("What was shown", "bold"),
        sums,
        "",
        Text.assemble(("demo: ", "bold"), verdict),
        "",
        Text("Where to look next", "bold"),
        *_next(),
        *_path(),
    ]


def _next() -> Iterator[Text | str]:
    for title, *lines in steps():
        yield f"  {title}"
        yield from map(_command, lines)


def steps() -> list[tuple[str, ...]]:
    """Name the next steps: each a title, and lines with commands that work in this folder or files that exist."""
    examples = data_folder("examples")
    program = called()
    found: list[tuple[str, ...]] = [
        (
            "Objects as yours, on a cluster as yours:",
            f"{program} simulate \\",
            f"  -f {_near(examples / 'simulate/cluster.yaml')} {_near(examples / 'simulate/app.yaml')}",
        ),
        ("Recipes to copy:", _near(examples / "recipes/README.md")),
    ]
    pages = [path for page in _PAGES if (path := examples.parent / "docs" / page).exists()]
    if pages:
        found.append(("To read:", *map(_near, pages)))
    return [*found, ("All commands:", f"{program} --help")]


def called() -> str:
    """How this program is called from this folder."""
    beside = Path(sys.executable).parent / _PROGRAM
    on_path = shutil.which(_PROGRAM)
    if on_path is not None and beside.exists() and Path(on_path).samefile(beside):
        return _PROGRAM
    return _near(beside) if beside.exists() else f"{_near(Path(sys.executable))} -m {_PROGRAM}"


def _path() -> list[Text | str]:
    """How to call it by its name alone, where that does not work yet."""
    if not called().endswith(f"{os.sep}{_PROGRAM}"):
        return []
    folder = Path(sys.executable).parent
    return [f"  To type `{_PROGRAM}` alone:", _command(f'export PATH={shlex.quote(str(folder))}:"$PATH"')]


def _command(line: str) -> Text:
    """A line that is never wrapped: it can be copied."""
    return Text(f"    {line}", "cyan", no_wrap=True)


def _near(path: Path) -> str:
    """A path as it is shortest to type: from this folder if it is in it."""
    with_links = Path(os.path.normpath(path))
    here = Path.cwd()
    return shlex.quote(str(with_links.relative_to(here) if with_links.is_relative_to(here) else with_links))


def _grid(*rows: tuple[str, str, str]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text, style in rows:
        grid.add_row(f"  {name}", Text(text, style))
    return grid
