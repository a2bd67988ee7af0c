"""`python -m koordgate`."""

import sys

from koordgate.cli import main

sys.exit(main())
