"""Measures the privacy risk of MC-dropout: the command of paper003/run.py under its own name."""

from experiments.common import as_command
from experiments.paper003.run import main

if __name__ == "__main__":
    as_command(main)
