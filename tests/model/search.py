"""Searches through the states of a model, until one of them is wrong."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

S = TypeVar("S", bound=Hashable)
Ways = Callable[[S], Iterable[tuple[str, S]]]
"""All that may happen next in a state: what it is, and the state after it."""


@dataclass(frozen=True)
class Explored:
    """What a search has found.

    Attributes:
        states: how many it has visited.
        depth: the most steps from the beginning.
        complete: whether there are no others within the scope.
        found: what is wrong; "" if nothing is.
        story: the steps that lead there.
    """

    states: int
    depth: int
    complete: bool
    found: str = ""
    story: tuple[str, ...] = ()


def search(begin: S, ways: Ways[S], wrong: Callable[[S], str], *, states: int) -> Explored:
    """Visit all states, those with the fewest steps first, until one is wrong or so many have been found."""
    came: dict[S, tuple[S, str] | None] = {begin: None}
    waiting = deque([(begin, 0)])
    depth = 0
    while waiting:
        state, depth = waiting.popleft()
        why = wrong(state)
        if why:
            return Explored(len(came), depth, complete=False, found=why, story=_story(came, state))
        for what, after in ways(state):
            if after not in came and len(came) < states:
                came[after] = (state, what)
                waiting.append((after, depth + 1))
    return Explored(len(came), depth, complete=len(came) < states)


def wander(begin: S, ways: Ways[S], wrong: Callable[[S], str], *, walks: int, length: int, seed: int = 1) -> Explored:
    """Go at random from the beginning, so many times and steps, until a state is wrong.

    The steps of a state are drawn by their first two words, so that what can happen in many ways does not keep the
    rest from happening.
    """
    random = Random(seed)
    visited: set[S] = {begin}
    for _ in range(walks):
        state, story = begin, list[str]()
        for _ in range(length):
            kinds: dict[str, list[tuple[str, S]]] = {}
            for what, after in ways(state):
                kinds.setdefault(" ".join(what.split()[:2]), []).append((what, after))
            if not kinds:
                break
            what, state = random.choice(kinds[random.choice(list(kinds))])
            story.append(what)
            visited.add(state)
            why = wrong(state)
            if why:
                return Explored(len(visited), len(story), complete=False, found=why, story=tuple(story))
    return Explored(len(visited), length, complete=False)


def _story(came: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    told: list[str] = []
    step = came[state]
    while step is not None:
        told.append(step[1])
        step = came[step[0]]
    return tuple(reversed(told))
