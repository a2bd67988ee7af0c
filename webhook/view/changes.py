"""Which nodes changed: each reader takes them in at its own pace, and waiting callers are woken."""

import asyncio
from collections.abc import Iterable, Iterator


class ChangeReader:
    """The nodes that changed since its owner last took them."""

    def __init__(self, start: Iterable[str]) -> None:
        self._pending = dict.fromkeys(start)

    def note(self, node: str) -> None:
        """A node changed."""
        self._pending[node] = None

    def __bool__(self) -> bool:
        """Whether any node changed."""
        return bool(self._pending)

    def take(self) -> str:
        """Take one of the nodes that changed since they were last taken, the last one; "" if there is none."""
        return self._pending.popitem()[0] if self._pending else ""

    def drain(self) -> Iterator[str]:
        """Take the nodes that changed since they were last taken, each once, the last one first.

        What is not taken, should the caller fail half way, comes the next time.
        """
        while node := self.take():
            yield node


class Changes:
    """Publishes the names of nodes that changed; it keeps none itself.

    Each reader holds at most one entry for each node that changed since it last looked.
    """

    def __init__(self) -> None:
        self._readers: list[ChangeReader] = []
        self._news: asyncio.Future[None] | None = None

    def touch(self, node: str) -> None:
        """Something about a node changed."""
        for reader in self._readers:
            reader.note(node)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def reader(self, start: Iterable[str] = ()) -> ChangeReader:
        """Make a reader of all changes from now on.

        `start`: nodes that count as changed already: those that the reader must look at first.
        """
        made = ChangeReader(start)
        self._readers.append(made)
        return made

    async def news(self) -> None:
        """Wait until something about any node changes."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)
