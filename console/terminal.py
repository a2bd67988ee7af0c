"""What commands print, as wide as the terminal, and words of the command line that several of them read."""

import argparse
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import RLock, Timer
from typing import Any, Final

import orjson
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from koordgate.kube.errors import KubeError, Unreachable
from koordgate.settings import SettingsError

UNUSABLE: Final = 2
"""The exit status for wrong arguments, settings and files."""
INTERRUPTED: Final = 130
"""The exit status after Ctrl-C: 128 and the signal, as a shell reports it."""
OR_FILES: Final = "; or give a snapshot or manifests with -f"
_SIGPIPE: Final = 141  # 128 + SIGPIPE, as a shell reports it
_MAX_S: Final = 24 * 3600.0
_QUIET_S: Final = 1.0  # for which a command says nothing of what it does
EACH: Final = 10_000
"""Off a terminal there is a line for each so many that are done; what is shorter is done soon."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
WIDE: Final = 10_000  # off a terminal nothing is wrapped: a line is as long as its longest reason


def show(*parts: Table | Text | str, most: int = WIDE) -> None:
    """Print tables and lines: in colour and as wide as a terminal is, elsewhere plain, with nothing wrapped.

    Args:
        *parts: to print.
        most: the largest width, in columns, in which it is wrapped everywhere.
    """
    _hide()
    if sys.stdout.isatty():
        console = screen()
        console.width = columns(most)
        _print(console, parts)
        return
    text = io.StringIO()
    console = _console(file=text, width=most, color_system=None)
    _print(console, parts)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def write_data(document: Any, output: str) -> None:
    """Print a document as `json` or `yaml`."""
    _hide()
    sys.stdout.write(
        yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        if output == "yaml"
        else orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"
    )


def _print(console: Console, parts: Iterable[Table | Text | str]) -> None:
    """Print parts; a Text that is not to be wrapped is left to the terminal, however long it is, and can be copied."""
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def columns(most: int = WIDE) -> int:
    """The width in which something is printed: the terminal's, at most this one; elsewhere this one."""
    return min(screen().width, most) if sys.stdout.isatty() else most


def fits(table: Table, width: int) -> bool:
    """Whether nothing in a table has to be wrapped in this width."""
    console = _console(file=io.StringIO(), width=WIDE)
    return console.measure(table).maximum <= width


def printable(text: str) -> str:
    """Replace characters that a terminal must not interpret."""
    return "".join(char if char.isprintable() else "?" for char in text)


def counted(number: int, what: str) -> str:
    """A number of things: "1 Pod", "2 Pods"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def some(names: Sequence[str], most: int = 8) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def namespace(text: str) -> str:
    """Read the name of a namespace from the command line."""
    if _NAMESPACE.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} cannot be the name of a namespace")


def add_output(parser: argparse.ArgumentParser, *, wide: str = "", table: bool = True) -> None:
    """Add `-o`, which means the same in all commands.

    `wide`: what the format `wide` is or adds; "" if there is none. `table`: whether there is a table, the default.
    """
    formats = [*(["table"] if table else []), *(["wide"] if wide else []), "json", "yaml"]
    about = f": wide {wide}" if wide else ""
    default = "table" if table else "yaml"
    parser.add_argument(
        *("-o", "--output"),
        choices=formats,
        default=default,
        help=f"the format of the output (default: {default}){about}",
    )


def seconds(text: str) -> float:
    """Read a time from the command line."""
    with suppress(ValueError):
        number = float(text)
        if 0 <= number <= _MAX_S:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}: state seconds from 0 to {_MAX_S:.0f}")


def tell(called: str, text: str) -> None:
    """Write a message to standard error, with how the command was called."""
    _hide()
    lines = "\n".join(map(printable, text.split("\n")))
    sys.stderr.write(f"{called}: {lines}\n")


def guarded(called: str, run: Callable[[], int], *wrong: type[Exception], hint: str = "", refused: str = "") -> int:
    """Run a command; what fails is reported in one line, with the exit status that all commands have for it.

    Exceptions of `wrong` say what the user gave wrongly; `hint` is told where there is no kubeconfig, `refused` where
    the API server refuses.
    """
    given: tuple[type[Exception], ...] = (SettingsError, *wrong)
    status = 1
    try:
        with working():
            status = run()
        sys.stdout.flush()
    except given as error:
        tell(called, str(error))
        return UNUSABLE
    except Unreachable as error:
        tell(called, f"the API server of the kubeconfig does not answer: {error}")
    except KubeError as error:
        tell(called, f"{error}{hint if error.reason == 'Configuration' else refused if error.status else ''}")
    except BrokenPipeError:
        return unread()
    except KeyboardInterrupt:
        tell(called, "interrupted")
        return INTERRUPTED
    return status


class _Line:
    """The line of standard error that says what a command is doing, in a thread of its own."""

    def __init__(self) -> None:
        self._console = errors()
        self._lock = RLock()
        self._about = ("", 0, 0)
        self._since = time.monotonic()
        self._waiting: Timer | None = None
        self._shown: Any = None  # a rich.live.Live

    def tell(self, text: str, done: int, total: int) -> None:
        """Something is done now; off a terminal, each so many that are done have a line."""
        before = self._about
        self._about = (text, done, total)
        if text != before[0]:
            self._since, before = time.monotonic(), ("", 0, 0)
        if not self._console.is_terminal and done // EACH > before[1] // EACH:
            self._console.print(f"{text}: {done:,} of {total:,}", soft_wrap=True)

    def begin(self) -> None:
        """Show the line in a second, if nothing is printed until then."""
        if self._console.is_terminal:
            with self._lock:
                self._waiting = Timer(_QUIET_S, self._show)
                self._waiting.daemon = True
                self._waiting.start()

    def end(self) -> None:
        """Erase the line."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None
            if self._shown is not None:
                self._shown.stop()
                self._shown = None

    def _show(self) -> None:
        from rich.live import Live  # noqa: PLC0415 most commands end before
        from rich.spinner import Spinner  # noqa: PLC0415 likewise

        spinner = Spinner("line")

        def drawn() -> Spinner:
            spinner.update(text=self._text())
            return spinner

        with self._lock:
            if self._waiting is None:
                return
            live = Live(get_renderable=drawn, console=self._console, transient=True, redirect_stdout=False)
            live.start()
            self._shown = live

    def _text(self) -> str:
        text, done, total = self._about
        if not total:
            return text
        seconds = (time.monotonic() - self._since) * (total - done) / done if done else 0.0
        left = f", some {seconds:.0f} s left" if seconds >= 1 else ""
        return f"{text}: {done:,} of {total:,}{left}"


_LINE: ContextVar[_Line | None] = ContextVar("line", default=None)


@contextmanager
def working() -> Iterator[None]:
    """Say on standard error what is being done (`doing`): on a terminal from the second second on, without a trace."""
    line = _Line()
    token = _LINE.set(line)
    line.begin()
    try:
        yield
    finally:
        line.end()
        _LINE.reset(token)


def doing(text: str, done: int = 0, total: int = 0) -> None:
    """Tell what is being done from now on, and how many of how many are done."""
    if (line := _LINE.get()) is not None:
        line.tell(printable(text), done, total)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Show nothing of what is being done, for somebody who draws on the terminal himself."""
    if (line := _LINE.get()) is not None:
        line.end()
    yield
    if line is not None:
        line.begin()


def _hide() -> None:
    """Leave the terminal to what is printed; a second later what is being done is shown again."""
    if (line := _LINE.get()) is not None:
        line.end()
        line.begin()


def unread() -> int:
    """End quietly if nobody reads the output any more, as after `| head`; the exit status is that of a Unix tool."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes at the end
    return _SIGPIPE


def screen() -> Console:
    """The terminal."""
    return _console()


def errors() -> Console:
    """What standard error is shown on."""
    return _console(stderr=True)


def _console(**about: Any) -> Console:
    """What people wrote is never taken for markup."""
    return Console(highlight=False, markup=False, emoji=False, **about)
