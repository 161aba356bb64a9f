"""Float64 on a device that has none: numbers are the CPU's, and only float64 lies there."""

import pytest
import torch
from second_device import ELSEWHERE, second_device

from fringe._numbers.float64 import float64_on, has_float64

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def device():
    with second_device(float64=False):
        yield


def test_the_device_refuses_float64():
    assert not has_float64(ELSEWHERE)
    with pytest.raises(TypeError, match="float64"):
        torch.ones(2, device=ELSEWHERE).double()
    with second_device():
        assert has_float64(ELSEWHERE)
    with float64_on(ELSEWHERE):
        assert has_float64(ELSEWHERE)
    assert not has_float64(ELSEWHERE)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.double(),
        lambda x: x.to(torch.float64),
        lambda x: x.to(ELSEWHERE, torch.float64),
        lambda x: x.double().to(ELSEWHERE),
        lambda x: x.sum(-1, dtype=torch.float64),
        lambda x: torch.zeros(2, dtype=torch.float64, device=x.device),
        lambda x: torch.zeros_like(x, dtype=torch.float64),
        lambda x: x * x.double(),
        lambda x: torch.where(x > 0, x.double(), 0.0),
        lambda x: torch.cat([x.double(), x]),
        lambda x: x.double().sort().values,
        lambda x: torch.zeros_like(x, dtype=torch.float64).index_add_(0, x.long(), x.double()),
    ],
)
def test_float64_is_on_the_host(make):
    x = torch.tensor([1.0, 0.0, 2.0])
    with float64_on(ELSEWHERE):
        found = make(x.to(ELSEWHERE))
    assert (found.device, found.dtype) == (CPU, torch.float64)
    assert torch.equal(found, make_on_the_cpu(make, x))


def make_on_the_cpu(make, x):
    with second_device():
        return make(x.to(ELSEWHERE)).cpu()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.double().float(),
        lambda x: x.double().to(x.dtype),
        lambda x: x.double().to(x),
        lambda x: x + x.double()[0].float(),
        lambda x: x.clone().copy_(2 * x.double()),
        lambda x: x.clone().add_(x.double()),
        lambda x: x.clone().index_add_(0, x.double().argsort(), x),
        lambda x: torch.where(x.double() > 0.5, x, -x),
        lambda x: x[x.double() > 0.5],
        lambda x: x[x.double().argsort()],
    ],
)
def test_other_numbers_are_where_they_were(make):
    x = torch.tensor([1.0, 0.0, 2.0])
    with float64_on(ELSEWHERE):
        found = make(x.to(ELSEWHERE))
    assert (found.device, found.dtype) == (ELSEWHERE, torch.float32)
    assert torch.equal(found.cpu(), make(x))


def test_what_the_code_sends_to_the_host_stays_there():
    x = torch.ones(3, device=ELSEWHERE)
    with float64_on(ELSEWHERE):
        assert x.double().to("cpu", torch.float32).device == CPU
        assert torch.zeros(3).copy_(x.double()).device == CPU
        assert (x.double() > 0).tolist() == [True] * 3


def test_gradients_pass_through_the_host():
    x = torch.tensor([0.5, 2.0]).to(ELSEWHERE).requires_grad_()
    with float64_on(ELSEWHERE):
        (first,) = torch.autograd.grad((x.double() ** 3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.double().sum(), x)
    assert first.device == second.device == ELSEWHERE
    assert first.tolist() == [0.75, 12.0]
    assert second.tolist() == [3.0, 12.0]
