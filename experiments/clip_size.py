"""Compares clip sizes: the command of paper002/run.py under its own name."""

from experiments.common import as_command
from experiments.paper002.run import main

if __name__ == "__main__":
    as_command(main)
