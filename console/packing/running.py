"""What both commands do alike: read the cluster, tell what is not known, fail with a message and a status."""

import argparse
import sys
from collections.abc import Callable
from typing import Final

from console import terminal
from console.devices.nodestate import CommandError
from console.explain.reading import read_files, read_live
from console.packing.report import Part
from console.packing.state import PackingState, read_state
from console.simulator.documents import InputError
from console.terminal import printable
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, Unreachable
from koordgate.settings import SettingsError
from webhook import settings

UNUSABLE: Final = 2
NO_ROOM: Final = 3
_MOST_NOTES: Final = 8
_ON_TERMINALS: Final = 100  # columns
_ELSEWHERE: Final = 80


async def state_of(arguments: argparse.Namespace, kube: KubeClient | None = None) -> PackingState:
    """Read the files, or the cluster.

    Args:
        arguments: of the command line.
        kube: the open client; None where files are read.

    Raises:
        InputError: something cannot be read.
        KubeError: the API server refuses Nodes or Pods, or cannot be reached.
        SettingsError: the settings cannot be used.
    """
    configured = settings.load(arguments.config) if arguments.config else None
    if kube is None:
        read = read_files(arguments.files, configured)
    else:
        read = await read_live(kube, arguments.installed_in, configured)
    return read_state(read, configured, jobs=arguments.jobs)


def show(*parts: Part) -> None:
    """Print, at most 100 columns wide on a terminal, and 80 elsewhere."""
    terminal.show(*parts, most=_ON_TERMINALS if sys.stdout.isatty() else _ELSEWHERE)


def tell(command: str, state: PackingState) -> None:
    """Say on standard error what is not known."""
    for note in state.notes[:_MOST_NOTES]:
        say(command, note)
    if len(state.notes) > _MOST_NOTES:
        say(command, f"{len(state.notes) - _MOST_NOTES} more notes; -o json has all")


def say(command: str, text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"koordgate {command}: {printable(text)}\n")


def guarded(command: str, run: Callable[[], int]) -> int:
    """Run a command; what fails is reported in one line, with the exit status that all commands have for it."""
    try:
        status = run()
        sys.stdout.flush()
    except (CommandError, InputError, SettingsError) as error:
        say(command, str(error))
        return UNUSABLE
    except Unreachable as error:
        say(command, f"the API server of the kubeconfig does not answer: {error}")
        return 1
    except KubeError as error:
        hint = "; or give a snapshot or manifests with -f" if error.reason == "Configuration" else ""
        say(command, f"{error}{hint}")
        return 1
    except BrokenPipeError:
        return terminal.unread()
    return status
