"""A Node's annotation in which another product's device plugin lists its cards: both forms, and all that is wrong."""

import json
from typing import Any

import pytest

from allocator.wire.mirror import RegisteredCard, read_register

MIB = 2**20
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
        RegisteredCard("GPU-a", 81920 * MIB, "NVIDIA-A100-80GB", 1, healthy=True),
        RegisteredCard("GPU-b", 1 * MIB, "", 0, healthy=False),
        RegisteredCard("GPU-c", 2 * MIB, "", None, healthy=False),
        RegisteredCard("GPU-d", 3 * MIB, "", None, healthy=True),
        RegisteredCard("GPU-e", 4 * MIB, "", None, healthy=True),
    ]
    assert read_register({HAMI: f" {json.dumps(listed)}", VOLCANO: "nonsense"}) == (HAMI, cards, "")
    assert read_register({HAMI: "", VOLCANO: json.dumps(listed[1:])}) == (VOLCANO, cards[1:], "")
    assert read_register({HAMI: "[]"}) == (HAMI, [], "")


def test_hamis_text_states_cards_one_after_another() -> None:
    text = "GPU-a,10, 81920,100,NVIDIA A100,1, true:GPU-b,10,1,100,x,-1,TRUE,more: :GPU-c,10,2,100,,0,yes:"
    text += "GPU-d,10,3,100,,0,false"
    assert read_register({HAMI: text}) == (
        HAMI,
        [
            RegisteredCard("GPU-a", 81920 * MIB, "NVIDIA-A100", 1, healthy=True),
            RegisteredCard("GPU-b", 1 * MIB, "x", None, healthy=True),
            RegisteredCard("GPU-c", 2 * MIB, "", 0, healthy=False),
            RegisteredCard("GPU-d", 3 * MIB, "", 0, healthy=False),
        ],
        "",
    )


def test_volcanos_text_states_other_values_and_memory_in_the_unit_of_its_installation() -> None:
    text = "GPU-a,10,8192,NVIDIA-NVIDIA A100,true,hami-core:GPU-b,10,1,x,false:"
    for unit in (MIB, 10 * MIB):
        cards = [
            RegisteredCard("GPU-a", 8192 * unit, "NVIDIA-NVIDIA-A100", None, healthy=True),
            RegisteredCard("GPU-b", unit, "x", None, healthy=False),
        ]
        assert read_register({VOLCANO: text}, unit) == (VOLCANO, cards, "")
    assert read_register({HAMI: json.dumps([{"id": "GPU-a", "devmem": 3}])}, 10 * MIB)[1][0].memory == 3 * MIB


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
    "no memory": (one(devmem=0), "is no number of 1Mi"),
    "memory below nothing": (one(devmem=-1), "is no number of 1Mi"),
    "memory that is true": (one(devmem=True), "is no number of 1Mi"),
    "memory as text": (one(devmem="1"), "is no number of 1Mi"),
    "six values": ("GPU-a,10,1,100,x,0", "has fewer than 7 values"),
    "a number of MiB that is none": ("GPU-a,10,1.5,100,x,0,true", "'1.5' is no number"),
    "a NUMA node that is none": ("GPU-a,10,1,100,x,--1,true", "'--1' is no number"),
    "digits of another script": ("GPU-a,10,\u0663,100,x,0,true", "is no number"),
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_a_register_that_cannot_be_read_lists_no_card_and_says_why(text: object, told: str) -> None:
    found, cards, problem = read_register({HAMI: text})
    assert (found, cards) == (HAMI, ())
    assert problem.startswith(f"annotation {HAMI}: ")
    assert told in problem


def test_a_text_of_volcano_that_cannot_be_read_lists_no_card_and_says_why() -> None:
    texts = {
        "GPU-a,10,1,x": "has fewer than 5 values",
        "GPU-a,10,1.5,x,true": "'1.5' is no number",
        f"GPU-a,10,{2**32},x,true": "is no number of 10Mi",
    }
    for text, told in texts.items():
        found, cards, problem = read_register({VOLCANO: text}, 10 * MIB)
        assert (found, cards) == (VOLCANO, ())
        assert told in problem
