"""`python -m gtmsm` is the command `gtmsm`."""

import sys

from gtmsm.cli import main

if __name__ == "__main__":
    sys.exit(main())
