"""The seven steps from another product to koordgate: what is done, and what each still needs (pure).

The device proposal, "Upgrade strategy", asks for them in this order, for the cluster as a whole. Here each namespace
takes steps 2, 3, 5 and 7 by itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.mode import Mode
from console.adopt.findings import NO_WAY, OURS, ClusterFindings, DevicePod
from console.terminal import counted

_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class AdoptStep:
    """One step.

    Attributes:
        number: from 1.
        title: what it is.
        done: whether nothing is left to do.
        needed: what is left, a sentence each.
        command: that does it, or shows how far it is; "" where nothing is left.
    """

    number: int
    title: str
    done: bool
    needed: tuple[str, ...] = ()
    command: str = ""


def steps(found: ClusterFindings) -> list[AdoptStep]:
    """The seven steps."""
    made = (_installed, _paused, _nobody_waits, _reported, _switched, _tried, _restored)
    return [_step(number, step(found)) for number, step in enumerate(made, 1)]


_Made = tuple[str, Iterable[str], str]
"""Title, what is needed, and the command."""


def _step(number: int, made: _Made) -> AdoptStep:
    title, needed, command = made
    left = tuple(needed)
    return AdoptStep(number, title, not left, left, command if left else "")


def _installed(found: ClusterFindings) -> _Made:
    needed = []
    if found.installed is False:
        needed.append("koordgate's webhooks are not installed: install the chart with mode: shadow")
    without = [node.name for node in found.nodes if not node.reporter]
    if without:
        needed.append(f"no reporter is ready on {named(without)}")
    return (
        "koordgate is installed, and a reporter is ready on every node with devices",
        needed,
        "helm upgrade --install koordgate charts/koordgate -n koordgate-system --create-namespace --set mode=shadow"
        if found.installed is False
        else "kubectl get pods -A -o wide -l app.kubernetes.io/name=koordgate-reporter",
    )


def _paused(found: ClusterFindings) -> _Made:
    waiting = _by_namespace(found.waiting)
    needed = [f"{namespace} has {counted(len(pods), 'Pod')} that must still be placed" for namespace, pods in waiting]
    namespace = waiting[0][0] if waiting else "NAMESPACE"
    return (
        "nobody creates Pods for the old product in the namespaces to be switched",
        needed,
        f"kubectl -n {namespace} create quota pause --hard=requests.nvidia.com/gpu=0",
    )


def _nobody_waits(found: ClusterFindings) -> _Made:
    waiting = found.waiting
    needed = [f"Pods wait for another scheduler: {named([str(pod) for pod in waiting])}"] if waiting else []
    namespace = waiting[0].namespace if waiting else "NAMESPACE"
    return (
        "no Pod with devices waits for the old scheduler",
        needed,
        f"kubectl -n {namespace} get pods --field-selector=status.phase=Pending",
    )


def _reported(found: ClusterFindings) -> _Made:
    needed = []
    without = [node.name for node in found.nodes if not node.listed]
    if without:
        needed.append(f"no Device object: {named(without)}")
    needed += [problem for node in found.nodes for problem in node.problems]
    needed += found.unshown
    needed += found.clashes
    return (
        "the Device objects state all devices and who has them, without a clash",
        needed,
        "koordgate adopt check" if found.clashes else "kubectl get devices.scheduling.koordinator.sh",
    )


def _switched(found: ClusterFindings) -> _Made:
    behind = [namespace for namespace, mode in found.modes.items() if mode is not Mode.ENFORCE]
    needed = [f"{namespace} is in mode {found.modes[namespace]}" for namespace in behind[:_MOST_NAMED]]
    if len(behind) > _MOST_NAMED:
        needed.append(f"and {len(behind) - _MOST_NAMED} more namespaces")
    first = behind[0] if behind else "NAMESPACE"
    return (
        "every namespace with such Pods is switched",
        needed,
        f"koordgate adopt switch {first} --to enforce --dry-run",
    )


def _tried(found: ClusterFindings) -> _Made:
    given = {one.uid for node in found.nodes for one in node.held if one.product == OURS}
    works = any(pod.uid in given for pod in found.pods)
    needed = [] if works else ["no Pod holds devices through koordgate yet: create one in a switched namespace"]
    return "a Pod got its devices from koordgate", needed, "koordgate devices"


def _restored(found: ClusterFindings) -> _Made:
    needed = []
    theirs = [pod for pod in found.pods if pod.node and pod.product != OURS]
    if theirs:
        running = counted(len(theirs), "running Pod")
        needed.append(f"devices of the old product are held by {running}, which their controllers may replace")
    offering = [node.name for node in found.nodes if node.offers]
    if offering:
        names = sorted({name for node in found.nodes for name in node.offers})
        needed.append(f"{named(offering)} still offer {named(names)}")
    return (
        "Pods are created again, and the old product is removed",
        needed,
        "koordgate adopt check   # docs/migration.md: what to remove of each product",
    )


def _by_namespace(pods: Iterable[DevicePod]) -> list[tuple[str, list[DevicePod]]]:
    found: dict[str, list[DevicePod]] = {}
    for pod in pods:
        found.setdefault(pod.namespace, []).append(pod)
    return sorted(found.items())


def named(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def blockers(found: ClusterFindings, namespaces: Sequence[str], to: Mode) -> Iterator[str]:
    """Why namespaces should not be switched now: what would be stranded, and what might be given twice.

    Args:
        found: in the cluster.
        namespaces: to be switched together.
        to: their new mode.
    """
    among = set(namespaces)
    if found.assumed:
        yield (
            "the webhook's settings could not be read, and what is in the way depends on them: give them with "
            "--config, or name the installation's namespace with --installed-in"
        )
    if silent := sorted(among & found.exempt):
        yield f"the label says nothing in {named(silent)}: take them out of exemptNamespaces, if the chart names them"
    if to is Mode.ENFORCE:
        yield from _before_enforcing(found, among)
    elif any(found.modes.get(namespace) is Mode.ENFORCE for namespace in among):
        yield from _before_leaving(found, among)


def _before_enforcing(found: ClusterFindings, among: set[str]) -> Iterator[str]:
    if found.installed is False:
        yield "koordgate's webhooks are not installed, so nothing would translate Pods: install the chart"
    waiting = [str(pod) for pod in found.waiting if pod.namespace in among]
    if waiting:
        yield (
            f"{named(waiting)} wait for another scheduler, whose Bindings would be refused: wait until they are bound, "
            "or delete them, and their controllers create them anew"
        )
    unread = sorted({pod.product for pod in found.pods if pod.namespace in among and not pod.read})
    if unread:
        yield (
            f"Pods there ask in names of {named(unread)}, which are not read there: turn on the dialect "
            "(values dialects.*), else such Pods stay with the other product"
        )
    yield from found.clashes
    ways = {node.delivery for node in found.nodes} - {""}
    if ways == {NO_WAY}:
        yield from found.unshown
    giving = {node.name for node in found.nodes if node.listed}
    others = [
        pod
        for pod in found.pods
        if pod.node in giving
        and pod.product != OURS
        and pod.namespace not in among
        and found.modes[pod.namespace] is not Mode.ENFORCE
    ]
    if others:
        where = sorted({pod.node for pod in others})
        who = sorted({pod.namespace for pod in others})
        yield (
            f"the old product also gives devices on {named(where)} to {named(who)}, and does not know what koordgate "
            f"gives there: switch {named(who)} together with these namespaces, or keep the Pods of one product off "
            "these nodes by a taint"
        )


def _before_leaving(found: ClusterFindings, among: set[str]) -> Iterator[str]:
    given = {one.uid: node for node in found.nodes for one in node.held if one.product == OURS}
    own = [str(pod) for pod in found.pods if pod.namespace in among and pod.uid in given]
    if own:
        yield (
            f"{named(own)} hold devices through koordgate, which the old product would give again: delete them, and "
            "create them anew after the switch"
        )
    offering = {uid for uid, node in given.items() if node.offers}
    others = sorted({pod.namespace for pod in found.pods if pod.uid in offering and pod.namespace not in among})
    if others:
        yield (
            f"Pods of {named(others)} hold devices through koordgate on nodes where the old product gives devices too, "
            "and does not know of them: switch these namespaces together, or keep the Pods of one product off these "
            "nodes by a taint"
        )
