"""What `cordon`, `uncordon` and `drain` print and do, however the device was named."""

import argparse
import sys
from typing import Final

from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import TYPE_GPU
from console import terminal
from console.devices.cordons import Marked, mark
from console.devices.drain import Drain, DrainStep, DryRun, Progress
from console.devices.nodestate import Known
from console.devices.others import told_holder
from console.devices.session import CommandEnd
from console.devices.tables import NOT_THERE, add_row, new_table, told_share
from console.terminal import printable
from koordgate.kube.client import KubeClient
from webhook.ledger.store import Store

VERBS: Final = ("cordon", "uncordon", "drain")
_PODS_LEFT: Final = 3


def add_dry_run(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Add `--dry-run`; `when` begins its help."""
    parser.add_argument(
        "--dry-run",
        type=DryRun,
        choices=(DryRun.CLIENT, DryRun.SERVER),
        nargs="?",
        const=DryRun.SERVER,
        default=DryRun.NONE,
        help=f"{when}write nothing; --dry-run alone is server: the API server checks the changes and evictions",
    )


def add_timeout(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Add `--timeout`; `when` begins its help."""
    parser.add_argument(
        "--timeout",
        type=terminal.seconds,
        default=300.0,
        metavar="SECONDS",
        help=f"{when}how long to retry evictions that a PodDisruptionBudget does not allow, and to wait for Pods to "
        "end (default: 300)",
    )


async def carry_out_verb(
    verb: str, where: tuple[str, str], kube: KubeClient, store: Store, known: Known, arguments: argparse.Namespace
) -> CommandEnd:
    """Cordon, uncordon or drain a device, and print what became of it.

    `where`: the node, and a word that names the device there. Raises CommandError: there is no such node or device, or
    others kept writing the object; KubeError: the API server refuses, or cannot be reached.
    """
    cordon, dry_run = verb != "uncordon", arguments.dry_run
    marked = await mark(kube, store, *where, known, cordon=cordon, held=verb == "drain", dry_run=dry_run)
    _show_marked(marked, cordon=cordon, dry_run=dry_run is not DryRun.NONE)
    status = await _drain(kube, marked, arguments) if verb == "drain" else 0
    return CommandEnd(marked.state.problems, status)


def _show_marked(marked: Marked, *, cordon: bool, dry_run: bool) -> None:
    state, device = marked.state, marked.device
    name = f"{device.type} {device.minor} {device.id}" if device else f"{marked.identity} ({NOT_THERE})"
    done = "is cordoned" if cordon else "is not cordoned"
    again = "" if marked.changed else " already" if cordon else " anyway"
    dry = " (dry run: nothing is written)" if dry_run and marked.changed else ""
    after = "it takes no new Pods" if cordon else "it takes new Pods"
    if cordon and device is None:
        done, again, after = "cannot be cordoned", "", "the node does not list it"
    if not cordon and device is not None and not device.healthy:
        after = f"it still takes no new Pods: {device.why_not}"
    terminal.show(printable(f"{state.node}: {name} {done}{again}; {after}{dry}"))
    held = state.held(marked.identity)
    if not held:
        terminal.show(f"no Pod {'of koordgate ' if _unseen(marked) else ''}holds anything of it")
        return
    table = new_table("POD", "HOLDS")
    for holding, share in held:
        add_row(table, told_holder(holding), told_share(share))
    terminal.show(f"Pods that hold something of it, and run on: {len(held)}", table)


async def _drain(kube: KubeClient, marked: Marked, arguments: argparse.Namespace) -> int:
    """Evict the Pods of koordgate that hold some of a cordoned device; returns the exit status."""
    held = [holding for holding, _ in marked.state.held(marked.identity)]
    theirs = {one.uid: one for one in held if isinstance(one, ForeignHolding)}
    pods = [one for one in held if isinstance(one, Holding) and not one.fence and one.uid not in theirs]
    for one in theirs.values():
        terminal.show(printable(f"Pod {told_holder(one)}: not evicted, another product placed it"))
    done = await Drain(kube, arguments.dry_run, arguments.timeout, _show_step).run(pods)
    left = [one for one in done if one.step in (DrainStep.BUDGET, DrainStep.LEFT)]
    stays = "it stays cordoned" if marked.device is not None else "its node does not list it"
    if theirs:
        sys.stderr.write(
            f"{arguments.called}: Pods of other products hold the device, and drain does not evict them: "
            f"{len(theirs)}; {stays}, delete them or let them end\n"
        )
    elif _unseen(marked):
        sys.stderr.write(f"{arguments.called}: Pods of other products may hold the device; they cannot be listed\n")
    open_end = bool(theirs) or _unseen(marked)
    if arguments.dry_run is not DryRun.NONE:
        return _PODS_LEFT if left or open_end else 0
    if not left and open_end:
        return _PODS_LEFT
    if not left:
        terminal.show(printable(f"{marked.state.node}: no Pod holds {marked.identity} any more; {stays}"))
        return 0
    sys.stderr.write(
        f"{arguments.called}: {len(left)} of {len(done)} Pods still hold the device after {arguments.timeout:g} s; "
        f"{stays}, run the command again\n"
    )
    return _PODS_LEFT


def _unseen(marked: Marked) -> bool:
    """Whether a Pod of another product that is not known may hold the device."""
    return marked.state.unseen and marked.device is not None and marked.device.type == TYPE_GPU


def _show_step(one: Progress) -> None:
    why = f": {one.why}" if one.why else ""
    terminal.show(printable(f"Pod {one.pod.namespace}/{one.pod.name}: {one.step}{why}"))
