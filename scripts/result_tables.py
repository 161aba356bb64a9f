"""What scripts/results.py runs: the experiments, commands and scripts of the tables in docs/results."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """An experiment: the method that the others are compared with, the halves of the images (none: no images of a
    folder), titles of methods, and controls: a dagger marks a gain that is not shown over each of them."""

    base: str = "fringe"
    halves: tuple[int, ...] = (1,)
    names: dict[str, str] = field(default_factory=dict[str, str])
    controls: tuple[str, ...] = ()


NAMES = {
    "fringe": "FRInGe()",
    "focused": 'FRInGe(focus="cam")',
    "contrast": 'FRInGe(focus="contrast")',
    "diffusion": "diffusion (control: ignores the gradient)",
    "ig_focused": "IG, focus=cam",
    "gradcam": "Grad-CAM",
    "layercam": "LayerCAM",
    "input": "input × gradient",
    "box": "the box (control)",
    "box_centre": "the centre of the box (control)",
    "box_edge": "edges within the box (control)",
}
TABLES = {
    "methods_cifar_resnet20": Table(names=NAMES),
    "methods_mobilenet_v2": Table(names=NAMES),
    "methods_efficientnet_lite0": Table(names=NAMES),
    "budget": Table("ig_32", names=NAMES),
    "settings": Table("centre", (0, 1), NAMES),
    "truth": Table(halves=(), names=NAMES),
    "truth_boxes": Table(halves=(), names=NAMES),
    "focus": Table(names=NAMES, controls=("power:fringe", "centre_prior:fringe", "other_cam:fringe")),
    "paper_cifar_resnet20": Table(names=NAMES),
}


# -- commands and scripts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A ``fringe compare --validity`` without its folder: its ``words``, then ``images``, a pattern in the folder of
    images."""

    words: tuple[str, ...]
    images: str


CURVES = ("mas_insertion", "mas_deletion", "insertion", "deletion", "signed_insertion")
OTHERS = ("road", "single_deletion", "saco", "diffid", "cpp", "infidelity", "random_logit", "occlusion_agreement")
COMMANDS = {
    "validity_cifar_resnet20": Command(
        (
            *("compare", "--methods", "fringe,ig,smoothgrad,blur_ig,guided_ig:quick"),
            *("--metrics", ",".join((*OTHERS, *(name for one in CURVES for name in (one, f"{one}:zero"))))),
            *("--model", "cifar_resnet20=zoo.py:cifar_resnet20", "--trust-code"),
            *("--preprocessing", "resize=32,mean=0.485/0.456/0.406,std=0.229/0.224/0.225"),
            *(word for one in CURVES for end in ("", ":zero") for word in ("--set", f"{one}{end}.steps=16")),
            *("--validity", "--yes"),
        ),
        "cifar10/*_*_00[13].jpg",
    ),
}
#: Scripts of experiments/ that write tables themselves, with the names of these.
SCRIPTS = {"reference": ("reference",), "occlusion": ("occlusion", "coordinates")}
#: Tables of the stored runs of other ones.
DERIVED = {"verdicts": ("truth", "focus")}

#: All of them, each with about how many minutes it takes on one quiet processor.
MINUTES = {
    "methods_cifar_resnet20": 20,
    "methods_mobilenet_v2": 40,
    "methods_efficientnet_lite0": 50,
    "budget": 12,
    "settings": 18,
    "truth": 12,
    "truth_boxes": 8,
    "focus": 12,
    "paper_cifar_resnet20": 18,
    "validity_cifar_resnet20": 10,
    "reference": 2,
    "occlusion": 8,
}
