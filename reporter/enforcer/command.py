"""`koordgate serve enforcer`: edits the node's containers as they are created, by the container runtime's NRI."""

import argparse
import asyncio
import gc
import sys
from pathlib import Path
from typing import Final

from koordgate import log
from koordgate.cli import Command
from koordgate.settings import SettingsError, check
from koordgate.steady import asked_to_end
from reporter import settings
from reporter.enforcer import process
from reporter.enforcer.decide import rules_of
from reporter.enforcer.node import Node
from reporter.enforcer.nri import messages
from reporter.gpu.guarded import DriverRoots
from reporter.settings import ReporterSettings

_GARBAGE: Final = 20_000


async def _main(configured: ReporterSettings) -> None:
    ended = asked_to_end()
    messages.types()  # made here, so that no call waits for it
    node = Node(rules_of(configured), DriverRoots(Path(configured.roots.sysfs), Path(configured.roots.proc)))
    try:
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        await process.run(configured, node, ended)
    finally:
        await node.aclose()


def _run(arguments: argparse.Namespace) -> int:
    try:
        configured = settings.load(arguments.config)
        if arguments.check:
            sys.stdout.write(f"{check(arguments.config, ReporterSettings)}\n")
            return 0
    except SettingsError as error:
        sys.stderr.write(f"koordgate serve enforcer: {error}\n")
        return 2
    log.start(configured.log_level, "enforcer", configured.log_format)
    asyncio.run(_main(configured))
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="settings (YAML): those of the reporter"
    )
    parser.add_argument("--check", action="store_true", help="check the settings and exit")


COMMAND: Final = Command(
    description="Have containers created with the CPUs, cards and limits that were decided. It registers with the"
    " container runtime as an NRI plugin, beside the node's reporter.",
    examples="examples:\n"
    "  koordgate serve enforcer --config /etc/koordgate/reporter.yaml\n"
    "  koordgate serve enforcer --config reporter.yaml --check",
    arguments=_arguments,
    run=_run,
)
