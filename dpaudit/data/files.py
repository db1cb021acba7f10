"""Finds the standard files of a data set and chooses their reader; loads the data sets bundled with scikit-learn."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.data import formats


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Loads 1,797 handwritten digits ``[n, 8, 8, 1]``, scaled from 0..16 to [0, 1]; 1,437 train, 360 test.

    Raises:
      InputError: scikit-learn is not installed.
    """
    with _validate.extra("data"):
        from sklearn.datasets import load_digits  # takes a second to import

    bunch: Any = load_digits()
    rows = stratified(bunch["target"], split, train_size=1437)
    return bunch["images"][rows, :, :, None] / 16, bunch["target"][rows]


def breast_cancer(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Loads 569 biopsies ``[n, 30]``, 0 malignant and 1 benign; 390 train, 179 test, the sizes of paper 001.

    Raises:
      InputError: scikit-learn is not installed.
    """
    with _validate.extra("data"):
        from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer()
    rows = stratified(bunch["target"], split, train_size=390)
    return bunch["data"][rows], bunch["target"][rows]


def stratified(labels: np.ndarray, split: str, *, train_size: int) -> np.ndarray:
    """Returns the row numbers, in order, of one side of a fixed split, stratified by class, with seed 0.

    Args:
      labels: ``[n]``.
      split: ``"train"`` or ``"test"``.
      train_size: records in train; the rest is test.

    Raises:
      InputError: scikit-learn is not installed.
    """
    with _validate.extra("data"):
        from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    train, test = train_test_split(rows, train_size=train_size, stratify=labels, random_state=0)
    return np.sort(train if split == "train" else test)


SPLITS = ("train", "test")
Arrays = tuple[np.ndarray, np.ndarray]


class Files(NamedTuple):
    """One data set on disk.

    Attributes:
      title: the name to display.
      kind: of the files, to display.
      sizes: published number of records in train and in test.
      shape: of one record.
      num_classes: 2 or more.
      folders: where the files may be inside the data folder; they may also be directly in it.
      names: split -> the files that must all be there, without .gz or .xz.
      read: ``read(paths, split) -> inputs, labels``.
    """

    title: str
    kind: str
    sizes: tuple[int, int]
    shape: tuple[int, ...]
    num_classes: int
    folders: tuple[str, ...]
    names: dict[str, tuple[str, ...]]
    read: Callable[[Sequence[Path], str], Arrays]


def _idx(paths: Sequence[Path], _split: str) -> Arrays:
    return formats.read_idx_pair(*paths, shape=(28, 28))


def _cifar10(paths: Sequence[Path], split: str) -> Arrays:
    return formats.read_cifar10(paths[:5] if split == "train" else paths[5:])


def _cifar10_exact_subset(paths: Sequence[Path], split: str) -> Arrays:
    return formats.read_cifar10(paths, records=4000 if split == "train" else 1000)


def _svhn(paths: Sequence[Path], _split: str) -> Arrays:
    return formats.read_svhn(*paths)


def _pima(paths: Sequence[Path], split: str) -> Arrays:
    features, labels = formats.read_table(*paths, columns=9, num_classes=2, records=768)
    rows = stratified(labels, split, train_size=600)
    return features[rows], labels[rows]


_IDX_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}

FILES = {
    "mnist": Files(
        title="MNIST",
        kind="IDX files",
        sizes=(60_000, 10_000),
        shape=(28, 28, 1),
        num_classes=10,
        folders=("mnist", "MNIST", "MNIST/raw"),
        names=_IDX_NAMES,
        read=_idx,
    ),
    "fashion_mnist": Files(
        title="Fashion-MNIST",
        kind="IDX files",
        sizes=(60_000, 10_000),
        shape=(28, 28, 1),
        num_classes=10,
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
        names=_IDX_NAMES,
        read=_idx,
    ),
    "cifar10": Files(
        title="CIFAR-10",
        kind="binary files",
        sizes=(50_000, 10_000),
        shape=(32, 32, 3),
        num_classes=10,
        folders=("cifar10", "cifar-10", "cifar-10-batches-bin", "cifar10-jpeg", "cifar10_jpeg"),
        # both splits need all six files, so that an exact train split never meets a lossy test split
        names=dict.fromkeys(SPLITS, (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")),
        read=_cifar10,
    ),
    "cifar10_exact_subset": Files(
        title="CIFAR-10 exact subset",
        kind="binary files",
        sizes=(4_000, 1_000),
        shape=(32, 32, 3),
        num_classes=10,
        folders=("cifar10-exact-subset", "cifar10_exact_subset"),
        names={"train": ("train_first_4000.bin",), "test": ("test_first_1000.bin",)},
        read=_cifar10_exact_subset,
    ),
    "svhn": Files(
        title="SVHN",
        kind="MATLAB files",
        sizes=(73_257, 26_032),
        shape=(32, 32, 3),
        num_classes=10,
        folders=("svhn", "SVHN"),
        names={"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)},
        read=_svhn,
    ),
    "pima_diabetes": Files(
        title="Pima Indians Diabetes",
        kind="CSV file",
        sizes=(600, 168),  # of paper 001
        shape=(8,),
        num_classes=2,
        folders=("pima-diabetes", "pima_diabetes", "pima-indians-diabetes"),
        names=dict.fromkeys(SPLITS, ("pima-indians-diabetes.csv",)),
        read=_pima,
    ),
}


def find(name: str, split: str, root: Path) -> list[Path] | None:
    """Finds the files of a complete copy, an exact one before a lossy one; None where there is no copy at all.

    Raises:
      InputError: the only copies are incomplete.
    """
    complete = copies(FILES[name].names[split], folders(name, root))
    return min(complete, key=lambda paths: lossy(name, paths)) if complete else None


def copies(needed: Sequence[str], places: Sequence[Path]) -> list[list[Path]]:
    """Finds the files of every complete copy in the given places; none where there is no copy at all.

    Raises:
      InputError: the only copies are incomplete.
    """
    found = [[file(folder, wanted) for wanted in needed] for folder in places]
    complete = [[path for path in copy if path] for copy in found if None not in copy]
    for folder, copy in zip(places, found, strict=True):
        if any(copy) and not complete:
            missing = needed[copy.index(None)]
            raise _validate.expected(formats.printable(folder), f"{', '.join(needed)} (or .gz, .xz)", f"no {missing}")
    return complete


def folders(name: str, root: Path) -> list[Path]:
    """Returns where a copy may be; the name of ``root`` tells MNIST from Fashion-MNIST, which share file names."""
    direct = FILES[name].read is not _idx or ("fashion" in _called(root)) == ("fashion" in name)
    return [root / folder for folder in FILES[name].folders] + ([root] if direct else [])


def lossy(name: str, paths: Sequence[Path]) -> bool:
    """Tells whether this CIFAR-10 went through JPEG, by the names of its folder and of the folder it links to."""
    return name == "cifar10" and any("jpeg" in _called(path.parent) + _called(path.resolve().parent) for path in paths)


def where(name: str, paths: Sequence[Path]) -> str:
    """Describes the files and names their folder, without its path."""
    return f"{FILES[name].kind} in {folder_of(paths[0])}"


def folder_of(path: Path) -> str:
    """Returns the name of the folder of a file."""
    return formats.printable(Path(os.path.abspath(path)).parent.name)


def file(folder: Path, name: str) -> Path | None:
    """Finds the file, plain or compressed; IDX files are also written ``train-images.idx3-ubyte``."""
    spellings = [name, name.replace("-idx", ".idx")]
    paths = [folder / (spelling + suffix) for suffix in ("", ".gz", ".xz") for spelling in spellings]
    return next((path for path in paths if os.path.isfile(path)), None)


def _called(folder: Path) -> str:
    """Returns the folder's name as written, and the name that a link resolves to."""
    return f"{Path(os.path.abspath(folder)).name} {folder.resolve().name}".lower()
