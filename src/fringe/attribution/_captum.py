"""Methods of Captum, ``captum:NAME``."""

import contextlib
import importlib
import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fringe.attribution._base import Baseline, reference_images
from fringe.attribution._plugins import Explain, PluginMethod, ScoreModule, leaf, score_function
from fringe.errors import InputError, install_hint, is_installed
from fringe.linalg import batch_view
from fringe.paths import Problem
from fringe.settings import Doc, PositiveInt

Algorithm = Literal["occlusion", "gradient_shap", "deep_lift", "guided_backprop", "kernel_shap", "input_x_gradient"]
Superpixels = Literal["auto", "grid", "slic"]

#: The settings that each algorithm reads.
_READS: Mapping[str, tuple[str, ...]] = {
    "occlusion": ("window", "stride", "baseline"),
    "gradient_shap": ("samples",),
    "deep_lift": ("baseline",),
    "guided_backprop": (),
    "kernel_shap": ("samples", "superpixels", "segments", "baseline"),
    "input_x_gradient": (),
}


@dataclass(frozen=True)
class CaptumMethod(PluginMethod):
    """A method of the package captum, by the name of its ``algorithm``: ``captum:occlusion``.

    ``occlusion``: a window slides over the image. ``gradient_shap``: expected gradients over the reference images.
    ``deep_lift``: the rescale rule. ``guided_backprop``: gradients that pass only positive parts through ReLU; it fails
    sanity checks, so it is a control. ``kernel_shap``: Shapley values of superpixels, by SLIC if scikit-image
    is installed and else on a grid; the record says which. ``input_x_gradient``: the gradient times the input.

    DeepLift and guided backpropagation change modules only: a nonlinearity that is called as a function, such as
    ``torch.relu``, keeps its ordinary gradient. Maps of DeepLift promise the change of the score from the baseline, and
    are ``coarse`` if their sum misses it. Random numbers are keyed by the image.
    """

    name = "captum"
    form = "captum:NAME"
    title = "Captum"
    source = "Kokhlikyan et al. 2020, and the authors of each method"
    package = "captum"
    presets: ClassVar = {name: {"algorithm": name} for name in get_args(Algorithm)}

    algorithm: Annotated[Algorithm, Doc("name of the method")] = "occlusion"
    window: Annotated[PositiveInt | None, Doc("occlusion: side; none: a seventh of the image's", unit="pixels")] = None
    stride: Annotated[PositiveInt | None, Doc("occlusion: step; none: half of the window", unit="pixels")] = None
    samples: Annotated[PositiveInt, Doc("gradient_shap and kernel_shap: random points")] = 200
    superpixels: Annotated[Superpixels, Doc("kernel_shap: auto is slic if scikit-image is installed")] = "auto"
    segments: Annotated[PositiveInt, Doc("kernel_shap: superpixels, to the order")] = 49
    baseline: Annotated[Baseline, Doc("what replaces removed parts: zero, black, white, mean, blur ...")] = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        reads = _READS[self.algorithm]
        for field in fields(self):
            if field.name not in ("algorithm", *reads) and getattr(self, field.name) != field.default:
                known = f"its settings: {', '.join(reads)}" if reads else "it has no settings"
                raise InputError(f"{self.label} has no setting {field.name!r}", argument=field.name, hint=known)
        if self.algorithm == "kernel_shap" and self.superpixels == "auto":
            object.__setattr__(self, "superpixels", "slic" if is_installed("skimage") else "grid")

    @classmethod
    def preset(cls, name: str, /) -> Self:
        """Return the method of captum with this name."""
        if name == "grad_cam":
            raise InputError("Grad-CAM needs no captum: it is the method gradcam", argument="preset")
        return super().preset(name)

    def record(self) -> dict[str, Any]:
        """Return the name and the settings that the algorithm reads as plain data.

        Returns:
            A record from which :meth:`from_record` makes the method again.
        """
        read = (self.record_key, "algorithm", *_READS[self.algorithm])
        return {name: value for name, value in super().record().items() if name in read}

    hint = "it follows modules alone: make each nonlinearity a torch.nn module that runs once, or choose another method"

    @property
    def is_complete(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        """Whether the algorithm promises the sum of a map."""
        return self.algorithm == "deep_lift"

    def _endpoint_score(self, problem: Problem) -> Tensor | None:
        if not self.is_complete:
            return None
        return problem.score(problem.forward(problem.resolve_baseline(self.baseline), problem.every_row))

    @property
    def uses_references(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        """Whether the algorithm averages over reference images."""
        return self.algorithm == "gradient_shap"

    @property
    def planned_passes(self) -> float:
        return {"occlusion": 170.0, "gradient_shap": 2.0 * self.samples, "kernel_shap": self.samples}.get(
            self.algorithm, 4.0 if self.algorithm == "deep_lift" else 2.0
        )

    def _explainer(self, problem: Problem) -> Explain:
        captum: Any = importlib.import_module("captum.attr")
        return {
            "occlusion": self._occlusion,
            "gradient_shap": self._gradient_shap,
            "deep_lift": self._deep_lift,
            "guided_backprop": self._guided_backprop,
            "kernel_shap": self._kernel_shap,
            "input_x_gradient": self._input_x_gradient,
        }[self.algorithm](captum, problem)

    # -- gradients ----------------------------------------------------------------------------------------------------

    def _input_x_gradient(self, captum: Any, problem: Problem) -> Explain:
        return lambda part: _by_gradients(captum.InputXGradient(score_function(part)), part)

    def _gradient_shap(self, captum: Any, problem: Problem) -> Explain:
        references = reference_images(problem, f"{self.label} averages over images of the data")

        def explain(one: Problem) -> Tensor:
            return _by_gradients(captum.GradientShap(score_function(one)), one, references, self.samples)

        return self._one_by_one(explain)

    # -- gradients with hooks in the layers ---------------------------------------------------------------------------

    def _guided_backprop(self, captum: Any, problem: Problem) -> Explain:
        self._network(problem)
        return lambda part: _by_gradients(captum.GuidedBackprop(ScoreModule(part)), part)

    def _deep_lift(self, captum: Any, problem: Problem) -> Explain:
        network = self._network(problem)

        def explain(part: Problem) -> Tensor:
            with _running_once(network, self.label):
                return _by_gradients(captum.DeepLift(ScoreModule(part)), part, part.resolve_baseline(self.baseline))

        def in_pairs(part: Problem) -> Tensor:  # an input and its baseline are in one pass
            size = max(1, part.model.batch_size.on(part.inputs.device) // 2)
            return torch.cat([explain(part.select(rows)) for rows in part.every_row.split(size)])

        return in_pairs

    # -- perturbations, an image after the other ----------------------------------------------------------------------

    def _one_by_one(self, explain: Explain) -> Explain:
        """Each image by itself, with random numbers of its own."""

        def every(part: Problem) -> Tensor:
            maps: list[Tensor] = []
            for image, key in enumerate(part.keys):
                with part.rng.seeded(f"{self.label} {key}"):
                    maps.append(explain(part.select([image])).detach())
            return torch.cat(maps)

        return every

    def _perturb(self, kind: Any, one: Problem, **settings: Any) -> Tensor:
        """The map (1, *S) by a method of captum that replaces parts of an image by those of the baseline."""
        return kind(score_function(one)).attribute(
            one.inputs,
            baselines=one.resolve_baseline(self.baseline),
            additional_forward_args=(one.every_row,),
            perturbations_per_eval=one.model.batch_size.on(one.inputs.device),
            **settings,
        )

    def _occlusion(self, captum: Any, problem: Problem) -> Explain:
        channels, *sides = problem.inputs.shape[1:]
        window = [self.window or max(1, round(side / 7)) for side in sides]
        stride = [self.stride or max(1, side // 2) for side in window]
        too_large = [(w, s) for w, s in zip(window, sides, strict=True) if w > s]
        if too_large:
            raise InputError(f"got {too_large[0][0]} for a side of {too_large[0][1]}", argument="window")
        shape, strides = ((channels, *window), (channels, *stride)) if sides else ((1,), (1,))
        return self._one_by_one(
            lambda one: self._perturb(captum.Occlusion, one, sliding_window_shapes=shape, strides=strides)
        )

    def _kernel_shap(self, captum: Any, problem: Problem) -> Explain:
        if not is_installed("sklearn"):
            message = f"{self.label} needs scikit-learn, which is not installed"
            raise InputError(message, argument="method", hint=install_hint("captum"))

        def explain(one: Problem) -> Tensor:
            parts = self._superpixels(one.inputs[0])
            if parts.any():
                return self._perturb(captum.KernelShap, one, feature_mask=parts[None], n_samples=self.samples)
            # a single one has the whole change: there are no others to weigh it against
            score, baseline = score_function(one), one.resolve_baseline(self.baseline)
            change = score(one.inputs, one.every_row) - score(baseline, one.every_row)
            return batch_view(change, one.inputs).expand_as(one.inputs).clone()

        return self._one_by_one(explain)

    def _superpixels(self, x: Tensor) -> Tensor:
        """The superpixel of each entry of an input (*S), numbered from 0 on; of a row of features, each is its own."""
        if x.dim() == 1:
            return torch.arange(len(x), device=x.device)
        if self.superpixels == "slic" and x.dim() == 3:
            low, high = x.amin(), x.amax()
            pixels = ((x - low) / (high - low).clamp_min(1e-12)).double().cpu().numpy()
            slic = importlib.import_module("skimage.segmentation").slic
            labels = slic(pixels, self.segments, compactness=0.1, start_label=0, channel_axis=0, convert2lab=False)
            _, numbers = np.unique(labels, return_inverse=True)
            return torch.from_numpy(numbers.reshape(labels.shape)).to(x.device).expand(x.shape)
        cells = max(1, round(self.segments ** (1 / (x.dim() - 1))))
        number = torch.zeros(x.shape[1:], dtype=torch.long, device=x.device)
        for axis, side in enumerate(x.shape[1:]):
            count = min(cells, side)
            cell = torch.arange(side, device=x.device) * count // side
            number = number * count + cell.view(-1, *[1] * (x.dim() - 2 - axis))
        return number.expand(x.shape)


@contextlib.contextmanager
def _running_once(network: nn.Module, label: str) -> Generator[None]:
    """Name a module that runs twice, and take back what Captum holds in modules and leaves there after an error."""
    free = [(vars(m), name) for m in network.modules() for name in ("input", "output") if name not in vars(m)]
    try:
        yield
    except RuntimeError as error:
        if "used more than once" not in str(error):
            raise
        message = f"a nonlinearity of it runs more than once, which {label} cannot follow"
        hint = "give each call a module of its own, or choose another method"
        raise InputError(message, argument="model", hint=hint) from error
    finally:
        for attributes, name in free:
            attributes.pop(name, None)


def _by_gradients(method: Any, part: Problem, *settings: Any) -> Tensor:
    """The maps of a method of captum that differentiates the score."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*hooks")  # which it sets, and removes
        return method.attribute(leaf(part.inputs), *settings, additional_forward_args=(part.every_row,))
