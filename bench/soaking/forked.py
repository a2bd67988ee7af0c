"""Replicas that are forked by a parent which has imported everything: a restart costs no imports."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from localplane.process import Child, Process, StartError

_NURSERY: Final = Path(__file__).with_name("nursery.py")


class Nursery:
    """A process that forks replicas whose clock is wrong."""

    def __init__(self, shift: float, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                (sys.executable, str(_NURSERY), str(shift)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )

    def fork(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> "Forked":
        """Start `koordgate ARGV`.

        Raises:
            StartError: the nursery has ended.
        """
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            raise StartError("a nursery without pipes")
        order = {"argv": list(argv), "env": dict(env), "log": str(log)}
        try:
            to.write(f"{json.dumps(order)}\n")
            to.flush()
        except BrokenPipeError as error:
            raise StartError(f"the nursery has ended with status {self._process.wait()}") from error
        answer = back.readline()
        if not answer:
            raise StartError(f"the nursery has ended with status {self._process.wait()}")
        return Forked(int(answer))

    def close(self) -> None:
        """End the nursery; what it has forked and is still there is killed with it."""
        self._process.kill()
        with self._process:
            self._process.wait()


class Forked:
    """A process that another process has forked. Only that one gets its status: it counts as 0 here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._file = os.pidfd_open(pid)  # readable once the process has ended, and never another process
        self._ended = False

    def poll(self) -> int | None:
        """0 once it has ended; None while it runs."""
        if not self._ended:
            self._wait(0)
        return 0 if self._ended else None

    def wait(self) -> int:
        """Wait until it has ended."""
        if not self._ended:
            self._wait(None)
        return 0

    def _wait(self, milliseconds: int | None) -> None:
        ended = select.poll()
        ended.register(self._file, select.POLLIN)
        if ended.poll(milliseconds):
            self._ended = True
            os.close(self._file)


class ForkedProcess(Process):
    """A replica that its nursery forks."""

    def __init__(
        self, nursery: Nursery, name: str, argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None
    ) -> None:
        super().__init__(name, argv, log, env=env)
        self._nursery = nursery

    def _spawned(self) -> Child:
        return self._nursery.fork(self._argv, self._env, self.log)


class Nurseries:
    """A nursery for each replica; a context manager."""

    def __init__(self, shifts: Sequence[float], folder: Path) -> None:
        self._shifts = shifts
        self._folder = folder
        self._stack = ExitStack()
        self._nurseries: list[Nursery] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, shift in enumerate(self._shifts):
            nursery = Nursery(shift, self._folder / f"nursery-{number}.log")
            self._stack.callback(nursery.close)
            self._nurseries.append(nursery)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def process(self, name: str, argv: Sequence[Any], log: Path, *, env: Mapping[str, str] | None) -> Process:
        """Describe a replica; the first of `argv` is its number."""
        number, *rest = map(str, argv)
        return ForkedProcess(self._nurseries[int(number)], name, rest, log, env=env)
