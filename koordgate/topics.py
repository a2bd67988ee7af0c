"""What `koordgate help TOPIC` explains, in lines of at most 80 columns; the page about commands has the same texts."""

from collections.abc import Mapping
from typing import Final

REQUESTS: Final = """\
A container asks for devices in resources.limits (requests are set equal).
All amounts are whole numbers, and count for the container as a whole.

  nvidia.com/gpu: 2                    two whole cards
  kubernetes.io/gpu: 50                half of a card, compute and memory
  kubernetes.io/gpu: 200               two whole cards (above 100: in hundreds)
  kubernetes.io/gpu-memory: 8Gi        8 GiB of a card's memory, no compute
  kubernetes.io/gpu-memory-ratio: 25   a quarter of a card's memory, no compute
  kubernetes.io/gpu-core: 60           60 % of a card's compute; with one of the
                                       two amounts of memory, beside it
  kubernetes.io/gpu.shared: 2          the other amounts, split over 2 cards
  kubernetes.io/rdma: 50               half of an RDMA device; fpga likewise

CPUs of its own: the Pod's label koordinator.sh/qosClass: LSR, and whole CPUs as
request and limit. `koordgate translate -f FILE` shows what a manifest becomes.
The page docs/use/requests.md has more forms, annotations for the choice of
devices, and other products' names.
"""
_KUBECONFIG: Final = """\
A command that reads a cluster takes these options:

  --kubeconfig FILE         the kubeconfig (default: $KUBECONFIG, which may
                            name several files, else ~/.kube/config; in a Pod,
                            its own service account)
  --context NAME            its context (default: the current one)
  --installed-in NAMESPACE  where koordgate is installed (default:
                            koordgate-system); its settings are read there
  --config FILE             the webhook's settings, in place of those

Elsewhere -n/--namespace is the namespace of Pods. Commands with -f read a
snapshot or manifests instead of a cluster. What your user may not read is left
out where that is possible, and a message says so.
"""
_EXIT_CODES: Final = """\
  0   done; a command that judges found nothing wrong
  1   the API server refused, or did not answer; of simulate: a check failed;
      of translate: a Pod is refused; of doctor: warnings, with --strict
  2   wrong arguments, settings or files; of doctor: a failure
  3   not as wanted: it fits nowhere (explain, packing); Pods still hold the
      device (drain); something is left (adopt, cleanup)
  4   devices would be given twice (adopt check)
  130 Ctrl-C
  141 nobody reads the output any more
"""
TOPICS: Final[Mapping[str, str]] = {"requests": REQUESTS, "kubeconfig": _KUBECONFIG, "exit-codes": _EXIT_CODES}
"""The texts by topic."""
