"""Checks as JUnit XML: the whole text, and what it leaves out."""

import xml.etree.ElementTree as ET

import pytest

from console.simulator.expectations import Check, to_junit


def test_every_check_is_a_case_of_its_suite_and_all_are_counted() -> None:
    checks = [Check("a"), Check("b\x00<", ("first", "second\x1f")), Check("c", ("third",))]
    assert to_junit({"one": checks, "none": [], "two": checks[:1]}) == (
        "<?xml version='1.0' encoding='utf-8'?>\n"
        '<testsuites name="koordgate simulate" tests="4" failures="2" errors="0">\n'
        '  <testsuite name="one" tests="3" failures="2" errors="0">\n'
        '    <testcase classname="one" name="a" />\n'
        '    <testcase classname="one" name="b?&lt;">\n'
        '      <failure message="first">first\nsecond?</failure>\n'
        "    </testcase>\n"
        '    <testcase classname="one" name="c">\n'
        '      <failure message="third">third</failure>\n'
        "    </testcase>\n"
        "  </testsuite>\n"
        '  <testsuite name="none" tests="0" failures="0" errors="0" />\n'
        '  <testsuite name="two" tests="1" failures="0" errors="0">\n'
        '    <testcase classname="two" name="a" />\n'
        "  </testsuite>\n"
        "</testsuites>\n"
    )


@pytest.mark.parametrize(("has", "written"), [(9_999, 9_999), (10_000, 10_000), (10_001, 10_000)])
def test_ten_thousand_characters_of_a_failure_are_written(has: int, written: int) -> None:
    failure = ET.fromstring(to_junit({"s": [Check("a", ("x" * has,))]})).find("testsuite/testcase/failure")
    assert failure is not None
    assert len(failure.text or "") == written
