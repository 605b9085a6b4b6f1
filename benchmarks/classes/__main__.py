"""`python -m benchmarks.classes`."""

import sys

from benchmarks.classes.cli import main

if __name__ == "__main__":
    sys.exit(main())
