"""Runs the parties of :mod:`tests.integration.week`, each in a process of its own that may be killed at any moment."""

import ctypes
import hashlib
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpaudit import InputError
from dpaudit.cli import main
from dpaudit.secure.channel import ChannelError
from dpaudit.secure.protocol import agreement, transfer_noise
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.service import certificates, server  # noqa: F401  (loaded before processes are forked)
from dpaudit.secure.service.owner import Owner

OWNERS = ("alice", "bob", "carol")
DIMENSION, EXAMPLES, AHEAD, MULTIPLIER = 182, 30, 2, 4.0
PATIENCE = 5.0  # seconds of an owner's call
SERVER_WAIT, SERVER_DEADLINE = 3.0, 10.0


class Place(NamedTuple):
    """Where a party finds things.

    Attributes:
      folder: of all parties: states, shares that owners keep, and the pipes into which each writes.
      keys: of this generation of certificates.
      ports: of H1, of H2, and of the link in front of H2.
      last: the last step.
    """

    folder: Path
    keys: Path
    ports: tuple[int, int, int]
    last: int


def terms() -> Terms:
    """Returns the terms of all parties."""
    size: dict[str, Any] = {"dimension": DIMENSION, "examples": EXAMPLES, "noise_multiplier": MULTIPLIER}
    return agreement.terms(owners=OWNERS, ahead=AHEAD, **size)


def integers(name: str, step: int) -> np.ndarray:
    """Returns an owner's integers of a step."""
    return np.random.default_rng([OWNERS.index(name), step]).integers(-1000, 1001, DIMENSION)


def begin(name: str, place: Place) -> int:
    """Sends all output to the party's pipe and follows its clock; returns the pipe for reports."""
    output = os.open(place.folder / f"{name}.pipe", os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    clock = ctypes.CDLL(None).clock_follow
    assert clock(os.fsencode(place.folder / f"{name}.clock")) == 0
    return os.open(place.folder / "reports.pipe", os.O_WRONLY)


def run_server(name: str, place: Place, more: tuple[str, ...]) -> None:
    """Runs ``dpaudit secure server``, and reports which noise it adds to a sum before it does."""
    reports = begin(name, place)
    kind: Any = {"h1": transfer_noise.First, "h2": transfer_noise.Second}[name]
    opened = kind.open

    def reported(self: Any, opening: Any, noise: Any, share: np.ndarray) -> np.ndarray:
        used = hashlib.sha256(noise.values.tobytes()).hexdigest()
        os.write(reports, f"used {name} {used}\n".encode())
        return opened(self, opening, noise, share)

    kind.open = reported
    own, _, link = place.ports[name == "h2"], *place.ports[1:]
    words = ["--role", name, "--listen", f"127.0.0.1:{own}", "--state", str(place.folder / name), "--owners", *OWNERS]
    words += ["--dimension", str(DIMENSION), "--examples", str(EXAMPLES), "--noise-multiplier", str(MULTIPLIER)]
    words += ["--ahead", str(AHEAD), "--keys", str(place.keys / name), *more]
    words += ["--wait", str(SERVER_WAIT), "--deadline", str(SERVER_DEADLINE)]
    words += ["--peer", f"127.0.0.1:{link}"] if name == "h1" else []
    sys.argv = ["dpaudit", "secure", "server", *words]
    main.main()


def run_owner(name: str, place: Place) -> None:
    """Takes part in all steps that it has not seen, and reports each result, and each call that took too long."""
    reports, mine = begin(name, place), terms()
    own = certificates.read(place.keys / name, name=name)
    seen = place.folder / f"{name}.seen"
    step = int(seen.read_text() or 0) + 1 if seen.exists() else 1
    owner: Owner | None = None
    while step <= place.last:
        began = time.monotonic()
        try:
            addresses = f"127.0.0.1:{place.ports[0]}", f"127.0.0.1:{place.ports[2]}"
            owner = owner or Owner(name, mine, addresses, own=own, kept=place.folder / f"{name}.shares")
            if owner.pending < step:
                owner.submit(step, integers(name, step), seconds=PATIENCE)
            opened = owner.result(step, seconds=PATIENCE)
            digest = hashlib.sha256(opened.values.astype("<i8").tobytes()).hexdigest()
            line = f"told {name} {step} {digest} {opened.releases} {','.join(opened.owners)}\n"
            os.write(reports, line.encode())
            step += 1
            with suppress(OSError):  # a note of this program alone; a new process then asks for all results again
                seen.write_text(str(step - 1))
        except (InputError, ChannelError) as fault:
            print(f"{type(fault).__name__}: {fault}")
            if owner:
                owner.close()
            owner = None
            time.sleep(0.1)
        os.write(reports, f"took {name} {time.monotonic() - began:.3f}\n".encode())
