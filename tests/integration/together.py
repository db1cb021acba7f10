"""Commands started as real processes, alone or several as one machine."""

import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes import environment

COMMANDS = """
import shlex, sys
from dpaudit.cli.main import main
for line in sys.argv[1:]:
    sys.argv = ["dpaudit", *shlex.split(line)]
    try:
        main()
    except SystemExit as ended:
        print("status", ended.code)
"""


def start(code: str, *arguments: str, folder: Path, devices: int = 1, variables: Any = ()) -> subprocess.Popen[str]:
    """A process that runs the code on so many emulated devices."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment(devices) | dict(variables),
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def command(line: str, **how) -> subprocess.Popen[str]:
    """``dpaudit`` with a line of arguments."""
    return start("from dpaudit.cli.main import main; main()", *shlex.split(line), **how)


def ours(address: str, rank: int) -> dict[str, str]:
    """What tells one of two processes who it is, by JAX's variables."""
    return {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(rank)}


def slurm(address: str, rank: int) -> dict[str, str]:
    """What ``srun --ntasks=2`` sets on one node, but for the port, which SLURM makes of the job's number."""
    host, _, port = address.partition(":")
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": host, "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    return step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "JAX_COORDINATOR_PORT": port}


def free_address() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def ended(*processes: subprocess.Popen[str], seconds: float = 300) -> list[tuple[int, str, str]]:
    """(status, output, errors) of each; none outlives this."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]
