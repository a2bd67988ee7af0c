"""One target in a process of its own; `make bench NAME=fuzz` starts one for each. Its last line is a report as JSON."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from fuzzing.cases import CORPUS, load
from fuzzing.engine import Plan, Run, instrumented, report
from fuzzing.trial import Target


def _targets() -> Mapping[str, Target]:
    from fuzzing.targets import TARGETS  # noqa: PLC0415 what it imports is instrumented

    return TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--kept", type=Path, help="guided by coverage; inputs that reach new code go into this folder")
    arguments = parser.parse_args()
    name = arguments.target
    plan = Plan(name, arguments.count, arguments.seed, arguments.seconds)
    targets = instrumented(_targets) if arguments.kept else _targets()
    run = Run(plan, targets[name], load(name))

    def done() -> None:
        from fuzzing.targets import left  # noqa: PLC0415 as above

        print(json.dumps(report(run, plan, left())), flush=True)

    if arguments.kept:
        run.guided(CORPUS / name, arguments.kept, done)
    else:
        run.blind()
        done()


if __name__ == "__main__":
    main()
