"""Time for the state machine: passed in, never read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on two clocks."""

    wall: float  # seconds since 1970, as written into records and objects
    steady: float  # seconds on a clock that never jumps, by which waits are counted
