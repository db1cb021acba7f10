"""Image data sets through TensorFlow Datasets, without tf.data: the source of last resort, installed on request."""

import importlib
import importlib.util
import textwrap
from pathlib import Path

import numpy as np

from dpaudit import check

BUILDERS = {"mnist": "mnist", "fashion_mnist": "fashion_mnist", "cifar10": "cifar10", "svhn": "svhn_cropped"}


def installed() -> bool:
    """Whether the extra ``tfds`` is there (nothing is imported)."""
    return importlib.util.find_spec("tensorflow_datasets") is not None


def read(
    name: str, split: str, *, manual_dir: Path | None = None, tfds_dir: Path | None = None
) -> tuple[np.ndarray, np.ndarray, str]:
    """Downloads a data set, or takes the original files from ``manual_dir``, prepares it once and reads it.

    The records are those of the original files in an order of TensorFlow Datasets' own. Without a network it tries
    for about three minutes, and says so, before it gives up.

    Args:
      name: a key of BUILDERS.
      split: ``"train"`` or ``"test"``.
      manual_dir: a folder that may hold the files to be downloaded, under their original names; they are held to the
        published checksums, and with all of them there no network is needed.
      tfds_dir: where prepared data sets are kept; None is TensorFlow Datasets' default, ``~/tensorflow_datasets``.

    Returns:
      images uint8 ``[n, h, w, c]``, labels int64 ``[n]``, and the name and version of what was read.

    Raises:
      InputError: TensorFlow Datasets is not installed, or could not download, prepare or read the data set.
    """
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise check.expected(name, 'TensorFlow Datasets (pip install "dpaudit[tfds]")', str(error)) from error
    try:
        builder = tfds.builder(BUILDERS[name], data_dir=tfds_dir)
        config = tfds.download.DownloadConfig(manual_dir=manual_dir)
        builder.download_and_prepare(download_config=config, file_format="array_record")
        records = builder.as_data_source(split=split)
        images = np.empty((len(records), *records[0]["image"].shape), np.uint8)
        labels = np.empty(len(records), np.int64)
        for i, record in enumerate(records):
            images[i], labels[i] = record["image"], record["label"]
    except Exception as error:  # the network, the disk, the checksums, TensorFlow: each fails in its own way
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 400, placeholder="...")
        message = f"{name}: expected TensorFlow Datasets to download and prepare {BUILDERS[name]}, got {reason}"
        raise check.InputError(message) from error
    return images, labels, builder.info.full_name
