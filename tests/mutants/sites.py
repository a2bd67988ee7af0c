"""The places of an area where code can be mutated, and a seeded sample of mutants with every place equally likely.

cosmic-ray neither samples nor chooses tests by coverage, but it exposes its operators as plugins. They are used here
unchanged. Mutants that say nothing about the tests are left out: decorators and their keywords (`slots`, `cache` change
no answer), `frozen` of a class (it forbids what nobody does), annotations, `strict` of `zip` (it asserts what holds
anyway), durations that a constant or a field states (a second more is as right), keywords of fields that follow from
others (`repr`, `compare`), and replacements that raise a TypeError on whatever the line has (`is` by `<`, `|` of two
sets by `+`).
"""

import ast
import itertools
import random
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

AREAS: Final = {
    "allocator": ("allocator",),
    "ledger": ("webhook/ledger", "koordgate"),
    "webhook": ("webhook",),
    "reporter": ("reporter",),
}
"""The folders of each area; a file belongs to the first area that names its folder."""

_APART: Final = (
    "localplane",
    "localplane/democluster.py",
)  # need a real API server: no unit test runs them

_GOALS: Final = {"allocator": 95, "ledger": 95, "webhook": 95, "reporter": 90}

# Replacements stay inside a family, so that operands of the same types are still accepted.
_FAMILIES: Final = [
    {"Add", "Sub", "Mul", "FloorDiv", "Mod"},
    {"BitOr", "BitAnd", "BitXor", "Sub"},
    {"LShift", "RShift"},
    {"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"},
    {"Is", "IsNot"},
]

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file. `line` counts from 1; `was` and `becomes` are the changed lines, stripped."""

    path: str
    line: int
    operator: str
    source: str
    was: str
    becomes: str


def goal(area: str) -> int:
    """How many of 100 mutants the tests of `area` must at least kill."""
    return _GOALS[area]


def files(root: Path, area: str) -> list[Path]:
    """The Python files of `area` below `root`, in a stable order."""
    return [path for path in sorted(_below(root, area)) if _area(path.relative_to(root)) == area]


def sample(root: Path, area: str, seed: int, only: Container[str] | None = None) -> Iterator[Mutant]:
    """All mutants of `area`, or `only` of these of its files, one per place, in the order drawn by `seed`."""
    chance = random.Random(f"{seed}/{area}")
    judged = [path for path in files(root, area) if only is None or str(path.relative_to(root)) in only]
    places = [(path, place) for path in judged for place in sorted(_places(path.read_text()))]
    chance.shuffle(places)
    for path, place in places:
        text = path.read_text()
        operator, occurrence = chance.choice(_places(text)[place])
        mutated = _mutated(text, operator, occurrence)
        if mutated is None or mutated == text or not _compiles(mutated):
            continue
        was, becomes = _changed(text, mutated)
        yield Mutant(str(path.relative_to(root)), place[0], operator.removeprefix("core/"), mutated, was, becomes)


def _below(root: Path, area: str) -> Iterator[Path]:
    return itertools.chain.from_iterable((root / folder).rglob("*.py") for folder in AREAS[area])


def _area(path: Path) -> str | None:
    if any(path.is_relative_to(apart) for apart in _APART):
        return None
    return next(
        (area for area, folders in AREAS.items() if any(path.is_relative_to(folder) for folder in folders)), None
    )


@cache
def _places(text: str) -> dict[Position, list[tuple[str, int]]]:
    """For each place that can be mutated, the operators for it, each with its occurrence in the file."""
    nodes = list(ast_nodes(get_ast(text)))
    silent = _silent(text)
    found: dict[Position, list[tuple[str, int]]] = defaultdict(list)
    for name in _operators():
        operator = get_operator(name)()
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            if not any(begin <= start < end for begin, end in silent):
                found[start].append((name, occurrence))
    return dict(found)


@cache
def _operators() -> list[str]:
    """Operators without arguments (those with arguments use unseeded chance) that stay inside a family."""
    return [
        name
        for name in operator_names()
        if not get_operator(name).arguments() and name != "core/RemoveDecorator" and _in_family(name)
    ]


def _in_family(name: str) -> bool:
    kind, _, pair = name.rpartition("Operator_")
    if not kind or "Unary" in kind:
        return True
    return any(set(pair.split("_")) <= family for family in _FAMILIES)


def _silent(text: str) -> list[tuple[Position, Position]]:
    """Where a mutant says nothing about the tests: see the module's docstring; and imports for types only."""
    spans: list[ast.AST | None] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                spans += [node.returns, *node.decorator_list]
            case ast.Module():
                spans += _durations(node.body)
            case ast.ClassDef():
                spans += [*node.decorator_list, *_durations(node.body)]
                spans += [keyword for keyword in node.keywords if keyword.arg == "frozen"]
            case ast.arg() | ast.AnnAssign():
                spans.append(node.annotation)
            case ast.Call(func=ast.Name(id="zip"), keywords=keywords):
                spans += [keyword for keyword in keywords if keyword.arg == "strict"]
            case ast.Call(func=ast.Name(id="field"), keywords=keywords) if _derived(keywords):
                spans += keywords
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                spans.append(node)
            case _:
                pass
    # Columns of ast count bytes, cosmic-ray's count characters. If these differ, the span is slightly too long.
    return [((span.lineno, span.col_offset), (span.end_lineno, span.end_col_offset)) for span in spans if span]


def _durations(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """The values of constants and fields that are one number with a decimal point, and not 0: these are seconds.

    Settings have a type of their own. Their defaults are documented and compared with the documents.
    """
    for statement in body:
        match statement:
            case ast.AnnAssign(
                annotation=ast.Name(id="float" | "Final"), value=ast.Constant(value=float() as seconds) as value
            ) if seconds:
                yield value
            case _:
                pass


def _derived(keywords: list[ast.keyword]) -> bool:
    """Whether a field is not given but follows from others: then it is as equal as they are."""
    return any(
        each.arg == "init" and isinstance(each.value, ast.Constant) and not each.value.value for each in keywords
    )


def _mutated(text: str, operator: str, occurrence: int) -> str | None:
    try:
        return mutate_code(text, get_operator(operator)(), occurrence)
    except AttributeError:  # cosmic-ray cannot replace an exception with a dotted name
        return None


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _changed(before: str, after: str) -> tuple[str, str]:
    pairs = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
    was, becomes = next((was, becomes) for was, becomes in pairs if was != becomes)
    return was.strip(), becomes.strip()
