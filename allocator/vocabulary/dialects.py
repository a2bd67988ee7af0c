"""The table of dialects: every name under which the built-in device types are asked for.

A further dialect needs only one more entry here. Admission, the check that a Pod uses one dialect only, the view of
Pods and the chart's match conditions (after `make generate`) all use this table.
"""

from typing import Final

from allocator.vocabulary.dialect import Dialect, Term
from allocator.vocabulary.names import (
    DOMAINS,
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    KUBERNETES_DOMAIN,
    NVIDIA,
    NVIDIA_GPU,
    RDMA,
    TYPE_FPGA,
    TYPE_GPU,
    TYPE_RDMA,
)


def _in_domain(domain: str, kind: str, *tails: str) -> Dialect:
    """Spell a type's own tails in one of the two domains, in the tails' own units."""
    terms = tuple(Term(f"{domain}/{tail}", tail) for tail in tails)
    return Dialect(domain, kind, terms, equal=domain != KUBERNETES_DOMAIN)


DIALECTS: Final = (
    *(_in_domain(domain, TYPE_GPU, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED) for domain in DOMAINS),
    Dialect(NVIDIA_GPU, TYPE_GPU, (Term(NVIDIA_GPU, GPU, counts=True),), own=False, vendor=NVIDIA),
    *(_in_domain(domain, TYPE_RDMA, RDMA) for domain in DOMAINS),
    *(_in_domain(domain, TYPE_FPGA, FPGA) for domain in DOMAINS),
)
