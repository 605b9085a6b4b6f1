"""`python -m benchmarks.usage`."""

import sys

from benchmarks.usage.cli import main

if __name__ == "__main__":
    sys.exit(main())
