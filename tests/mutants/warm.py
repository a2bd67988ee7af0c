"""A process that keeps what the tests import from other packages, and forks for each trial: run as a script.

Each line of standard input is an order, each line of standard output the exit status of its trial. Python's own modules
and other packages' are imported once, after the first trial that needed them. The project's are imported by each trial,
so that it reads the mutant.
"""

import importlib
import json
import os
import resource
import signal
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

import pytest

NO_MUTANT = 100
"""The exit status where the module cannot be imported. pytest's own are below 10."""


@dataclass(frozen=True, slots=True)
class Order:
    """One trial: import `module`, then run the tests listed in the file `listed` until one fails.

    `cpu_s` and `wall_s` are seconds, of the processor and of the clock; a signal ends the trial after either.
    """

    module: str
    listed: str
    cpu_s: int
    wall_s: float

    def line(self) -> str:
        """As `serve` reads it."""
        return json.dumps(asdict(self)) + "\n"


def serve() -> None:
    """Answer orders until the input ends; an answer is an exit status, or the number of a signal with a minus."""
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            answers.write(f"{_trial(Order(**json.loads(line)))}\n")
            answers.flush()


def _trial(order: Order) -> int:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _in_child(order, writing)
    os.close(writing)
    _, ended = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests left running
    with os.fdopen(reading) as told:
        _keep(told.read().split())
    return os.waitstatus_to_exitcode(ended)


def _in_child(order: Order, told: int) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    resource.setrlimit(resource.RLIMIT_CPU, (order.cpu_s, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, order.wall_s)
    ended: int = NO_MUTANT
    try:
        importlib.import_module(order.module)
        ended = pytest.ExitCode.INTERNAL_ERROR
        # "already imported": the plugins are, and their own assertions need no rewriting
        quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:cov", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        ended = pytest.main(["-x", *quiet, f"@{order.listed}"])
        os.set_blocking(told, False)
        os.write(told, " ".join(_from_elsewhere()).encode())
    finally:
        os._exit(ended)  # whatever a mutant raises, this copy of the process ends here


def _from_elsewhere() -> Iterator[str]:
    """Modules of Python and of other packages that are imported here."""
    folders = (*site.getsitepackages(), sysconfig.get_path("stdlib"))
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(folders) and name != "__main__":
            yield name


def _keep(names: list[str]) -> None:
    for name in names:
        with suppress(Exception):  # some can be imported only in their turn, and are then imported by each trial
            importlib.import_module(name)


if __name__ == "__main__":
    serve()
