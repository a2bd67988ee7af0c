"""How much memory a card has by its model, where nothing else states it (pure).

The figures are what the vendors' drivers report. A model whose name states its size ("A100-SXM4-80GB") has that. Of a
model that was made in several sizes, a name without one means the smallest: more is not assumed.
"""

import re
from typing import Final

from allocator.vocabulary.models import model_name

_MIB: Final = 2**20
_GIB: Final = 2**30
_SIZE: Final = re.compile(r"(?<![0-9])([0-9]{1,4})GB(?![A-Z])", re.ASCII)
_MIB_OF: Final = {
    "A2": 15_356,
    "A10": 22_731,
    "A10G": 22_731,
    "A16": 15_356,
    "A30": 24_258,
    "A40": 46_068,
    "A100": 40_960,
    "B200": 183_359,
    "H100": 81_559,
    "H100-NVL": 95_830,
    "H200": 143_771,
    "L4": 23_034,
    "L40": 46_068,
    "L40S": 46_068,
    "M60": 7_618,
    "MI300X": 196_592,
    "P4": 7_611,
    "P40": 22_919,
    "P100": 16_280,
    "T4": 15_109,
    "T4G": 15_109,
    "V100": 16_160,
    "V100M16": 16_160,
    "V100M32": 32_510,
}
_PREFIX: Final = "TESLA-"


def memory_of(model: str) -> int:
    """The bytes of a card of this model; 0 if they are not known."""
    name = model_name(model.upper()).removeprefix(_PREFIX)
    size = _SIZE.search(name)
    if size is not None:
        return int(size.group(1)) * _GIB
    return _MIB_OF.get(name, 0) * _MIB
