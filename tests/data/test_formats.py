"""The readers against files written here byte by byte, whole and broken in every way a file can break."""

import gzip
import lzma
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from dpaudit import _validate
from dpaudit.data import formats

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 9, 3, 3, 7], np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def assert_refused(found: str, reader, *args, **named) -> None:
    """The reader raises InputError, one line that names the file and tells what was found."""
    with pytest.raises(_validate.InputError, match=found) as caught:
        reader(*args, **named)
    message = str(caught.value)
    assert "\n" not in message
    assert "file.bin" in message
    assert ": expected " in message


@pytest.mark.parametrize("suffix, pack", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_idx_pair_is_read_plain_and_compressed(tmp_path, suffix, pack):
    x = write(tmp_path / f"x{suffix}", pack(idx(IMAGES)))
    y = write(tmp_path / f"y{suffix}", pack(idx(LABELS)))
    images, labels = formats.read_idx_pair(x, y, shape=(28, 28))
    np.testing.assert_array_equal(images, IMAGES[..., None])
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize(
    "content, found",
    [
        (b"", "starts with 0x00000803, got 0 bytes"),
        (b"\0\0\x08", "got 3 bytes"),
        (idx(LABELS), "starts with 0x00000803, got 0x00000801"),
        (idx(IMAGES)[:9], "header of 16 bytes, got 9 bytes"),
        (idx(IMAGES)[:-1], "3,936 bytes for the 5 records in its header, got 3,935 bytes"),
        (idx(IMAGES) + b"x", "got 3,937 bytes"),
        (idx(IMAGES[:, :27]), r"shape \[28, 28\], got 5 of shape \[27, 28\]"),
        (idx(IMAGES[:0]), "at least one record of shape .*, got 0 of shape"),
        # a size that would not fit in memory is refused before anything of that size is made
        (struct.pack(">4I", 0x803, 2**32 - 1, 28, 28), "for the 4,294,967,295 records in its header, got 16 bytes"),
    ],
)
def test_idx_refuses(tmp_path, content, found):
    assert_refused(found, formats.read_idx, write(tmp_path / "file.bin", content), shape=(28, 28))


def test_idx_pair_refuses_other_counts_and_labels(tmp_path):
    x = write(tmp_path / "x", idx(IMAGES))
    y = write(tmp_path / "file.bin", idx(LABELS[:4]))
    assert_refused("5 labels, one for each image of x, got 4 labels", formats.read_idx_pair, x, y, shape=(28, 28))
    y = write(tmp_path / "file.bin", idx(np.array([0, 1, 10, 2, 3], np.uint8)))
    assert_refused("from 0 to 9, got 10 in record 2", formats.read_idx_pair, x, y, shape=(28, 28))


@pytest.mark.parametrize("suffix, pack", [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_streams_refuse(tmp_path, monkeypatch, suffix, pack):
    path, whole = tmp_path / f"file.bin{suffix}", pack(idx(IMAGES))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content, found in [
        (b"", "complete .. stream, got one that breaks off after 0 bytes"),
        (whole[:-20], "complete .. stream, got one that breaks off"),
        (bytes(flipped), "unbroken .. stream"),
        (idx(IMAGES), "unbroken .. stream"),
        (whole + b"tail", "nothing after the .. stream, got 4 more bytes"),
    ]:
        assert_refused(found, formats.read_idx, write(path, content), shape=(28, 28))
    monkeypatch.setattr(formats, "LARGEST", 4000)  # a small file that swells is stopped at the limit
    assert_refused(
        "at most 4,000 bytes after decompression", formats.read_idx, write(path, pack(bytes(10**6))), shape=()
    )
    assert_refused("at most 4,000 bytes, got 4,001", formats.read_idx, write(path, bytes(4001)), shape=())


def test_a_file_that_cannot_be_read(tmp_path):
    assert_refused("a readable file, got No such file", formats.read_idx, tmp_path / "file.bin", shape=())
    (tmp_path / "file.bin").mkdir()
    assert_refused("a readable file, got Is a directory", formats.read_idx, tmp_path / "file.bin", shape=())
    assert_refused(
        r"'.*\\n.*file.bin'.* a readable file", formats.read_idx, tmp_path / "two\nlines" / "file.bin", shape=()
    )


def cifar(labels: np.ndarray, images: np.ndarray) -> bytes:
    """One record at a time: the label, then each colour plane row by row."""
    planes = [[image[:, :, colour].tobytes() for colour in range(3)] for image in images]
    return b"".join(bytes([label]) + b"".join(p) for label, p in zip(labels, planes, strict=True))


def test_cifar10_batches_are_joined_in_order(tmp_path):
    images = RNG.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    a = write(tmp_path / "a.bin.xz", lzma.compress(cifar(LABELS[:2], images[:2])))
    b = write(tmp_path / "b.bin", cifar(LABELS[2:4], images[2:]))
    x, y = formats.read_cifar10([a, b], records=2)
    np.testing.assert_array_equal(x, images)
    np.testing.assert_array_equal(y, LABELS[:4])
    bad = write(tmp_path / "file.bin", cifar(LABELS[2:3], images[:1]))
    assert_refused("6,146 bytes, 2 records of 3,073, got 3,073 bytes", formats.read_cifar10, [a, bad], records=2)
    bad = write(tmp_path / "file.bin", cifar(np.array([1, 200]), images[:2]))
    assert_refused("from 0 to 9, got 200 in record 1", formats.read_cifar10, [a, bad], records=2)


def svhn(path: Path, *, compress: bool = False, **changed) -> Path:
    images = RNG.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
    y = np.arange(12, dtype=np.uint8)[:, None] % 10 + 1
    scipy.io.savemat(path, {"X": images, "y": y} | changed, appendmat=False, do_compression=compress)
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_svhn_turns_axes_and_ten_into_zero(tmp_path, compress):
    path = svhn(tmp_path / "train_32x32.mat", compress=compress)
    x, y = formats.read_svhn(path)
    original = scipy.io.loadmat(path)["X"]
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2])
    assert (x.shape, x.dtype, y.dtype) == ((12, 32, 32, 3), np.uint8, np.uint8)
    for i in range(12):
        np.testing.assert_array_equal(x[i], original[:, :, :, i])


@pytest.mark.parametrize(
    "changed, found",
    [
        ({"X": np.zeros((32, 32, 3), np.uint8)}, r"got X uint8 \[32, 32, 3\]"),
        ({"X": np.zeros((32, 32, 3, 12))}, r"got X double \[32, 32, 3, 12\]"),
        ({"y": np.ones((11, 1), np.uint8)}, r"y \[12, 1\], a label for each image, got y uint8 \[11, 1\]"),
        ({"y": np.zeros((12, 1), np.uint8)}, "from 1 to 10, got 0 in record 0"),
        ({"y": np.full((12, 1), 1.5)}, "from 1 to 10, got 1.5 in record 0"),
    ],
)
def test_svhn_refuses(tmp_path, changed, found):
    assert_refused(found, formats.read_svhn, svhn(tmp_path / "file.bin", **changed))


@pytest.mark.parametrize("compress", [False, True])
def test_svhn_refuses_broken_files(tmp_path, compress):
    path = svhn(tmp_path / "file.bin", compress=compress)
    whole = path.read_bytes()
    for content in [b"", b"not a MATLAB file", whole[: len(whole) // 2], whole[:-9], whole + b"tail"]:
        assert_refused("unbroken MATLAB 5 file, got|got y nothing", formats.read_svhn, write(path, content))
    scipy.io.savemat(path, {"y": np.ones((3, 1))}, appendmat=False)
    assert_refused("got X nothing", formats.read_svhn, path)


def test_table_is_read_and_refused(tmp_path):
    path, rows = tmp_path / "file.bin", ["1,2.5,0", "3,-4e2,1"]
    named = {"columns": 3, "num_classes": 2, "records": 2}
    for end in ("", "\n", "\r\n"):
        x, y = formats.read_table(write(path, ("\n".join(rows) + end).encode()), **named)
        np.testing.assert_array_equal(x, [[1, 2.5], [3, -400]])
        np.testing.assert_array_equal(y, [0, 1])
    for lines, found in [
        (rows[:1], "2 lines, got 1 lines"),
        ([*rows, rows[0]], "2 lines, got 3 lines"),
        (["a,b,c", rows[1]], "3 numbers in line 1, got a,b,c"),
        ([rows[0], ""], "3 numbers in line 2, got an empty line"),
        ([rows[0], "1,2"], "3 numbers in line 2, got 1,2"),
        ([rows[0], "1,nan,1"], "3 numbers in line 2, got 1,nan,1"),
        ([rows[0], "1,2,2"], "from 0 to 1, got 2.0 in record 1"),
        ([rows[0], "1,2,\xff"], "plain text, got byte 0xff at 12"),
    ]:
        write(path, ("\n".join(lines) + "\n").encode("latin-1"))
        assert_refused(found, formats.read_table, path, **named)
