"""The outcome of a decision that is not a placement: a reason that a user can act on."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot hold a request.

    Attributes:
        message: in the user's words, with the nearest request that would fit if there is one.
        permanent: the answer remains the same even if all other Pods leave this node.
        short: the same without the node's name and figures, so that kube-scheduler can count equal ones together.
        unfinished: the search ended before everything was tried, so the request might fit after all.
    """

    message: str
    permanent: bool = False
    short: str = field(default="", compare=False)
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in an object that its author wrote.

    Attributes:
        path: the field, as `spec.containers[0].resources.limits[nvidia.com/gpu]`.
        message: what is wrong and what would be right.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"
