"""Sets of CPUs: Python integers in which bit i is CPU i, read and written in Linux' list format.

With one integer, union, intersection and size are single operations. The list format (`0-3,8,10-11`) is that of
`cpuset.cpus`, of the resource-status annotation and of the kubelet's checkpoint (CPU proposal, "Resource status";
Linux, Documentation/admin-guide/cputopology.rst).
"""

import re
from collections.abc import Iterator
from typing import Final

MAX_CPU: Final = 4095  # the largest CPU number taken; Linux builds for at most 8192 CPUs, machines have far fewer
_MAX_TEXT: Final = 32768  # characters; a list of every single CPU to MAX_CPU is shorter
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


class CpusetError(ValueError):
    """A text is not a list of CPUs; the message names the part that is wrong."""


def parse(text: str) -> int:
    """Read a Linux CPU list: numbers and ascending ranges, in any order, possibly overlapping; "" is the empty set.

    Surrounding white space is ignored, because the kernel ends its files with a line feed.
    `text`: as `0-3,8,10-11`. Raises CpusetError: the text is not such a list, or names a CPU above MAX_CPU.
    """
    if len(text) > _MAX_TEXT:
        raise CpusetError(f"a CPU list of {len(text)} characters; {_MAX_TEXT} are read")
    text = text.strip(" \t\r\n")
    if not text:
        return 0
    cpus = 0
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise CpusetError(f"not a CPU or a range of CPUs: {part[:40]!r}")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise CpusetError(f"a range of CPUs that descends: {part!r}")
        if last > MAX_CPU:
            raise CpusetError(f"CPU {last} is above the largest taken, {MAX_CPU}")
        cpus |= (1 << (last + 1)) - (1 << first)
    return cpus


def format_cpuset(cpus: int) -> str:
    """Write a set as the shortest ascending Linux CPU list; the empty set is "".

    Raises ValueError: the integer is negative, which is no set.
    """
    if cpus < 0:
        raise ValueError("a set of CPUs is not negative")
    parts = []
    while cpus:
        first = (cpus & -cpus).bit_length() - 1
        run = cpus >> first
        length = (~run & (run + 1)).bit_length() - 1  # how many ones it ends with
        last = first + length - 1
        parts.append(f"{first}-{last}" if length > 1 else f"{first}")
        cpus &= -1 << (last + 1)
    return ",".join(parts)


def highest(cpus: int, count: int) -> int:
    """Return the `count` highest CPUs of a set; all of them if it has fewer."""
    found = 0
    for _ in range(min(count, cpus.bit_count())):
        top = 1 << (cpus.bit_length() - 1)
        found |= top
        cpus ^= top
    return found


def members(cpus: int) -> Iterator[int]:
    """The CPUs of a set, ascending.

    Raises ValueError: the integer is negative, which is no set.
    """
    if cpus < 0:
        raise ValueError("a set of CPUs is not negative")
    while cpus:
        lowest = cpus & -cpus
        yield lowest.bit_length() - 1
        cpus ^= lowest
