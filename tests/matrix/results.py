"""What the tests said on each version, as a table."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from xml.etree import ElementTree as ET

_DECLARED = "needs "  # how the skip of a declared feature begins; see controlplane/conftest.py


@dataclass
class Results:
    """The results on one version of Kubernetes.

    Attributes:
        version: Such as v1.36.3.
        passed: The number of tests that passed.
        failed: The names of those that did not.
        skipped: Reason to number.
        broken: Why the tests could not run; empty if they did.
    """

    version: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    broken: str = ""

    @classmethod
    def read(cls, version: str, report: Path) -> Self:
        """Read a report of pytest's --junitxml, which pytest wrote just before."""
        found = cls(version)
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                found.failed.append(name)
            elif (skipped := case.find("skipped")) is not None:
                found.skipped[skipped.get("message", "")] += 1
            else:
                found.passed += 1
        return found

    @property
    def undeclared(self) -> list[str]:
        """Reasons of skips that are no feature that the version lacks: such a test should have run."""
        return [reason for reason in self.skipped if not reason.startswith(_DECLARED)]

    @property
    def passed_all(self) -> bool:
        """Whether tests ran, none failed, and none was skipped but for a feature that this version lacks."""
        return self.passed > 0 and not (self.failed or self.undeclared or self.broken)


def table(results: list[Results]) -> str:
    """The table, and below it each failed test and each reason for skips."""
    lines = [f"\n{'Kubernetes':<12}{'passed':>8}{'failed':>8}{'skipped':>9}\n"]
    for result in results:
        counts = (result.passed, len(result.failed), result.skipped.total())
        lines.append(f"{result.version:<12}{counts[0]:>8}{counts[1]:>8}{counts[2]:>9}  {result.broken}".rstrip() + "\n")
    for result in results:
        lines += [f"{result.version} failed: {name}\n" for name in result.failed]
        lines += [f"{result.version} skipped {count}: {reason}\n" for reason, count in sorted(result.skipped.items())]
    return "".join(lines)
