"""What must become of which Pods, compared and written as JUnit XML."""

import re
import xml.etree.ElementTree as ET  # it is written only, never parsed
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from allocator.devices.words import how_many, plural
from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.cputopology import CpusetError, format_cpuset
from allocator.vocabulary.cputopology import parse as parse_cpuset
from allocator.vocabulary.holdings import Share
from console.simulator.account import Account
from console.simulator.cluster import PodFate, Result
from console.simulator.documents import InputError, read_documents
from console.terminal import counted

KIND: Final = "Expectations"
API_VERSION: Final = "koordgate.io/v1alpha1"
_MAX: Final = 100_000
_MAX_NAMED: Final = 3
_WILD: Final = frozenset("*?[")


class State(StrEnum):
    """What may become of a Pod.

    BOUND: to a node, now or before. PENDING: created, and without a node. REFUSED: by admission. NOT_CREATED: it waits
    for another Pod of its StatefulSet.
    """

    BOUND = "bound"
    PENDING = "pending"
    REFUSED = "refused"
    NOT_CREATED = "notCreated"


_STATES: Final = {
    PodFate.STANDING: State.BOUND,
    PodFate.BOUND: State.BOUND,
    PodFate.ADMITTED: State.PENDING,
    PodFate.UNSCHEDULABLE: State.PENDING,
    PodFate.BIND_REFUSED: State.PENDING,
    PodFate.DENIED: State.REFUSED,
    PodFate.NOT_CREATED: State.NOT_CREATED,
}


class Expected(Struct, forbid_unknown_fields=True, rename="camel"):
    """What is expected of one Pod, or of all whose names match.

    Attributes:
        pod: namespace/name, or a name in `default`; `*`, `?` and `[...]` match as in a shell.
        count: how many Pods must match; None for one or more.
        state: of each of them.
        node: a pattern of the names of their nodes.
        devices: type -> number of its devices, or their ids or minors.
        amounts: type -> resource, without its domain -> quantity, in sum over the devices of the type.
        cpus: the CPUs of its own, as a list such as `0-3,8`, or their number.
        refusal: a part of the reason why each of them is not bound.
    """

    pod: Annotated[str, Meta(min_length=1, max_length=512)]
    count: Annotated[int, Meta(ge=0, le=_MAX)] | None = None
    state: State | None = None
    node: str | None = None
    devices: dict[str, Annotated[int, Meta(ge=0)] | list[int | str]] | None = None
    amounts: dict[str, dict[str, int | str]] | None = None
    cpus: Annotated[int, Meta(ge=0)] | str | None = None
    refusal: Annotated[str, Meta(min_length=1)] | None = None

    @property
    def of_holding(self) -> bool:
        """Whether something is expected of what it holds."""
        return self.devices is not None or self.amounts is not None or self.cpus is not None


class Expectations(Struct, forbid_unknown_fields=True, rename="camel"):
    """A file of expectations."""

    kind: str
    api_version: str
    pods: Annotated[list[Expected], Meta(min_length=1, max_length=_MAX)]
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that had to be so."""

    name: str
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it is so."""
        return not self.problems


def read_expectations(path: str) -> list[Expected]:
    """Read files of expectations, one after another.

    Raises:
        InputError: it cannot be read, or is not what docs/operate/explain.md describes.
    """
    found: list[Expected] = []
    for where, document in read_documents(path):
        if document is None:
            continue
        try:
            read = msgspec.convert(document, Expectations)
        except msgspec.ValidationError as error:
            said = str(error).replace("$.", "").replace("`", "")
            raise InputError(f"{where}: {said}; see docs/operate/explain.md for what expectations are") from error
        if (read.kind, read.api_version) != (KIND, API_VERSION):
            raise InputError(
                f"{where}: {read.kind} of {read.api_version} where expectations must be; write kind: {KIND} and "
                f"apiVersion: {API_VERSION}"
            )
        for one in read.pods:
            if one.count == 0 and (one.state or one.node or one.of_holding or one.refusal):
                raise InputError(
                    f"{where}: {one.pod}: with count 0 nothing else can be expected; leave one of both out"
                )
        found += read.pods
    if not found:
        raise InputError(f"{Path(path)}: states no expectation; add one below pods")
    return found


def check_expected(expected: Iterable[Expected], results: Sequence[Result], account: Account) -> list[Check]:
    """Compare what is expected with what has become of the Pods."""
    by_name: dict[str, Result] = {_full_name(result.given or result.pod): result for result in results}
    return [_check(one, by_name, account) for one in expected]


def check_bound(results: Iterable[Result]) -> list[Check]:
    """Demand that every Pod is bound, and none waits or is refused."""
    checks = []
    for result in results:
        state = _STATES[result.state]
        problem = () if state is State.BOUND else (f"is {state.value}: {result.message or 'no reason is known'}",)
        checks.append(Check(f"Pod {_full_name(result.given or result.pod)} is bound", problem))
    return checks


def _check(one: Expected, by_name: Mapping[str, Result], account: Account) -> Check:
    pattern = one.pod if "/" in one.pod else f"default/{one.pod}"
    if _WILD.isdisjoint(pattern):
        matching = [(pattern, by_name[pattern])] if pattern in by_name else []
    else:
        matching = [(name, result) for name, result in by_name.items() if fnmatchcase(name, pattern)]
    problems: list[str] = []
    if one.count is None and not matching:
        near = sorted(name for name in by_name if name.partition("/")[2].startswith(one.pod[:3]))[:_MAX_NAMED]
        problems.append("no Pod has this name" + (f"; there are {', '.join(near)}" if near else ""))
    elif one.count is not None and len(matching) != one.count:
        have = "1 Pod has" if len(matching) == 1 else f"{len(matching)} Pods have"
        problems.append(f"{have} this name, {one.count} expected")
    for name, result in matching:
        problems += (f"{name}: {problem}" for problem in _differs(one, result, account))
    return Check(_told(one), tuple(problems))


def _differs(one: Expected, result: Result, account: Account) -> Iterable[str]:
    state = _STATES[result.state]
    why = f" ({result.message})" if result.message else ""
    if one.state is not None and state is not one.state:
        yield f"is {state.value}, {one.state.value} expected{why}"
    node = result.pod["spec"].get("nodeName") or "" if state is State.BOUND else ""
    if one.node is not None and not fnmatchcase(node, one.node):
        yield f"is on {node or 'no node'}, {one.node} expected{why}"
    if one.refusal is not None and one.refusal not in result.message:
        yield f"{one.refusal!r} expected in the refusal, which is {result.message or 'none'!r}"
    if not one.of_holding:
        return
    unknown = [kind for kind in (*(one.devices or ()), *(one.amounts or ())) if kind not in account.types.by_name]
    if unknown:
        yield f"{unknown[0]!r} is no device type; there are {', '.join(account.types.by_name)}"
        return
    holding, foreign = account.holding(result.pod), account.adopted(result.pod)
    shares: list[Share] = []
    if state is State.BOUND:
        shares += (*(holding.shares if holding else ()), *(foreign.shares if foreign else ()))
    yield from _other_devices(one.devices or {}, shares, account)
    yield from _other_amounts(one.amounts or {}, shares)
    if one.cpus is not None:
        own = holding.cpus.cpus if holding is not None and holding.cpus is not None else 0
        yield from _other_cpus(one.cpus, own if state is State.BOUND else 0)


def _other_cpus(wanted: int | str, has: int) -> Iterable[str]:
    told = f"has the CPUs {format_cpuset(has)} of its own" if has else "has no CPUs of its own"
    if isinstance(wanted, int):
        if has.bit_count() != wanted:
            yield f"{told}, {wanted} expected"
        return
    try:
        same = parse_cpuset(wanted) == has
    except CpusetError as error:
        yield f"cpus: {error}"
    else:
        if not same:
            yield f"{told}, {wanted or 'none'} expected"


def _other_amounts(amounts: Mapping[str, Mapping[str, int | str]], shares: Sequence[Share]) -> Iterable[str]:
    for kind, wanted in amounts.items():
        has: Counter[str] = Counter()
        for share in shares:
            has.update(share.amounts if share.type == kind else {})
        for name, quantity in wanted.items():
            try:
                amount = to_int(quantity)
            except QuantityError as error:
                yield f"amounts: {name}: {error}"
                continue
            if has[name] != amount:
                yield f"holds {has[name]} of {name}, {amount} expected"


def _other_devices(
    devices: Mapping[str, int | list[int | str]], shares: Sequence[Share], account: Account
) -> Iterable[str]:
    for kind, wanted in devices.items():
        known = account.types.by_name[kind]
        has = sorted((share.minor, share.id) for share in shares if share.type == kind)
        if isinstance(wanted, int):
            if len(has) != wanted:
                yield f"holds {how_many(len(has), known)}, {wanted} expected"
            continue
        names = {str(name) for pair in has for name in pair}
        missing = [str(name) for name in wanted if str(name) not in names]
        if missing or len(has) != len(wanted):
            listed = ", ".join(f"{minor} ({identity})" for minor, identity in has) or "none"
            yield f"holds of {plural(known)} {listed}; {', '.join(map(str, wanted))} expected"


def _told(one: Expected) -> str:
    parts = [f"{counted(one.count, 'Pod')} {one.pod}" if one.count is not None else f"Pod {one.pod}"]
    parts += [f"is {one.state.value}"] if one.state is not None else []
    parts += [f"on {one.node}"] if one.node is not None else []
    for kind, wanted in (one.devices or {}).items():
        parts.append(f"with {kind} {wanted if isinstance(wanted, int) else ', '.join(map(str, wanted))}")
    for kind, amounts in (one.amounts or {}).items():
        parts += [f"with {kind} {', '.join(f'{name} {quantity}' for name, quantity in amounts.items())}"]
    parts += [f"with CPUs {one.cpus}"] if one.cpus is not None else []
    parts += [f"because {one.refusal}"] if one.refusal is not None else []
    return " ".join(parts)


def _full_name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"


_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MAX_LENGTH: Final = 10_000  # characters of one failure


def to_junit(suites: Mapping[str, Sequence[Check]]) -> str:
    """Write checks, by the name of their suite, as the text of a JUnit file."""
    every = [check for checks in suites.values() for check in checks]
    root = ET.Element("testsuites", _counts("koordgate simulate", every))
    for name, checks in suites.items():
        suite = ET.SubElement(root, "testsuite", _counts(name, checks))
        for check in checks:
            case = ET.SubElement(suite, "testcase", {"classname": name, "name": _printable(check.name)})
            if not check.passed:
                text = _printable("\n".join(check.problems))[:_MAX_LENGTH]
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
