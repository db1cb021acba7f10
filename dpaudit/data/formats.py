"""Reads the standard file formats into NumPy arrays, or refuses a file with one line that says what is wrong.

A file may be plain, gzip (``.gz``) or xz (``.xz``). It is decompressed up to a fixed limit, every size is checked
against the bytes that are really there before an array is made, and :class:`~dpaudit._validate.InputError` names the
file, what was expected and what was found.
"""

import io
import lzma
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.io

from dpaudit import _validate

LARGEST = 2**30  # bytes of content; the largest standard file read here, MovieLens 20M's ratings, has about 2**29
IDX_UNSIGNED_BYTE = 0x08
CIFAR_RECORD = 1 + 3 * 32 * 32  # label, then the red, the green and the blue plane
_DECODERS = {
    ".gz": lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS),
    ".xz": lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=2**28),
}


def read_idx(path: Path, *, shape: tuple[int, ...]) -> np.ndarray:
    """Reads an IDX file of unsigned bytes: big-endian magic number, one 32-bit size per axis, then the bytes.

    Args:
      path: the file.
      shape: of one record, ``(28, 28)`` for MNIST images and ``()`` for labels.

    Returns:
      uint8 ``[n, *shape]``, n >= 1.

    Raises:
      InputError: the file is missing, truncated, too long or of another kind.
    """
    data = content(path)
    magic = IDX_UNSIGNED_BYTE << 8 | 1 + len(shape)
    header = 4 * (2 + len(shape))
    if data[:4] != magic.to_bytes(4, "big"):
        found = f"0x{data[:4].hex()}" if len(data) >= 4 else f"{len(data)} bytes"
        raise _expected(path, f"an IDX file that starts with 0x{magic:08x}", found)
    if len(data) < header:
        raise _expected(path, f"an IDX header of {header} bytes", f"{len(data)} bytes")
    count, *record = (int(size) for size in np.frombuffer(data, ">u4", 1 + len(shape), offset=4))
    if tuple(record) != shape or count < 1:
        raise _expected(path, f"at least one record of shape {list(shape)}", f"{count} of shape {record}")
    size = header + count * math.prod(shape)
    if len(data) != size:
        raise _expected(path, f"{size:,} bytes for the {count:,} records in its header", f"{len(data):,} bytes")
    return np.frombuffer(data, np.uint8, offset=header).reshape(count, *shape)


def read_idx_pair(images: Path, labels: Path, *, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Reads images ``[n, h, w, 1]`` and labels 0 to 9 ``[n]`` of one split of an MNIST-like set, both uint8.

    Raises:
      InputError: as for :func:`read_idx`; files of different lengths; a label above 9.
    """
    x, y = read_idx(images, shape=shape), read_idx(labels, shape=())
    if len(x) != len(y):
        raise _expected(labels, f"{len(x):,} labels, one for each image of {images.name}", f"{len(y):,} labels")
    return x[..., None], _in_range(labels, y, 0, 9)


def read_cifar10(paths: Sequence[Path], *, records: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """Reads CIFAR-10 batches in the binary version: 3,073 bytes a record, the label and three planes of 32 x 32.

    The format has no header, so only the number of records tells a whole file from a truncated one.

    Args:
      paths: the batch files, in order.
      records: in each file.

    Returns:
      images uint8 ``[n, 32, 32, 3]`` and labels uint8 ``[n]``, 0 to 9.

    Raises:
      InputError: a file is missing, broken or of another size, or a label is out of range.
    """
    images, labels = [], []
    for path in paths:
        data = content(path)
        if len(data) != records * CIFAR_RECORD:
            wanted = f"{records * CIFAR_RECORD:,} bytes, {records:,} records of {CIFAR_RECORD:,}"
            raise _expected(path, wanted, f"{len(data):,} bytes")
        table = np.frombuffer(data, np.uint8).reshape(records, CIFAR_RECORD)
        labels.append(_in_range(path, table[:, 0], 0, 9))
        images.append(table[:, 1:].reshape(records, 3, 32, 32).transpose(0, 2, 3, 1))
    return np.concatenate(images), np.concatenate(labels)


def read_svhn(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads SVHN cropped digits, a MATLAB 5 file: X ``[32, 32, 3, n]`` uint8 and y ``[n, 1]``, 10 for digit 0.

    Returns:
      images uint8 ``[n, 32, 32, 3]`` and labels uint8 ``[n]``, 0 to 9.

    Raises:
      InputError: the file is missing or broken, a variable is missing or has another shape, a label is out of range.
    """
    stream = io.BytesIO(content(path))
    try:
        found = {name: (shape, kind) for name, shape, kind in scipy.io.whosmat(stream)}
        _check_svhn(path, found)
        variables = scipy.io.loadmat(stream, variable_names=["X", "y"])
    except _validate.InputError:
        raise
    except Exception as error:  # SciPy's parser raises many types of exceptions for broken bytes
        raise _expected(path, "an unbroken MATLAB 5 file", f"{type(error).__name__}: {error}") from error
    labels = _in_range(path, variables["y"].ravel(), 1, 10)
    return variables["X"].transpose(3, 0, 1, 2), labels % 10


def read_table(path: Path, *, columns: int, num_classes: int, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads comma-separated numbers without a header line; the last column is the class.

    Returns:
      features float64 ``[n, columns - 1]`` and labels uint8 ``[n]``, 0 to num_classes - 1.

    Raises:
      InputError: the file is missing or holds another number of rows or columns, or something that is not a number.
    """
    try:
        lines = content(path).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise _expected(path, "plain text", f"byte 0x{error.object[error.start]:02x} at {error.start}") from error
    if len(lines) != records:
        raise _expected(path, f"{records} lines", f"{len(lines)} lines")
    rows = np.array([_numbers(path, number, line, columns) for number, line in enumerate(lines, start=1)])
    return rows[:, :-1], _in_range(path, rows[:, -1], 0, num_classes - 1)


def printable(path: Path | str) -> str:
    """Returns the path, with escapes where it would break a line."""
    name = str(path)
    return name if name.isprintable() else ascii(name)


def content(path: Path) -> bytes:
    """Returns all bytes of a file, decompressed, at most LARGEST of them."""
    try:
        if path.stat().st_size > LARGEST:
            raise _expected(path, f"at most {LARGEST:,} bytes", f"{path.stat().st_size:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise _expected(path, "a readable file", error.strerror or type(error).__name__) from error
    if path.suffix not in _DECODERS:
        return data
    decoder, kind = _DECODERS[path.suffix](), path.suffix[1:]
    try:
        decoded = decoder.decompress(data, LARGEST + 1)
    except (zlib.error, lzma.LZMAError) as error:
        raise _expected(path, f"an unbroken {kind} stream", str(error)) from error
    if len(decoded) > LARGEST:
        raise _expected(path, f"at most {LARGEST:,} bytes after decompression", "more")
    if not decoder.eof:
        raise _expected(path, f"a complete {kind} stream", f"one that breaks off after {len(data):,} bytes")
    if decoder.unused_data:
        raise _expected(path, f"nothing after the {kind} stream", f"{len(decoder.unused_data):,} more bytes")
    return decoded


def _check_svhn(path: Path, found: dict[str, tuple[tuple[int, ...], str]]) -> None:
    shape, kind = found.get("X", ((), "nothing"))
    if len(shape) != 4 or shape[:3] != (32, 32, 3) or not 1 <= shape[3] <= LARGEST // 3072 or kind != "uint8":
        raise _expected(path, "X uint8 [32, 32, 3, n], n >= 1", f"X {kind} {list(shape)}")
    labels, kind = found.get("y", ((), "nothing"))
    if math.prod(labels) != shape[3] or max(labels, default=0) != shape[3]:
        raise _expected(path, f"y [{shape[3]}, 1], a label for each image", f"y {kind} {list(labels)}")


def _numbers(path: Path, number: int, line: str, columns: int) -> list[float]:
    try:
        values = [float(field) for field in line.split(",")]
    except ValueError:
        values = []
    if len(values) != columns or not all(map(math.isfinite, values)):
        raise _expected(path, f"{columns} numbers in line {number}", line or "an empty line")
    return values


def _in_range(path: Path, labels: np.ndarray, low: int, high: int) -> np.ndarray:
    wrong = np.flatnonzero(~np.isin(labels, np.arange(low, high + 1)))
    if wrong.size:
        raise _expected(path, f"whole labels from {low} to {high}", f"{labels[wrong[0]]} in record {wrong[0]}")
    return labels.astype(np.uint8)


def _expected(path: Path, wanted: str, found: str) -> _validate.InputError:
    return _validate.expected(printable(path), wanted, found)
