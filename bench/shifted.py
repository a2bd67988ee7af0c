"""`koordgate` with a wall clock that is wrong: `python shifted.py SECONDS webhook --config FILE`.

Every module reads the wall clock as `time.time()`.
"""

import sys
import time

if __name__ == "__main__":
    right, off = time.time, float(sys.argv.pop(1))
    time.time = lambda: right() + off

    from koordgate.cli import main

    sys.exit(main())
