"""`python -m benchmarks.gateway`."""

import sys

from benchmarks.gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
