"""Audits LDP-SGD from a client's side: the command of paper000/run.py under its own name."""

from experiments.common import as_command
from experiments.paper000.run import main

if __name__ == "__main__":
    as_command(main)
