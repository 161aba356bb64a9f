"""What scripts/results.py runs: the experiments and commands of the tables in docs/results, and titles of methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True)
class Table:
    """A run: the method that the others are compared with, the half of the images (None: all), titles of methods, its
    experiment if that has another name, and controls: a dagger marks a gain that is not shown over each of them."""

    base: str
    half: int | None = 1
    names: dict[str, str] = field(default_factory=dict[str, str])
    experiment: str = ""
    controls: tuple[str, ...] = ()


_FLOORS = "05", "2", "5"
DEFAULTS = {
    "feedback": "FRInGe(): geodesic, feedback",
    "geodesic": "geodesic, a JVP in each step",
    "preview": "fringe:preview",
    "rank4": "geodesic, rank 4",
    "no_prior": "geodesic, γ_prior = 0",
    "diffusion": "diffusion (control: ignores the gradient)",
    "power(1.5):feedback": "power(1.5) of FRInGe() (control)",
    "centre_prior:feedback": "centre_prior of FRInGe() (control)",
    "cg_prior": "full metric, γ_prior = 3e-3",
    "paper": "paper",
    "paper_resnet18": "paper:resnet18",
}
METHODS = {
    "fringe": "FRInGe()",
    "resnet50": "paper:resnet50",
    "preview": "fringe:preview",
    "diffusion": "diffusion (control)",
    "agi_official": "agi (official)",
    "agi_path": "agi (path)",
    "svi_official": "geoig_svi (official)",
    "gradcam": "Grad-CAM",
    "published": "paper:resnet50",
}
TRUTH = {
    "fringe": "FRInGe()",
    "no_prior": "FRInGe, γ_prior = 0",
    "prior_1e4": "FRInGe, γ_prior = 1e-4",
    "prior_1e3": "FRInGe, γ_prior = 1e-3",
    "prior_3e3": "FRInGe, γ_prior = 3e-3",
    "step_0": "FRInGe, γ_step = 0",
    "step_1e1": "FRInGe, γ_step = 0.1",
    "rank4": "FRInGe, rank 4",
    "preview": "fringe:preview",
    "preview_3e3": "fringe:preview, γ_prior = 3e-3",
    "gradient": "FRInGe without a metric (solve=gradient)",
    "diffusion": "diffusion (control)",
    "straight_gradient": "straight line to the end of the path without a metric",
    "input": "input × gradient",
    "gradcam": "Grad-CAM",
}
BOXES = {
    "fringe": "FRInGe()",
    "no_prior": "γ_prior = 0",
    "ig": "IG",
    "gradcam": "Grad-CAM",
    "layercam": "LayerCAM",
    "diffusion": "diffusion (control)",
    "box": "the box (control)",
    "box_centre": "the centre of the box (control)",
    "box_edge": "edges within the box (control)",
}
QUADRATURE = {
    "fringe": "FRInGe()",
    "temperature_1": "temperature=1",
    "trapezoid": "quadrature=trapezoid",
    "tight": "quadrature_rtol=0.01",
    "former": "tau=3e-3, until=budget, temperature=1",
    "budget": "until=budget",
    "tau_1e2": "tau=1e-2",
    "tau_2e2": "tau=2e-2",
    "long": "delta_euc=long",
    "preview": "fringe:preview",
    "preview_adaptive": "fringe:preview, quadrature=adaptive",
    "diffusion": "diffusion (control)",
}
PAPER = {
    "fringe": "FRInGe()",
    "focused": 'FRInGe(focus="cam")',
    "paper": "paper",
    "released": "released",
    "fringe_b": "FRInGe-B",
    "gradcam": "Grad-CAM",
    "ig": "ig:released",
    "smoothgrad": "smoothgrad:released",
    "guided_ig": "guided_ig:released",
    "blur_ig": "blur_ig:released",
    "diffusion": "diffusion (control)",
}
FOCUS = {
    "fringe": "FRInGe()",
    "cam": "focus=cam",
    "contrast": "focus=contrast",
    **{f"{kind}_{floor}": f"focus={kind}, floor .{floor}" for kind in ("cam", "contrast") for floor in _FLOORS},
    "ig_cam": "ig, focus=cam",
    "paper": "paper",
    "diffusion": "diffusion (control)",
    "diffusion_cam": "diffusion, focus=cam",
    "gradcam": "Grad-CAM",
    "layercam": "LayerCAM",
    "hirescam": "HiResCAM",
    "power:fringe": "power(1.5):fringe (control)",
    "centre_prior:fringe": "centre_prior:fringe (control)",
    "other_cam:fringe": "other_cam:fringe (control)",
}
FOCUS_NETS = "cifar_resnet20", "efficientnet_lite0", "mobilenet_v2"
#: The controls of a focused map: the map sharper, towards the middle, and in the region of another image.
FOCUS_CONTROLS = "power:fringe", "centre_prior:fringe", "other_cam:fringe"
TABLES = {
    "quadrature_cifar_resnet20": Table("fringe", names=QUADRATURE),
    "quadrature_mobilenet_v1_025": Table("fringe", names=QUADRATURE),
    "truth_quadrature": Table("fringe", None, QUADRATURE),
    "default_cifar_resnet20": Table("feedback", names=DEFAULTS),
    "default_mobilenet_v1_025": Table("feedback", names=DEFAULTS),
    "methods_cifar_resnet20": Table("fringe", names=METHODS),
    "methods_mobilenet_v1_025": Table("fringe", names=METHODS),
    "methods_mobilenet_v2": Table("fringe", names=METHODS),
    "sensitivity_cifar_resnet20": Table("fringe", names=METHODS),
    "settings_cifar_resnet20": Table("centre", half=0),
    "truth": Table("fringe", None, TRUTH),
    "truth_settings": Table("fringe", None, TRUTH),
    "truth_saturation": Table("fringe", None, TRUTH),
    "interventions_cifar_resnet20": Table("fringe", 1, TRUTH),
    "truth_networks": Table("fringe", None, TRUTH),
    "truth_trained": Table("fringe", None, TRUTH),
    "truth_boxes": Table("fringe", None, BOXES),
    "truth_prior": Table("fringe", None, TRUTH),
    "truth_imagenet": Table("fringe", None, TRUTH),
    "prior_choose_cifar_resnet20": Table("fringe", 0, TRUTH, "prior_cifar_resnet20"),
    "prior_judge_cifar_resnet20": Table("fringe", 1, TRUTH, "prior_cifar_resnet20"),
    "prior_choose_mobilenet_v1_025": Table("fringe", 0, TRUTH, "prior_mobilenet_v1_025"),
    "prior_judge_mobilenet_v1_025": Table("fringe", 1, TRUTH, "prior_mobilenet_v1_025"),
    "focus_choose_cifar_resnet20": Table("fringe", 0, FOCUS),
    **{
        f"focus_{name}": Table("fringe", 1, FOCUS, controls=() if "random" in name else FOCUS_CONTROLS)
        for name in (
            *("designed", "trained", "random_cifar_resnet20"),
            *(f"{kind}_{net}" for kind in ("grids", "judge") for net in FOCUS_NETS),
        )
    },
    "paper_cifar_resnet20": Table("fringe", names=PAPER),
    "paper_mobilenet_v1_025": Table("fringe", names=PAPER),
    "paper_mobilenet_v2": Table("fringe", names=PAPER),
    "paper_efficientnet_lite0": Table("fringe", names=PAPER),
}


# -- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command of fringe, or ``reproduce`` of experiments/paper, without its folder: its ``words``, then ``images`` (a
    pattern in the folder of images, or a name); what its table ``shows`` (the verdicts on metrics, or scores); and for
    scores the method that the others are compared with, and what ``fringe`` is."""

    words: tuple[str, ...]
    images: str
    shows: Literal["validity", "scores"]
    base: str = "fringe"
    fringe: str = "FRInGe()"


def _model(name: str, preprocessing: str) -> tuple[str, ...]:
    return ("--model", f"{name}=zoo.py:{name}", "--trust-code", "--preprocessing", preprocessing)


def _settings(*texts: str) -> tuple[str, ...]:
    return tuple(word for text in texts for word in ("--set", text))


CIFAR = _model("cifar_resnet20", "resize=32,mean=0.485/0.456/0.406,std=0.229/0.224/0.225")
MOBILENET = _model("mobilenet_v1_025", "resize=146,crop=128,mean=0.5/0.5/0.5,std=0.5/0.5/0.5")
CURVES = "mas_insertion", "mas_deletion", "insertion", "deletion"
ZEROS = tuple(f"{name}:zero" for name in CURVES)
OTHERS = "single_deletion", "saco", "road", "diffid", "signed_insertion", "cpd", "cpp"
DIGITS = *CURVES, *ZEROS[2:], "infidelity", *OTHERS, "sparseness", "random_logit"
STEPS = _settings(*(f"{name}.steps=32" for name in (*CURVES, *ZEROS)))
FEW_STEPS = _settings("road.shares=0.1,0.3,0.5", "signed_insertion.steps=16", "insertion.steps=16")
PHOTOGRAPHS = "cifar10/*_*_00[0-2].jpg"
SCORES = ",".join((*CURVES, "infidelity", "sparseness"))
DIAGNOSTICS = "completeness_residual,endpoint_kl,tracking_error_mean,tracking_error_max"


def _validity(images: str, metrics: Sequence[str], *more: str) -> Command:
    """A test of metrics."""
    words = ("compare", "--methods", "fringe,ig,smoothgrad,blur_ig,guided_ig:quick", "--metrics", ",".join(metrics))
    return Command((*words, *more, "--validity", "--yes"), images, "validity")


def _study(*words: str, base: str = "fringe") -> Command:
    return Command((*words, *CIFAR, "--n", "64", "--data"), "cifar10", "scores", base)


COMMANDS = {
    "validity_digits": _validity("embedded:digits:0:24", DIGITS),
    "validity_cifar_resnet20": _validity(PHOTOGRAPHS, (*CURVES, *ZEROS, "infidelity", *OTHERS), *CIFAR, *STEPS),
    "validity_few_steps": _validity(PHOTOGRAPHS, ("road", "signed_insertion", "insertion"), *CIFAR, *FEW_STEPS),
    "validity_mobilenet_v1_025": _validity(
        "imagenet/0[0-9][05]0_*.jpg",
        (*CURVES, *ZEROS, "single_deletion", "diffid", "signed_insertion", "cpp"),
        *(*MOBILENET, *STEPS),
    ),
    "ablation_paper_cifar_resnet20": replace(_study("reproduce", "ablation"), fringe="paper"),
    "cap_paper_cifar_resnet20": _study("reproduce", "cap", base="cap"),
    "cap_cifar_resnet20": _study(
        *("benchmark", "--methods", "cap=fringe,no_cap=fringe,ig", "--metrics", DIAGNOSTICS, "--no-controls"),
        *_settings("no_cap.delta_euc=none"),
        base="cap",
    ),
    "tuned_cifar_resnet20": _study(*("benchmark", "--methods", "fringe,published=paper:resnet50", "--metrics", SCORES)),
}

#: Tables of settings that FRInGe no longer has. They are kept, and not made again.
KEPT = (
    *("ablation_cifar_resnet20", "sweep_cifar_resnet20", "damping_choose_cifar_resnet20"),
    *("damping_judge_cifar_resnet20", "damping_judge_mobilenet_v1_025"),
)
