"""`python -m benchmarks.decision`."""

import sys

from benchmarks.decision.cli import main

if __name__ == "__main__":
    sys.exit(main())
