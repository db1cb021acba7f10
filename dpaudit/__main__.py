"""Runs the command line: ``python -m dpaudit``."""

from dpaudit.cli.main import main

if __name__ == "__main__":
    main()
