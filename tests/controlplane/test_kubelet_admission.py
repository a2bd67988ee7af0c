"""What koordgate binds, the kubelet's own managers admit; `make bench NAME=kubelet` asks them ten thousand times."""

import itertools

from controlplane.needs import missing
from kubelet_questions import Case, asked_of_kubelet, cases

from allocator.place import Placement
from localplane.binaries import BuildError, find_or_build

SEED, COUNT = 1, 300


async def test_the_kubelet_admits_what_is_placed_and_refuses_what_is_refused_for_its_sake() -> None:
    try:
        program = find_or_build(("kubelet-admission",))["kubelet-admission"]
    except BuildError as error:
        missing(str(error))
    tried: list[Case] = [one for one in itertools.islice(cases(SEED), COUNT) if one.schedulable]
    placed = [isinstance(one.placed(), Placement) for one in tried]
    answers = asked_of_kubelet(program, [one.question for one in tried])
    for one, was_placed, answer in zip(tried, placed, answers, strict=True):
        assert answer["admit"] or not was_placed, (one.question, answer)
    assert sum(placed) > COUNT // 4
    assert sum(not answer["admit"] for answer in answers) > COUNT // 8
