"""`koordgate cleanup`: removes all that koordgate left in a cluster after helm uninstall."""

import argparse
import asyncio
import sys
from typing import Final

from console import terminal
from console.cleanup.remover import InstalledError, Left, Remover
from console.terminal import printable
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, Unreachable
from webhook.settings import Identity

_FAILED: Final = 1
_INSTALLED: Final = 2
_KEPT: Final = 3
_NAMESPACE: Final = Identity().namespace


def _tell(what: str, *, dry_run: bool) -> None:
    terminal.show(printable(f"{'would remove' if dry_run else 'removed'}  {what}"))


async def _main(arguments: argparse.Namespace) -> Left:
    dry_run = not arguments.yes
    async with KubeClient.autodetect() as kube:
        remover = Remover(
            kube,
            arguments.namespace,
            lambda what: _tell(what, dry_run=dry_run),
            dry_run=dry_run,
            keep_settings=arguments.keep_settings,
            force=arguments.force,
            timeout=arguments.timeout,
        )
        return await remover.run()


def _run(arguments: argparse.Namespace) -> int:
    try:
        left = asyncio.run(_main(arguments))
        _conclude(left, dry_run=not arguments.yes)
        sys.stdout.flush()
    except InstalledError as error:
        return _failed(_INSTALLED, str(error))
    except Unreachable as error:
        return _failed(_FAILED, f"the API server of the kubeconfig does not answer: {error}; run the command again")
    except KubeError as error:
        more = "; what comes after it is not removed: run the command again" if error.status else ""
        return _failed(_FAILED, f"{error}{more}")
    except BrokenPipeError:
        return terminal.unread()
    return _KEPT if left.kept and arguments.yes else 0


def _conclude(left: Left, *, dry_run: bool) -> None:
    for sentence in (*left.notes, *left.kept):
        terminal.show(printable(f"note: {sentence}"))
    if dry_run:
        terminal.show(f"dry run: {left.removed} would be removed; nothing was; --yes removes it")
    elif left.kept:
        terminal.show(f"{left.removed} removed; {len(left.kept)} notes above say what stays")
    else:
        terminal.show(f"{left.removed} removed; nothing of koordgate is left")


def _failed(status: int, message: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"koordgate cleanup: {printable(message)}\n")
    return status


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        type=terminal.namespace,
        default=_NAMESPACE,
        help=f"the release's namespace (default: {_NAMESPACE})",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dry-run", action="store_true", help="only list what would be removed (the default)")
    which.add_argument("--yes", action="store_true", help="remove it")
    parser.add_argument(
        "--keep-settings",
        action="store_true",
        help="leave labels and annotations of koordgate's domain that people wrote on Nodes and "
        "namespaces, for a later installation",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also remove amounts from Nodes whose Pods request them: a kubelet that restarts rejects these Pods",
    )
    parser.add_argument(
        "--timeout",
        type=terminal.seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long to wait for koordgate's own Pods to end (default: 120)",
    )


COMMAND: Final = Command(
    description="Remove all that koordgate left in a cluster after helm uninstall.\n\n"
    "Webhook configurations go first, so that nothing refuses Pods meanwhile. Policies, workloads and what these\n"
    "made follow: Secrets, quota mirrors, taints for DRA, amounts, labels and taints of Nodes, labels of namespaces,\n"
    "the ledger, and the Device and NodeResourceTopology objects that nobody else writes. Pods are not touched. The\n"
    "command can be run again at any time, and goes on where it was. Without --yes it only lists what it would do.\n\n"
    "The exit status is 0 if nothing is left, 1 if the API server refused or did not answer, 2 for wrong arguments\n"
    "or while Helm's release is installed, and 3 if something stays because Pods need it; the notes say what.\n\n"
    "The cluster is that of the kubeconfig ($KUBECONFIG). The user must be its administrator.",
    examples="examples:\n"
    "  koordgate cleanup\n"
    "  helm uninstall koordgate -n koordgate-system && koordgate cleanup --yes\n"
    "  koordgate cleanup --yes --keep-settings --namespace koordgate-system",
    arguments=_arguments,
    run=_run,
)
