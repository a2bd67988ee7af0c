"""The outcome of a decision that is not a placement: a reason that a user can act on."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot hold a request."""

    message: str  # in the user's words, with the nearest request that would fit if there is one
    permanent: bool = False  # the answer remains the same even if all other Pods leave this node
    # the same without the node's name and figures, so that kube-scheduler can count equal ones together
    short: str = field(default="", compare=False)
    unfinished: bool = False  # the search ended before everything was tried, so the request might fit after all


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in an object that its author wrote."""

    path: str  # the field, as `spec.containers[0].resources.limits[nvidia.com/gpu]`
    message: str  # what is wrong and what would be right

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"
