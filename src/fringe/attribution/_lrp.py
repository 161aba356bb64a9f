"""Layer-wise relevance propagation: ``zennit:NAME`` for convolutional networks, ``lxt:attnlrp`` for transformers."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fringe.attribution._plugins import Explain, PluginMethod, leaf
from fringe.errors import InputError, install_hint
from fringe.paths import Problem
from fringe.settings import Doc

Rules = Literal[
    "epsilon_plus_flat",
    "epsilon_plus",
    "epsilon_gamma_box",
    "epsilon_alpha2_beta1",
    "epsilon_alpha2_beta1_flat",
    "excitation_backprop",
]


def _propagated(part: Problem, start: Callable[[Tensor, Tensor], Tensor], tolerance: float = 0.01) -> Tensor:
    """What reaches the input (B, *S) of ``start(logits, cotangent)`` (B, C) at the output: one VJP per image.

    The logits are those of the network as it is; rules may change them a little, by this share.
    """
    x, network = leaf(part.inputs), part.model.module
    logits = part.model.evaluate(x, part.forward_args.select(part.every_row))
    change = (logits.detach() - part.logits).norm() / part.logits.norm()
    if change > tolerance and network is not None and not network.training:  # in training mode they are random
        message = f"with the rules its logits change by {float(change):.1%}, so the map would be of another network"
        raise InputError(message, argument="model", hint="choose another method")
    begin = start(part.logits, part.score_cotangent(part.logits))
    with part.model.backward(x.device):
        (result,) = torch.autograd.grad(logits, x, begin, materialize_grads=True)
    part.model.passes.vjp += len(x)
    return result


class RelevancePropagation(PluginMethod):
    """A method whose maps promise the relevance of the output: the logits times the derivative of the score."""

    is_complete = True
    hint = "biases take up relevance, and in a residual sum without a rule of its own each summand gets all of it"

    def _endpoint_score(self, problem: Problem) -> Tensor:
        relevance = (problem.logits * problem.score_cotangent(problem.logits)).sum(-1)
        return problem.score(problem.logits) - relevance


@dataclass(frozen=True)
class ZennitMethod(RelevancePropagation):
    """Layer-wise relevance propagation by the package zennit (Bach et al. 2015; Anders et al. 2021).

    ``zennit:epsilon_plus_flat`` and the others are the composites of zennit: they choose a rule for each layer. The
    relevance of the output is the explained logit (for another score: each logit times the derivative of the score).
    Rules apply to modules; functions and other modules keep their ordinary gradient. During the call, batch
    normalisation is merged into the layer that is defined before it; a network that this changes is refused. The blocks
    of torchvision's ResNet get their own rule for the sum; elsewhere each summand gets all of the relevance, so that
    a map of a residual network may sum to many times the score: such a map is ``coarse``.
    """

    name = "zennit"
    form = "zennit:NAME"
    title = "Layer-wise relevance propagation (zennit)"
    source = "Bach et al. 2015; Anders et al. 2021"
    package = "zennit"
    needs_classes = True
    presets: ClassVar = {name: {"algorithm": name} for name in get_args(Rules)}

    algorithm: Annotated[Rules, Doc("the composite of rules")] = "epsilon_plus_flat"

    def _explainer(self, problem: Problem) -> Explain:
        from fringe.models import import_torchvision

        network = self._network(problem)
        import_torchvision("zennit")  # zennit imports it
        composites, canonizers, types = (
            importlib.import_module(f"zennit.{name}") for name in ("composites", "torchvision", "types")
        )
        modules: list[Any] = list(network.modules())
        if any(isinstance(module, nn.MultiheadAttention) for module in modules):
            message = "zennit has no rule for torch.nn.MultiheadAttention"
            raise InputError(message, argument="model", hint="choose another method, such as lxt:attnlrp")
        if not any(isinstance(module, types.Linear) for module in modules):
            message = "zennit has no rules for its layers; it knows torch.nn.Linear and the convolutions of torch.nn"
            raise InputError(message, argument="model", hint="choose another method")
        # zennit leaves eps in a normalisation that it merges: the output shrinks by sqrt(1 + eps)
        tolerance = 0.01 + sum(module.eps for module in modules if isinstance(module, types.BatchNorm)) / 2

        def explain(part: Problem) -> Tensor:
            more: dict[str, Any] = {"canonizers": [canonizers.ResNetCanonizer()]}
            if self.algorithm == "epsilon_gamma_box":
                low, high = part.domain.bounds(part.inputs)
                more |= {"low": low.expand_as(part.inputs), "high": high.expand_as(part.inputs)}
            with _registered(composites.COMPOSITES[self.algorithm](**more), network):
                return _propagated(part, lambda logits, cotangent: logits * cotangent, tolerance)

        return explain


@contextlib.contextmanager
def _registered(composite: Any, network: nn.Module) -> Generator[None]:
    """Apply a composite of zennit; the weights are given back where it fails half way, too."""
    tables = [(module, dict(module.named_parameters(recurse=False))) for module in network.modules()]
    weights = [(weight, weight.data) for weight in network.parameters()]
    try:
        composite.register(network)
    except RuntimeError as error:
        for weight, data in weights:
            weight.data = data
        for module, table in tables:
            for name, _ in list(module.named_parameters(recurse=False)):
                setattr(module, name, table.get(name))
        message = f"zennit cannot merge a batch normalisation into the layer that is defined before it ({error})"
        raise InputError(message, argument="model", hint="choose another method") from error
    try:
        yield
    finally:
        composite.remove()


@dataclass(frozen=True)
class AttnLRP(RelevancePropagation):
    """Relevance propagation through attention by the package lxt (Achtibat et al. 2024): ``lxt:attnlrp``.

    The map is the input times a gradient with special rules for products, softmax, normalisation and activations. lxt
    supports networks of transformers of the kinds llama, qwen2, qwen3, gemma3 and gpt2, and networks with
    ``torch.nn.MultiheadAttention``, such as torchvision's vision transformers (without relevance through queries
    and keys). During the call its rules replace functions of these classes, for all models of the process.
    lxt 2.1 needs transformers before version 5.
    """

    name = "lxt"
    form = "lxt:NAME"
    title = "Relevance propagation through attention (AttnLRP)"
    source = "Achtibat et al. 2024"
    package = "lxt"
    needs_classes = True
    presets: ClassVar = {"attnlrp": {}}

    algorithm: Annotated[Literal["attnlrp"], Doc("name of the rules")] = "attnlrp"

    def _explainer(self, problem: Problem) -> Explain:
        network = self._network(problem)
        try:
            known: Mapping[Any, Mapping[Any, Any]] = importlib.import_module("lxt.efficient.models").DEFAULT_MAP
        except ImportError as error:
            message = f"lxt cannot be imported ({error}); lxt 2.1 needs transformers before version 5"
            raise InputError(message, argument="method", hint=install_hint("lxt")) from error
        names = {module.__name__: module for module in known if not module.__name__.endswith("modeling_bert")}
        used = {kind.__module__ for module in network.modules() for kind in inspect.getmro(type(module))}
        rules = [known[names[name]] for name in sorted(used & set(names))]
        if not rules and any(isinstance(module, nn.MultiheadAttention) for module in network.modules()):
            rules = [known[sys.modules["torchvision.models.vision_transformer"]]]
        if not rules:
            message = f"lxt has no rules for its layers; it knows {', '.join(sorted(names))} and torch.nn attention"
            raise InputError(message, argument="model", hint="choose another method")

        def explain(part: Problem) -> Tensor:
            with contextlib.ExitStack() as stack:
                for patches in rules:
                    for target, patch in patches.items():
                        stack.enter_context(_restored(target))
                        patch(target)
                return part.inputs * _propagated(part, lambda logits, cotangent: cotangent)

        return explain


@contextlib.contextmanager
def _restored(target: Any) -> Generator[None]:
    """Give a class or a module of Python its attributes back at the end."""
    before = dict(vars(target))
    try:
        yield
    finally:
        for name, value in list(vars(target).items()):
            if name not in before:
                delattr(target, name)
            elif value is not before[name]:
                setattr(target, name, before[name])
