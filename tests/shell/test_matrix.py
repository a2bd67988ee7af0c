"""`make test-matrix`: what it counts of each version's tests, and when it fails."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controlplane import conftest, features
from matrix.results import Results, table

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.controlplane.test_a" name="test_one"/>
<testcase classname="tests.controlplane.test_a" name="test_two"><failure message="assert 1 == 2"/></testcase>
<testcase classname="tests.controlplane.test_a" name="test_three"><error message="fixture"/></testcase>
<testcase classname="tests.controlplane.test_a" name="test_four"><skipped message="{reason}"/></testcase>
</testsuite></testsuites>"""
LACKS = "needs DeviceTaintRules (Kubernetes 1.36), this is v1.34.4"


def read(tmp_path: Path, text: str) -> Results:
    path = tmp_path / "report.xml"
    path.write_text(text)
    return Results.read("v1.34.4", path)


def test_each_outcome_is_counted_and_failures_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, REPORT.format(reason=LACKS))
    assert (found.passed, found.failed, found.skipped) == (
        1,
        ["tests.controlplane.test_a.test_two", "tests.controlplane.test_a.test_three"],
        {LACKS: 1},
    )
    text = table([found, Results("v1.36.3", broken="pytest ended with status 2")])
    assert "v1.34.4            1       2        1\n" in text
    assert "v1.36.3            0       0        0  pytest ended with status 2\n" in text
    assert f"v1.34.4 skipped 1: {LACKS}\n" in text
    assert "v1.34.4 failed: tests.controlplane.test_a.test_two\n" in text


@pytest.mark.parametrize(
    ("results", "passed"),
    [
        pytest.param(Results("v1.34.4", passed=3), True, id="all passed"),
        pytest.param(Results("v1.34.4"), False, id="nothing ran"),
        pytest.param(Results("v1.34.4", passed=3, failed=["a"]), False, id="one failed"),
        pytest.param(Results("v1.34.4", passed=3, broken="no Go"), False, id="it could not be built"),
    ],
)
def test_a_version_passes_if_tests_ran_and_none_failed(results: Results, *, passed: bool) -> None:
    assert results.passed_all is passed


@pytest.mark.parametrize(("reason", "passed"), [(LACKS, True), ("cannot run here: no helm", False)])
def test_only_a_feature_that_is_lacking_excuses_a_skip(reason: str, *, passed: bool) -> None:
    results = Results("v1.34.4", passed=3)
    results.skipped[reason] += 1
    assert results.passed_all is passed


def item(since: str) -> Any:
    """A test of the folder with control planes that needs a feature of some version."""
    markers = [pytest.mark.kubernetes(since=since, feature="something").mark]
    return SimpleNamespace(
        path=Path(conftest.__file__).parent / "test_x.py",
        nodeid="test_x.py::test_x",
        add_marker=lambda *_args, **_kwargs: None,
        iter_markers=lambda _name: markers,
    )


def test_no_test_may_need_more_than_the_newest_version_has() -> None:
    conftest.pytest_collection_modifyitems([item("1.37")])
    with pytest.raises(pytest.UsageError, match=r"would never run: it needs Kubernetes 1\.38"):
        conftest.pytest_collection_modifyitems([item("1.38")])


@pytest.mark.parametrize(("version", "skipped"), [("v1.34.4", True), ("v1.35.4", False), ("v1.36.3", False)])
def test_a_test_is_skipped_where_the_version_lacks_what_it_needs(version: str, *, skipped: bool) -> None:
    (needed,) = features.needed(item("1.35"))
    assert needed.lacking(version) is skipped
