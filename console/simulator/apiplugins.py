"""The stand-in for the API server's own admission plugins: Priority, LimitRanger, RuntimeClass and ResourceQuota."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from allocator.amounts import BadQuantityError
from allocator.quantity import QuantityError, parse
from console.simulator import limitranges, priorities, runtimeclasses
from console.simulator.limitranges import AddedDefault
from console.simulator.priorities import Priorities
from console.simulator.quotas import QuotaPlugin
from console.simulator.runtimeclasses import RuntimeClassPlugin
from webhook.assembly import Parts
from webhook.quotas.mirror import written_names
from webhook.quotas.table import QuotaFeed, RangeFeed
from webhook.view.feed import Complain
from webhook.view.namespaces import NamespaceFeed

Raw = dict[str, Any]

KINDS: Final = frozenset({"Namespace", "LimitRange", "ResourceQuota", priorities.KIND, runtimeclasses.KIND})


class ApiPlugins:
    """What the API server itself writes into new Pods, and refuses of them.

    Args:
        parts: the webhook's parts, which also learn of quotas, LimitRanges and modes.
        complain: notes which parts of a LimitRange cannot be read.
        note: notes what is assumed or left out, a sentence each.
    """

    def __init__(self, parts: Parts, complain: Complain, note: Callable[[str], object]) -> None:
        self._note = note
        self._quotas = QuotaPlugin(
            parts.limits, written_names(parts.types, parts.settings.domain), parts.settings.quota.enabled
        )
        self._ranges: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        self._priorities = Priorities(note)
        self._runtimes = RuntimeClassPlugin(parts.cluster)
        self._told: set[tuple[str, str, str]] = set()  # namespace, LimitRange and resource
        self._device_names = parts.types.resources
        self._feeds = {
            "Namespace": NamespaceFeed(parts.modes),
            "LimitRange": RangeFeed(parts.limits, complain),
            "ResourceQuota": QuotaFeed(parts.limits),
        }

    def put(self, obj: Raw) -> None:
        """An object of one of `KINDS` is there.

        Raises:
            BadQuantityError: an amount of a quota is no quantity.
        """
        kind, metadata = obj["kind"], obj["metadata"]
        if kind in self._feeds:
            self._feeds[kind].put(obj)
        match kind:
            case "LimitRange":
                limits = (obj.get("spec") or {}).get("limits") or []
                self._ranges.setdefault(metadata["namespace"], {})[metadata["name"]] = limits
            case "ResourceQuota":
                for problem in self._quotas.put_quota(obj):
                    self._note(problem)
            case priorities.KIND:
                self._priorities.put(obj)
            case runtimeclasses.KIND:
                self._runtimes.put(obj)
            case _:
                pass

    def count(self, pod: Mapping[str, Any], *, ended: bool) -> None:
        """A Pod is there, and counts for quotas until it has ended."""
        self._quotas.put(pod, ended=ended)

    def forget(self, pod: Mapping[str, Any]) -> None:
        """A Pod is gone."""
        self._quotas.drop(pod)

    def before(self, pod: Raw) -> tuple[str, tuple[AddedDefault, ...]]:
        """Write priority and defaults into a new Pod, before webhooks see it.

        Returns:
            Why it is refused, "" if it is not; and the devices that LimitRanges have added.
        """
        metadata = pod["metadata"]
        found = limitranges.write_defaults(pod, self._ranges_of(pod))
        added = tuple(one for one in found if one.resource in self._device_names and _is_some(one.amount))
        for one in added:
            about = metadata["namespace"], one.by, one.resource
            if about not in self._told:
                self._told.add(about)
                self._note(
                    f"LimitRange {metadata['namespace']}/{one.by} adds {one.resource} {one.amount} to containers that "
                    f"do not state it, such as {one.container} of Pod {metadata['name']} (docs/quotas.md, LimitRanges)"
                )
        return self._priorities.write(pod), added

    def again(self, pod: Raw) -> str:
        """Write what follows from what the webhooks changed; returns why the Pod is refused, "" if it is not."""
        return self._runtimes.write(pod)

    def complete(self, pod: Raw) -> None:
        """Write the priority into a Pod that is there already."""
        self._priorities.complete(pod)

    def after(self, pod: Mapping[str, Any]) -> str:
        """Why a Pod, as the webhooks left it, is refused; "" if it is not."""
        name = f"Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        try:
            problem = "; ".join(limitranges.beyond(pod, self._limits(pod))) or self._quotas.refusal(pod)
        except (QuantityError, BadQuantityError) as error:
            problem = str(error)
        return f"{name} is forbidden: {problem}" if problem else ""

    def _ranges_of(self, pod: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
        return dict(sorted(self._ranges.get(pod["metadata"]["namespace"], {}).items()))

    def _limits(self, pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [limit for limits in self._ranges_of(pod).values() for limit in limits]


def _is_some(amount: str) -> bool:
    """Whether an amount is not 0; one that cannot be read is what the Pod is then refused for."""
    try:
        return bool(parse(amount))
    except QuantityError:
        return True
