"""A Node's annotation in which another product's device plugin lists its cards: both forms, and all that is wrong."""

import json
from typing import Any

import pytest

from allocator.wire.noderegister import RegisteredCard, read_register

HAMI, VOLCANO = "hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"


def test_a_list_states_cards_with_what_is_left_out_as_in_go() -> None:
    listed = [
        {"id": " GPU-a ", "devmem": 81920, "type": "NVIDIA A100  80GB", "numa": 1, "health": True},
        {"id": "GPU-b", "devmem": 1, "health": False},
        {"id": "GPU-c", "devmem": 2, "numa": -1, "health": "true"},
        {"id": "GPU-d", "devmem": 3, "numa": True, "type": ""},
        {"id": "GPU-e", "devmem": 4, "numa": "1"},
    ]
    cards = [
        RegisteredCard("GPU-a", 81920, "NVIDIA-A100-80GB", 1, healthy=True),
        RegisteredCard("GPU-b", 1, "", 0, healthy=False),
        RegisteredCard("GPU-c", 2, "", None, healthy=False),
        RegisteredCard("GPU-d", 3, "", None, healthy=True),
        RegisteredCard("GPU-e", 4, "", None, healthy=True),
    ]
    assert read_register({HAMI: f" {json.dumps(listed)}", VOLCANO: "nonsense"}) == (HAMI, cards, "")
    assert read_register({HAMI: "", VOLCANO: json.dumps(listed[1:])}) == (VOLCANO, cards[1:], "")
    assert read_register({HAMI: "[]"}) == (HAMI, [], "")


def test_a_text_states_cards_one_after_another() -> None:
    text = "GPU-a,10, 81920,100,NVIDIA A100,1, true:GPU-b,10,1,100,x,-1,TRUE,more: :GPU-c,10,2,100,,0,yes:"
    text += "GPU-d,10,3,100,,0,false"
    assert read_register({VOLCANO: text}) == (
        VOLCANO,
        [
            RegisteredCard("GPU-a", 81920, "NVIDIA-A100", 1, healthy=True),
            RegisteredCard("GPU-b", 1, "x", None, healthy=True),
            RegisteredCard("GPU-c", 2, "", 0, healthy=False),
            RegisteredCard("GPU-d", 3, "", 0, healthy=False),
        ],
        "",
    )


def test_a_node_without_the_annotations_has_no_register() -> None:
    assert read_register({}) == ("", (), "")
    assert read_register({HAMI: "", VOLCANO: None}) == ("", (), "")


def one(**fields: Any) -> str:
    return json.dumps([{"id": "GPU-a", "devmem": 1}, {"id": "GPU-b", "devmem": 1, **fields}])


WRONG: dict[str, tuple[object, str]] = {
    "no text": ([{"id": "GPU-a"}], "or no text"),
    "no JSON": ("[", "Expecting"),
    "an entry that is no object": ("[7]", "where an object must be"),
    "no id": (one(id=None), "is no UUID"),
    "an id of blanks": (one(id=" "), "' ' is no UUID"),
    "an id with a comma": (one(id="a,b"), "'a,b' is no UUID"),
    "a card twice": (one(id="GPU-a "), "it lists a card twice"),
    "no memory": (one(devmem=0), "is no number of MiB"),
    "memory below nothing": (one(devmem=-1), "is no number of MiB"),
    "memory that is true": (one(devmem=True), "is no number of MiB"),
    "memory as text": (one(devmem="1"), "is no number of MiB"),
    "six values": ("GPU-a,10,1,100,x,0", "has fewer than 7 values"),
    "a number of MiB that is none": ("GPU-a,10,1.5,100,x,0,true", "'1.5' is no number"),
    "a NUMA node that is none": ("GPU-a,10,1,100,x,--1,true", "'--1' is no number"),
    "digits of another script": ("GPU-a,10,\u0663,100,x,0,true", "is no number"),
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_a_register_that_cannot_be_read_lists_no_card_and_says_why(text: object, told: str) -> None:
    for key in (HAMI, VOLCANO):
        found, cards, problem = read_register({key: text})
        assert (found, cards) == (key, ())
        assert problem.startswith(f"annotation {key}: ")
        assert told in problem
