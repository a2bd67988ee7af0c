"""The modes of namespaces, as their labels state them."""

from collections.abc import Callable, Collection
from typing import Any, Final

from allocator.vocabulary.names import Mode, mode_of
from webhook.view.feed import Listing

Raw = dict[str, Any]
_ALWAYS_EXEMPT: Final = "kube-system"


class NamespaceModes:
    """The mode of each namespace. Of those that state none, nothing is kept.

    `exempt`: namespaces in which koordgate does nothing, whatever they state.
    """

    def __init__(self, default: Mode, exempt: Collection[str] = ()) -> None:
        self._default = default
        self.exempt = frozenset((*exempt, _ALWAYS_EXEMPT))  # these, and kube-system
        self._stated: dict[str, Mode] = {}
        self._listeners: list[Callable[[str], object]] = []

    def of(self, namespace: str) -> Mode:
        """The mode of a namespace."""
        return Mode.OFF if namespace in self.exempt else self._stated.get(namespace, self._default)

    def enforced(self, namespace: str) -> bool:
        """Whether koordgate decides there."""
        return self.of(namespace) is Mode.ENFORCE

    def listen(self, changed: Callable[[str], object]) -> None:
        """Have this called with each namespace whose mode changed."""
        self._listeners.append(changed)

    def put(self, namespace: str, labels: dict[str, str]) -> None:
        """A namespace is there, with these labels."""
        self._set(namespace, mode_of(labels, self._default))

    def drop(self, namespace: str) -> None:
        """A namespace is gone."""
        self._set(namespace, self._default)

    def _set(self, namespace: str, mode: Mode) -> None:
        before = self.of(namespace)
        if mode is self._default:
            self._stated.pop(namespace, None)
        else:
            self._stated[namespace] = mode
        if self.of(namespace) is not before:
            for changed in self._listeners:
                changed(namespace)


class NamespaceFeed(Listing):
    """Takes in Namespaces."""

    def __init__(self, modes: NamespaceModes) -> None:
        super().__init__()
        self._modes = modes

    def there(self, obj: Raw) -> None:
        """Take in a Namespace."""
        self._modes.put(obj["metadata"]["name"], obj["metadata"].get("labels") or {})

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a Namespace."""
        self._modes.drop(name)
