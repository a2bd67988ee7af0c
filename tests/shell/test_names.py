"""One name, one thing: the rules for names in all four packages."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGES = ("allocator", "koordgate", "reporter", "webhook")
ROOT = Path(__file__).resolve().parents[2]


def test_no_two_modules_define_a_public_class_of_one_name() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for module in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(str(module.relative_to(ROOT)))
    assert len(defined) > 200
    assert {name: where for name, where in defined.items() if len(where) > 1} == {}


def test_no_module_is_longer_than_a_reader_can_keep_in_mind() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > 500} == {}
    assert sorted(lengths.values())[len(lengths) // 2] < 150
