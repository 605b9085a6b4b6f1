"""`python -m benchmarks.certificate`."""

import sys

from benchmarks.certificate.cli import main

if __name__ == "__main__":
    sys.exit(main())
