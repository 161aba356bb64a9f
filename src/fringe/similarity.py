"""The similarity of two embeddings as a network: why an input is like a text, an image, or one of several."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fringe.errors import InputError, require, require_positive

_OTHERS = "texts, inputs (P, C, H, W) or embeddings (P, E), at least one"
#: The class that a single other input is compared with.
UNRELATED = "unrelated"


class Similarity(nn.Module):
    """The similarities of an input to others, as the logits of a classifier: ``scale`` times cosines of embeddings.

    Of several others the softmax of the similarities is the prediction, as of CLIP and its prompts. Of a single one the
    classes are the other and "unrelated", whose logit is zero: the score of the other is the similarity itself.

    For texts ``model`` is an encoder of the transformers library: embeddings are the means of its last hidden states
    over the tokens that are no padding, as of most sentence encoders. For images it is an image tower: any module or
    function of a batch that returns embeddings (B, E), or a CLIP of transformers or open_clip, whose text tower then
    reads the ``other`` texts.

    Args:
        model: The tower of the explained inputs.
        other: Texts, or one; inputs of the same tower (P, C, H, W); or embeddings (P, E) of any tower.
        tokenizer: Of texts: a fast tokenizer of transformers, or a function from a list of texts to the tensor that
            ``encode_text`` of open_clip takes.
        scale: What cosines are multiplied by. None: the model's own ``logit_scale``, and 1 if it has none.

    Raises:
        InputError: For a name in place of a model, for others of another kind, for texts without a tokenizer or an
            encoder of texts, for embeddings of zeros, and for a scale that is not positive.
    """

    others: Tensor

    def __init__(self, model: Any, other: Any, *, tokenizer: Any = None, scale: float | None = None):
        super().__init__()
        require(callable(model), "model", type(model).__name__, "a module or a function: load a model of a name first")
        if scale is not None:
            require_positive("scale", scale)
        require(isinstance(other, (str, Sequence, Tensor, np.ndarray)), "other", type(other).__name__, _OTHERS)
        require(len(other) > 0, "other", "none", _OTHERS)
        self.model, self.training = model, False
        known = getattr(model, "logit_scale", None)
        self.scale = float(known.detach().exp()) if scale is None and isinstance(known, Tensor) else scale or 1.0
        is_mixed = isinstance(other, Sequence) and len({isinstance(one, str) for one in other}) > 1  # pyright: ignore
        require(not is_mixed, "other", "texts and others", _OTHERS)
        texts = [other] if isinstance(other, str) else other
        are_texts = isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)  # pyright: ignore
        if are_texts and tokenizer is None:
            raise InputError("got texts without it", argument="tokenizer", hint="pass the tokenizer of the model")
        names = [str(text) for text in texts] if are_texts else [f"other {k}" for k in range(len(texts))]
        was_training = getattr(model, "training", False)
        with torch.no_grad():
            if isinstance(model, nn.Module):
                model.eval()
            rows = self._of_texts(names, tokenizer) if are_texts else torch.as_tensor(texts)
            require(rows.dim() > 1, "other", tuple(rows.shape), _OTHERS)
            rows = rows if rows.dim() == 2 else self._embedded(rows)
            if isinstance(model, nn.Module):
                model.train(was_training)
        require(rows.dim() == 2, "other", tuple(rows.shape), _OTHERS)
        require(
            bool(rows.norm(dim=-1).gt(0).all()), "other", "an embedding of zeros or NaN", "embeddings with a length"
        )
        self.register_buffer("others", nn.functional.normalize(rows.float(), dim=-1), persistent=False)
        self.class_names = (*names, UNRELATED) if len(names) == 1 else tuple(names)
        self.has_classes = len(names) > 1  # else the softmax with the logit of "unrelated" is no probability
        self.unit = "cosine" if self.scale == 1 else f"cosine × {self.scale:.4g}"

    def get_input_embeddings(self) -> Any:
        """Return the table of embeddings of tokens of an encoder of texts, as modules of transformers do."""
        return self.model.get_input_embeddings()

    def forward(self, x: Tensor | None = None, **arguments: Any) -> Any:
        """Compute the similarities.

        Args:
            x: Images (B, C, H, W).
            **arguments: For texts, what the encoder takes: ``input_ids`` or ``inputs_embeds``, ``attention_mask``.

        Returns:
            Logits (B, P), or (B, 2) for one other; of texts, an object with them as ``logits``.

        Raises:
            InputError: If the embeddings have another size than those of the others.
        """
        rows = self._pooled(arguments) if x is None else self._embedded(x)
        if rows.shape[1] != self.others.shape[1]:
            message = f"its embeddings have {rows.shape[1]} numbers, and those of the others {self.others.shape[1]}"
            raise InputError(message, argument="model", hint="give the others as embeddings of the same space")
        logits = self.scale * nn.functional.normalize(rows, dim=-1) @ self.others.to(rows).mT
        logits = nn.functional.pad(logits, [0, 1]) if len(self.others) == 1 else logits
        return logits if x is not None else SimpleNamespace(logits=logits)

    def _embedded(self, x: Tensor) -> Tensor:
        """The embeddings (B, E) of images."""
        tower = getattr(self.model, "get_image_features", None) or getattr(self.model, "encode_image", self.model)
        output = tower(x)
        return output if isinstance(output, Tensor) else output.pooler_output

    def _of_texts(self, texts: list[str], tokenizer: Any) -> Tensor:
        """The embeddings (P, E) of texts, each read by itself."""
        if hasattr(self.model, "encode_text"):
            return self.model.encode_text(tokenizer(texts))
        rows = list[Tensor]()
        for text in texts:
            read = dict(tokenizer([text], return_tensors="pt"))
            if hasattr(self.model, "get_text_features"):
                output = self.model.get_text_features(**read)
                rows.append(output if isinstance(output, Tensor) else output.pooler_output)
            else:
                rows.append(self._pooled(read))
        return torch.cat(rows)

    def _pooled(self, arguments: dict[str, Any]) -> Tensor:
        """The mean of the last hidden states of a text encoder over the tokens that are no padding."""
        output = self.model(**arguments) if hasattr(self.model, "get_input_embeddings") else None
        hidden = getattr(output, "last_hidden_state", None)
        if hidden is None:
            message = f"{type(self.model).__name__} gives no hidden states of a text"
            raise InputError(message, argument="model", hint="take an encoder of texts, such as AutoModel loads")
        mask = arguments["attention_mask"][..., None]
        return (hidden * mask).sum(1) / mask.sum(1)
