"""The limits of memory that a Pod's author states for its containers, each above what the container asks for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from allocator.quantity import QuantityError, format_bytes
from allocator.request.devices import PodReading
from allocator.vocabulary.askedlimit import WHOLE, AskedLimit
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.names import ASKED_LIMIT_PREFIX, DEVICE_SHARING, TYPE_GPU, asked_limit
from allocator.vocabulary.outcome import Problem
from allocator.wire.askedlimit import read_limit, write_limit
from allocator.wire.strict import annotation_path

_MOST_PROBLEMS = 16


def states_limits(annotations: Mapping[str, object]) -> bool:
    """Whether a Pod's annotations state a limit of memory for a container."""
    return any(key.startswith(ASKED_LIMIT_PREFIX) for key in annotations)


def with_limits(reading: PodReading, annotations: Mapping[str, object]) -> PodReading:
    """Add the limits that a Pod's annotations state to those of its dialect, and what is wrong with them.

    A limit that equals what the container asks for changes nothing, and is left out.
    """
    if not (reading.limits or states_limits(annotations)) or not reading.request.containers:
        return reading
    stated, problems = _stated(reading, annotations)
    asks = {one.name: ask for one in reading.containers for ask in one.requests if ask.type.name == TYPE_GPU}
    others, limits = dict(reading.limits), {}
    for container, one in {**others, **stated}.items():
        told = others.get(container)
        ask = asks.get(container)
        if told is not None and told != one:
            problems.append(_problem(container, f"the Pod's other annotations state {write_limit(told)}; keep one"))
        elif ask is None and container in stated:
            problems.append(_problem(container, "asks for no GPU, so that it has no memory to limit; remove this"))
        elif ask is not None and (least := _least(ask, one)) is not None and container in stated:
            message = (
                f"{excerpt(annotations[asked_limit(container)])} is less than the container asks for of each card; "
                f"write {least} at least, or ask for less"
            )
            problems.append(_problem(container, message))
        elif ask is not None and _least(ask, one) is None and not _is_asked(ask, one):
            limits[container] = one
    problems += _unlike(reading, {**others, **stated})
    return replace(reading, limits=tuple(limits.items()), problems=(*reading.problems, *problems[:_MOST_PROBLEMS]))


def _stated(reading: PodReading, annotations: Mapping[str, object]) -> tuple[dict[str, AskedLimit], list[Problem]]:
    """The limits of the Pod's own annotations, by container."""
    known = {one.name for one in reading.containers}
    stated: dict[str, AskedLimit] = {}
    problems: list[Problem] = []
    for key in sorted(key for key in annotations if key.startswith(ASKED_LIMIT_PREFIX)):
        container = key.removeprefix(ASKED_LIMIT_PREFIX)
        if container not in known:
            problems.append(_problem(container, "names no container of the Pod; write the name of one"))
            continue
        try:
            stated[container] = read_limit(annotations[key])
        except QuantityError as error:
            problems.append(_problem(container, str(error)))
    return stated, problems


def _problem(container: str, message: str) -> Problem:
    return Problem(annotation_path(asked_limit(excerpt(container))), message)


def _least(ask: DeviceAsk, limit: AskedLimit) -> str | None:
    """What a container asks for, if that is more than its limit in the same unit; None if it is not, or not known."""
    size, ratio = _memory(ask)
    if limit.size and size and limit.size < size:
        return format_bytes(size)
    if limit.portion and ratio and limit.portion * FULL < ratio * WHOLE:
        return f"{ratio}%"
    return None


def _is_asked(ask: DeviceAsk, limit: AskedLimit) -> bool:
    """Whether a limit is just what is asked."""
    size, ratio = _memory(ask)
    if limit.size:
        return limit.size == size
    return ratio is not None and limit.portion * FULL == ratio * WHOLE


def _memory(ask: DeviceAsk) -> Sequence[int | None]:
    """The memory that is asked of each card, in bytes and in percent."""
    return [ask.amount(tail) for tail in ask.type.memory or ()] or (None, None)


def _unlike(reading: PodReading, limits: Mapping[str, AskedLimit]) -> Iterator[Problem]:
    """Find containers that share one holding and have different limits."""
    for group in reading.groups:
        names = [member.name for member in group.members]
        limited = next((name for name in names if name in limits), None)
        if group.ask.type.name != TYPE_GPU or limited is None:
            continue
        other = next((name for name in names if limits.get(name) != limits[limited]), None)
        if other is not None:
            yield _problem(
                limited,
                f"container {excerpt(other)} shares what the container holds ({DEVICE_SHARING}), and has another limit "
                "or none; write the same for both",
            )
