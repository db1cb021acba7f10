"""Loads data sets by name, from scikit-learn, from standard files on disk, or through TensorFlow Datasets.

TensorFlow Datasets is the last resort, installed on request and used without tf.data.
"""

import dataclasses
import importlib
import importlib.util
import os
import textwrap
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.data import files, formats, jester, movielens
from dpaudit.data.files import FILES, SPLITS
from dpaudit.data.movielens import EDITIONS
from dpaudit.data.ratings import Ratings

BUILDERS = {  # names in TensorFlow Datasets
    "mnist": "mnist",
    "fashion_mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "svhn": "svhn_cropped",
}


def installed() -> bool:
    """Tells whether the extra ``tfds`` is installed, without importing it."""
    return importlib.util.find_spec("tensorflow_datasets") is not None


def read(
    name: str, split: str, *, manual_dir: Path | None = None, tfds_dir: Path | None = None
) -> tuple[np.ndarray, np.ndarray, str]:
    """Downloads a data set, or takes the original files from ``manual_dir``, prepares it once and reads it.

    The records are those of the original files, in TensorFlow Datasets' order. Without a network it tries for about
    three minutes, and says so, before it gives up.

    Args:
      name: a key of BUILDERS.
      split: ``"train"`` or ``"test"``.
      manual_dir: a folder that may hold the files to be downloaded, under their original names; they are checked
        against the published checksums, and if all are there no network is needed.
      tfds_dir: where prepared data sets are kept; None is TensorFlow Datasets' default, ``~/tensorflow_datasets``.

    Returns:
      images uint8 ``[n, h, w, c]``, labels int64 ``[n]``, and the name and version of what was read.

    Raises:
      InputError: TensorFlow Datasets is not installed, or could not download, prepare or read the data set.
    """
    with _validate.extra("tfds"):
        tfds = importlib.import_module("tensorflow_datasets")
    try:
        builder = tfds.builder(BUILDERS[name], data_dir=tfds_dir)
        config = tfds.download.DownloadConfig(manual_dir=manual_dir)
        builder.download_and_prepare(download_config=config, file_format="array_record")
        records = builder.as_data_source(split=split)
        images = np.empty((len(records), *records[0]["image"].shape), np.uint8)
        labels = np.empty(len(records), np.int64)
        for i, record in enumerate(records):
            images[i], labels[i] = record["image"], record["label"]
    except Exception as error:  # network, disk, checksums and TensorFlow fail in many ways
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 400, placeholder="...")
        message = f"{name}: expected TensorFlow Datasets to download and prepare {BUILDERS[name]}, got {reason}"
        raise _validate.InputError(message) from error
    return images, labels, builder.info.full_name


VARIABLE = "DPAUDIT_DATA"
BUNDLED: dict[str, Callable[[str], tuple[np.ndarray, np.ndarray]]] = {
    "digits": files.digits,
    "breast_cancer": files.breast_cancer,
}
NAMES = (*BUNDLED, *FILES)
RATINGS = (*EDITIONS, "jester")


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a data set, loaded or your own.

    Attributes:
      name: one of NAMES, or your own.
      inputs: float32, images ``[n, h, w, c]`` scaled to [0, 1], tables ``[n, features]`` in their original units.
      labels: int32 ``[n]``, 0 to num_classes - 1.
      num_classes: 2 or more.
      origin: one line to display: what, how many records, from where; never an absolute path.
      lossy: whether the pixels went through JPEG.

    Raises:
      InputError: not one label for each record, or a label that is no class, which a compiled loss would not report.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    num_classes: int
    origin: str
    lossy: bool = False

    def __post_init__(self) -> None:
        labels, n = np.asarray(self.labels), len(self.inputs)
        if labels.shape != (n,):
            raise _validate.expected("labels", f"shape [{n}], one for each record", f"shape {list(labels.shape)}")
        wrong = np.flatnonzero(~np.isin(labels, np.arange(self.num_classes)))
        if wrong.size:
            wanted = f"whole numbers from 0 to {self.num_classes - 1}"
            raise _validate.expected("labels", wanted, f"{labels[wrong[0]]} in record {wrong[0]}")

    @property
    def label(self) -> str:
        """Returns the name shown with every result."""
        return f"{self.name} (JPEG)" if self.lossy else self.name


class Available(NamedTuple):
    """A data set's name, its contents or ``"not found"``, and where it would be read from."""

    name: str
    contents: str
    origin: str


def load(name: str, *, split: str = "train", data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads one split of a data set: bundled, else from its standard files, else through TensorFlow Datasets.

    Files are looked for in ``data_dir`` alone if it is given, otherwise in ``$DPAUDIT_DATA``.
    ``"cifar10"`` is a complete exact copy, else a complete one that went through JPEG (``lossy``); the exact subset
    is a separate data set. Sets without an official split have a fixed one, stratified by class: digits
    1,437 + 360, breast_cancer 390 + 179, pima_diabetes 600 + 168.

    Args:
      name: one of NAMES.
      split: ``"train"`` or ``"test"``.
      data_dir: a folder that holds the data set's files or a folder with them.

    Raises:
      InputError: an unknown name, a data set that is not there or not complete, a broken file.
    """
    _validate.one_of(NAMES, name=name)
    _validate.one_of(SPLITS, split=split)
    if name in BUNDLED:
        inputs, labels = BUNDLED[name](split)
        return _dataset(name, name, inputs, labels, int(labels.max()) + 1, "bundled with scikit-learn")
    title, num_classes = FILES[name].title, FILES[name].num_classes
    root = _root(data_dir)
    paths = files.find(name, split, root) if root else None
    if paths:
        inputs, labels = FILES[name].read(paths, split)
        lossy = files.lossy(name, paths)
        return _dataset(name, title, inputs, labels, num_classes, files.where(name, paths), lossy)
    if data_dir is not None or name not in BUILDERS or not installed():
        raise _not_found(name, split, root, tfds_helps=data_dir is None and name in BUILDERS)
    kept = [folder for folder in files.folders(name, root) if os.path.isdir(folder)] if root else []
    inputs, labels, version = read(name, split, manual_dir=kept[0] if kept else None)
    return _dataset(name, title, inputs, labels, num_classes, f"TensorFlow Datasets {version}")


def load_ratings(name: str, data_dir: str | os.PathLike[str] | None = None) -> Ratings:
    """Loads MovieLens from the files that GroupLens publishes, or Jester from those of the University of California.

    Args:
      name: one of RATINGS.
      data_dir: a folder that holds the files or a folder with them; by default ``$DPAUDIT_DATA``.

    Raises:
      InputError: an unknown name, files that are not there or not complete, a line that does not parse, a rating
        outside the scale, of an unknown user or item, or given twice.
    """
    published, root = _published(_validate.one_of(RATINGS, name=name)), _root(data_dir)
    found = files.copies(published.names, _folders(published, root)) if root else []
    if not found:
        wanted = f"{' and '.join(published.names)} (or .gz, .xz) in "
        wanted += f"a folder {' or '.join(published.folders)} or directly in {formats.printable(root)}" if root else ""
        wanted += "" if root else f"${VARIABLE}, which is not set"
        message = _validate.expected(name, wanted, "none of them" if root else "no folder")
        raise _validate.InputError(
            f"{message}; name a folder that has them (ratings are read from their own files alone)"
        )
    origin = f"files in {files.folder_of(found[0][0])}"
    if name not in EDITIONS:
        return jester.read(found[0], origin)
    edition = EDITIONS[name]
    users = files.file(found[0][0].parent, edition.users) if edition.users else None
    return movielens.read(edition, found[0], users, origin)


class _Published(NamedTuple):
    """Files of ratings: their names, where they may lie, and the published number of ratings."""

    names: tuple[str, ...]
    folders: tuple[str, ...]
    count: int


def _published(name: str) -> _Published:
    if name not in EDITIONS:
        return _Published(jester.NAMES, jester.FOLDERS, jester.COUNT)
    edition = EDITIONS[name]
    return _Published(edition.names, edition.folders, edition.count)


def available(data_dir: str | os.PathLike[str] | None = None) -> list[Available]:
    """Lists NAMES and RATINGS, a row each, from file names alone; no file is opened, the sizes are the published ones.

    Raises:
      InputError: ``data_dir`` or ``$DPAUDIT_DATA`` is not a folder.
    """
    root = _root(data_dir)
    rows = [
        Available("digits", "1,437 train, 360 test; 8 x 8 x 1", "bundled with scikit-learn"),
        Available("breast_cancer", "390 train, 179 test; 30", "bundled with scikit-learn"),
    ]
    rows += [_row(name, root, use_tfds=data_dir is None) for name in FILES]
    return rows + [_ratings_row(name, root) for name in RATINGS]


def _row(name: str, root: Path | None, *, use_tfds: bool) -> Available:
    shape = " x ".join(map(str, FILES[name].shape))
    sizes = dict(zip(SPLITS, FILES[name].sizes, strict=True))
    try:
        found = {split: files.find(name, split, root) if root else None for split in SPLITS}
    except _validate.InputError as error:
        return Available(name, "not found", str(error))
    contents = ", ".join(f"{sizes[split]:,} {split}" for split in SPLITS if found[split])
    paths = found["train"] or found["test"]
    if paths:
        label = "JPEG, " if files.lossy(name, paths) else ""
        return Available(name, f"{contents}; {shape}", label + files.where(name, paths))
    if use_tfds and name in BUILDERS and installed():
        contents = ", ".join(f"{sizes[split]:,} {split}" for split in SPLITS)
        return Available(name, f"{contents}; {shape}", "TensorFlow Datasets, prepared at first use")
    return Available(name, "not found", f"looked for a folder {FILES[name].folders[0]}")


def _ratings_row(name: str, root: Path | None) -> Available:
    published = _published(name)
    try:
        found = files.copies(published.names, _folders(published, root)) if root else []
    except _validate.InputError as error:
        return Available(name, "not found", str(error))
    if not found:
        return Available(name, "not found", f"looked for a folder {published.folders[0]}")
    return Available(name, f"{published.count:,} ratings", f"files in {files.folder_of(found[0][0])}")


def _folders(published: _Published, root: Path) -> list[Path]:
    """Returns where a copy may be; in ``root`` itself unless its name is another set's, whose files may look alike."""
    others = {folder for name in RATINGS for folder in _published(name).folders} - {*published.folders}
    return [root / folder for folder in published.folders] + ([root] if root.name not in others else [])


def _root(data_dir: str | os.PathLike[str] | None) -> Path | None:
    chosen = (os.environ.get(VARIABLE) or None) if data_dir is None else data_dir
    if chosen is None:
        return None
    if not os.fspath(chosen) or not os.path.isdir(chosen):
        raise _validate.expected("data_dir" if data_dir is not None else f"${VARIABLE}", "a folder", os.fspath(chosen))
    return Path(chosen)


def _dataset(
    name: str, title: str, inputs: np.ndarray, labels: np.ndarray, num_classes: int, where: str, lossy: bool = False
) -> Dataset:
    scale = np.float32(255 if inputs.dtype == np.uint8 else 1)
    inputs = np.divide(inputs, scale, dtype=np.float32, order="C", casting="same_kind")
    origin = f"{title}{' (JPEG)' if lossy else ''}, {len(inputs):,} records, {where}"
    return Dataset(name, inputs, labels.astype(np.int32), num_classes, origin, lossy)


def _not_found(name: str, split: str, root: Path | None, *, tfds_helps: bool) -> _validate.InputError:
    wanted = " and ".join(FILES[name].names[split]) + " (or .gz, .xz) in "
    if root is None:
        wanted += f"${VARIABLE}, which is not set"
    else:
        direct = " or directly" if root in files.folders(name, root) else ""
        wanted += f"a folder {' or '.join(FILES[name].folders)}{direct} in {formats.printable(root)}"
    install = " or install TensorFlow Datasets: pip install 'dpaudit[tfds]'" if tfds_helps else ""
    message = _validate.expected(name, wanted, "none of them" if root else "no folder")
    return _validate.InputError(f"{message}; name a folder that has them{install}")


def pooled(*datasets: Dataset) -> Dataset:
    """Joins the records of several splits of one data set in the order given, such as train and test of ``mnist``.

    An exact copy and one that went through JPEG are refused together: pixels show which copy a record is from, so an
    attack on membership would tell the copies apart and not the members.

    Args:
      datasets: at least one; the same name, shape of a record and number of classes.

    Returns:
      A :class:`Dataset` whose ``origin`` joins those of its parts.

    Raises:
      InputError: no data set; two that differ; the same records twice.
    """
    if not datasets:
        raise _validate.expected("datasets", "at least one", "none")
    for one, other in combinations(datasets, 2):
        if one.lossy != other.lossy:
            wanted = "pixels that all went through JPEG, or none"
            raise _validate.expected("datasets", wanted, f"{one.label} with {other.label}")
        for what, of in _FACTS.items():
            if of(one) != of(other):
                raise _validate.expected("datasets", f"one {what}", f"{of(one)} with {of(other)}")
        if np.array_equal(one.inputs, other.inputs):
            raise _validate.expected("datasets", "different records", f"twice those of {one.origin}")
    first = datasets[0]
    return Dataset(
        first.name,
        np.concatenate([dataset.inputs for dataset in datasets]),
        np.concatenate([dataset.labels for dataset in datasets]),
        first.num_classes,
        " + ".join(dataset.origin for dataset in datasets),
        first.lossy,
    )


_FACTS = {
    "name": lambda dataset: dataset.name,
    "shape of a record": lambda dataset: list(dataset.inputs.shape[1:]),
    "number of classes": lambda dataset: dataset.num_classes,
}
