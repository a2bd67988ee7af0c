"""Milliseconds of one whole call of /scheduler/filter over 5,000 nodes of 8 GPUs, over HTTPS with its JSON."""

import argparse
import sys

from filtering import measure
from result import close

LIMIT_MS = 8.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    whole, inner = measure(arguments.nodes, arguments.rounds, cpus=False)
    print(f"with HTTP and JSON {whole:.2f} ms, without {inner:.2f} ms", file=sys.stderr)
    close(name="filter_call", value=whole, unit="ms", reference=LIMIT_MS, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
