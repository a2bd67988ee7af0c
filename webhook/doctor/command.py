"""`koordgate doctor`: looks at an installation, says what is wrong, and what to do about it."""

import argparse
import asyncio
import sys
from typing import Final

from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from webhook import terminal
from webhook.doctor import report
from webhook.doctor.checks import examine
from webhook.doctor.findings import Finding, Level, exit_status, failure
from webhook.doctor.reader import read_cluster
from webhook.settings import Identity

_NAMESPACE: Final = Identity().namespace


async def find(namespace: str, tried_in: str, context: str | None = None) -> list[Finding]:
    """Look at the cluster of the kubeconfig, or of this Pod; an API server that does not answer is a finding.

    Args:
        namespace: of the release.
        tried_in: where Pods are tried.
        context: of the kubeconfig; None for the current one.
    """
    try:
        async with KubeClient.autodetect(context=context) as kube:
            snapshot = await read_cluster(
                kube, namespace, tried_in, lambda user: KubeClient.autodetect(context=context, impersonate=user)
            )
    except KubeError as error:
        todo = "see that the kubeconfig ($KUBECONFIG) is of this cluster, and that its API server runs"
        return [failure("API server", error.message, todo)]
    return examine(snapshot)


def _run(arguments: argparse.Namespace) -> int:
    try:
        findings = asyncio.run(find(arguments.namespace, arguments.try_in, arguments.context))
        status = exit_status(findings, strict=arguments.strict)
        if arguments.output in {"json", "yaml"}:
            terminal.write_data(report.data(findings, status), arguments.output)
        else:
            most = terminal.WIDE if arguments.output == "wide" else report.WIDTH
            told = findings if not arguments.quiet else [one for one in findings if one.level is not Level.OK]
            terminal.show(report.table(told), "", report.summary(findings), most=most)
        sys.stdout.flush()
    except BrokenPipeError:
        return terminal.unread()
    return status


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        type=terminal.namespace,
        default=_NAMESPACE,
        help=f"the release's namespace (default: {_NAMESPACE})",
    )
    parser.add_argument(
        "--try-in",
        type=terminal.namespace,
        default="default",
        metavar="NAMESPACE",
        help="the namespace in which Pods that koordgate is to serve are tried, by dry run (default: default); it must "
        "not be exempt, and no other policy may refuse them there",
    )
    parser.add_argument("--context", metavar="NAME", help="the context of the kubeconfig (default: the current one)")
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "yaml"),
        default="table",
        help=f"the format of the output: wide is a table whose lines are not wrapped at {report.WIDTH} columns",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="leave out of the table what is right")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if nothing failed, but anything is a warning or not known"
    )


COMMAND: Final = Command(
    description="Look at an installation of koordgate, and say what is wrong and what to do about it.\n\n"
    "Pods and Bindings are sent as dry runs: the API server asks all webhooks and policies, and stores nothing.\n"
    "What comes back shows which Pods koordgate serves, and that certificates, network and replicas work together.\n"
    "It also checks versions, clocks, workloads, certificates, rights, policies, other products, quotas and nodes.\n\n"
    "The exit status is 0 if nothing failed, 1 with --strict for warnings and what is not known, 2 for a failure.\n\n"
    "The cluster is that of the kubeconfig ($KUBECONFIG); in a Pod, its own. What the user may not read is\n"
    "reported as not known. An administrator of the cluster sees all; helm test runs it with rights to read and to\n"
    "try Pods.",
    examples="examples:\n"
    "  koordgate doctor\n"
    "  koordgate doctor --namespace koordgate-system --try-in team-a --quiet\n"
    "  koordgate doctor --strict --output json",
    arguments=_arguments,
    run=_run,
)
