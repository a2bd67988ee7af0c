"""The NVML process: answers questions on standard input, and reports Xid errors in between.

One thread does everything. If a call hangs, the next question is not answered, and `guarded` notices.
"""

import argparse
import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from reporter.gpu import protocol
from reporter.gpu.nvml import CardError, LibraryError, Nvml

_XID_WAIT_MS: Final = 250  # the longest that a question waits for the wait for an Xid error to end
_NEXT_QUESTION_S: Final = 0.02  # questions come in a row, card by card: none but the first waits for that
_XID_PAUSE_S: Final = 2.0  # before Xid errors are waited for again where NVML could not
_MAX_AT_ONCE: Final = 256  # Xid errors, of a card that has nothing else any more
_PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """Serve until standard input ends or NVML fails."""
    parser = argparse.ArgumentParser(prog="reporter.gpu.worker")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"))
    parser.add_argument("--proc", type=Path, default=Path("/proc"))
    parser.add_argument("--deaf", action="store_true", help="wait for questions alone, not for Xid errors")
    options = parser.parse_args()
    _die_with_parent()
    with suppress(BrokenPipeError), _own_output() as output:  # nobody listens any more
        try:
            nvml = Nvml(options.sysfs, options.proc)
            _serve(nvml, output, listening=not options.deaf and nvml.listen())
        except LibraryError as failure:
            _say(output, protocol.Failed(failure.reason, failure.message))
            return 1
    return 0


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _own_output() -> BinaryIO:
    """Keep standard output for answers: what a library prints goes to standard error."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def _say(output: BinaryIO, message: protocol.Answer) -> None:
    output.write(protocol.encode(message))
    output.flush()


def _serve(nvml: Nvml, output: BinaryIO, *, listening: bool) -> None:
    """Answer questions and report Xid errors until standard input ends.

    Raises LibraryError: NVML as a whole cannot be used any more.
    """
    questions = os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    pending = b""
    pause: float | None = 0.0 if listening else None  # None: wait only for questions
    while True:
        ready, _, _ = select.select([questions], [], [], pause)
        if ready:
            data = questions.read(65536)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                _say(output, _answer(nvml, protocol.ASKS.decode(line)))
            if pause is not None:
                _report_all(nvml, output)
                pause = _NEXT_QUESTION_S
            if not data:
                return
        elif pause is not None:
            pause = _report(nvml, output)


def _report(nvml: Nvml, output: BinaryIO) -> float:
    """Report the next Xid error, if one comes soon; returns how long to pause before the next."""
    try:
        event = nvml.next_xid(_XID_WAIT_MS)
    except CardError:  # for example a lost card: the next reading reports it
        return _XID_PAUSE_S
    if event is not None:
        _say(output, protocol.Xid(event))
    return 0.0


def _report_all(nvml: Nvml, output: BinaryIO) -> None:
    """Report all Xid errors that have come, so that questions or the end of input never lose one."""
    with suppress(CardError):
        for _ in range(_MAX_AT_ONCE):
            event = nvml.next_xid(0)
            if event is None:
                return
            _say(output, protocol.Xid(event))


def _answer(nvml: Nvml, ask: protocol.Ask) -> protocol.Answer:
    if ask.limits:
        return protocol.Limited(ask.number, nvml.limit(ask.limits))
    if ask.cgroups:
        return protocol.Memory(ask.number, nvml.memory(ask.cgroups))
    if ask.uuid is None:
        return protocol.NvmlReading(ask.number, nvml.read_node())
    try:
        return protocol.Processes(ask.number, nvml.processes(ask.uuid))
    except CardError as failure:
        return protocol.Refused(ask.number, str(failure))


if __name__ == "__main__":
    sys.exit(main())
