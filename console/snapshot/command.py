"""`koordgate snapshot`: what matters of a cluster's objects in one file, for simulate, explain and bug reports."""

import argparse
import asyncio
import gzip
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

from console import terminal
from console.reading import add_cluster, connect
from console.snapshot.keep import Raw
from console.snapshot.read import SnapshotWanted, Taken, take
from koordgate.cli import Command
from webhook import settings

STDOUT: Final = "-"
_GZIP: Final = ".gz"
_MINE: Final = 0o600  # it names what runs in the cluster


def write(path: str, items: Iterable[Raw]) -> int:
    """Write a snapshot, an object a line, and return its size in bytes. A file is replaced at once, or left as it is.

    One that ends in .gz is compressed; `-` is standard output.

    Raises OSError: the file cannot be written.
    """
    lines = b",\n".join(map(orjson.dumps, items))
    text = b'{"apiVersion":"v1","kind":"List","items":[\n' + lines + b"\n]}\n"
    if path == STDOUT:
        sys.stdout.write(text.decode())
        return len(text)
    body = gzip.compress(text, mtime=0) if path.endswith(_GZIP) else text
    target = Path(path)
    part = Path(f"{path}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MINE), "wb") as file:
            file.write(body)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return len(body)


async def _take(arguments: argparse.Namespace) -> Taken:
    configured = settings.load(arguments.config) if arguments.config else None
    wanted = SnapshotWanted(arguments.installed_in, arguments.namespaces, arguments.anonymize, configured)
    async with connect(arguments) as kube:
        return await take(kube, wanted, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _run(arguments: argparse.Namespace) -> int:
    return terminal.guarded(arguments.called, lambda: _write(arguments))


def _write(arguments: argparse.Namespace) -> int:
    taken = asyncio.run(_take(arguments))
    try:
        size = write(arguments.file, taken.items)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        told = f"{arguments.file} cannot be written ({error.strerror}): name another file"
        terminal.tell(arguments.called, told)
        return terminal.UNUSABLE
    for note in taken.notes:
        terminal.tell(arguments.called, note)
    if arguments.file != STDOUT:
        counted = ", ".join(f"{name}: {count}" for name, count in taken.counts.items() if count)
        terminal.tell(arguments.called, f"{arguments.file} has {counted} ({size} bytes)")
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        default=STDOUT,
        metavar="FILE",
        help="the file to write, compressed if its name ends in .gz (default: -, standard output); one that exists is "
        "replaced",
    )
    parser.add_argument(
        *("-n", "--namespace"),
        dest="namespaces",
        type=terminal.namespace,
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="only the Pods, quotas and claims of this namespace; may be given more than once (default: all). What "
        "other Pods hold of devices is still there, in the NodeAllocations; their CPU and memory are not",
    )
    parser.add_argument(
        "--anonymize",
        action="store_true",
        help="replace the names of objects and the labels of your own. A name has the same replacement in all "
        "snapshots of a cluster. Names of containers, resources and device models, UUIDs and PCI addresses stay",
    )
    add_cluster(parser)


COMMAND: Final = Command(
    description="Write what matters of a cluster's objects into one file, a List that simulate and explain read.\n\n"
    "It has Nodes, Devices, NodeResourceTopologies, NodeAllocations, Pods, Namespaces, PodGroups, PriorityClasses, "
    "RuntimeClasses, ResourceQuotas, LimitRanges, PodDisruptionBudgets, ResourceClaims and -Slices, koordgate's Events "
    "and settings, and versions. Of each only the fields that koordgate reads are kept: no Secret, command, argument, "
    "image, volume or variable of a container except those that show it its devices, and no foreign annotation. Labels "
    "are kept; see --anonymize.\n\n"
    "Nodes and Pods must be readable. What else the user may not read is left out, and a message says so.",
    examples="examples:\n"
    "  koordgate snapshot cluster.json.gz\n"
    "  koordgate snapshot report.json.gz --anonymize --context production\n"
    "  koordgate simulate -f cluster.json.gz my-pod.yaml\n"
    "  koordgate explain train-7 -n team-a -f cluster.json.gz",
    arguments=_arguments,
    run=_run,
)
