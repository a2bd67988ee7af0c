"""What is typical of a Pod: its request, reduced to what the mix compares nodes by."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from allocator.amounts import CPU, BadQuantityError, pod_amounts
from allocator.request.original import read_asks
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, Operator, PodRequest, Requirement
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.mix import MAX_COUNT, MAX_MODELS, MixError, TypicalRequest
from allocator.vocabulary.names import GPU_PRODUCT, MODEL_LABELS, TYPE_GPU, Phase, model_name

MEMORY: Final = "memory"
_DIGITS: Final = 6  # binary digits of CPU and memory that are kept: less than 3.2 % is left out
_LABELS: Final = MODEL_LABELS | {GPU_PRODUCT}
P = TypeVar("P", dict[str, Any], list[Any])


def typical_of(
    request: PodRequest, requests: Iterable[tuple[str, int]], models: Sequence[str]
) -> TypicalRequest | None:
    """Reduce a Pod to what is typical of it, of weight 1; None for a Pod without devices.

    Of several types, GPUs are typical, otherwise the first type. Of several containers, those count that run to the
    end: whole devices in sum; of parts, the greatest. CPU and memory are rounded down to a few binary digits, so that
    requests which hardly differ count as one, and a node which just holds such a Pod counts as holding it.
    `requests`: what it requests of a node in sum, by resource. `models`: the models that its node may have; empty: any.
    """
    ask = _leading(request.containers)
    if ask is None or ask.count > MAX_COUNT:
        return None
    of_node = dict(requests)
    hint = request.wishes.hint(ask.type.name)
    selected = _selected(hint.selector.requirements) if hint is not None and hint.selector is not None else None
    both = [{*map(model_name, named)} for named in (models, selected) if named]
    named = set.intersection(*both) if both else set()
    named = named if len(named) <= MAX_MODELS else set()
    cpu, memory = (rounded(max(of_node.get(name, 0), 0)) for name in (CPU, MEMORY))
    return TypicalRequest(cpu, memory, ask, tuple(sorted(named)))


def stated(requests: Mapping[str, Any], models: Sequence[str], weight: int, types: DeviceTypes) -> TypicalRequest:
    """Read a typical request that is stated in a Pod's own words.

    `models`: the models that its devices may have, in any spelling; empty: any. `types`: the device types that may be
    asked for. Raises MixError: it cannot be read, or a figure is out of bounds.
    """
    resources = {"requests": dict(requests), "limits": dict(requests)}
    spec = {"containers": [{"name": "typical", "resources": resources}]}
    reading = read_asks({"metadata": {"namespace": "", "name": "typical"}, "spec": spec}, types)
    if reading.problems:
        raise MixError("; ".join(str(problem) for problem in reading.problems))
    try:
        of_node = pod_amounts(spec)
    except BadQuantityError as error:
        raise MixError(str(error)) from error
    named = tuple(sorted({*map(model_name, models)}))
    ask = _leading(reading.request.containers)
    return TypicalRequest(of_node.get(CPU, 0), of_node.get(MEMORY, 0), ask, named, weight)


def rounded(amount: int) -> int:
    """An amount, rounded down to `_DIGITS` binary digits."""
    shift = max(amount.bit_length() - _DIGITS, 0)
    return amount >> shift << shift


def models_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The models of GPUs that the nodes have which a Pod's spec selects, sorted; empty: any.

    The labels that are read name models; they are in the nodeSelector and in the required node affinity.
    """
    named = [{model_name(str(value))} for key, value in _part(spec, "nodeSelector", dict).items() if key in _LABELS]
    affinity = _part(_part(spec, "affinity", dict), "nodeAffinity", dict)
    required = _part(affinity, "requiredDuringSchedulingIgnoredDuringExecution", dict)
    each = [_of_term(term) for term in _part(required, "nodeSelectorTerms", list)]
    if each and all(each):
        named.append(set().union(*each))
    models = set.intersection(*named) if named else set()
    return tuple(sorted(models)) if len(models) <= MAX_MODELS else ()


def _of_term(term: object) -> set[str]:
    """The models that one term allows; none where it allows any."""
    each = [
        {model_name(str(value)) for value in _part(one, "values", list)}
        for one in _part(term, "matchExpressions", list)
        if isinstance(one, dict) and str(one.get("key")) in _LABELS and one.get("operator") == Operator.IN
    ]
    return set.intersection(*each) if each else set()


def _part(of: object, key: str, kind: type[P]) -> P:
    """A member of an object; empty where it is left out, or of a kind that no API server sends."""
    found = of.get(key) if isinstance(of, dict) else None
    return found if isinstance(found, kind) else kind()


def _selected(requirements: Iterable[object]) -> set[str]:
    """The models that a selector of devices names."""
    each = [
        {*one.values}
        for one in requirements
        if isinstance(one, Requirement) and one.operator is Operator.IN and one.key in _LABELS
    ]
    return set.intersection(*each) if each else set()


def _leading(containers: Sequence[ContainerAsk]) -> DeviceAsk | None:
    """What a Pod asks of its leading type, as one ask; None without devices."""
    lasting = [one.ask for one in containers if one.phase is not Phase.INIT] or [one.ask for one in containers]
    asks = [ask for ask in lasting if not ask.empty]
    if not asks:
        return None
    kind = next((ask.type for ask in asks if ask.type.name == TYPE_GPU), asks[0].type)
    asks = [ask for ask in asks if ask.type == kind]
    whole = [ask for ask in asks if ask.whole]
    if whole:
        first = whole[0]
        count = sum(ask.count for ask in whole)
        return DeviceAsk(kind, count, first.amounts, vendor=first.vendor)
    largest = max(asks, key=lambda ask: (ask.count, [amount or 0 for amount in ask.amounts]))
    return DeviceAsk(kind, largest.count, largest.amounts, template=largest.template, vendor=largest.vendor)
