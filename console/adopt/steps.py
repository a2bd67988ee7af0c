"""The seven steps from another product to koordgate: what is done, and what each still needs (pure).

The device proposal, "Upgrade strategy", asks for them in this order, for the cluster as a whole. Here each namespace
takes steps 2, 3, 5 and 7 by itself.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from allocator.vocabulary.names import Mode
from console.adopt.findings import NO_WAY, OURS, READY, ClusterFindings
from console.terminal import counted, some

_MAX_NAMED: Final = 5


class AdoptStep(msgspec.Struct, frozen=True):
    """One step; nothing is left to do if it is done. `command` does it, or shows how far it is."""

    number: int
    title: str
    done: bool
    needed: tuple[str, ...] = ()
    command: str = ""


def steps(found: ClusterFindings) -> list[AdoptStep]:
    """The seven steps."""
    made = (_installed(found), _paused(found), _nobody_waits(found), _reported(found), _switched(found))
    last = (_tried(found), _restored(found))
    return [
        AdoptStep(number, title, not needed, tuple(needed), command if needed else "")
        for number, (title, needed, command) in enumerate((*made, *last), 1)
    ]


_Made = tuple[str, list[str], str]
"""Title, what is needed, and the command."""


def _installed(found: ClusterFindings) -> _Made:
    missing = found.installed is False
    needed = ["koordgate's webhooks are not installed: install the chart with mode: shadow"] if missing else []
    if without := [node.name for node in found.nodes if node.reporter != READY]:
        needed.append(f"no reporter is ready on {named(without)}")
    install = "helm upgrade --install koordgate charts/koordgate -n koordgate-system --create-namespace"
    look = "kubectl get pods -A -o wide -l app.kubernetes.io/name=koordgate-reporter"
    title = "koordgate is installed, and a reporter is ready on every node with devices"
    return title, needed, f"{install} --set mode=shadow" if missing else look


def _paused(found: ClusterFindings) -> _Made:
    waiting = sorted(Counter(pod.namespace for pod in found.waiting).items())
    needed = [f"{namespace} has {counted(pods, 'Pod')} that must still be placed" for namespace, pods in waiting]
    title = "nobody creates Pods for the old product in the namespaces to be switched"
    quota = "create quota pause --hard=requests.nvidia.com/gpu=0"
    return title, needed, f"kubectl -n {waiting[0][0]} {quota}" if waiting else ""


def _nobody_waits(found: ClusterFindings) -> _Made:
    waiting, title = found.waiting, "no Pod with devices waits for the old scheduler"
    if not waiting:
        return title, [], ""
    command = f"kubectl -n {waiting[0].namespace} get pods --field-selector=status.phase=Pending"
    return title, [f"Pods wait for another scheduler: {named([str(pod) for pod in waiting])}"], command


def _reported(found: ClusterFindings) -> _Made:
    without = [node.name for node in found.nodes if not node.listed]
    needed = [f"no Device object: {named(without)}"] if without else []
    needed += [problem for node in found.nodes for problem in node.problems]
    needed += [*found.unshown, *found.clashes]
    command = "koordgate adopt check" if found.clashes else "kubectl get devices.scheduling.koordinator.sh"
    return "the Device objects state all devices and who has them, without a clash", needed, command


def _switched(found: ClusterFindings) -> _Made:
    behind = [namespace for namespace, mode in found.modes.items() if mode is not Mode.ENFORCE]
    needed = [f"{namespace} is in mode {found.modes[namespace]}" for namespace in behind[:_MAX_NAMED]]
    if len(behind) > _MAX_NAMED:
        needed.append(f"and {len(behind) - _MAX_NAMED} more namespaces")
    if found.installed is False and not needed:
        needed = ["koordgate is not installed, so no namespace is switched"]
    command = f"koordgate adopt switch {behind[0]} --to enforce --dry-run" if behind else ""
    return "every namespace with such Pods is switched", needed, command


def _tried(found: ClusterFindings) -> _Made:
    given = {one.uid for node in found.nodes for one in node.held if one.product == OURS}
    works = any(pod.uid in given for pod in found.pods)
    needed = [] if works else ["no Pod holds devices through koordgate yet: create one in a switched namespace"]
    return "a Pod got its devices from koordgate", needed, "koordgate top"


def _restored(found: ClusterFindings) -> _Made:
    needed = []
    if theirs := sum(bool(pod.node) and pod.product != OURS for pod in found.pods):
        running = counted(theirs, "running Pod")
        needed.append(f"devices of the old product are held by {running}, which their controllers may replace")
    if offering := [node.name for node in found.nodes if node.offers]:
        names = sorted({name for node in found.nodes for name in node.offers})
        needed.append(f"{named(offering)} still offer {named(names)}")
    command = "koordgate adopt check   # docs/install/migrate.md: what to remove of each product"
    return "Pods are created again, and the old product is removed", needed, command


def named(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    return some(names, _MAX_NAMED)


def blockers(found: ClusterFindings, namespaces: Sequence[str], to: Mode) -> Iterator[str]:
    """Why namespaces should not be switched together now: what would be stranded, and what might be given twice."""
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
