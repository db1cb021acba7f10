"""Measures private personalization: the command of paper004/run.py under its own name."""

from experiments.common import as_command
from experiments.paper004.run import main

if __name__ == "__main__":
    as_command(main)
