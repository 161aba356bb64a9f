"""Targets in every form that a caller may write, and the messages for those that name no class."""

import pytest
import torch
from classifier_toys import normal
from torch import nn

from fringe import Classifier, TargetError

LOGITS = normal(3, 5)

GOOD = {
    "predicted": ("predicted", LOGITS.argmax(1).tolist()),
    "integer": (2, [2, 2, 2]),
    "list": ([4, 0, 1], [4, 0, 1]),
    "tuple": ((4, 0, 1), [4, 0, 1]),
    "tensor": (torch.tensor([4, 0, 1]), [4, 0, 1]),
    "uint8": (torch.tensor([4, 0, 1], dtype=torch.uint8), [4, 0, 1]),
    "0-d tensor": (torch.tensor(3), [3, 3, 3]),
    "several": ([[1, 0], [2, 4], [3, 0]], [[1, 0], [2, 4], [3, 0]]),
    "top": ("top2", LOGITS.topk(2, 1).indices.tolist()),
    "best": ("top1", LOGITS.topk(1, 1).indices.tolist()),
    "item": (LOGITS.argmax(1)[0], [LOGITS[0].argmax().item()] * 3),
}

BAD = {
    "too few": ([1, 2], r"got shape \(2,\) for 3 images of 5 classes; expected .* 'top5', one integer, 3 integers"),
    "too many": ([1, 2, 3, 4], r"got shape \(4,\) for 3 images"),
    "one in a list": ([1], r"got shape \(1,\) for 3 images"),
    "matrix of another batch": ([[1], [2]], r"got shape \(2, 1\) for 3 images of 5 classes"),
    "no class": ([[], [], []], r"got (dtype|shape)"),
    "one past the end": (5, r"class 5 does not exist; the model has classes 0 to 4"),
    "negative": (-1, r"class -1 does not exist; the model has classes 0 to 4"),
    "one of three": ([0, 7, 1], r"class 7 does not exist"),
    "float": (1.0, r"got dtype torch.float32, expected integers"),
    "floats": (torch.tensor([1.0, 2.0, 3.0]), r"got dtype torch.float32, expected integers"),
    "bool": (True, r"got dtype torch.bool, expected integers"),
    "complex": (torch.tensor(1j), r"got dtype torch.complex64, expected integers"),
    "word": ("cat", r"got 'cat', expected 'predicted', 'top5', a class"),
    "more than there are": ("top9", r"got 'top9', expected .*the model has 5 classes"),
    "none of the top": ("top0", r"got 'top0', expected"),
    "words": (["cat", "dog", "cat"], ""),
    "none": (None, ""),
    "mapping": ({0: 1}, ""),
    "beyond int64": (2**70, ""),
}

#: Of two images and three classes, or two.
SEVERAL = {
    "a class twice": ([[0, 1, 2], [2, 1, 2]], 3, r"got \[2, 1, 2\] for image 1, which names a class twice"),
    "one-hot": ([[0, 1, 0], [0, 0, 1]], 3, r"its rows look one-hot, .*; for rows of .* pass target=rows.argmax\(1\)$"),
    "one-hot of two": ([[0, 1], [1, 0]], 2, r"its rows look one-hot.*argmax\(1\); for maps of both .*target='top2'"),
    "one-hot floats": (torch.eye(3)[:2], 3, r"got dtype torch.float32, expected integers; .*argmax\(1\)"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_targets_are_different_classes_and_no_one_hot_rows(name):
    target, classes, message = SEVERAL[name]
    with pytest.raises(TargetError, match=r"^target: " + message):
        Classifier(nn.Identity()).resolve_target(target, torch.zeros(2, classes))


def test_several_targets_may_be_all_classes_and_have_the_same_contrast():
    identity, logits = Classifier(nn.Identity()), torch.zeros(2, 3)
    assert identity.resolve_target([[0, 1, 2], [2, 1, 0]], logits).tolist() == [[0, 1, 2], [2, 1, 0]]
    assert identity.resolve_target([[2, 2], [1, 1]], logits, "contrast").tolist() == [[2, 2], [1, 1]]
    assert identity.resolve_target([[0, 1], [1, 0]], logits[:, :2], "contrast").tolist() == [[0, 1], [1, 0]]


def resolve(target):
    return Classifier(nn.Identity()).resolve_target(target, LOGITS)


@pytest.mark.parametrize("name", GOOD)
def test_one_class_an_image(name):
    target, expected = GOOD[name]
    found = resolve(target)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


@pytest.mark.parametrize("name", BAD)
def test_errors_name_what_came(name):
    target, message = BAD[name]
    with pytest.raises(TargetError, match=r"^target: " + message):
        resolve(target)


def test_the_caller_keeps_his_tensor():
    target = torch.tensor([4, 0, 1])
    resolve(target).fill_(0)
    assert target.tolist() == [4, 0, 1]
