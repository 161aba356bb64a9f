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
from fringe.errors import InputError
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


def _propagated(part: Problem, start: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What reaches the input (B, *S) of ``start(logits, cotangent)`` (B, C) at the output: one VJP per image.

    The logits are those of the network as it is; rules may change them a little.
    """
    x = leaf(part.inputs)
    logits = part.model.evaluate(x, part.forward_args.select(part.every_row))
    begin = start(part.logits, part.score_cotangent(part.logits))
    (result,) = torch.autograd.grad(logits, x, begin, materialize_grads=True)
    part.model.passes.vjp += len(x)
    return result


@dataclass(frozen=True)
class ZennitMethod(PluginMethod):
    """Layer-wise relevance propagation by the package zennit (Bach et al. 2015; Anders et al. 2021).

    ``zennit:epsilon_plus_flat`` and the others are the composites of zennit: they choose a rule for each layer. The
    relevance of the output is the explained logit (for another score: each logit times the derivative of the score).
    Rules apply to modules; functions keep their ordinary gradient. During the call, batch normalisation is
    merged into the layer before it, if layers run in the order of their definition, and
    the blocks of torchvision's ResNet get their own rule for the sum.
    """

    name = "zennit"
    form = "zennit:NAME"
    title = "Layer-wise relevance propagation (zennit)"
    source = "Bach et al. 2015; Anders et al. 2021"
    package = "zennit"
    presets: ClassVar = {name: {"algorithm": name} for name in get_args(Rules)}

    algorithm: Annotated[Rules, Doc("the composite of rules")] = "epsilon_plus_flat"

    def _explainer(self, problem: Problem) -> Explain:
        from fringe.models import import_torchvision

        network = self._network(problem)
        import_torchvision("zennit")  # zennit imports it
        composites, canonizers = (
            importlib.import_module("zennit.composites"),
            importlib.import_module("zennit.torchvision"),
        )

        def explain(part: Problem) -> Tensor:
            more: dict[str, Any] = {"canonizers": [canonizers.ResNetCanonizer()]}
            if self.algorithm == "epsilon_gamma_box":
                low, high = part.domain.bounds(part.inputs)
                more |= {"low": low.expand_as(part.inputs), "high": high.expand_as(part.inputs)}
            with composites.COMPOSITES[self.algorithm](**more).context(network):
                return _propagated(part, lambda logits, cotangent: logits * cotangent)

        return explain


@dataclass(frozen=True)
class AttnLRP(PluginMethod):
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
    presets: ClassVar = {"attnlrp": {}}

    algorithm: Annotated[Literal["attnlrp"], Doc("name of the rules")] = "attnlrp"

    def _explainer(self, problem: Problem) -> Explain:
        network = self._network(problem)
        try:
            known: Mapping[Any, Mapping[Any, Any]] = importlib.import_module("lxt.efficient.models").DEFAULT_MAP
        except ImportError as error:
            message = f"lxt cannot be imported ({error}); lxt 2.1 needs transformers before version 5"
            raise InputError(message, argument="method", hint="install fringe[lxt]") from error
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
