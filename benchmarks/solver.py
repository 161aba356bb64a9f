"""How the linear system of a step is solved, and what that does to the path: the tables of docs/conjugate-gradients.md.

    python benchmarks/solver.py --model cifar_resnet20 --images 64 --out out/solver.jsonl
    python benchmarks/solver.py --report out/solver.jsonl

Each row is one setting on the same images: preconditioner, iteration cap K, damping, residuals kept orthogonal or not.
Reported (median over images): relative CG residual, tracking error (radians), KL at the end point (nats), completeness
residual, passes through the network an image, and how well the map survives a relative change of the input by 1e-7,
less than one unit in the last place of float32. A finished row is not computed again.
"""

import argparse
import json
from pathlib import Path

import torch

import fringe
import shared_models

COMMON = {"tau": 3e-3, "eta_max": 4.0, "delta_euc": 0.6, "gamma_step": 1e-2, "gamma_prior": 1e-3, "temperature": 1.0}


def settings() -> list[dict[str, object]]:
    grid = [
        {"preconditioner": name, "cg_iterations": k, "damping": damping, "reorthogonalise": True}
        for damping in (1e-8, 1e-6, 1e-4, 1e-3, 1e-2)
        for name in ("blur", "spectral")
        for k in (20, 10)
    ]
    textbook = [
        {"preconditioner": "blur", "cg_iterations": 20, "damping": damping, "reorthogonalise": False}
        for damping in (1e-8, 1e-4, 1e-2)
    ]
    return grid + textbook


def measure(model: torch.nn.Module, x: torch.Tensor, setting: dict[str, object]) -> dict[str, object]:
    method = fringe.FRInGe(**COMMON, **setting, jacobian="products")  # type: ignore[arg-type]
    found = fringe.attribute(model, x, method=method)
    jitter = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    again = fringe.attribute(model, x * (1.0 + 1e-7 * jitter), method=method, target=found.target)
    cosine = torch.cosine_similarity(found.values.flatten(1), again.values.flatten(1))
    medians = {name: found.diagnostics[name].median().item() for name in found.diagnostics}
    n = x.shape[0]
    return {
        **setting,
        **medians,
        "completeness": found.completeness_residual.median().item(),
        "cosine_median": cosine.median().item(),
        "cosine_p5": cosine.quantile(0.05).item(),
        "forward": found.passes.forward / n,
        "products": (found.passes.jvp + found.passes.vjp) / n,
        "verdicts": {v: found.verdict.count(v) for v in sorted(set(found.verdict))},
        "images": n,
    }


COLUMNS = {
    "damping": "λ",
    "preconditioner": "M⁻¹",
    "cg_iterations": "K",
    "reorthogonalise": "orthogonal",
    "cg_iterations_mean": "iterations",
    "cg_residual_mean": "residual",
    "tracking_error_mean": "tracking",
    "endpoint_kl": "endpoint KL",
    "completeness": "completeness",
    "products": "products/image",
    "cosine_median": "cosine, median",
    "cosine_p5": "cosine, 5 %",
}


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows.sort(key=lambda r: (r["damping"], not r["reorthogonalise"], r["preconditioner"], -r["cg_iterations"]))
    print("| " + " | ".join(COLUMNS.values()) + " |")
    print("|" + "---|" * len(COLUMNS))
    for row in rows:
        print("| " + " | ".join(cell(row[name]) for name in COLUMNS) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar_resnet20")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("out/solver.jsonl"))
    parser.add_argument("--damping", type=float, nargs="*", help="only these")
    parser.add_argument("--iterations", type=int, nargs="*", help="only these")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    if arguments.report:
        return report(arguments.report)
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    keys = [[row[name] for name in setting] for setting in settings() for row in done]
    network, x = shared_models.model(arguments.model), shared_models.images(arguments.model, arguments.images)
    for setting in settings():
        left_out = (arguments.damping and setting["damping"] not in arguments.damping) or (
            arguments.iterations and setting["cg_iterations"] not in arguments.iterations
        )
        if left_out or list(setting.values()) in keys:
            continue
        row = measure(network, x, setting)
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
    return None


if __name__ == "__main__":
    main()
