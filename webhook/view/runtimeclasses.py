"""The cluster's RuntimeClasses, and what follows from them for how containers get their cards."""

from collections.abc import Callable
from dataclasses import replace

from allocator.devices.delivery import DeliveryRules


class RuntimeClassTable:
    """The RuntimeClasses.

    `rules`: of the settings; their RuntimeClass counts while the cluster has it.
    """

    def __init__(self, rules: DeliveryRules, changed: Callable[[], object]) -> None:
        self._wanted = rules
        self._changed = changed
        self._handlers: dict[str, str] = {}
        self.rules = replace(rules, runtime_class="", handler="")

    def handler(self, name: str) -> str:
        """The handler of a RuntimeClass; "" where the cluster has none of this name."""
        return self._handlers.get(name, "")

    def put(self, name: str, handler: str) -> None:
        """Take in a RuntimeClass."""
        self._handlers[name] = handler
        self._settle()

    def drop(self, name: str) -> None:
        """Take in that a RuntimeClass is gone."""
        self._handlers.pop(name, None)
        self._settle()

    def _settle(self) -> None:
        handler = self.handler(self._wanted.runtime_class)
        name = self._wanted.runtime_class if handler else ""
        now = replace(self._wanted, runtime_class=name, handler=handler)
        if now != self.rules:
            self.rules = now
            self._changed()
