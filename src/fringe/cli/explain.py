"""``fringe explain``: its options. What it does is in ``run``, imported when it is called."""

from typing import Annotated

import typer

from fringe.cli import flags
from fringe.cli.options import Exif, MethodOptions, ModelOptions, ModelOutput, RunOptions, Score, choose_model
from fringe.cli.problems import MODEL_OUTPUT, reported


def explain(
    inputs: flags.Inputs,
    out: flags.Out,
    model: flags.Model = None,
    method: Annotated[str, typer.Option(help="Which method; see 'fringe methods'.")] = "fringe",
    preset: Annotated[
        str | None, typer.Option(help="Settings by name ('fringe methods', 'fringe presets'), or a tuned file.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="The method with parts taken out, as in the ablations.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; may be repeated.")
    ] = None,
    target: flags.Target = "predicted",
    score: flags.ScoreKind = Score.LOGIT,
    references: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Images for the methods that average over the data.")
    ] = None,
    preprocessing: flags.Preprocessing = None,
    classes: flags.Classes = None,
    trust_code: flags.TrustCode = False,
    model_output: flags.Output = ModelOutput.AUTO,
    batch_size: flags.BatchSize = "auto",
    device: flags.Device = "auto",
    seed: flags.Seed = 0,
    exif: flags.ExifRule = Exif.TRANSPOSE,
    overwrite: flags.Overwrite = False,
    yes: flags.Yes = False,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw pictures.")] = True,
    as_json: flags.AsJson = False,
) -> None:
    """Explain what in each image spoke for its class: pictures, tensors and a record of how far to trust them.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs failed, 130 interrupted.
    """
    with reported(MODEL_OUTPUT):
        from fringe.cli.run import run_explain

        code = run_explain(
            MethodOptions(method, preset, variant, tuple(settings or ())),
            ModelOptions(choose_model(model, inputs), preprocessing, classes, trust_code, device, model_output),
            RunOptions(
                inputs=tuple(inputs),
                out=out,
                target=target,
                score=score,
                references=references,
                batch_size=batch_size,
                seed=seed,
                exif=exif,
                overwrite=overwrite,
                yes=yes,
                figures=figures,
                json=as_json,
            ),
        )
    raise typer.Exit(code)
