"""The shipped scans are scikit-learn's, and their split is a partition with balanced classes."""

import numpy as np
import pytest

from fringe.data import digits_samples
from fringe.data._images import digit_image, load_digits


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def test_scans_and_labels_equal_scikit_learns(digits):
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_digits()
    assert np.array_equal(digits.images, bunch.images)
    assert np.array_equal(digits.labels, bunch.target)
    assert digits.images.dtype == np.uint8


def test_the_split_is_a_partition_with_every_class_in_its_share(digits):
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert sorted([*digits.train, *digits.test]) == list(range(1797))
    overall, test = (np.bincount(digits.labels[i], minlength=10) for i in (slice(None), digits.test))
    assert np.abs(test - overall * 360 / 1797).max() < 1


def test_no_test_scan_is_also_a_training_scan(digits):
    train = {digits.images[i].tobytes() for i in digits.train}
    assert not any(digits.images[i].tobytes() in train for i in digits.test)


def test_ink_fills_the_range_of_a_byte():
    scan = np.arange(64, dtype=np.uint8).reshape(8, 8) % 17
    image = digit_image(scan)
    assert (image.mode, image.size) == ("L", (8, 8))
    assert np.array_equal(np.asarray(image), np.rint(scan * 15.9375).astype(np.uint8))


def test_samples_of_both_splits(digits):
    test, train = digits_samples("test"), digits_samples("train")
    assert [s.label for s in test] == digits.labels[digits.test].tolist()
    assert [s.label for s in train] == digits.labels[digits.train].tolist()
    assert (test[7].id, test[7].source) == ("digits-0007", "embedded:digits:7")
    assert len({s.id for s in (*test, *train)}) == 1797
