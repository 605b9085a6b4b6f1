"""`python -m benchmarks.cascade`."""

import sys

from benchmarks.cascade.cli import main

if __name__ == "__main__":
    sys.exit(main())
