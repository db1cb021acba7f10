"""Programs of the tests in processes of their own: on several devices, or several that make one mesh."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from dpaudit._engine import sharding

ROOT = Path(__file__).parents[1]

JOIN = """
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:{port}", {count}, {rank})
"""


def environment(devices: int) -> dict[str, str]:
    """Of a process that has so many emulated devices and compiles as this one does."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    of = {"NPROC": str(threads(devices))}
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | of


def threads(devices: int) -> int:
    """For linear algebra, more than there are devices: ``dpaudit._engine.game``."""
    return 2 * devices if devices > 1 else sharding.cores()


def start(module: str, function: str, *arguments: object, devices: int = 1, before: str = "") -> subprocess.Popen[str]:
    """``module.function(*arguments)`` with so many devices; arguments reach it as text."""
    program = f"{before}\nimport json, sys, {module} as m\nprint('\\n' + json.dumps(m.{function}(*sys.argv[1:])))"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment(devices), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def said(process: subprocess.Popen[str], seconds: int = 900) -> Any:
    """What the function returned, which JSON can hold."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return json.loads(out.strip().splitlines()[-1])


def together(count: int, module: str, function: str, *arguments: object) -> list[Any]:
    """The same of ``count`` processes of one device each that know each other."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    joins = [JOIN.format(port=port, count=count, rank=rank) for rank in range(count)]
    processes = [start(module, function, *arguments, before=join) for join in joins]
    try:
        return list(map(said, processes))
    finally:
        for process in processes:
            process.kill()
