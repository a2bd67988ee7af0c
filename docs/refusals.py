"""The lists of the page about troubleshooting: the texts of refusals that do not say what to do, and what to do.

The texts are read from the sources, with `...` for what varies. A text mostly ends in its remedy, and then is not
listed unless remedies.yaml has more to say. All others are in remedies.yaml, with what to do, or with null where the
text is enough, or is a part or the short form of another one.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "operate" / "troubleshooting.md"
REMEDIES: Final = ROOT / "docs" / "remedies.yaml"
# Of each part of the page, the sources of its texts. Files that are named make all their texts; of folders those count
# that are handed to what makes a refusal.
PARTS: Final = {
    "created": (
        "allocator/request/sharing.py",
        "allocator/request/statedamounts.py",
        "allocator/quantity.py",
        "allocator/wire/allocatehint.py",
        "allocator/wire/strict.py",
        "webhook/admission/validate.py",
        "allocator/request",
        "allocator/wire",
        "webhook/admission",
        "webhook/quotas",
    ),
    "node": (
        "allocator/devices/explain.py",
        "allocator/devices/isolation.py",
        "allocator/devices/words.py",
        "allocator/cpu/choose.py",
        "allocator/cpu/kubelet.py",
        "allocator/cpu/words.py",
        "allocator/place.py",
        "allocator/request/quotaamounts.py",
        "allocator/gangreservation.py",
        "webhook/scheduling/ranking.py",
    ),
    "bound": ("allocator/bind.py", "webhook/scheduling/bindings.py"),
    "claim": ("allocator/claimed.py", "webhook/dra"),
}
# What is called with the text of a refusal, and the place of the text among its arguments.
_MAKERS: Final = {"Problem": 1, "Refusal": 0, "denied": 0, "_wrong": 1, "_problem": 1}
_VARIES: Final = "..."
_WORDS: Final = 4  # a text with fewer words is a part of others
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
_SAYS: Final = re.compile(
    r"(?:^|[;:] )(?:or )?"
    r"(?:ask|write|add|use|keep|remove|raise|delete|name|state|leave|give|bind|put|label|create|read it)\b"
    r"|\bmust\b|\bis written as\b|\bthe keys are\b|\bsuch as\b|\bwrite \.\.\."
)


def parts() -> dict[str, str]:
    """Make the tables of the page.

    Raises:
        SystemExit: a text has no remedy, or a remedy no text.
    """
    written: dict[str, str | None] = yaml.safe_load(REMEDIES.read_text(encoding="utf-8"))
    known = {part: texts(part) for part in PARTS}
    every = {text for found in known.values() for text in found}
    lacking = sorted(text for text in every if not remedy(text) and text not in written)
    spare = sorted(set(written) - every)
    if lacking or spare:
        told = [f"{REMEDIES}: no remedy for: {text}" for text in lacking]
        told += [f"{REMEDIES}: nothing refuses so any more, remove: {text}" for text in spare]
        raise SystemExit("\n".join(told))
    return {part: _table(found, written) for part, found in known.items()}


def texts(part: str) -> list[str]:
    """The texts of a part of the page, in order."""
    found: set[str] = set()
    for source in PARTS[part]:
        path = ROOT / source
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            found |= set((_all if path.is_file() else _handed)(ast.parse(file.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda text: (text.strip(". :'").lower(), text))


def remedy(text: str) -> bool:
    """Whether a text itself says what to do."""
    return bool(_SAYS.search(text))


def _table(found: Iterable[str], written: dict[str, str | None]) -> str:
    rows = ["| message | what to do |", "|---|---|"]
    rows += [f"| `{text.replace('|', chr(92) + '|')}` | {told} |" for text in found if (told := written.get(text))]
    return "\n".join(rows) + "\n"


def _kept(text: str) -> bool:
    """Whether a text says something of its own."""
    told = text.replace(_VARIES, " ")
    return len([word for word in told.split() if word.strip("():;,.'-").isalpha()]) >= _WORDS


def _all(tree: ast.Module) -> Iterator[str]:
    """The texts of a module but docstrings and what is raised within; of nested ones the outermost."""
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        and isinstance(node.body[0], ast.Expr)
    }
    documents |= {
        id(after.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef)
        for after in node.body
        if isinstance(after, ast.Expr)
    }
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in documents:
            continue
        made = [*_texts(node, {})] if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) else []
        yield from (" ".join(text.split()) for text in made if _kept(text))
        waiting += [] if made else ast.iter_child_nodes(node)


def _handed(tree: ast.Module) -> Iterator[str]:
    """The texts that a module hands to what makes a refusal."""
    for scope in ast.walk(tree):
        if isinstance(scope, _SCOPES):
            names = {**_assigned(tree), **_assigned(scope)}
            for call in _calls(scope):
                at = _MAKERS.get(getattr(call.func, "id", getattr(call.func, "attr", "")))
                if at is not None and len(call.args) > at:
                    yield from (" ".join(text.split()) for text in _texts(call.args[at], names) if _kept(text))


def _calls(scope: ast.AST) -> Iterator[ast.Call]:
    """The calls in a scope, without those in functions within it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, _SCOPES):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _calls(child)


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """The values that the names of a scope are given."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.setdefault(node.target.id, []).append(node.value)
    return found


def _texts(node: ast.AST, names: dict[str, list[ast.expr]]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else _VARIES for part in values)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, names)
            yield from _texts(orelse, names)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            for before in [*_texts(left, names)] or [_VARIES]:
                yield from (before + after for after in [*_texts(right, names)] or [_VARIES])
        case ast.Name(id=name) if name in names:
            without = {key: value for key, value in names.items() if key != name}
            for value in names[name]:
                yield from _texts(value, without)
