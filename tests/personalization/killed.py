"""Kills processes that charge a ledger, one before each instruction, and prints what was released and what is charged.

    python -m tests.personalization.killed FOLDER EVERY

Two runs are charged and, as soon as the charge returns, "released". The process is killed by SIGKILL before one
instruction of Python (an opcode) of the ledger's module, or before one of the operating system's calls that it makes;
every EVERY-th of them, each in a process of its own. A line of JSON for each: [the instruction's number, releases,
charges in the file, charges after one more run was charged].
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from dpaudit.personalization.boundary import ledger
from dpaudit.personalization.boundary.ledger import Ledger, Stream
from dpaudit.personalization.boundary.processes import gaussian

A = gaussian("a", noise_multiplier=100.0)


def charge(kept: Ledger, run: str) -> None:
    kept.charge(run, [Stream(A, 0)], 1, who=["anna"])


def child(path: Path, told: int, number: int) -> None:
    """Charges two runs, and is killed before instruction ``number``."""
    left = number

    def before(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != ledger.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return before

    sys.settrace(before)
    kept = Ledger(path)
    for run in "12":
        charge(kept, run)
        os.write(told, b"r")
    sys.settrace(None)


def played(path: Path, number: int) -> tuple[bool, int]:
    """Returns whether the process was killed, and how often it had released."""
    here, there = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.close(here)
            child(path, there, number)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        released = len(pipe.read())
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise SystemExit(f"instruction {number}: exit status {status}")
    return status != 0, released


def main() -> None:
    folder, every = Path(sys.argv[1]), int(sys.argv[2])
    number, going = 0, True
    while going:
        path = folder / f"{number}.jsonl"
        going, released = played(path, number)
        kept = Ledger(path)
        charged = len(kept._runs)
        charge(kept, "3")
        print(json.dumps([number, released, charged, len(Ledger(path)._runs)]))
        number += every
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
