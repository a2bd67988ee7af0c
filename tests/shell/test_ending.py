"""How a process is asked to end."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_process_that_is_asked_to_end_does_so_by_itself(name: str) -> None:
    code = f"""
import asyncio, os, signal
from koordgate.steady import asked_to_end

async def run():
    ended = asked_to_end()
    assert not ended.is_set()
    os.kill(os.getpid(), signal.{name})
    await ended.wait()

asyncio.run(run())
print("ended")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ended\n", "")
