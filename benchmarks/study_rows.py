"""Which settings a study compares, by label."""

from collections.abc import Mapping

from fringe.attribution import (
    AGI,
    GGIG,
    IG2,
    Attributor,
    BlurIG,
    ExpectedGradients,
    FRInGe,
    GeoIGKNN,
    GeoIGSVI,
    GuidedIG,
    IntegratedDecisionGradients,
    IntegratedGradients,
    SmoothGrad,
)

PRECONDITIONERS = ("blur", "spectral")


def comparison() -> dict[str, Attributor]:
    """Every method at the paper preset; those that cost thousands of gradients an image there at some hundreds."""
    return {
        "fringe": FRInGe(),
        "fringe (resnet50 preset)": FRInGe.preset("resnet50"),
        "ig": IntegratedGradients.preset("paper"),
        "smoothgrad": SmoothGrad.preset("paper"),
        "guided_ig": GuidedIG.preset("paper"),
        "agi (official)": AGI.preset("paper"),
        "agi (path)": AGI(classes=3),
        "ig2": IG2(references=2, steps=51, eta=0.06),
        "ggig": GGIG(intervals=10, iterations=20),
        "geoig_svi (official)": GeoIGSVI(mode="official", steps=10, iterations=10, learning_rate=0.01),
        "geoig_svi (repaired)": GeoIGSVI(steps=10, iterations=10),
        "geoig_knn": GeoIGKNN(neighbours=5, order=3),
        "blur_ig": BlurIG(),
        "idg": IntegratedDecisionGradients(),
        "expected_gradients": ExpectedGradients(),
    }


def light() -> dict[str, Attributor]:
    """For a network of 50 ms a gradient: the methods that need at most some hundreds of gradients an image."""
    return {
        "ig": IntegratedGradients(),
        "smoothgrad": SmoothGrad(),
        "agi (official)": AGI.preset("paper"),
        "guided_ig": GuidedIG(steps=50),
        "blur_ig": BlurIG(steps=50),
        "idg": IntegratedDecisionGradients(),
        "expected_gradients": ExpectedGradients(samples=50),
        "ig2": IG2(references=1, steps=51, eta=0.06),
        "ggig": GGIG(intervals=5, iterations=10),
        "geoig_svi (official)": GeoIGSVI(mode="official", steps=10, iterations=5, learning_rate=0.01),
        "fringe": FRInGe(),
    }


def damping() -> dict[str, Attributor]:
    """Damping, iterations and preconditioner, crossed."""
    return {
        f"{preconditioner},{value:g},K{k}": FRInGe(preconditioner=preconditioner, damping=value, cg_iterations=k)
        for preconditioner in PRECONDITIONERS
        for k in (20, 5)
        for value in (1e-11, 1e-8, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
        if k == 20 or value >= 1e-3
    }


def factors() -> dict[str, Attributor]:
    """One factor at a time around ``FRInGe()``."""
    rows: dict[str, Attributor] = {"centre": FRInGe()}
    rows |= {f"gamma_step={v:g}": FRInGe(gamma_step=v) for v in (0.0, 1e-4, 1e-3, 1e-1)}
    rows |= {f"gamma_prior={v:g}": FRInGe(gamma_prior=v) for v in (0.0, 1e-4, 1e-2)}
    rows |= {f"tau={v:g}": FRInGe(tau=v) for v in (1e-3, 1e-2)}
    rows |= {f"eta_max={v:g}": FRInGe(eta_max=v) for v in (1.0, 16.0)}
    rows |= {"delta=none": FRInGe(delta_euc=None)}
    return rows


ROWS: Mapping[str, Mapping[str, Attributor]] = {
    "comparison": comparison(),
    "light": light(),
    "damping": damping(),
    "factors": factors(),
}
