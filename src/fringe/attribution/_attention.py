"""Maps made of the attention of vision transformers: what a class gains from it, and where it leads."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from fringe._network.isolation import leaf, restored
from fringe._network.passes import network_of
from fringe.attribution._base import Attribution, Attributor
from fringe.attribution._cam import (
    coarse_attribution,
    gradients_at,
    hooked,
    in_space,
    layer_name,
    tensor_of,
    with_tensor,
)
from fringe.errors import InputError
from fringe.paths import Problem
from fringe.settings import Setting

#: The nodes of a graph that make attention: every library's, as a session has attention in plain form.
_SOFTMAX = ("SoftmaxBackward0", "SafeSoftmaxBackward0")


class _Layer(NamedTuple):
    """A layer in a pass: its tokens (B, N, C) at the end of its graph, the same where the next one's graph begins, and
    the node of its attention (B, heads, N, N)."""

    tokens: Tensor
    cut: Tensor
    attention: Any


@dataclass(frozen=True)
class _AttentionMap(Attributor):
    """A map made of the attention of a vision transformer among the tokens of patches, with an equal part for each
    channel.

    It is coarse: a patch, scaled up linearly. It has no completeness identity. The layers are the outermost modules
    that follow one another with tokens (B, N, C) and one attention map of all of them. A head that pools by attention
    is no layer. A forward pass of one image finds them.
    """

    has_path = False
    is_complete = False

    @property
    def planned_passes(self) -> float:
        """Those of twelve layers."""
        return 24.0

    @classmethod
    def search_space(cls) -> dict[str, Setting]:
        """Return no setting."""
        return {}

    @abstractmethod
    def _relevance(self, layers: Sequence[_Layer], gradient: Callable[[_Layer], Tensor]) -> Tensor:
        """The relevance (B, N) of the tokens; ``gradient`` is that of the score (B, N, C) in the tokens of a layer, as
        if they were the last ones."""

    def attribute(self, problem: Problem) -> Attribution:
        blocks = self._blocks(problem)

        def of_part(rows: Tensor) -> Tensor:
            return self._of_part(problem.select(rows), blocks)

        relevance = problem.model.batch_size.map(of_part, problem.every_row)
        # an axis of channels of two, as one channel alone is no token
        maps = cast(Tensor, in_space(relevance[..., None].expand(-1, -1, 2), problem.inputs))[:, :1]
        names = [layer_name(problem, block) for block in (blocks[0], blocks[-1])]
        note = f"the layers are {' to '.join(dict.fromkeys(names))}"
        return coarse_attribution(self, maps, problem, [note] * len(maps))

    def _blocks(self, problem: Problem) -> list[nn.Module]:
        """Find the layers, in the order in which they run."""
        network, runs = network_of(problem.model, self.label), dict[nn.Module, list[tuple[Any, Tensor]]]()

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            runs.setdefault(module, []).append((inputs, tensor_of(output)))

        x = leaf(problem.inputs[:1])
        with hooked(network.modules(), note):
            problem.model.evaluate(x, problem.forward_args.select(problem.every_row[:1]))
        blocks, inside = set[nn.Module](), set[nn.Module]()
        for module in network.modules():  # those around others first
            ran = runs.get(module, ())
            if module in inside or len(ran) != 1:
                continue
            given, tokens = ran[0]
            is_tokens = tokens.dim() == 3 < x.dim() and in_space(tokens, x) is not None
            if is_tokens and len(_attention(tokens, given)) == 1:
                blocks.add(module)
                inside.update(module.modules())
        if not blocks:
            message = f"it has no layer with attention among the patches of an image {tuple(x.shape[1:])}"
            hint = f"{self.label} is for vision transformers with a softmax of PyTorch among all patches; for this"
            raise InputError(message, argument="model", hint=f"{hint} network choose another one, such as ig")
        return [module for module in runs if module in blocks]

    def _of_part(self, part: Problem, blocks: Sequence[nn.Module]) -> Tensor:
        """The relevance (B, N) of images of one pass."""
        layers, outputs = list[_Layer](), list[Any]()

        def cut(module: nn.Module, inputs: Any, output: Any) -> Any:
            tokens = tensor_of(output)
            nodes = _attention(tokens)
            layers.append(_Layer(tokens, leaf(tokens), nodes[0] if len(nodes) == 1 else None))
            outputs.append(output)
            return with_tensor(output, layers[-1].cut)

        def answers(layer: _Layer) -> Tensor:
            """The logits (B, K) of the head at these tokens: every layer returns them, whatever it is given."""
            with contextlib.ExitStack() as stack:
                for block in blocks:
                    stack.enter_context(restored(block))
                    block.forward = lambda *_, **__: with_tensor(outputs[-1], layer.cut)
                return part.model.evaluate(part.inputs, part.forward_args)

        def gradient(layer: _Layer) -> Tensor:
            logits = answers(layer)
            return gradients_at(part, logits, [layer.cut], part.score_cotangent(logits.detach()).view_as(logits))[0]

        with hooked(blocks, cut):
            logits = part.model.evaluate(leaf(part.inputs), part.forward_args).detach()
        close = torch.finfo(logits.dtype).eps ** 0.5 * logits.abs().max()
        one_each = len(layers) == len(blocks) and all(layer.attention is not None for layer in layers)
        if not one_each or bool((answers(layers[-1]).detach() - logits).abs().max() > close):
            message = f"the {len(blocks)} modules with its attention are not all that turns patches into the answer"
            hint = f"{self.label} needs a module for each layer, with the sums around its attention; else choose ig"
            raise InputError(message, argument="model", hint=hint)
        return self._relevance(layers, gradient)


@dataclass(frozen=True)
class LeGrad(_AttentionMap):
    """Sum what the score would gain from attention to each patch, over all layers (Bousselham et al. 2024).

    With A_l (heads, N, N) the attention of layer l and s_l the score of its tokens under the network's own final
    normalisation and head:

    .. math:: A = mean_l mean_h mean_i relu( ds_l / dA_l )_{hi}

    The rows i are all tokens that attend, so that of the class token counts where it alone is read. The publication
    scales a map to between 0 and 1, which this does not; its code takes the last two layers. Costs a forward and a
    backward pass, and for each layer one of each kind of the network without its layers, which are counted.
    """

    name = "legrad"
    title = "LeGrad"
    source = "Bousselham et al. 2024"

    def _relevance(self, layers: Sequence[_Layer], gradient: Callable[[_Layer], Tensor]) -> Tensor:
        def of(layer: _Layer) -> Tensor:
            edge, size = GradientEdge(layer.attention, 0), layer.tokens.shape[1]
            (slope,) = torch.autograd.grad(layer.tokens, [edge], gradient(layer), materialize_grads=True)
            return slope.view(len(layer.tokens), -1, size, size).relu().mean((1, 2))

        return torch.stack([of(layer) for layer in layers]).mean(0)


@dataclass(frozen=True)
class AttentionRollout(_AttentionMap):
    """Follow attention from the tokens that are read back to the patches (Abnar and Zuidema 2020).

    With A_l the mean attention over the heads of layer l, and r the mean of the rows of tokens that the score reads:

    .. math:: A = r ( (A_L + I) / 2 ) ... ( (A_1 + I) / 2 )

    It shows where the network looks, whatever the class: a control for methods that explain one, and no explanation of
    a class. Costs two forward passes and a backward one, of which the latter leave the layers out.
    """

    name = "rollout"
    title = "Attention rollout"
    source = "Abnar and Zuidema 2020"

    def _relevance(self, layers: Sequence[_Layer], gradient: Callable[[_Layer], Tensor]) -> Tensor:
        read = (gradient(layers[-1]) != 0).any(2, keepdim=True).mT.to(layers[-1].cut)  # (B, 1, N)
        rows = read / read.sum(2, keepdim=True).clamp_min(1)
        for layer in reversed(layers):
            size = layer.tokens.shape[1]
            attention = layer.attention._saved_result.detach().view(len(rows), -1, size, size).mean(1)
            rows = (rows @ attention + rows) / 2
        return rows[:, 0]


def _attention(tokens: Tensor, given: Iterable[Any] = ()) -> list[Any]:
    """The nodes of attention among all tokens (B, N, C), in their graph as far as the tensors that were given."""
    ends = {value.grad_fn for value in given if isinstance(value, Tensor)}
    found, seen, waiting = list[Any](), set[Node | None](ends | {None}), [tokens.grad_fn]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [earlier for earlier, _ in cast(Node, node).next_functions]
        is_softmax = cast(Node, node).name() in _SOFTMAX
        if is_softmax and cast(Any, node)._saved_result.shape[-2:] == (tokens.shape[1],) * 2:
            found.append(node)
    return found
