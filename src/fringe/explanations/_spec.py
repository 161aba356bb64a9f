"""The options of runs on image files: one model for keyword arguments, flags and the record."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

from fringe.settings import Options

#: Points of a path that are stored for its page.
POINTS = 11


def _canonical_method(text: str) -> str:
    from fringe.attribution import METHODS  # not before a method is named: the help of the flags needs no torch
    from fringe.settings import canonical_name

    return canonical_name(text, METHODS)


def _number(target: Any) -> Any:
    """The number that a text of digits stands for; any other target is unchanged."""
    is_number = isinstance(target, str) and re.fullmatch(r"[+-]?[0-9]{1,9}", target.strip())
    return int(target) if is_number else target


class ImageOptions(Options):
    """Options of a run on image files, whatever it computes; the descriptions of the fields are the help of the flags.

    Raises:
        InputError: For an unknown option, or a value that an option does not take.
    """

    expected: ClassVar[Mapping[str, str]] = {
        "target": "'predicted', or the number or name of a class",
        "set": "a list of KEY=VALUE texts",
    }

    model: str | None = Field(
        None,
        description="Model, see 'fringe models', or LABEL=SPEC. Default: embedded:digits for its own images, "
        "efficientnet_lite0 for others where it is installed.",
    )
    target: Annotated[int | str, BeforeValidator(_number)] = Field(
        "predicted", description="Class to explain: 'predicted', its number or its name."
    )
    score: Literal["logit", "log_probability", "probability"] = Field("logit", description="What is explained.")
    references: str | None = Field(
        None, description="Images for methods that average over data (at most 64 are taken)."
    )
    preprocessing: str | None = Field(
        None, description="'imagenet', 'unit', or resize=256,crop=224,mean=0.5,std=0.5. Default: the model's own."
    )
    classes: Path | None = Field(None, description="Class names, one per line.")
    trust_code: bool = Field(False, description="Allow the model's author to run code.")
    model_output: Literal["auto", "logits", "probabilities"] = Field("auto", description="What the model returns.")
    batch_size: Literal["auto"] | PositiveInt = Field("auto", description="Images per pass: 'auto' or a number.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    seed: int = Field(0, ge=0, lt=2**53, description="Seed of all randomness.")
    exif: Literal["transpose", "ignore"] = Field("transpose", description="Turn photos by EXIF data, or not.")

    def record(self) -> dict[str, Any]:
        """The options as JSON data; ``trust_code`` is left out, since only a person may set it."""
        return self.model_dump(mode="json", exclude={"trust_code"})


class ExplainSpec(ImageOptions):
    """Options of :func:`fringe.explanations.explain_images`: keyword arguments, flags and the record in one."""

    contrast: Annotated[int | str | None, BeforeValidator(_number)] = Field(
        None, description="Another class, by number or name: explain why the class and not this one."
    )
    method: Annotated[str, AfterValidator(_canonical_method)] = Field("fringe", description="Attribution method.")
    preset: str | None = Field(None, description="Settings by name, see 'fringe methods METHOD', or a tuned file.")
    variant: str | None = Field(None, description="Paper's method without a part of it, see 'fringe presets'.")
    set: tuple[str, ...] = Field((), description="Setting of the method; may be repeated.")
    boxes: str | None = Field(
        None, description="Boxes of a detector: 'predicted', how many, or X0,Y0,X1,Y1[;X0,...] in pixels of its input."
    )
    figures: bool = Field(True, description="Draw pictures and write pages.")
    top: PositiveInt = Field(5, description="Number of classes on the page, the most probable ones.")


class CompareSpec(ImageOptions):
    """Options of :class:`fringe.bench.comparison.ImageComparison`; methods, metrics and their settings as in
    :class:`fringe.bench.experiments.ExperimentSpec`."""

    methods: Any = Field("fringe,ig", description="NAME, NAME:PRESET, LABEL=NAME or file.py:NAME, with commas.")
    metrics: Any = Field("road,signed_insertion,random_logit", description="NAME or NAME:PRESET, with commas.")
    set: tuple[str, ...] | Mapping[str, Any] = Field(
        (), description="LABEL.KEY=VALUE: a setting of a method or metric; may be repeated."
    )
    controls: bool = Field(True, description="Also score maps that do not depend on the model.")
    validity: bool = Field(False, description="Also test the metrics, on maps whose pixels are shuffled more and more.")
    rows: PositiveInt = Field(8, description="Images in the picture.")
    pool: Literal["auto"] | PositiveInt = Field(
        "auto", description="Size of the squares of pixels that the picture averages."
    )
