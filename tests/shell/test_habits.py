import ast
import re
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
TESTS = CHECKOUT / "tests"
CLOCKS = ("asyncio", "time")


def recipe(target: str) -> list[str]:
    """The commands of a Makefile's target, with BIN expanded."""
    makefile = (CHECKOUT / "Makefile").read_text()
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert found
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def test_each_command_of_make_check_is_a_hook_and_each_hook_is_one_of_them() -> None:
    configured = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in configured["repos"] for hook in repository["hooks"]]
    assert [hook["entry"] for hook in hooks] == recipe("check")


def test_hooks_fetch_nothing_and_look_at_the_whole_tree() -> None:
    configured = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())
    for repository in configured["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert (hook["language"], hook["pass_filenames"]) == ("system", False)


def sleeps(text: str) -> list[int]:
    """Lines that let time pass: a sleep of anything but a literal 0, however it was imported."""
    tree = ast.parse(text)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in CLOCKS:
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "sleep"}
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _sleeps(node, names)]


def _sleeps(call: ast.Call, names: set[str]) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr="sleep"):
            named = module in CLOCKS
        case ast.Name(id=name):
            named = name in names
        case _:
            named = False
    match call.args:
        case [ast.Constant(value=0)]:
            return False
        case _:
            return named


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("await asyncio.sleep(0)", [], id="a turn of the event loop"),
        pytest.param("await asyncio.sleep(0.005)", [1], id="some time"),
        pytest.param("asyncio.sleep(delay=1)", [1], id="by keyword"),
        pytest.param("time.sleep(pause)", [1], id="a variable"),
        pytest.param("from time import sleep as nap\nnap(1)", [2], id="under another name"),
        pytest.param("self.sleep(5)\nsleep(5)", [], id="a sleep of one's own"),
    ],
)
def test_sleeps_are_found(text: str, found: list[int]) -> None:
    assert sleeps(text) == found


def test_tests_wait_for_conditions_and_never_for_time() -> None:
    others = [path for path in TESTS.rglob("*.py") if path != TESTS / "waiting.py"]
    assert {str(path.relative_to(TESTS)): found for path in others if (found := sleeps(path.read_text()))} == {}
