"""How long the gangs of a namespace get no room, because room was held there in vain: others may have it meanwhile."""

import math


class VainHolds:
    """Knows which gangs hold room, and which namespaces have to wait because that was in vain.

    A hold is in vain if it ends before a Pod of the gang is bound: its time is over, or the Pods are gone. The whole
    namespace waits then, so that neither other Pods nor another gang get round the pause. What is kept is bounded by
    the gangs that hold something, and by the namespaces in which one did during the last pause.
    `longest`: seconds that a namespace waits at most.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._since: dict[str, float] = {}  # gang -> the beginning of its oldest hold
        self._until: dict[str, tuple[float, str]] = {}  # namespace -> the end of its pause, and the gang that caused it

    @property
    def holding(self) -> list[str]:
        """The gangs that held something when last seen, while none of their Pods was live."""
        return sorted(self._since)

    def saw(self, gang: str, since: float | None, now: float, *, live: bool) -> None:
        """Take in the state of a gang.

        `since`: when the oldest of its holds was seen first, in monotonic seconds; None where it has none. `now`:
        monotonic seconds. `live`: whether one of its Pods is bound and has not finished.
        """
        if live:
            self._since.pop(gang, None)
            return
        if since is not None:
            self._since[gang] = since
        elif (before := self._since.pop(gang, None)) is not None:
            self.pause(gang, now, now - before)

    def pause(self, gang: str, now: float, seconds: float) -> None:
        """Let the namespace of a gang wait for this long, if it does not wait for longer already."""
        until = now + min(seconds, self._longest)
        namespace = gang.partition("/")[0]
        if until > self._until.get(namespace, (-math.inf, ""))[0]:
            self._until[namespace] = until, gang

    def cause(self, gang: str, now: float) -> str:
        """The gang because of which the namespace of this one waits; "" where it does not wait."""
        until, cause = self._until.get(gang.partition("/")[0], (-math.inf, ""))
        return cause if now < until else ""

    def forget(self, now: float) -> None:
        """Forget the pauses that are over."""
        self._until = {namespace: of for namespace, of in self._until.items() if now < of[0]}
