"""`koordgate demo`: the whole product on one machine, with a verdict."""

import argparse
import asyncio
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from rich.table import Table
from rich.text import Text

from console import terminal
from console.data import MissingDataError, data_folder
from console.simulator import devicemap, podgroups, report
from console.simulator.account import Account
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.documents import InputError
from console.simulator.objects import Objects, read
from console.simulator.workloads import created
from console.terminal import counted
from koordgate.cli import Command
from koordgate.settings import SettingsError
from webhook import settings
from webhook.settings import WebhookSettings

_PROGRAM: Final = "koordgate"
_PAGES: Final = ("start/first-hour.md", "start/concepts.md", "install/install.md")


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What the demo has shown.

    `overgiven` is empty as it should be, and `guarded` says that a Binding by another user was refused.
    """

    results: Sequence[Result]
    account: Account
    overgiven: Sequence[str]
    guarded: bool
    foreign: str
    means: str

    @property
    def right(self) -> bool:
        """Whether everything was as it must be."""
        return self.guarded and not self.overgiven


def parts(shown: DemoOutcome) -> list[Table | Text | str]:
    """Make the sums, the verdict, and the next steps."""
    pods = counted(len(shown.results), "Pod")
    twice = "; ".join(shown.overgiven) or "no device and no CPU"
    sums = _grid(
        (pods, report.fates(shown.results), ""),
        ("in use", report.in_use(shown.account).removesuffix(" in use"), ""),
        ("it ran on", shown.means, ""),
        ("given twice", twice, "red" if shown.overgiven else "green"),
        ("foreign Binding", shown.foreign, "green" if shown.guarded else "red"),
    )
    verdict = ("passed", "bold green") if shown.right else ("FAILED: see the red lines above", "bold red")
    return [
        Text("What was shown", "bold"),
        sums,
        "",
        Text.assemble(("demo: ", "bold"), verdict),
        "",
        Text("Where to look next", "bold"),
        *_next(),
        *_path(),
    ]


def _next() -> Iterator[Text | str]:
    for title, *lines in steps():
        yield f"  {title}"
        yield from map(_command, lines)


def steps() -> list[tuple[str, ...]]:
    """Name the next steps: each a title, and lines with commands that work in this folder or files that exist."""
    examples = data_folder("examples")
    program = called()
    found: list[tuple[str, ...]] = [
        (
            "Your own objects on a cluster like yours:",
            f"{program} simulate \\",
            f"  -f {_near(examples / 'simulate/cluster.yaml')} {_near(examples / 'simulate/app.yaml')}",
        ),
        ("Recipes to copy:", _near(examples / "recipes/README.md")),
    ]
    pages = [path for page in _PAGES if (path := examples.parent / "docs" / page).exists()]
    if pages:
        found.append(("To read:", *map(_near, pages)))
    return [*found, ("All commands:", f"{program} --help")]


def called() -> str:
    """How this program is called from this folder."""
    beside = Path(sys.executable).parent / _PROGRAM
    on_path = shutil.which(_PROGRAM)
    if on_path is not None and beside.exists() and Path(on_path).samefile(beside):
        return _PROGRAM
    return _near(beside) if beside.exists() else f"{_near(Path(sys.executable))} -m {_PROGRAM}"


def _path() -> list[Text | str]:
    """How to call it by its name alone, where that does not work yet."""
    if not called().endswith(f"{os.sep}{_PROGRAM}"):
        return []
    folder = Path(sys.executable).parent
    return [f"  To type `{_PROGRAM}` alone:", _command(f'export PATH={shlex.quote(str(folder))}:"$PATH"')]


def _command(line: str) -> Text:
    """A line that is never wrapped: it can be copied."""
    return Text(f"    {line}", "cyan", no_wrap=True)


def _near(path: Path) -> str:
    """A path as it is shortest to type: from this folder if it is in it."""
    with_links = Path(os.path.normpath(path))
    here = Path.cwd()
    return shlex.quote(str(with_links.relative_to(here) if with_links.is_relative_to(here) else with_links))


def _grid(*rows: tuple[str, str, str]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text, style in rows:
        grid.add_row(f"  {name}", Text(text, style))
    return grid


FOREIGNER: Final = "somebody-else"
_WIDTH: Final = 80  # of a terminal that nobody made wider
_STRAY: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "demo-bound-around", "namespace": "default"},
    "spec": {
        "nodeSelector": {"koordgate.io/demo": "nowhere"},  # so that its own scheduler does not bind it
        "containers": [
            {"name": "main", "image": "registry.example.com/main:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ],
    },
}


@dataclass(frozen=True, slots=True)
class Given:
    """The demo's input.

    `map_port` is where the map is served until Ctrl-C; None for nowhere. `width` is in columns.
    """

    settings: WebhookSettings
    cluster: Objects
    workload: Objects
    map: Path | None = None
    map_port: int | None = None
    browse: bool = False
    width: int = _WIDTH


class Stage(Protocol):
    """A cluster that the demo runs on."""

    @property
    def node_names(self) -> list[str]:
        """The names of the Nodes."""

    async def load(self, objects: Iterable[Mapping[str, Any]]) -> list[Result]:
        """Load the cluster's objects, and Pods that are bound already."""

    async def submit(self, pod: Mapping[str, Any]) -> Result:
        """Create a Pod, and return its outcome."""

    async def bind(self, namespace: str, name: str, node: str, username: str | None = None) -> Result:
        """Bind a Pod as this user."""

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a Pod."""

    def account(self) -> Account:
        """Count who holds what."""


async def play(stage: Stage, given: Given, means: Callable[[], str]) -> bool:
    """Run the workload on a cluster, and print the outcome.

    Returns:
        Whether no device was given twice, and only koord-scheduler could bind a Pod that asks for devices.

    Raises:
        InputError: an object cannot be used.
    """
    most = given.width
    results = await stage.load([*given.cluster.cluster, *given.cluster.pods])
    empty = stage.account()
    for group in podgroups.grouped(results, empty, apart=True):
        terminal.show(*report.block(group), "", most=most)
    for pod in given.workload.pods:
        results.append(await stage.submit(pod))
        (group,) = podgroups.grouped(results[-1:], empty, apart=True)
        terminal.show(*report.block(group), "", most=most)
    foreign = await _bind_around(stage)
    refused = foreign.state is PodFate.BIND_REFUSED
    fate = "refused" if refused else f"{foreign.state}, which must not happen"
    terminal.show(f"A Binding of {_STRAY['metadata']['name']} by {FOREIGNER}: {fate}", most=most)
    terminal.show(report.indented([("   ", foreign.message)]), "", most=most)
    account = stage.account()
    terminal.show(*report.node_parts(account.reports(), account, terminal.columns(most)), most=most)
    if given.map is not None:
        devicemap.write(given.map, results, account)
        terminal.show(f"The device map is in {given.map}: open it in a browser.", "")
    shown = DemoOutcome(results, account, account.overgiven(), refused, fate, means())
    terminal.show(*parts(shown), most=most)
    if given.map_port is not None:
        async with devicemap.serving(results, account, given.map_port) as url:
            told = f"The device map is at {url} for this machine alone. Press Ctrl-C to end."
            terminal.show("", told, most=most)
            sys.stdout.flush()
            if given.browse and not devicemap.browse(url):
                terminal.show("No browser could be opened from here: open the address above in one.", most=most)
                sys.stdout.flush()
            await devicemap.until_interrupted()
    return shown.right


async def _bind_around(stage: Stage) -> Result:
    """Try to bind a Pod that asks for devices as a user other than koord-scheduler, which must be refused."""
    metadata = _STRAY["metadata"]
    created = await stage.submit(_STRAY)
    if created.state is PodFate.DENIED:
        return created
    node = next(iter(stage.node_names), "nowhere")
    result = await stage.bind(metadata["namespace"], metadata["name"], node, FOREIGNER)
    await stage.delete(metadata["namespace"], metadata["name"])
    return result


async def _here(given: Given) -> bool:
    """Run on the in-memory cluster, with the webhook behind HTTPS."""
    async with OfflineCluster.over_https(given.settings) as (stage, way):
        told = f"The webhook serves on {way.url}, in this process, with a certificate of its own making."
        terminal.show(told, "", most=given.width)
        return await play(stage, given, lambda: f"the real webhook: {way.calls} requests over HTTPS")


def given_by(arguments: argparse.Namespace) -> Given:
    """Read the given files; the examples replace those that are not given. Of workloads their Pods are meant.

    If neither cluster nor workload is an example, the default settings are used instead of the examples'.
    """
    own = arguments.cluster and arguments.workload
    examples = None if own else data_folder("examples")
    cluster, workload = (
        read([given or str(Path(str(examples), name))])
        for given, name in ((arguments.cluster, "cluster.yaml"), (arguments.workload, "workload.yaml"))
    )
    if not cluster.nodes:
        raise InputError(f"{arguments.cluster}: there is no Node in it; give Nodes with their devices")
    workload.pods = [one.pod for one in created(replace(workload, nodes=cluster.nodes)).pods]
    if not workload.pods:
        raise InputError(f"{arguments.workload}: there is no Pod in it, and nothing that creates one; give Pods")
    config = arguments.config or (None if examples is None else examples / "config.yaml")
    loaded = WebhookSettings() if config is None else settings.load(config)
    port = arguments.map_port
    if port is None and (arguments.open or devicemap.watched()):
        port = 0
    if arguments.no_map_server:
        port = None
    width = terminal.WIDE if arguments.wide else _WIDTH
    return Given(loaded, cluster, workload, arguments.map, port, arguments.open, width)


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.ERROR)
    try:
        given = given_by(arguments)
        right = asyncio.run(_here(given))
        sys.stdout.flush()
    except (InputError, MissingDataError, SettingsError, devicemap.MapError) as error:
        terminal.tell(arguments.called, str(error))
        return terminal.UNUSABLE
    except BrokenPipeError:
        return terminal.unread()
    return 0 if right else 1


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", metavar="FILE", help="Nodes with devices and CPUs (default: the example cluster)")
    parser.add_argument("--workload", metavar="FILE", help="Pods to be created (default: the example workload)")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of the webhook (default: those of the examples; if neither cluster nor workload is an example, "
        "all defaults)",
    )
    parser.add_argument("--map", type=Path, metavar="FILE", help="draw who holds what as one HTML file")
    served = parser.add_mutually_exclusive_group()
    served.add_argument(
        "--map-port",
        type=devicemap.tcp_port,
        metavar="PORT",
        help="serve the device map on this port of 127.0.0.1 at the end, until Ctrl-C; 0: any free one (default on a "
        "terminal: 0; elsewhere it is not served)",
    )
    served.add_argument("--no-map-server", action="store_true", help="end at once on a terminal too")
    parser.add_argument("--open", action="store_true", help="serve the device map, and open it in a browser")
    parser.add_argument(
        "--wide",
        action="store_true",
        help="use the terminal's whole width, and elsewhere wrap nothing (default: at most 80 columns)",
    )


COMMAND: Final = Command(
    description="Show the whole product on this machine, with Python alone: the real HTTPS webhook is started on the\n"
    "in-memory store, and Pods are created, scheduled and bound as the API server and kube-scheduler do it.\n"
    "The output shows each Pod's request and its translation, the devices and CPUs that the Pod got or why it got\n"
    "none, and who holds what.\n"
    "The exit status is 1 if anything was given twice, or if another user could bind a Pod that asks for devices.",
    examples="examples:\n  koordgate demo\n  koordgate demo --map map.html\n  koordgate demo --open\n"
    "  koordgate demo --workload my-pods.yaml",
    arguments=_arguments,
    run=_run,
)
