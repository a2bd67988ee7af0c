"""A port that one server was given goes to no other, though the server has not started yet, or starts again."""

import subprocess
import sys
from collections import deque

import pytest

from localplane import process
from localplane.process import StartError, free_port

_PORTS = range(31_900, 31_904)


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PORTS", range(16_384, 16_784))
    given = [free_port() for _ in range(150)]
    assert len(set(given)) == len(given)


@pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's")
def test_another_process_is_not_given_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GIVEN", deque(maxlen=8))
    one = f"""
from localplane import process
process._PORTS = range({_PORTS.start}, {_PORTS.stop})
print(process.free_port(), flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", one], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        monkeypatch.setattr(process, "_PORTS", range(taken, taken + 1))
        with pytest.raises(StartError, match="no free TCP port"):
            free_port()
        other.communicate("\n")
    assert free_port() == taken
