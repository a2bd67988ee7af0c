"""Policies of the cluster that name resources which Pods no longer state once they are translated.

Such a policy stops applying without a word: it is evaluated after translation, and finds no such name. What is searched
is its text, so that whatever language it is written in, a rule about a name has the name in it. The kinds are those of
Kubernetes, Kyverno and Gatekeeper, where they are served.
"""

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.names import ORIGINAL_REQUEST
from console.reading import listed
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, NotFound
from koordgate.kube.resource import ADMISSION_POLICIES, Resource

Raw = Mapping[str, Any]
PAGE: Final = "docs/install/migrate.md, Policies of your own"
_KUBERNETES: Final = ADMISSION_POLICIES.group
_KYVERNO: Final = "kyverno.io"
_KYVERNO_CEL: Final = "policies.kyverno.io"
_TEMPLATES: Final = "templates.gatekeeper.sh"
_CONSTRAINTS: Final = "constraints.gatekeeper.sh"
_MUTATORS: Final = "mutations.gatekeeper.sh"
READ: Final[Mapping[str, Callable[[str], bool]]] = {
    _KUBERNETES: lambda plural: plural in {ADMISSION_POLICIES.plural, "mutatingadmissionpolicies"},
    _KYVERNO: lambda plural: plural in {"clusterpolicies", "policies"},
    _KYVERNO_CEL: lambda plural: plural.endswith(("validatingpolicies", "mutatingpolicies")),
    _TEMPLATES: lambda plural: plural == "constrainttemplates",
    _CONSTRAINTS: lambda _plural: True,
    _MUTATORS: lambda _plural: True,
}
"""API group -> which of its resources, by their plural names, are policies."""
_PART_OF: Final = "app.kubernetes.io/part-of"
_MAX: Final = 5_000  # policies of one kind
_MAX_KINDS: Final = 200  # of an API group
_MAX_VERSIONS: Final = 16
_MAX_TEXT: Final = 2**20  # characters of one policy; what etcd stores is not much longer
_DEEPEST: Final = 64


@dataclass(frozen=True, slots=True)
class OutdatedPolicy:
    """A policy that no longer applies to Pods."""

    kind: str
    name: str  # of the object; namespace/name if it is namespaced
    names: tuple[str, ...]  # the resources that it names, and that translation removes


@dataclass(frozen=True, slots=True)
class PolicyFindings:
    """What was found among all policies."""

    outdated: tuple[OutdatedPolicy, ...] = ()  # by kind and name
    searched: int = 0  # how many were searched
    problems: tuple[str, ...] = ()  # what could not be read, or not wholly, a sentence each


def removed(types: DeviceTypes, domain: str) -> dict[str, tuple[str, ...]]:
    """The resource names that translation removes -> those that a Pod states then.

    `types`: that may be asked for; also those that only some namespaces may ask for.
    """
    tables = (types, *types.scoped.values())
    meanings = {name: meaning for table in tables for name, meaning in table.resources.items()}
    after = {kind.name: _written(kind, domain) for kind in types.types}
    return {name: after[one.type.name] for name, one in meanings.items() if name not in after[one.type.name]}


def _written(kind: DeviceType, domain: str) -> tuple[str, ...]:
    templates = tuple(kind.template_resource(one.name) for one in kind.templates)
    return (*(kind.resource_name(domain, tail) for tail in kind.tails), *templates)


def outdated(policies: Iterable[Raw], types: DeviceTypes, domain: str) -> PolicyFindings:
    """Search policies.

    `policies`: with their apiVersion and kind; other objects are passed over.
    """
    policies = [one for one in policies if group_of(one) in READ]
    gone = removed(types, domain)
    pattern = _pattern(gone)
    kept = {text for names in gone.values() for text in names} | {ORIGINAL_REQUEST}
    constrained = {one.get("kind") for one in policies if group_of(one) == _CONSTRAINTS and _constrains_pods(one)}
    found, problems, searched = [], [], 0
    for policy in policies:
        metadata = policy.get("metadata") or {}
        if (metadata.get("labels") or {}).get(_PART_OF) == "koordgate":
            continue
        searched += 1
        kind, name = str(policy.get("kind")), "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
        text, whole = _text(_about_pods(policy, constrained))
        if not whole:
            problems.append(f"{kind} {name} is too long, and was not searched as a whole")
        named = {one.replace("~1", "/") for one in pattern.findall(text)}
        if named and not any(one in text.replace("~1", "/") for one in kept):
            found.append(OutdatedPolicy(kind, name, tuple(sorted(named))))
    return PolicyFindings(tuple(sorted(found, key=lambda one: (one.kind, one.name))), searched, tuple(problems))


def group_of(policy: Raw) -> str:
    """The API group of an object."""
    return str(policy.get("apiVersion", "")).partition("/")[0]


def _pattern(gone: Mapping[str, Collection[str]]) -> re.Pattern[str]:
    """Find a name that is no part of a longer one, or the beginning of all names of a domain that is removed.

    In a JSON Pointer a slash is ~1.
    """
    kept = {_domain(name) for names in gone.values() for name in names}
    names = (rf"{re.escape(name)}(?![\w-]|[./]\w)" for name in sorted(gone, key=len, reverse=True))
    domains = (rf"{re.escape(one)}/(?![\w.-])" for one in sorted({*map(_domain, gone)} - kept))
    plain = "|".join((*names, *domains))
    pointed = "|".join(rf"{re.escape(name)}(?![\w-]|[./]\w)".replace("/", "~1", 1) for name in gone)
    return re.compile(rf"(?<![\w./-])(?:{plain})|(?<![\w.-])(?:{pointed})")


def _domain(name: str) -> str:
    return name.partition("/")[0]


def _about_pods(policy: Raw, constrained: set[Any]) -> object:
    """The part of a policy that is about Pods; None if there is none."""
    spec = policy.get("spec")
    if not isinstance(spec, dict):
        return None
    group = group_of(policy)
    if group == _KYVERNO:
        return [rule for rule in _list(spec.get("rules")) if _matches_pods(rule)]
    if group == _TEMPLATES:
        kind = (((spec.get("crd") or {}).get("spec") or {}).get("names") or {}).get("kind")
        return spec if kind in constrained else None
    if group == _CONSTRAINTS or (group == _MUTATORS and "applyTo" not in spec):
        return spec if _constrains_pods(policy) else None
    if group == _MUTATORS:
        return spec if any("Pod" in _list(one.get("kinds")) for one in _maps(_list(spec["applyTo"]))) else None
    constraints = spec.get("matchConstraints")
    rules = _list(constraints.get("resourceRules")) if isinstance(constraints, dict) else []
    about = any(not {"pods", "*", "*/*"}.isdisjoint(map(str, _list(rule.get("resources")))) for rule in _maps(rules))
    return spec if about else None


def _matches_pods(rule: object) -> bool:
    """Whether a rule of Kyverno's matches Pods; it may say it in three places."""
    match = rule.get("match") if isinstance(rule, dict) else None
    if not isinstance(match, dict):
        return False
    filters = [match, *_maps(_list(match.get("any"))), *_maps(_list(match.get("all")))]
    kinds = (
        kind for one in filters for kind in _list((one.get("resources") or {}).get("kinds")) if isinstance(kind, str)
    )
    return any(not {"Pod", "*"}.isdisjoint(kind.split("/")) for kind in kinds)


def _constrains_pods(constraint: Raw) -> bool:
    """Whether a constraint of Gatekeeper's is about Pods; one that names no kind is about all."""
    spec = constraint.get("spec")
    match = spec.get("match") if isinstance(spec, dict) else None
    kinds = _list(match.get("kinds")) if isinstance(match, dict) else []
    return not kinds or any(not {"Pod", "*"}.isdisjoint(map(str, _list(one.get("kinds")))) for one in _maps(kinds))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _maps(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (one for one in values if isinstance(one, dict))


def _text(value: object) -> tuple[str, bool]:
    """All keys and texts in a value, a line each, and whether these are all."""
    found: list[str] = []
    left, whole = _MAX_TEXT, True
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, str):
            found.append(one[:left])
            whole = whole and len(one) <= left
            left -= min(left, len(one) + 1)
        elif isinstance(one, (dict, list)) and (depth > _DEEPEST or not left):
            whole = False
        elif isinstance(one, dict):
            waiting += ((part, depth + 1) for pair in one.items() for part in pair)
        elif isinstance(one, list):
            waiting += ((part, depth + 1) for part in one)
    return "\n".join(found), whole


async def search_policies(kube: KubeClient, types: DeviceTypes, domain: str) -> PolicyFindings:
    """Search all policies that the API server serves and lets this user read."""
    found: list[Raw] = []
    problems: list[str] = []
    for group, wanted in READ.items():
        try:
            async for resource, kind in _served(kube, group, wanted):
                read = await listed(kube, resource, most=_MAX)
                found += ({"kind": kind, **one, "apiVersion": resource.api_version} for one in read.items)
                problems += read.notes
        except KubeError as error:
            problems.append(f"which policies of {group} there are is not known: {error.message}")
    searched = outdated(found, types, domain)
    return replace(searched, problems=(*problems, *searched.problems))


async def _served(kube: KubeClient, group: str, wanted: Callable[[str], bool]) -> AsyncIterator[tuple[Resource, str]]:
    """The resources of a group, each in the first version that discovery names."""
    known: set[str] = set()
    try:
        versions = _list((await kube.get(f"/apis/{group}")).get("versions"))[:_MAX_VERSIONS]
    except NotFound:
        return
    for version in (str(one.get("version")) for one in _maps(versions)):
        for one in _maps(_list((await kube.get(f"/apis/{group}/{version}")).get("resources"))):
            plural = str(one.get("name"))
            if plural in known or "/" in plural or not wanted(plural) or len(known) >= _MAX_KINDS:
                continue
            known.add(plural)
            yield Resource(group, version, plural, namespaced=bool(one.get("namespaced"))), str(one.get("kind"))


def what(one: OutdatedPolicy) -> str:
    """Say of a policy what is wrong."""
    return f"{one.kind} {one.name} names {', '.join(one.names)}, which a translated Pod does not state"


def cure(names: Iterable[str], gone: Mapping[str, tuple[str, ...]]) -> str:
    """Say what to write in place of names."""
    after = dict.fromkeys(new for name in names for old, news in gone.items() if old.startswith(name) for new in news)
    stated = ", ".join(after)
    return f"match {stated} too, or the annotation {ORIGINAL_REQUEST}, which states what the author wrote ({PAGE})"
