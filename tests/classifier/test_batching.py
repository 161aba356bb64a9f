"""Chunks of the batch, and what happens at the end of memory."""

import pytest
import torch
from classifier_networks import CLASSES, network, normal
from torch import nn

from fringe import Classifier
from fringe._network import BatchSize

CPU = torch.device("cpu")


class Limited(nn.Module):
    """A network on a device that holds ``rows`` images."""

    def __init__(self, model, rows):
        super().__init__()
        self.model, self.rows, self.seen = model, rows, []

    def forward(self, x):
        self.seen.append(x.shape[0])
        if x.shape[0] > self.rows:
            raise torch.OutOfMemoryError(f"{x.shape[0]} images do not fit")
        return self.model(x)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100, "auto"])
def test_the_size_of_the_chunks_does_not_matter(size):
    model, x, target = network("convolutions with batch normalisation"), normal(8, 3, 8, 8), torch.arange(8) % CLASSES
    whole, chunked = Classifier(model, batch_size=8), Classifier(model, batch_size=size)
    assert torch.allclose(chunked.logits(x), whole.logits(x), rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(chunked.score_gradient(x, target), whole.score_gradient(x, target), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_results_survive_the_end_of_memory(rows):
    model, x, target = network("reused module"), normal(11, 3, 6, 6), torch.arange(11) % CLASSES
    plain, limited = Classifier(model), Classifier(Limited(model, rows).eval(), batch_size=8)
    assert torch.allclose(limited.logits(x), plain.logits(x), rtol=1e-12)
    assert limited.batch_size.on(CPU) == {1: 1, 3: 2, 5: 4}[rows]
    for ours, theirs in zip(limited.score_gradient(x, target), plain.score_gradient(x, target), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_what_was_learnt_is_remembered_and_finished_rows_are_kept():
    limited = Limited(network("reused module"), 3).eval()
    classifier = Classifier(limited, batch_size=8)
    classifier.logits(normal(10, 3, 6, 6))
    assert limited.seen == [8, 4, 2, 2, 2, 2, 2]
    limited.seen.clear()
    classifier.logits(normal(5, 3, 6, 6))
    assert limited.seen == [2, 2, 1]


def test_one_image_that_does_not_fit_is_an_error():
    limited = Limited(network("reused module"), 0).eval()
    with pytest.raises(torch.OutOfMemoryError, match="1 images do not fit"):
        Classifier(limited, batch_size=4).logits(normal(4, 3, 6, 6))
    assert limited.seen == [4, 2, 1]


def test_other_errors_pass_through_at_once():
    size, calls = BatchSize(4), []

    def broken(rows):
        calls.append(len(rows))
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        size.map(broken, torch.zeros(8, 2))
    assert calls == [4]
    assert size.on(CPU) == 4


def test_map_splits_every_argument_alike_and_joins_every_result():
    a, b = torch.arange(7.0), torch.arange(7.0) * 10
    assert torch.equal(BatchSize(3).map(lambda x, y: x + y, a, b), a + b)
    total, product = BatchSize(2).map(lambda x, y: (x + y, x * y), a, b)
    assert torch.equal(total, a + b)
    assert torch.equal(product, a * b)


def test_no_images_give_no_rows():
    assert BatchSize(3).map(lambda x: x.sum(1, keepdim=True), torch.zeros(0, 4)).shape == (0, 1)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "large", None])
def test_a_size_without_meaning_is_named(size):
    with pytest.raises(ValueError, match=f"batch_size: got {size!r}, expected 'auto' or a positive integer"):
        BatchSize(size)
