"""`koordgate doctor`: looks at an installation, says what is wrong, and what to do about it."""

import argparse
import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from rich.table import Table
from rich.text import Text

from console import terminal
from console.doctor import probe
from console.doctor.checks import examine
from console.doctor.findings import Finding, Level, exit_status
from console.doctor.probe import AT_ONCE, Outcome, ProbePlan, Probes, Verdict, with_proofs
from console.doctor.reader import read_cluster
from console.doctor.snapshot import Snapshot
from console.plaintable import plain_table
from console.reading import add_cluster, connect
from console.terminal import counted, printable
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError

WIDTH: Final = 100
_STYLES: Final = {Level.OK: "green", Level.UNKNOWN: "cyan", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def table(findings: Sequence[Finding]) -> Table:
    """Make the table: a row for each finding, with what to do on a line of its own."""
    made = plain_table("", "AREA", "FOUND, AND WHAT TO DO")
    for one in findings:
        todo = f"\n-> {one.todo}" if one.todo else ""
        made.add_row(Text(one.level, style=_STYLES[one.level]), Text(one.area), Text(_lines(one.what) + _lines(todo)))
    return made


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def summary(findings: Sequence[Finding]) -> str:
    """Count the findings in one sentence."""
    counted = Counter(one.level for one in findings)
    failures, warnings = counted[Level.FAILURE], counted[Level.WARNING]
    texts = [
        f"{failures} failure{'s' * (failures != 1)}",
        f"{warnings} warning{'s' * (warnings != 1)}",
        f"{counted[Level.UNKNOWN]} not known",
        f"{counted[Level.OK]} ok",
    ]
    return ", ".join(texts)


def probe_table(outcomes: Sequence[Outcome]) -> Table:
    """Make the table of probes: a row for each node."""
    made = plain_table("NODE", "WAY", "GIVEN", "SEEN", "VERDICT")
    for one in outcomes:
        style = {Verdict.RIGHT: "green", None: "cyan"}.get(one.verdict if one.verdict.result else None, "bold red")
        way = one.found.way.delivery or "none"
        cells = (one.node, way, _given(one), _seen(one))
        made.add_row(*(Text(printable(cell)) for cell in cells), Text(one.verdict, style=style))
    return made


def _given(one: Outcome) -> str:
    return ", ".join(f"/dev/nvidia{share.minor} {share.id}" for share in one.given) or "-"


def _seen(one: Outcome) -> str:
    if one.seen is None:
        return "-"
    return " ".join((*(f"/dev/nvidia{minor}" for minor in one.seen.minors), *one.seen.uuids)) or "no card"


def data(findings: Sequence[Finding], status: int, outcomes: Sequence[Outcome] | None = None) -> dict[str, Any]:
    """The same as data; `exitStatus` is that of the command. `probe` is there if anything was probed."""
    listed = [{"level": str(one.level), "area": one.area, "what": one.what, "todo": one.todo} for one in findings]
    probed = {} if outcomes is None else {"probe": [_outcome(one) for one in outcomes]}
    return {"exitStatus": status, "findings": listed, **probed}


def _outcome(one: Outcome) -> dict[str, Any]:
    seen = None if one.seen is None else {"minors": list(one.seen.minors), "uuids": list(one.seen.uuids)}
    return {
        "node": one.node,
        "way": one.found.way.delivery and str(one.found.way.delivery),
        "runtimeClass": one.found.runtime_class,
        "given": [{"minor": share.minor, "uuid": share.id} for share in one.given],
        "seen": seen,
        "verdict": str(one.verdict),
        "why": one.why,
    }


Open = Callable[[str], KubeClient]
Say = Callable[[str], object]
_PROBE_S: Final = 120.0
_TERMINATED: Final = 143  # 128 and the signal, as a shell reports it
_IMAGE: Final = re.compile(r"[A-Za-z0-9][\w.:/@-]{0,511}", re.ASCII)


class Looked(NamedTuple):
    """What was found."""

    findings: list[Finding]  # all of them
    outcomes: list[Outcome] | None = None  # of the probes; None if nothing was probed


async def find(opened: Open, installed_in: str, tried_in: str, plan: ProbePlan | None, say: Say) -> Looked:
    """Look at a cluster; an API server that does not answer is a finding.

    `opened`: makes a client of it, which acts as a user; "" for one's own. `plan`: of the probes; None for none.
    `say`: is told what the probes find as they go.
    """
    try:
        async with opened("") as kube:
            snapshot = await read_cluster(kube, installed_in, tried_in, opened)
            if plan is None:
                return Looked(examine(snapshot))
            return await _probed(kube, snapshot, plan, say)
    except KubeError as error:
        todo = "see that the kubeconfig ($KUBECONFIG) is of this cluster, and that its API server runs"
        return Looked([Finding("API server", Level.FAILURE, error.message, todo)])


async def _probed(kube: KubeClient, snapshot: Snapshot, plan: ProbePlan, say: Say) -> Looked:
    """Probe nodes as well; whatever ends the command, the Pods are deleted first."""
    if snapshot.settings_problem:
        todo = "see the lines about what is installed"
        return Looked([*examine(snapshot), Finding(probe.AREA, Level.UNKNOWN, "no node was probed", todo)])

    def tell(one: Outcome, at: int, of: int) -> None:
        say(f"{at} of {of}: {one.node}: {one.verdict}")

    probes = Probes(kube, plan, snapshot, tell)
    say(f"{counted(probes.count, 'node')} with NVIDIA cards to probe, {AT_ONCE} at a time")
    running = asyncio.ensure_future(probes.run())
    with suppress(RuntimeError):  # where a loop has no signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        outcomes = await running
    except asyncio.CancelledError:
        for one in probes.problems:
            say(f"{one.what}: {one.todo}")
        raise
    found = [*examine(with_proofs(snapshot, outcomes)), *probe.probe_findings(outcomes), *probes.problems]
    return Looked(found, outcomes)


def _run(arguments: argparse.Namespace) -> int:
    image, seconds = arguments.probe, arguments.probe_timeout
    plan = ProbePlan(image, arguments.try_in, seconds) if image else None
    opened, say = partial(connect, arguments), partial(terminal.tell, arguments.called)
    try:
        with terminal.working():
            findings, outcomes = asyncio.run(find(opened, arguments.installed_in, arguments.try_in, plan, say))
        status = exit_status(findings, strict=arguments.strict)
        if arguments.output in {"json", "yaml"}:
            terminal.write_data(data(findings, status, outcomes), arguments.output)
        else:
            most = terminal.WIDE if arguments.output == "wide" else WIDTH
            told = findings if not arguments.quiet else [one for one in findings if one.level is not Level.OK]
            probed = (probe_table(outcomes), "") if outcomes else ()
            terminal.show(table(told), "", *probed, summary(findings), most=most)
        sys.stdout.flush()
    except BrokenPipeError:
        return terminal.unread()
    except (KeyboardInterrupt, asyncio.CancelledError) as ended:
        say("interrupted; the Pods of the probe are deleted" if plan else "interrupted")
        return terminal.INTERRUPTED if isinstance(ended, KeyboardInterrupt) else _TERMINATED
    return status


def _image(text: str) -> str:
    if _IMAGE.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no image, such as registry.example.com/busybox:1.37")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--try-in",
        type=terminal.namespace,
        default="default",
        metavar="NAMESPACE",
        help="the namespace in which Pods that koordgate is to serve are tried, by dry run (default: default); it must "
        "not be exempt, and no other policy may refuse them there",
    )
    parser.add_argument(
        "--probe",
        type=_image,
        metavar="IMAGE",
        help="also run a Pod with this image on each node with NVIDIA cards, in the namespace of --try-in, and compare "
        "the cards that it sees with those that it was given; the image needs /bin/sh, such as busybox or one of CUDA",
    )
    parser.add_argument(
        "--probe-timeout",
        type=terminal.seconds,
        default=_PROBE_S,
        metavar="SECONDS",
        help=f"how long each node has for that (default: {_PROBE_S:.0f}); pulling the image counts",
    )
    terminal.add_output(parser, wide=f"does not wrap lines at {WIDTH} columns")
    parser.add_argument("-q", "--quiet", action="store_true", help="leave out of the table what is right")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if nothing failed, but anything is a warning or not known"
    )
    add_cluster(parser, settings=False)


COMMAND: Final = Command(
    description="Look at an installation of koordgate, and say what is wrong and what to do about it.\n\n"
    "Pods and Bindings are sent as dry runs: the API server asks all webhooks and policies, and stores nothing. What "
    "comes back shows which Pods koordgate serves, and that certificates, network and replicas work together. It also "
    "checks versions, clocks, workloads, certificates, rights, policies, other products, quotas, nodes, and how "
    "containers get their cards.\n\n"
    "With --probe a Pod runs on each node with NVIDIA cards, through admission, koord-scheduler and the bind, and "
    "lists the cards that it sees (/dev/nvidia*, and nvidia-smi -L where the image has it). It takes 1 % of a card's "
    "memory for some seconds. The Pods are deleted afterwards, also on Ctrl-C. What was proved is written to the "
    "Node's annotation koordgate.io/delivery-proved. The user needs the rights to create, get and delete Pods and to "
    "list Events in the namespace of --try-in, and to patch Nodes.\n\n"
    "The exit status is 0 if nothing failed, 1 with --strict for warnings and what is not known, 2 for a failure.\n\n"
    "What the user may not read is reported as not known. An administrator of the cluster sees all; helm test runs it "
    "with rights to read and to try Pods.",
    examples="examples:\n"
    "  koordgate doctor\n"
    "  koordgate doctor --installed-in gpus --try-in team-a --quiet\n"
    "  koordgate doctor --strict --output json\n"
    "  koordgate doctor --probe busybox --try-in team-a",
    arguments=_arguments,
    run=_run,
)
