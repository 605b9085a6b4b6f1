"""`python -m benchmarks.stores`."""

import sys

from benchmarks.stores.cli import main

if __name__ == "__main__":
    sys.exit(main())
