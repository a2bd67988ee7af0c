"""How much memory a card has by its model, where nothing else states it (pure).

The figures are what the vendors' drivers report. A model whose name states its size ("A100-SXM4-80GB") has that.
"""

import re
from typing import Final

from allocator.vocabulary.models import model_name

_MIB: Final = 2**20
_GIB: Final = 2**30
_SIZE: Final = re.compile(r"(?<![0-9])([0-9]{1,4})GB(?![A-Za-z])", re.ASCII)
_MIB_OF: Final = {
    "A2": 15_356,
    "A10": 22_731,
    "A10G": 22_731,
    "A16": 15_356,
    "A30": 24_258,
    "A40": 46_068,
    "H200": 143_771,
    "L4": 23_034,
    "L40": 46_068,
    "L40S": 46_068,
    "P100": 16_280,
    "T4": 15_109,
    "V100M16": 16_160,
    "V100M32": 32_510,
}
_PREFIX: Final = "Tesla-"


def memory_of(model: str) -> int:
    """The bytes of a card of this model; 0 if they are not known."""
    name = model_name(model).removeprefix(_PREFIX)
    size = _SIZE.search(name)
    if size is not None:
        return int(size.group(1)) * _GIB
    return _MIB_OF.get(name, 0) * _MIB
