"""Backward passes of transformers whose gradients are complete: LibraGrad (Mehri et al. 2024, arXiv:2411.16760)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Makes the gradient in a node's first input of that in its first output.
Rule = Callable[[Tensor], Tensor]


def balance_gradients(output: Tensor) -> int:
    """Change the backward pass of a graph so that input and biases, times their gradients, sum to the output.

    Of a product of features with a gate that depends on features, the gradient takes the gate as a constant. The gates
    are the attention (softmax), the deviation in a normalisation (of a layer, or of root mean squares), and those of
    GELU and SiLU. A product of an activation with other features, as in gated linear units, passes half of its gradient
    to each. A network of these, linear layers and rectifiers then has ``x . g + sum b . g_b`` as its output. The values
    stay; there are no second derivatives.

    Args:
        output: The end of the graph. Its nodes keep the change.

    Returns:
        The number of gates.
    """
    seen: set[Any] = {None, output.grad_fn}
    nodes, count = [output.grad_fn] if output.grad_fn is not None else [], 0
    while nodes:
        node: Any = nodes.pop()
        read = _RULES.get(node.name())
        rule = None if read is None else read(node)
        hook = _halved if _is_gated_product(node) else None if rule is None else _with_first(rule)
        if hook is not None:
            node.register_hook(hook)
            count += 1
        following = [before for before, _ in node.next_functions if before not in seen]
        seen.update(following)
        nodes += following
    return count


def _with_first(rule: Rule) -> Callable[[Any, Any], Any]:
    """A hook of a node that replaces the gradient of its first input by a function of that of its first output."""

    def hook(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs if inputs[0] is None or outputs[0] is None else (rule(outputs[0]), *inputs[1:])

    return hook


def _is_gated_product(node: Any) -> bool:
    """Whether a node multiplies an activation by other features, and not by parameters."""
    factors = [
        before.name()
        for before, _ in node.next_functions
        if before is not None and not isinstance(getattr(before, "variable", None), nn.Parameter)
    ]
    return node.name() == "MulBackward0" and len(factors) == 2 and not _ACTIVATIONS.isdisjoint(factors)


def _halved(inputs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if gradient is None else gradient / 2 for gradient in inputs)


# A rule reads what its node saved, without the graph: a hook that held the graph would keep it for ever.


def _attention(node: Any) -> Rule | None:
    """Of attention (..., N, M), no gradient; a softmax of classes (B, C) is no gate."""
    return torch.zeros_like if node._saved_result.dim() > 2 else None


def _normalisation(node: Any) -> Rule:
    scale, weight = node._saved_result2.detach(), node._saved_weight
    weight, axes = 1.0 if weight is None else weight.detach(), tuple(range(-len(node._saved_normalized_shape), 0))

    def rule(gradient: Tensor) -> Tensor:
        weighted = gradient * weight
        return scale * (weighted - weighted.mean(axes, keepdim=True))

    return rule


def _gelu(node: Any) -> Rule:
    x = node._saved_self.detach()
    gate = torch.where(x == 0, 0.5, functional.gelu(x, approximate=node._saved_approximate) / x)
    return lambda gradient: gradient * gate


def _silu(node: Any) -> Rule:
    gate = node._saved_self.detach().sigmoid()
    return lambda gradient: gradient * gate


def _deviation(_: Any) -> Rule:
    """Of the deviation of root mean squares, no gradient."""
    return torch.zeros_like


#: What a gated linear unit multiplies by other features.
_ACTIVATIONS = {"GeluBackward0", "ReluBackward0", "SiluBackward0"}
#: By the names of PyTorch's own nodes; those of a model's author have no number.
_RULES: dict[str, Callable[[Any], Rule | None]] = {
    **dict.fromkeys(("SoftmaxBackward0", "SafeSoftmaxBackward0"), _attention),
    **{"NativeLayerNormBackward0": _normalisation, "GeluBackward0": _gelu, "SiluBackward0": _silu},
    "RsqrtBackward0": _deviation,
}
