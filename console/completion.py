"""`koordgate completion`: makes a shell complete commands and options, without running koordgate at each key."""

import argparse
import sys
from typing import Final

from koordgate.cli import Command, whole_parser

_SHELLS: Final = ("bash", "zsh", "fish", "kubectl")
# kubectl runs this file with the words of `kubectl koordgate` and reads its output as cobra's protocol: a candidate a
# line, then a directive; 4 says that no files are offered.
_KUBECTL: Final = """\
#!/usr/bin/env bash
# kubectl runs this file to complete `kubectl koordgate`: it must be on PATH as kubectl_complete-koordgate.
compopt() {{ :; }}
{script}
COMP_WORDS=(koordgate "$@")
COMP_CWORD=$#
COMPREPLY=()
{function} koordgate "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}" 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
echo :4
"""


def script(shell: str) -> str:
    """Write the script for a shell, or the file that completes `kubectl koordgate`."""
    import shtab  # noqa: PLC0415 nothing else needs it

    parser = whole_parser()
    if shell != "kubectl":
        return shtab.complete(parser, shell)
    text = shtab.complete(parser, "bash")
    function = next(word for line in text.splitlines() if line.startswith("complete ") for word in _function(line))
    return _KUBECTL.format(script=text, function=function)


def _function(line: str) -> list[str]:
    """The function that `complete ... -F FUNCTION` names."""
    words = line.split()
    return [words[words.index("-F") + 1]] if "-F" in words else []


def _run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(f"{script(arguments.shell).rstrip()}\n")
    sys.stdout.flush()
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, help="the shell; kubectl for `kubectl koordgate` in any shell")


COMMAND: Final = Command(
    description="Print a script that makes a shell complete the commands and options of koordgate. Print it again "
    "after an update.\n\n"
    "kubectl completes `kubectl koordgate` in each shell in which kubectl itself is completed, with an executable file "
    "kubectl_complete-koordgate on PATH, which needs bash (kubectl 1.26 and later).",
    examples="examples:\n"
    "  koordgate completion bash \\\n"
    "    > ~/.local/share/bash-completion/completions/koordgate\n"
    "  koordgate completion zsh > ~/.zfunc/_koordgate       # in a folder of $fpath\n"
    "  koordgate completion fish > ~/.config/fish/completions/koordgate.fish\n"
    "  koordgate completion kubectl > ~/.local/bin/kubectl_complete-koordgate\n"
    "  chmod +x ~/.local/bin/kubectl_complete-koordgate",
    arguments=_arguments,
    run=_run,
)
