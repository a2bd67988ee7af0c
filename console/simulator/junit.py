"""Checks as JUnit XML, which CI systems read (pure)."""

import re
import xml.etree.ElementTree as ET  # it is written only, never parsed
from collections.abc import Mapping, Sequence
from typing import Final

from console.simulator.expectations import Check

_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST: Final = 10_000  # characters of one failure


def to_junit(suites: Mapping[str, Sequence[Check]]) -> str:
    """Write checks, by the name of their suite, as the text of a JUnit file."""
    every = [check for checks in suites.values() for check in checks]
    root = ET.Element("testsuites", _counts("koordgate simulate", every))
    for name, checks in suites.items():
        suite = ET.SubElement(root, "testsuite", _counts(name, checks))
        for check in checks:
            case = ET.SubElement(suite, "testcase", {"classname": name, "name": _printable(check.name)})
            if not check.passed:
                text = _printable("\n".join(check.problems))[:_LONGEST]
                failure = ET.SubElement(case, "failure", {"message": text.partition("\n")[0]})
                failure.text = text
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(name: str, checks: Sequence[Check]) -> dict[str, str]:
    failures = sum(not check.passed for check in checks)
    return {"name": name, "tests": str(len(checks)), "failures": str(failures), "errors": "0"}


def _printable(text: str) -> str:
    """Replace what XML cannot hold."""
    return _NOT_IN_XML.sub("?", text)
