"""Splits put together, and copies that must not be."""

import dataclasses

import numpy as np
import pytest

from dpaudit import _validate, data

RNG = np.random.default_rng(1)


def part(records=3, name="mine", shape=(2, 2, 1), classes=4, origin="mine, from here", lossy=False):
    labels = np.arange(records, dtype=np.int32) % classes
    return data.Dataset(name, RNG.random((records, *shape), np.float32), labels, classes, origin, lossy)


def test_train_and_test_are_one_data_set_in_that_order():
    train, test = (data.load("digits", split=split) for split in data.SPLITS)
    whole = data.pooled(train, test)
    np.testing.assert_array_equal(whole.inputs, [*train.inputs, *test.inputs])
    np.testing.assert_array_equal(whole.labels, [*train.labels, *test.labels])
    assert (whole.inputs.dtype, whole.labels.dtype) == (np.float32, np.int32)
    assert (whole.name, whole.num_classes, whole.lossy) == ("digits", 10, False)
    assert whole.origin == (
        "digits, 1,437 records, bundled with scikit-learn + digits, 360 records, bundled with scikit-learn"
    )


def test_one_is_itself_and_copies_that_are_all_jpeg_stay_so():
    parts = [part(name="cifar10", origin=f"part {number}", lossy=True) for number in range(3)]
    alone, whole = data.pooled(parts[0]), data.pooled(*parts)
    np.testing.assert_array_equal(alone.inputs, parts[0].inputs)
    assert (alone.origin, alone.label) == ("part 0", "cifar10 (JPEG)")
    assert (whole.origin, whole.label, len(whole.labels)) == ("part 0 + part 1 + part 2", "cifar10 (JPEG)", 9)


JPEG = part(name="cifar10", lossy=True)


@pytest.mark.parametrize(
    "datasets, message",
    [
        ([], "datasets: expected at least one, got none"),
        (
            [JPEG, part(name="cifar10")],
            r"datasets: expected pixels that all went through JPEG, or none, got cifar10 \(JPEG\) with cifar10$",
        ),
        (
            [part(name="cifar10_exact_subset"), JPEG],
            r"datasets: expected pixels that .*, got cifar10_exact_subset with cifar10 \(JPEG\)$",
        ),
        ([JPEG, part(name="cifar10", lossy=True), part(name="cifar10")], r"got cifar10 \(JPEG\) with cifar10$"),
        ([part(name="cifar10"), part(name="svhn")], "datasets: expected one name, got cifar10 with svhn"),
        (
            [part(), part(shape=(4, 1))],
            r"datasets: expected one shape of a record, got \[2, 2, 1\] with \[4, 1\]",
        ),
        ([part(), part(classes=5)], "datasets: expected one number of classes, got 4 with 5"),
    ],
)
def test_what_differs_is_refused(datasets, message):
    with pytest.raises(_validate.InputError, match=message):
        data.pooled(*datasets)


def test_the_same_records_twice_are_refused():
    train = data.load("digits")
    for again in (train, data.load("digits"), dataclasses.replace(train, origin="another name")):
        with pytest.raises(
            _validate.InputError, match="datasets: expected different records, got twice those of digits, 1"
        ):
            data.pooled(data.load("digits", split="test"), train, again)


def test_real_cifar10_of_two_kinds_is_refused(data_dir):
    jpeg, exact = (data.load(name, split="test", data_dir=data_dir) for name in ("cifar10", "cifar10_exact_subset"))
    if not jpeg.lossy:
        pytest.skip("needs the JPEG copy of CIFAR-10: there is an exact one")
    with pytest.raises(_validate.InputError, match=r"got cifar10 \(JPEG\) with cifar10_exact_subset"):
        data.pooled(jpeg, exact)
