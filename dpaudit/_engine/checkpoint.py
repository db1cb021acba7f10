"""What a killed run goes on from: one file, whole at any moment, that nothing but the same run takes up again."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine.fingerprint import Identity, digest, is_key, program, raw, refuse_another, text
from dpaudit._engine.sharding import several_processes

NO_FOLDER, NO_FILE = -2, -1  # in place of a file's size


class Checkpoint(NamedTuple):
    """A file of arrays and the run that it belongs to.

    Where several processes play one game, process 0 alone writes and reads the file, and tells the others what is in
    it: they need no file system in common.

    Attributes:
      file: where.
      identity: what the run is, part by part.
      shared: several processes play one game.
    """

    file: Path
    identity: Identity
    shared: bool

    def save(self, **arrays: Any) -> None:
        """Writes beside the old file and replaces it in one step: a kill at any moment leaves one whole file."""
        if self.shared and jax.process_index() > 0:
            return
        beside = self.file.with_name(self.file.name + ".partial")
        with open(beside, "wb") as stream:
            np.savez(stream, identity=np.array(json.dumps(self.identity)), **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, self.file)

    def restore(self) -> dict[str, np.ndarray] | None:
        """The arrays last saved, or None where there is no file yet.

        Raises:
          InputError: a file that is torn, or that another run has made; it is left as it is.
        """
        content = self._read()
        if content is None:
            return None
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as saved:
                arrays = dict(saved)
            found = dict(json.loads(str(arrays.pop("identity"))))
        except Exception as error:  # every way a file can be torn
            raise _validate.expected("checkpoint", "a whole checkpoint", f"{self.file.name}: {error}") from None
        refuse_another(self.identity, found, "audit", self.file.name)
        return arrays

    def made_once(self, make: Callable[[], Any]) -> Any:
        """The pytree of arrays that ``make`` returns: from the file where it is there, else made and kept.

        Raises:
          InputError: as for :meth:`restore`.
        """
        leaves = self.restore()
        if leaves is not None:
            return jax.tree.unflatten(jax.tree.structure(jax.eval_shape(make)), list(leaves.values()))
        made = make()
        self.save(**{f"leaf{i}": leaf for i, leaf in enumerate(jax.tree.leaves(made))})
        return made

    def _read(self) -> bytes | None:
        """The file's bytes, the same in every process."""
        content, size = b"", NO_FILE
        if not self.shared or jax.process_index() == 0:
            if self.file.exists():
                content = self.file.read_bytes()
                size = len(content)
            elif not self.file.parent.is_dir():
                size = NO_FOLDER
        if self.shared:
            size = int(multihost_utils.broadcast_one_to_all(np.int32(size)))
        if size == NO_FOLDER:
            raise _validate.expected("checkpoint", "a file in a folder that exists", self.file)
        if size == NO_FILE:
            return None
        if self.shared:
            padded = np.frombuffer(content, np.uint8) if content else np.zeros(size, np.uint8)
            content = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8).tobytes()
        return content


def of_pilot(file: str | os.PathLike[str]) -> Path:
    """Where the releases of an audit's pilot are kept: beside its own file."""
    return Path(f"{os.fspath(file)}.pilot")


def checkpoint(
    file: str | os.PathLike[str] | None, one: Any, traced: ClosedJaxpr, trials: int, *settings: Any, mesh: Mesh | None
) -> Checkpoint | None:
    """The checkpoint of a run, or None where no file is given.

    Args:
      file: where to keep it.
      one: the function of a trial; its arrays, if it is a ``Partial``, belong to the run's data.
      traced: the same as a program.
      trials: how many there are.
      settings: what else the run depends on.
      mesh: over whose devices it is played; neither it nor the size of a batch makes another run.
    """
    if file is None:
        return None
    leaves = jax.tree.leaves(one)
    parts = {
        "mechanism or pair of inputs": (*program(traced), *(raw(leaf) for leaf in leaves if not is_key(leaf))),
        "key": [raw(leaf) for leaf in leaves if is_key(leaf)],
        "number of trials": [text(trials)],
        "setting": [text(settings)],
    }
    return Checkpoint(Path(file), {name: digest(part) for name, part in parts.items()}, several_processes(mesh))
