"""What a killed training goes on from: a folder of Orbax's, whole at any moment, for the same training alone."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpaudit import check
from dpaudit.identity import Identity, refuse_another

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager


class Checkpoint(NamedTuple):
    """A folder with the arrays of the last step saved, and the training that they belong to.

    Attributes:
      folder: where; made if need be.
      identity: what the training is, part by part.
    """

    folder: Path
    identity: Identity

    def save(self, step: int, arrays: Any) -> None:
        """Writes the step beside the one before, then removes that one: a kill at any moment leaves a whole one.

        Args:
          step: steps taken.
          arrays: nested dictionaries and lists of NumPy arrays, none of them empty.
        """
        from orbax.checkpoint import args

        items = args.Composite(arrays=args.StandardSave(arrays), identity=args.JsonSave(self.identity))
        with _manager(self.folder, writing=True) as manager:
            manager.save(step, args=items)

    def restore(self) -> Any:
        """The arrays last saved, or None where there are none yet.

        Raises:
          InputError: a folder that is torn, or that another training has made; it is left as it is.
        """
        if not self.folder.exists():
            return None
        if not self.folder.is_dir():
            raise check.expected("checkpoint", "a folder", f"the file {self.folder.name}")
        from orbax.checkpoint import args

        items = args.Composite(arrays=args.StandardRestore(), identity=args.JsonRestore())
        with _manager(self.folder, writing=False) as manager:
            if manager.latest_step() is None:
                return None
            try:
                found = manager.restore(manager.latest_step(), args=items)
                arrays, identity = found["arrays"], dict(found["identity"])
            except Exception as error:  # every way a folder can be torn
                raise check.expected("checkpoint", "a whole checkpoint", f"{self.folder.name}: {error}") from None
        refuse_another(self.identity, identity, "training", self.folder.name)
        return arrays


def save(folder: Path, params: Any) -> None:
    """Writes a pytree of arrays by itself, in place of what was there; ``StandardCheckpointer().restore`` reads it."""
    from orbax.checkpoint import StandardCheckpointer

    with StandardCheckpointer() as checkpointer:
        checkpointer.save(os.path.abspath(folder), params, force=True)


def _manager(folder: Path, *, writing: bool) -> "CheckpointManager":
    """Opens a folder. Only a writer removes what killed writers left: Orbax does that in the background, where a reader
    that is closed at once would remove what the next writer has just begun."""
    from orbax.checkpoint import CheckpointManager, CheckpointManagerOptions  # takes a second

    options = CheckpointManagerOptions(
        max_to_keep=1, create=True, cleanup_tmp_directories=writing, enable_async_checkpointing=False
    )
    return CheckpointManager(os.path.abspath(folder), options=options)
