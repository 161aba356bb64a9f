"""The options of everything that runs plans: which plan, and how it is run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fringe._checks import require_local
from fringe.cli import flags
from fringe.cli.plan_options import PlanOptions, split_names


@dataclass(frozen=True)
class HowOptions:
    """How plans are run, as it was typed."""

    out: Path
    device: str
    batch_size: str
    workers: int
    timeout: float | None
    save_maps: bool
    amend: bool
    retry: bool
    renew: bool
    json: bool
    yes: bool = False

    def __post_init__(self) -> None:
        require_local("--out", self.out)


def plan_options(
    model: Annotated[
        list[str] | None, typer.Option(metavar="SPEC", help="SPEC or LABEL=SPEC; may be repeated. See 'fringe models'.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="Images, folders or embedded:digits; may be repeated.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="With commas: NAME, NAME:PRESET or LABEL=NAME; fringe:auto is the paper's."),
    ] = None,
    metrics: Annotated[str | None, typer.Option(metavar="NAMES", help="With commas: NAME or NAME:PRESET.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LABEL.KEY=VALUE", help="A setting of a method or metric; may be repeated."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="FILE", help="A tuned preset; the images it was tuned on are left out.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="METRIC=N", help="A metric of the first N images only.")
    ] = None,
    n: Annotated[int | None, typer.Option("--n", metavar="N", min=1, help="Images, drawn by the seed.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draws the images and keys all randomness.  [default: 0]")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="CLASS", help="'predicted' (the default: the top-1), 'label', or a number.")
    ] = None,
    score: Annotated[
        str | None, typer.Option(metavar="NAME", help="logit (the default), log_probability or probability.")
    ] = None,
    exif: Annotated[
        str | None, typer.Option(metavar="RULE", help="'ignore' (the default, as benchmarks do) or 'transpose'.")
    ] = None,
    references: Annotated[
        str | None, typer.Option(metavar="DIR", help="Images for the methods that average over data; else --data.")
    ] = None,
    controls: Annotated[
        bool | None,
        typer.Option(
            "--controls/--no-controls", help="Score maps that know nothing of the model.  [default: controls]"
        ),
    ] = None,
    preprocessing: flags.Preprocessing = None,
    trust_code: flags.TrustCode = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML or YAML; its keys are these names, 'limits' for --limit."),
    ] = None,
) -> PlanOptions:
    """What is to be computed: what was typed, over what a file says."""
    typed = PlanOptions(
        models=_tuple(model),
        data=_tuple(data),
        methods=split_names(methods),
        metrics=split_names(metrics),
        settings=_tuple(settings),
        preset=preset,
        limits=_tuple(limit),
        n=n,
        seed=seed,
        target=target,
        score=score,
        exif=exif,
        references=references,
        controls=controls,
        preprocessing=preprocessing,
        trust_code=trust_code,
    )
    if config is None:
        return typed
    from fringe.cli.plan_file import read_plan_file  # loads pydantic, which no other option needs

    return typed.over(read_plan_file(config))


Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the run; one that exists is gone on with.")]


def how_options(
    out: Out,
    device: flags.Device = "auto",
    batch_size: flags.BatchSize = "auto",
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, help="Processes; one that dies is replaced. 0: this process alone.")
    ] = 0,
    timeout: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Longest time of a unit; needs --workers.")
    ] = None,
    save_maps: Annotated[
        bool, typer.Option("--save-maps", help="Keep every map: a metric added later needs no new ones.")
    ] = False,
    amend: Annotated[bool, typer.Option("--amend", help="Let other settings replace those of the folder.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Compute again what failed.")] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="Set aside the results of a model whose logits changed since.")
    ] = False,
    yes: flags.Yes = False,
    as_json: flags.AsJson = False,
) -> HowOptions:
    """How it is to be computed."""
    return HowOptions(out, device, batch_size, workers, timeout, save_maps, amend, retry_failed, renew, as_json, yes)


def clock_options(
    out: Out,
    device: flags.Device = "auto",
    batch_size: flags.BatchSize = "auto",
    yes: flags.Yes = False,
    as_json: flags.AsJson = False,
) -> HowOptions:
    """How run times are measured: in this process, and anew."""
    return HowOptions(out, device, batch_size, 0, None, False, False, False, False, as_json, yes)


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return tuple(values) if values else None
