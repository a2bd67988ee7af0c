"""Why a Pod is on no node, or why it is on its node, as one value."""

from dataclasses import dataclass, field
from typing import Final

from console.explain.bound import Whereabouts, standing
from console.explain.nodes import NodeDetail, NodeVerdict, detail, judge
from console.explain.remedies import WayToFit, remedies
from console.explain.scene import Scene
from console.explain.waiting import Hurdle, Why, hurdles

_BEFORE: Final = frozenset({Why.REFUSED, Why.UNREADABLE, Why.FINISHED, Why.ENDING})  # no node is asked then
_OTHERS: Final = frozenset({Why.FOREIGN, Why.MODE})  # another scheduler places it, whatever koordgate would do


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer."""

    scene: Scene  # the Pod, and its cluster
    hurdles: list[Hurdle] = field(default_factory=list)  # what keeps it from all nodes
    # what each node says, the best or nearest first; of a bound Pod none
    verdicts: list[NodeVerdict] = field(default_factory=list)
    # nodes in detail: those that were asked for, else the nearest one
    nodes: list[NodeDetail] = field(default_factory=list)
    remedies: list[list[WayToFit]] = field(default_factory=list)  # what would make the Pod fit on each of these
    # of a bound Pod, why it is there; None if it asks for nothing that koordgate gives
    standing: Whereabouts | None = None

    @property
    def bound(self) -> bool:
        """Whether the Pod has a node."""
        return bool(self.scene.given["spec"].get("nodeName"))

    @property
    def stopped(self) -> Hurdle | None:
        """The first thing that keeps the Pod from all nodes."""
        return next((one for one in self.hurdles if one.stops), None)

    @property
    def aside(self) -> Hurdle | None:
        """Why another scheduler, and not koordgate, places a Pod for which there is room."""
        if self.stopped is not None or not (self.bound or self.fitting):
            return None
        return next((one for one in self.hurdles if one.why in _OTHERS), None)

    @property
    def fitting(self) -> list[NodeVerdict]:
        """The nodes that can hold it now."""
        return [one for one in self.verdicts if one.fits]


def explain(scene: Scene, nodes: list[str]) -> Explanation:
    """Explain a Pod.

    `nodes`: names of nodes to look at closely; empty for the nearest.
    """
    found = hurdles(scene)
    if any(one.why is Why.FINISHED for one in found):
        return Explanation(scene, found)
    if scene.given["spec"].get("nodeName"):
        return Explanation(scene, found, standing=standing(scene))
    if any(one.why in _BEFORE for one in found):
        return Explanation(scene, found)
    verdicts = _best_first(scene, judge(scene))
    chosen = [one for one in verdicts if one.name in nodes] if nodes else verdicts[:1]
    details = [detail(scene, one) for one in chosen]
    return Explanation(scene, found, verdicts, details, [remedies(scene, one) for one in details])


def _best_first(scene: Scene, verdicts: list[NodeVerdict]) -> list[NodeVerdict]:
    """Order the nodes that can hold the Pod as koordgate would offer them; the others stay as they are."""
    fitting = [one.name for one in verdicts if one.fits]
    if scene.info is None or not scene.info.request or not fitting:
        return verdicts
    levels = scene.ranking.standing(scene.info, fitting)
    last = len(levels)
    return sorted(verdicts, key=lambda one: levels.get(one.name, last) if one.fits else last)
