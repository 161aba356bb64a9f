"""The options of runs on image files: one model for keyword arguments, flags and the record."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt
from pydantic import AfterValidator, BeforeValidator

from fringe.settings import Doc, Options, PositiveInt

#: Points of a path that are stored for its page.
POINTS = 11
#: What scores are measured in.
UNITS = {"logit": "logit", "log_probability": "nats", "probability": "probability"}


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

    model: Annotated[
        str | None,
        Doc(
            "Model, see 'fringe models', or LABEL=SPEC. Default: embedded:digits for its own images, "
            "efficientnet_lite0 for others where it is installed."
        ),
    ] = None
    target: Annotated[
        int | str,
        BeforeValidator(_number),
        Doc(
            "Class to explain: 'predicted', its number or its name.",
            takes="'predicted', or the number or name of a class",
        ),
    ] = "predicted"
    boxes: Annotated[
        str | None,
        Doc("Boxes of a detector: 'predicted', how many, or X0,Y0,X1,Y1[;X0,...] in pixels of the photograph."),
    ] = None
    score: Annotated[Literal["logit", "log_probability", "probability"], Doc("What is explained.")] = "logit"
    references: Annotated[str | None, Doc("Images for methods that average over data (at most 64 are taken).")] = None
    preprocessing: Annotated[
        str | None, Doc("'imagenet', 'unit', or resize=256,crop=224,mean=0.5,std=0.5. Default: the model's own.")
    ] = None
    classes: Annotated[Path | None, Doc("Class names, one per line.")] = None
    trust_code: Annotated[bool, Doc("Allow the model's author to run code.")] = False
    model_output: Annotated[Literal["auto", "logits", "probabilities"], Doc("What the model returns.")] = "auto"
    batch_size: Annotated[Literal["auto"] | PositiveInt, Doc("Images per pass: 'auto' or a number.")] = "auto"
    device: Annotated[str, Doc("auto, cpu, cuda, cuda:1, ...")] = "auto"
    seed: Annotated[int, Ge(0), Lt(2**53), Doc("Seed of all randomness.")] = 0
    exif: Annotated[Literal["transpose", "ignore"], Doc("Turn photos by EXIF data, or not.")] = "transpose"

    def record(self) -> dict[str, Any]:
        """The options as JSON data; ``trust_code`` is left out, since only a person may set it."""
        return self.model_dump(mode="json", exclude={"trust_code"})


class ExplainSpec(ImageOptions):
    """Options of :func:`fringe.explanations.explain_images`: keyword arguments, flags and the record in one."""

    contrast: Annotated[
        int | str | None,
        BeforeValidator(_number),
        Doc("Another class, by number or name: explain why the class and not this one."),
    ] = None
    method: Annotated[str, AfterValidator(_canonical_method), Doc("Attribution method.")] = "fringe"
    preset: Annotated[str | None, Doc("Settings by name, see 'fringe methods METHOD', or a tuned file.")] = None
    variant: Annotated[str | None, Doc("Paper's method without a part of it, see 'fringe presets'.")] = None
    set: Annotated[
        tuple[str, ...], Doc("Setting of the method; may be repeated.", takes="a list of KEY=VALUE texts")
    ] = ()
    probe: Annotated[bool, Doc("Compare each map with occlusion: 90 forward passes.")] = True
    figures: Annotated[bool, Doc("Draw pictures and write pages.")] = True
    top: Annotated[PositiveInt, Doc("Number of classes on the page, the most probable ones.")] = 5


class CompareSpec(ImageOptions):
    """Options of :class:`fringe.bench.comparison.ImageComparison`; methods, metrics and their settings as in
    :class:`fringe.bench.experiments.ExperimentSpec`."""

    methods: Annotated[Any, Doc("NAME, NAME:PRESET, LABEL=NAME or file.py:NAME, with commas.")] = "fringe,ig"
    metrics: Annotated[Any, Doc("NAME or NAME:PRESET, with commas.")] = (
        "road,signed_insertion,signed_insertion:zero,random_logit,occlusion_agreement"
    )
    set: Annotated[
        tuple[str, ...] | Mapping[str, Any],
        Doc("LABEL.KEY=VALUE: a setting of a method or metric; may be repeated.", takes="a list of KEY=VALUE texts"),
    ] = ()
    controls: Annotated[bool, Doc("Also score maps that do not depend on the model.")] = True
    validity: Annotated[bool, Doc("Also test the metrics, on maps whose pixels are shuffled more and more.")] = False
    rows: Annotated[PositiveInt, Doc("Images in the picture.")] = 8
    pool: Annotated[Literal["auto"] | PositiveInt, Doc("Size of the squares of pixels that the picture averages.")] = (
        "auto"
    )
