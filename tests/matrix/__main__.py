"""The control-plane tests against each version of Kubernetes in turn: `make test-matrix`.

The versions run one after another, the oldest first, in processes of their own. The table at the end says how many
tests passed, failed and were skipped, and why.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from matrix.results import Results, table

from localplane.binaries import OLDER_COMPONENTS, BuildError, find_or_build
from localplane.versions import VARIABLE, VersionError, chosen, versions

CHECKOUT = Path(__file__).resolve().parents[2]
_PROGRAMS = (*OLDER_COMPONENTS, "helm")


def main() -> int:
    """0 if all tests passed on all versions; 1 if one failed or could not run; 130 if the run was interrupted."""
    arguments, further = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        wanted = [chosen(version) for version in arguments.kubernetes] if arguments.kubernetes else list(versions())
    except VersionError as error:
        sys.stderr.write(f"matrix: {error}\n")
        return 2
    results: list[Results] = []
    interrupted = False
    for version in dict.fromkeys(wanted):
        try:
            results.append(_run(version, further))
        except KeyboardInterrupt:
            interrupted = True
            break
    sys.stdout.write(table(results))
    if interrupted:
        return 130
    return int(any(not result.passed_all for result in results))


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="make test-matrix", description=__doc__)
    parser.add_argument(
        "--kubernetes",
        metavar="VERSION",
        action="append",
        help=f"may be repeated; all without it: {', '.join(versions())}",
    )
    arguments, further = parser.parse_known_args()
    return arguments, [argument for argument in further if argument != "--"]


def _run(version: str, further: list[str]) -> Results:
    """The tests on one version. Other arguments than ours are pytest's; without a path among them all tests run."""
    try:
        find_or_build(_PROGRAMS, kubernetes=version)
    except BuildError as error:
        return Results(version, broken=str(error))
    environment = {**os.environ, VARIABLE: version}
    with tempfile.TemporaryDirectory(prefix="koordgate-matrix-") as folder:
        report = Path(folder, "report.xml")
        argv = (sys.executable, "-m", "pytest", "-m", "controlplane", f"--junitxml={report}", *further)
        status = _wait(subprocess.Popen(argv, cwd=CHECKOUT, env=environment, start_new_session=True))
        if status not in (0, 1) or not report.exists():
            return Results(version, broken=f"pytest ended with status {status}")
        return Results.read(version, report)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit status. An interruption reaches pytest once, and it ends what it started before we do."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise


if __name__ == "__main__":
    sys.exit(main())
