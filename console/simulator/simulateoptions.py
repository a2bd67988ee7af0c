"""Options of `koordgate simulate`: which do not go together, and the files that they name."""

import argparse
from pathlib import Path

from console.simulator.documents import InputError


def refuse_of_one_run(arguments: argparse.Namespace, beside: str) -> None:
    """Refuse the options that show or judge the Pods of one run, where there are several runs or no such Pods.

    Args:
        arguments: of the command line.
        beside: the options that do not go with them, for the message.

    Raises:
        InputError: one is given.
    """
    of_one_run = {
        "--node": arguments.node,
        "--map": arguments.map,
        "--expect": arguments.expect,
        "--require-bound": arguments.require_bound,
        "--junit": arguments.junit,
    }
    for name, value in of_one_run.items():
        if value:
            raise InputError(f"{name} does not go with {beside}; leave it out")


def write_file(path: Path, text: str, option: str) -> None:
    """Write the file that an option names.

    Raises:
        InputError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({error.strerror}); name another file") from error
