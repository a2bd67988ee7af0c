"""A stand-in for the administrator's MPS daemon, and for NVIDIA's program that speaks to it."""

import os
from pathlib import Path

PROGRAMS = Path(__file__).parent / "enforcer" / "standin"
PATH = f"{PROGRAMS}:{os.environ['PATH']}"


class Daemon:
    """A daemon that runs."""

    def __init__(self, pipe: Path, protocol: int, servers: str = "") -> None:
        """Play it.

        Args:
            pipe: Its pipe directory.
            protocol: 2 or 3.
            servers: What its list of servers prints.
        """
        self.pipe = pipe
        self.state = pipe / ".standin"
        self.state.mkdir(parents=True)
        (self.state / "protocol").write_text(str(protocol))
        (self.state / "servers").write_text(servers)
        for line in servers.splitlines() if protocol == 3 else ():
            (pipe / line.partition(",")[0]).mkdir()

    def hang(self, *, on: bool = True) -> None:
        """Answer nothing, or answer again."""
        hang = self.state / "hang"
        hang.touch() if on else hang.unlink()

    def asked(self) -> list[str]:
        """The commands since this was called last."""
        file = self.state / "asked"
        said = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return said

    def namespaces(self, server: str) -> dict[str, int]:
        """The namespaces of a server, and the percentage of each."""
        return {one.name: int((one / "percent").read_text()) for one in (self.pipe / server).iterdir()}
