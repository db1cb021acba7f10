"""Saves the state from which a killed run resumes, written atomically and accepted only by the same run.

Counts and scores are one NumPy file (:class:`Checkpoint`); the state of a training is an Orbax folder
(:class:`FolderCheckpoint`).
"""

import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine.fingerprint import Identity, digest, is_key, on_host, program, raw, refuse_another, text
from dpaudit._engine.replacing import replacing
from dpaudit._engine.sharding import several_processes

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager

# They stand for the size of a file that is missing, cannot be read or cannot be made.
UNWRITABLE, UNREADABLE, NO_FOLDER, NO_FILE = -4, -3, -2, -1


class Checkpoint(NamedTuple):
    """A file of arrays and the run that it belongs to.

    If several processes share one game, only process 0 writes and reads the file, and sends its content to the others,
    so they need no common file system.

    Attributes:
      file: where.
      identity: of the run, part by part.
      shared: whether several processes play one game.
      run: the word for what it belongs to, in a refusal.
    """

    file: Path
    identity: Identity
    shared: bool
    run: str = "audit"

    def save(self, **arrays: Any) -> None:
        """Replaces the file atomically, so that a kill at any moment leaves either the old or the new one.

        Raises:
          InputError: a file that cannot be written.
        """
        if self.shared and jax.process_index() > 0:
            return
        try:
            with replacing(self.file) as stream:
                np.savez(stream, identity=np.array(json.dumps(self.identity)), **arrays)
        except OSError as error:
            got = f"{error.strerror}: {self.file}"
            raise _validate.expected("checkpoint", "a file that can be written", got) from None

    def restore(self) -> dict[str, np.ndarray] | None:
        """Returns the arrays last saved, or None if there is no file yet.

        Raises:
          InputError: a file that is damaged, cannot be read or is of another run; it is left unchanged.
        """
        content = self._read()
        if content is None:
            return None
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as saved:
                arrays = dict(saved)
            found = dict(json.loads(str(arrays.pop("identity", "{}"))))
        except Exception as error:  # there are many ways in which a file can be damaged
            raise _validate.expected("checkpoint", "a whole checkpoint", f"{self.file.name}: {error}") from None
        if not found:
            raise _validate.expected("checkpoint", "a checkpoint of dpaudit", f"{self.file.name}, which is none")
        refuse_another(self.identity, found, self.run, self.file.name)
        return arrays

    def made_once(self, make: Callable[[], Any]) -> Any:
        """Returns the pytree of arrays that ``make`` returns, read from the file if there is one, else made and saved.

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
        """Returns the file's bytes, the same in every process."""
        content, size = b"", NO_FILE
        if not self.shared or jax.process_index() == 0:
            if self.file.exists():
                try:
                    content = self.file.read_bytes()
                    size = len(content)
                except OSError:  # of a folder, or of another user
                    size = UNREADABLE
            elif not self.file.parent.is_dir():
                size = NO_FOLDER
            elif unwritable(self.file.parent):
                size = UNWRITABLE
        if self.shared:
            size = int(multihost_utils.broadcast_one_to_all(np.int32(size)))
        if size == UNREADABLE:
            raise _validate.expected("checkpoint", "a file that can be read", self.file)
        if size == UNWRITABLE:
            raise _validate.expected("checkpoint", "a file in a folder that can be written", self.file)
        if size == NO_FOLDER:
            raise _validate.expected("checkpoint", "a file in a folder that exists", self.file)
        if size == NO_FILE:
            return None
        if self.shared:
            padded = np.frombuffer(content, np.uint8) if content else np.zeros(size, np.uint8)
            content = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8).tobytes()
        return content


def unwritable(folder: Path) -> str | None:
    """Returns why no file can be made in a folder; None where one can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror


class FolderCheckpoint(NamedTuple):
    """An Orbax folder with the arrays of the last step saved, and the training that they belong to.

    Attributes:
      folder: where; created if missing.
      identity: of the training, part by part.
    """

    folder: Path
    identity: Identity

    def save(self, step: int, arrays: Any) -> None:
        """Writes the step, then removes the previous one, so that a kill at any moment leaves a complete step.

        Args:
          step: steps taken.
          arrays: nested dictionaries and lists of NumPy arrays, none of them empty.

        Raises:
          InputError: a folder that cannot be written, or to which another training has written meanwhile; the previous
            step, if there is one, is still there.
        """
        with _validate.extra("train"):
            from orbax.checkpoint import args

        items = args.Composite(arrays=args.StandardSave(arrays), identity=args.JsonSave(self.identity))
        owner = args.Composite(identity=args.JsonRestore())
        try:
            with _manager(self.folder, writing=True) as manager:
                self._refuse_another(manager, owner)
                manager.save(step, args=items)
        except _validate.InputError:
            raise
        except (OSError, ValueError) as error:  # of TensorStore, which writes the arrays, the second
            cause = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
            raise _validate.expected("checkpoint", "a folder that can be written", f"{cause}: {self.folder}") from None

    def restore(self) -> Any:
        """Returns the arrays last saved, or None if there are none yet.

        Raises:
          InputError: a folder that is damaged or of another training; it is left unchanged.
        """
        with _validate.extra("train"):  # refuse now rather than after work that could not be saved
            from orbax.checkpoint import args

        if not self.folder.exists():
            return None
        if not self.folder.is_dir():
            raise _validate.expected("checkpoint", "a folder", f"the file {self.folder.name}")
        items = args.Composite(arrays=args.StandardRestore(), identity=args.JsonRestore())
        with _manager(self.folder, writing=False) as manager:
            if manager.latest_step() is None:
                return None
            try:
                found = manager.restore(manager.latest_step(), args=items)
                arrays, identity = found["arrays"], dict(found["identity"])
            except Exception as error:  # there are many ways in which a folder can be damaged
                raise _validate.expected("checkpoint", "a whole checkpoint", f"{self.folder.name}: {error}") from None
        refuse_another(self.identity, identity, "training", self.folder.name)
        return arrays

    def refuse_unwritable(self) -> None:
        """Refuses, before any work, a folder in which nothing can be made; of a missing one, the nearest above it.

        Raises:
          InputError: such a folder.
        """
        folder = self.folder.absolute()
        if cause := unwritable(next(path for path in (folder, *folder.parents) if path.exists())):
            raise _validate.expected("checkpoint", "a folder that can be written", f"{cause}: {self.folder}")

    def _refuse_another(self, manager: "CheckpointManager", owner: Any) -> None:
        """Refuses a folder with a step of another training, which Orbax would keep in place of ours, or remove."""
        if (last := manager.latest_step()) is None:
            return
        try:
            found = dict(manager.restore(last, args=owner)["identity"])
        except Exception:  # of a damaged step, or one that another process of this training has just removed
            return
        refuse_another(self.identity, found, "training", self.folder.name)


def save_parameters(folder: Path, params: Any) -> None:
    """Writes only a pytree of arrays, replacing what was there; ``StandardCheckpointer().restore`` reads it."""
    with _validate.extra("train"):
        from orbax.checkpoint import StandardCheckpointer

    with StandardCheckpointer() as checkpointer:
        checkpointer.save(os.path.abspath(folder), params, force=True)


def _manager(folder: Path, *, writing: bool) -> "CheckpointManager":
    """Opens a folder; only a writer removes the remains of killed writers.

    Orbax removes them in the background, so a reader that is closed at once might remove what the next writer has just
    begun.
    """
    with _validate.extra("train"):
        from orbax.checkpoint import CheckpointManager, CheckpointManagerOptions  # takes a second to import

    options = CheckpointManagerOptions(
        max_to_keep=1, create=True, cleanup_tmp_directories=writing, enable_async_checkpointing=False
    )
    return CheckpointManager(os.path.abspath(folder), options=options)


def of_pilot(file: str | os.PathLike[str]) -> Path:
    """Returns the file, beside an audit's checkpoint, that stores the releases of its pilot."""
    return Path(f"{os.fspath(file)}.pilot")


def checkpoint(
    file: str | os.PathLike[str] | None, one: Any, traced: ClosedJaxpr, trials: int, *settings: Any, mesh: Mesh | None
) -> Checkpoint | None:
    """Returns the checkpoint of a run, or None if no file is given.

    Args:
      file: where it is saved.
      one: the function of a trial; its arrays, if it is a ``Partial``, belong to the run's data.
      traced: the same as a program.
      trials: their number.
      settings: what else the run depends on.
      mesh: on whose devices it runs; neither the mesh nor the batch size is part of the identity.
    """
    if file is None:
        return None
    leaves = jax.tree.leaves(one)
    parts = {
        "mechanism or pair of inputs": (
            *program(traced),
            *on_host(traced),
            *(raw(leaf) for leaf in leaves if not is_key(leaf)),
        ),
        "key": [raw(leaf) for leaf in leaves if is_key(leaf)],
        "number of trials": [text(trials)],
        "setting": [text(settings)],
    }
    return Checkpoint(Path(file), {name: digest(part) for name, part in parts.items()}, several_processes(mesh))
