"""Trains by SPGC: the command of paper001/run.py under its own name."""

from experiments.common import as_command
from experiments.paper001.run import main

if __name__ == "__main__":
    as_command(main)
