"""MNIST through TensorFlow Datasets with no network, against the IDX reader; needs the extra and the four files."""

import gzip
import shutil
import sys

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.data import files, sources

NAMES = [name for split in files.SPLITS for name in files.FILES["mnist"].names[split]]


@pytest.fixture(scope="module")
def manual_dir(data_dir):
    pytest.importorskip("tensorflow_datasets", reason="needs TensorFlow Datasets, the extra tfds")
    missing = [name for name in NAMES if not (data_dir / "mnist" / f"{name}.gz").is_file()]
    if missing:
        pytest.skip(f"needs the four original MNIST files: no mnist/{missing[0]}.gz in DPAUDIT_DATA")
    return data_dir / "mnist"


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorflow_datasets")


def in_one_order(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """All records as rows of bytes, sorted: TensorFlow Datasets shuffles."""
    rows = np.column_stack([images.reshape(len(images), -1), labels.astype(np.uint8)])
    return np.sort(rows.view(f"V{rows.shape[1]}").ravel())


@pytest.mark.parametrize("split, count", [("train", 60_000), ("test", 10_000)])
def test_mnist_is_the_same_records_as_the_idx_files(manual_dir, tfds_dir, split, count):
    images, labels, version = sources.read("mnist", split, manual_dir=manual_dir, tfds_dir=tfds_dir)
    assert version.startswith("mnist/")
    assert (images.shape, images.dtype) == ((count, 28, 28, 1), np.uint8)
    paths = files.find("mnist", split, manual_dir)
    assert paths is not None
    original = in_one_order(*files.FILES["mnist"].read(paths, split))
    assert (in_one_order(images, labels) == original).all()
    assert (in_one_order(images, np.roll(labels, 1)) != original).any()


def test_a_file_that_is_not_the_published_one_is_one_line(manual_dir, tmp_path):
    for name in NAMES:
        shutil.copy(manual_dir / f"{name}.gz", tmp_path)
    (tmp_path / f"{NAMES[1]}.gz").chmod(0o600)
    (tmp_path / f"{NAMES[1]}.gz").write_bytes(gzip.compress(b"another"))
    with pytest.raises(
        _validate.InputError, match=rf"mnist: .*, got NonMatching.*{NAMES[1]}.* wrong checksum"
    ) as caught:
        sources.read("mnist", "train", manual_dir=tmp_path, tfds_dir=tmp_path / "prepared")
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(
        _validate.InputError, match=r"tensorflow_datasets: expected .* \(pip install 'dpaudit\[tfds\]'\), got"
    ):
        sources.read("mnist", "train")
