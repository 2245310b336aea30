"""`python -m gtmsm` is the command `gtmsm`."""

from gtmsm.cli import main

if __name__ == "__main__":
    main()
