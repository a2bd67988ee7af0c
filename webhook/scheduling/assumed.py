"""Where Pods were sent that are not bound yet: between filter and bind, other Pods may be sent to the same node."""

from collections import OrderedDict
from collections.abc import Callable, Mapping

from allocator.vocabulary.holdings import Holding
from webhook.view.changes import Changes


class Assumed:
    """Where Pods were sent that are not bound yet.

    `clock`: monotonic seconds. `keep`: seconds after which a bind is no longer expected. `freed`: called with a node
    where another Pod may fit now, since the one that was sent there did not come.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        keep: float,
        freed: Callable[[str], None] = lambda _node: None,
    ) -> None:
        self._clock = clock
        self._keep = keep
        self.changes = Changes()  # publishes the nodes on which what is assumed changed
        self._freed = freed
        self._by_uid: OrderedDict[str, tuple[str, Holding, float]] = OrderedDict()
        self._on: dict[str, dict[str, Holding]] = {}

    def put(self, node: str, holding: Holding) -> None:
        """A Pod was sent to a node, and will hold this there."""
        self.drop(holding.uid)
        self._by_uid[holding.uid] = (node, holding, self._clock() + self._keep)
        self._on.setdefault(node, {})[holding.uid] = holding
        self.changes.touch(node)

    def drop(self, uid: str, bound: str = "") -> str:
        """Forget where a Pod was sent: it is bound, refused, filtered again, finished or gone.

        `bound`: the node that it is bound to; "" where it is not. Returns the node that it was sent to; "" for none.
        """
        node, _, _ = self._by_uid.pop(uid, ("", None, 0.0))
        if node:
            self._forget(node, uid)
            if node != bound:
                self._freed(node)
        return node

    def renew(self, uid: str) -> None:
        """A Pod that was sent to a node is on its way there: its bind may take as long again."""
        node, holding, _ = self._by_uid[uid]
        self._by_uid[uid] = (node, holding, self._clock() + self._keep)
        self._by_uid.move_to_end(uid)

    def node_of(self, uid: str) -> str:
        """The node that a Pod was sent to; "" for none."""
        known = self._by_uid.get(uid)
        return known[0] if known else ""

    def of(self, uid: str, node: str) -> Holding | None:
        """What a Pod was sent to a node to hold; None where it was not sent there."""
        return self.on(node).get(uid)

    def expire(self) -> list[str]:
        """Forget placements whose bind is no longer expected; returns their nodes."""
        now = self._clock()
        nodes = []
        while self._by_uid:
            uid, (node, _, until) = next(iter(self._by_uid.items()))
            if until > now:
                break
            del self._by_uid[uid]
            self._forget(node, uid)
            nodes.append(node)
        return nodes

    def _forget(self, node: str, uid: str) -> None:
        held = self._on[node]
        del held[uid]
        if not held:
            del self._on[node]
        self.changes.touch(node)

    def on(self, node: str) -> Mapping[str, Holding]:
        """What is assumed on a node, by UID."""
        return self._on.get(node, {})
