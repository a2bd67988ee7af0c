"""`python -m localplane`: build the programs in advance, run a control plane by hand, write chart files."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from koordgate.steady import asked_to_end
from localplane import dialects
from localplane.binaries import (
    APART,
    EVERYTHING,
    OLDER_COMPONENTS,
    TOOLS,
    BuildError,
    cache_folder,
    find_or_build,
)
from localplane.chart import ChartError, chart_folder
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.versions import KUBERNETES, VersionError, chosen, versions


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="find or build the programs, and print the path of each")
    build.add_argument("names", nargs="*", metavar="NAME", help=f"all if none is given: {', '.join(EVERYTHING)}")
    run = commands.add_parser(
        "run", help="run etcd and the API server until interrupted, and print the path of the kubeconfig"
    )
    run.add_argument("--workdir", type=Path, help="keep data, logs and kubeconfig here")
    run.add_argument("--scheduler", action="store_true", help="run a kube-scheduler as well")
    run.add_argument("--controller-manager", action="store_true", help="run kube-controller-manager as well")
    commands.add_parser("versions", help="print the versions of Kubernetes that can be built, the oldest first")
    commands.add_parser("generate", help="write the chart's files that are generated from the table of dialects")
    for command in (build, run):
        command.add_argument(
            "--kubernetes", metavar="VERSION", help=f"one of {', '.join(versions())}; default: {KUBERNETES}"
        )
        command.add_argument("--cache", type=Path, default=cache_folder(), help="default: %(default)s")
    return parser


def _build(names: Sequence[str], cache: Path, kubernetes: str | None) -> None:
    unknown = set(names) - set(EVERYTHING)
    if unknown:
        raise BuildError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(EVERYTHING)}")
    everything = EVERYTHING if chosen(kubernetes) == KUBERNETES else (*OLDER_COMPONENTS, *TOOLS, *APART)
    for name, path in find_or_build(names or everything, cache, kubernetes=kubernetes).paths.items():
        sys.stdout.write(f"{name} {path}\n")


async def _run(arguments: argparse.Namespace) -> None:
    binaries = find_or_build(CONTROL_PLANE, arguments.cache, kubernetes=arguments.kubernetes)
    stopped = asked_to_end()
    manager = arguments.controller_manager
    async with ControlPlane(binaries, workdir=arguments.workdir, controller_manager=manager) as plane:
        if arguments.scheduler:
            await plane.start_scheduler("kube-scheduler")
        sys.stdout.write(f"KUBECONFIG={plane.admin_kubeconfig}\n")
        sys.stdout.flush()
        await stopped.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "build":
            _build(arguments.names, arguments.cache, arguments.kubernetes)
        elif arguments.command == "versions":
            sys.stdout.write("".join(f"{version}\n" for version in versions()))
        elif arguments.command == "generate":
            sys.stdout.write(f"{dialects.write(chart_folder())}\n")
        else:
            asyncio.run(_run(arguments))
    except (BuildError, ChartError, VersionError) as error:
        sys.stderr.write(f"localplane: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
