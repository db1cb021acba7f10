"""Which copy a name leads to, what is said of it, and the real data sets where they are there."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from dpaudit import _validate, data
from dpaudit.data import files, sources

from .test_formats import idx, svhn

CIFAR10 = files.FILES["cifar10"].names["train"]


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch):
    """No data set of this machine takes part, unless a test asks for it by ``data_dir``."""
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    monkeypatch.setattr(sources, "installed", lambda: False)


def mnist(folder: Path, first: int, split: str = "train") -> Path:
    """Three records, told apart by their first label."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = files.FILES["mnist"].names[split]
    pixels = np.full((3, 28, 28), 51 * np.arange(3)[:, None, None], np.uint8)
    (folder / f"{images}.gz").write_bytes(gzip.compress(idx(pixels)))
    (folder / labels).write_bytes(idx(np.array([first, 1, 2], np.uint8)))
    return folder


def touch(folder: Path, names) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize(
    "name, bunch, shape, sizes", [
        ("digits", load_digits(), (8, 8, 1), (1437, 360)),
        ("breast_cancer", load_breast_cancer(), (30,), (390, 179)),
    ],
)  # fmt: skip
def test_bundled_splits_are_fixed_disjoint_and_stratified(name, bunch, shape, sizes):
    train, test = data.load(name), data.load(name, split="test")
    assert (train.inputs.shape, test.inputs.shape) == ((sizes[0], *shape), (sizes[1], *shape))
    assert train.inputs.dtype == np.float32
    assert train.labels.dtype == np.int32
    assert train.origin == f"{name}, {sizes[0]:,} records, bundled with scikit-learn"
    np.testing.assert_array_equal(train.inputs, data.load(name).inputs)

    scale = 16 if name == "digits" else 1
    whole = np.column_stack([bunch["data"].astype(np.float32) / np.float32(scale), bunch["target"]])
    both = [np.column_stack([d.inputs.reshape(len(d.labels), -1), d.labels]) for d in (train, test)]
    np.testing.assert_array_equal(np.unique(np.concatenate(both), axis=0), np.unique(whole, axis=0))
    assert len(np.unique(whole, axis=0)) == len(whole)  # no twins: the same set is the same records

    share = np.bincount(bunch["target"]) * sizes[1] / len(whole)
    assert np.abs(np.bincount(test.labels) - share).max() < 1
    assert train.num_classes == len(share)


@pytest.mark.parametrize("layout", ["mnist", "MNIST/raw", "."])
def test_mnist_is_found_where_people_keep_it(tmp_path, layout):
    mnist(tmp_path / layout, 7)
    found = data.load("mnist", data_dir=tmp_path)
    assert found.inputs.shape == (3, 28, 28, 1)
    np.testing.assert_array_equal(np.unique(found.inputs), np.array([0, 0.2, 0.4], np.float32))
    np.testing.assert_array_equal(found.labels, [7, 1, 2])
    folder = (tmp_path / layout).resolve().name
    assert found.origin == f"MNIST, 3 records, IDX files in {folder}"
    assert found.label == "mnist"


def test_data_dir_is_the_only_place_and_the_variable_comes_next(tmp_path, monkeypatch):
    mnist(tmp_path / "named" / "mnist", 5)
    mnist(tmp_path / "variable" / "mnist", 6)
    mnist(tmp_path / "variable" / "fashion_mnist", 8)
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path / "variable"))
    monkeypatch.setattr(sources, "installed", lambda: True)
    assert data.load("mnist", data_dir=tmp_path / "named").labels[0] == 5
    assert data.load("mnist").labels[0] == 6
    with pytest.raises(
        _validate.InputError, match=r"fashion_mnist: expected train-images.* in .*named, got none of them"
    ):
        data.load("fashion_mnist", data_dir=tmp_path / "named")


def test_loose_files_of_fashion_mnist_are_never_taken_for_mnist(tmp_path):
    mnist(tmp_path / "Fashion", 4)
    assert data.load("fashion_mnist", data_dir=tmp_path / "Fashion").labels[0] == 4
    with pytest.raises(_validate.InputError, match="in a folder mnist or MNIST or MNIST/raw in"):
        data.load("mnist", data_dir=tmp_path / "Fashion")
    mnist(tmp_path / "loose", 4)
    with pytest.raises(_validate.InputError, match="fashion_mnist: expected"):
        data.load("fashion_mnist", data_dir=tmp_path / "loose")


def test_an_incomplete_copy_is_told_from_none(tmp_path):
    folder = mnist(tmp_path / "mnist", 7)
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(
        _validate.InputError, match=r"mnist: expected train-images-.*, got no train-labels-idx1-ubyte$"
    ):
        data.load("mnist", data_dir=tmp_path)


def test_cifar10_prefers_exact_then_jpeg_and_never_mixes(tmp_path):
    def found() -> tuple[str, bool]:
        paths = files.find("cifar10", "train", tmp_path)
        assert paths is not None
        assert len({path.parent for path in paths}) == 1
        return paths[0].parent.name, files.lossy("cifar10", paths)

    touch(tmp_path / "cifar10-exact-subset", ["train_first_4000.bin", "test_first_1000.bin"])
    with pytest.raises(_validate.InputError, match=r"cifar10: expected data_batch_1\.bin and"):
        data.load("cifar10", data_dir=tmp_path)
    assert files.find("cifar10_exact_subset", "train", tmp_path)

    touch(tmp_path / "cifar10-jpeg", [f"{name}.xz" for name in CIFAR10])
    touch(tmp_path / "cifar10", CIFAR10[:-1])  # five exact batches without the test batch are no copy
    assert found() == ("cifar10-jpeg", True)
    touch(tmp_path / "cifar10", CIFAR10)
    assert found() == ("cifar10", False)
    assert files.lossy("cifar10", files.find("cifar10", "train", tmp_path / "cifar10-jpeg") or [])


@pytest.mark.parametrize("link", ["folder", "files"])
def test_cifar10_behind_a_link_to_the_jpeg_copy_is_lossy(tmp_path, link):
    touch(tmp_path / "store" / "cifar10-jpeg", CIFAR10)
    root = tmp_path / "root"
    root.mkdir()
    if link == "folder":
        (root / "cifar10").symlink_to(tmp_path / "store" / "cifar10-jpeg")
    else:
        (root / "cifar10").mkdir()
        for name in CIFAR10:
            (root / "cifar10" / name).symlink_to(tmp_path / "store" / "cifar10-jpeg" / name)
    assert files.lossy("cifar10", files.find("cifar10", "test", root) or [])


def test_svhn_by_name(tmp_path):
    svhn(tmp_path / "test_32x32.mat")
    found = data.load("svhn", split="test", data_dir=tmp_path)
    assert found.inputs.shape == (12, 32, 32, 3)
    assert found.inputs.flags.c_contiguous
    assert (found.labels[9], found.inputs.max()) == (0, 1)


def test_wrong_names_are_refused(tmp_path, monkeypatch):
    for call, message in [
        (lambda: data.load("imagenet"), "name: expected one of digits, .*, got imagenet"),
        (lambda: data.load("digits", split="all"), "split: expected one of train, test, got all"),
        (lambda: data.load("mnist", data_dir=tmp_path / "no"), "data_dir: expected a folder, got .*"),
        (lambda: data.available(data_dir=""), "data_dir: expected a folder, got $"),
        (lambda: data.load("mnist"), r"\$DPAUDIT_DATA, which is not set, got no folder; .* pip install"),
        (lambda: data.load("pima_diabetes"), "which is not set, got no folder; name a folder that has them$"),
    ]:
        with pytest.raises(_validate.InputError, match=message):
            call()
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path / "no"))
    with pytest.raises(_validate.InputError, match=r"\$DPAUDIT_DATA: expected a folder, got"):
        data.load("mnist")


def test_tensorflow_datasets_comes_last_with_the_files_that_are_there(tmp_path, monkeypatch):
    def read(name, split, *, manual_dir):
        return np.full((2, 32, 32, 3), 255, np.uint8), np.array([3, 4]), f"{name}/{split} from {manual_dir}"

    monkeypatch.setattr(sources, "installed", lambda: True)
    monkeypatch.setattr(sources, "read", read)
    assert data.load("cifar10").origin == "CIFAR-10, 2 records, TensorFlow Datasets cifar10/train from None"
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    found = data.load("cifar10", split="test")
    assert found.origin.endswith(f"from {tmp_path / 'cifar10'}")
    assert (found.inputs.dtype, found.inputs.max(), found.lossy) == (np.float32, 1, False)
    with pytest.raises(_validate.InputError, match="cifar10: expected"):
        data.load("cifar10", data_dir=tmp_path)


def test_available_tells_what_is_there_by_names_alone(tmp_path, monkeypatch):
    touch(tmp_path / "mnist", files.FILES["mnist"].names["test"])
    touch(tmp_path / "cifar10-jpeg", CIFAR10)
    touch(tmp_path / "svhn", ["train_32x32.mat.part"])
    rows = {row.name: row for row in data.available(tmp_path)}
    assert tuple(rows) == (*data.NAMES, *data.RATINGS)
    assert rows["digits"][1:] == ("1,437 train, 360 test; 8 x 8 x 1", "bundled with scikit-learn")
    assert rows["mnist"][1:] == ("10,000 test; 28 x 28 x 1", "IDX files in mnist")
    assert rows["cifar10"][1:] == ("50,000 train, 10,000 test; 32 x 32 x 3", "JPEG, binary files in cifar10-jpeg")
    assert rows["svhn"][1:] == ("not found", "looked for a folder svhn")
    monkeypatch.setattr(sources, "installed", lambda: True)
    assert {row.name: row for row in data.available(tmp_path)}["svhn"].contents == "not found"
    assert {row.name: row for row in data.available()}["svhn"].origin.startswith("TensorFlow Datasets")


def test_real_mnist_and_fashion_mnist(data_dir):
    digits, clothes = (data.load(name, data_dir=data_dir) for name in ("mnist", "fashion_mnist"))
    for found in (digits, clothes):
        assert found.inputs.shape == (60_000, 28, 28, 1)
        assert (found.inputs.min(), found.inputs.max()) == (0, 1)
    assert np.bincount(digits.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(clothes.labels).tolist() == [6000] * 10


def test_real_cifar10_jpeg_is_a_lossy_copy_of_the_exact_subset(data_dir):
    jpeg = data.load("cifar10", split="test", data_dir=data_dir)
    exact = data.load("cifar10_exact_subset", split="test", data_dir=data_dir)
    if not jpeg.lossy:
        pytest.skip("needs the JPEG copy of CIFAR-10: there is an exact one")
    assert (jpeg.label, exact.label) == ("cifar10 (JPEG)", "cifar10_exact_subset")
    assert jpeg.origin == "CIFAR-10 (JPEG), 10,000 records, binary files in cifar10-jpeg"
    np.testing.assert_array_equal(jpeg.labels[:1000], exact.labels)
    noise = ((jpeg.inputs[:1000] - exact.inputs) ** 2).mean((1, 2, 3))
    swapped = ((jpeg.inputs[:1000, ..., ::-1] - exact.inputs) ** 2).mean((1, 2, 3))
    assert 29 < -10 * np.log10(np.median(noise)) < 32  # dB
    assert np.median(swapped) > 2 * np.median(noise)  # the twin with red and blue exchanged fails


def test_real_pima_diabetes(data_dir):
    train, test = (data.load("pima_diabetes", split=split, data_dir=data_dir) for split in data.SPLITS)
    assert (train.inputs.shape, test.inputs.shape) == ((600, 8), (168, 8))
    assert np.bincount(train.labels).tolist() == [391, 209]
    assert (np.bincount(train.labels) + np.bincount(test.labels)).tolist() == [500, 268]


@pytest.mark.parametrize(
    "labels, message",
    [
        ([0, 9, 10, 3], "labels: expected whole numbers from 0 to 9, got 10 in record 2"),
        ([0, -1, 2, 3], "labels: expected whole numbers from 0 to 9, got -1 in record 1"),
        ([0.0, 1.5, 2.0, 3.0], "labels: expected whole numbers from 0 to 9, got 1.5 in record 1"),
        ([0, 1, 2], r"labels: expected shape \[4\], one for each record, got shape \[3\]"),
    ],
)
def test_labels_of_ones_own_that_are_no_class_are_refused(labels, message):
    with pytest.raises(_validate.InputError, match=message):
        data.Dataset("mine", np.zeros((4, 8, 8, 1), np.float32), np.array(labels), 10, "my images")
