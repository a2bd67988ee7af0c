"""What a decision that is no placement looks like: a reason that a user can act on."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot hold a request.

    Attributes:
        message: in the user's words, with the nearest thing that would fit where there is one.
        permanent: no release of other Pods on this node can change the answer.
        short: the same without the node's name and figures of its own, so that kube-scheduler can count alike ones.
    """

    message: str
    permanent: bool = False
    short: str = field(default="", compare=False)


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
