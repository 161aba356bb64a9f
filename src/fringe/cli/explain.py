"""``fringe explain``: its options. What it does is in ``run``, imported when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from fringe.cli.options import Exif, MethodOptions, ModelOptions, RunOptions, Score
from fringe.cli.problems import reported


def explain(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT", help="Images, folders, or embedded:digits[:INDEX|:START:STOP].")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.", metavar="DIR")],
    model: Annotated[str, typer.Option(help="Which model; see 'fringe models'.")] = "embedded:digits",
    method: Annotated[str, typer.Option(help="Which method; see 'fringe methods'.")] = "fringe",
    preset: Annotated[str | None, typer.Option(help="The paper's setting for a network; see 'fringe presets'.")] = None,
    variant: Annotated[str | None, typer.Option(help="The method with parts taken out, as in the ablations.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; may be repeated.")
    ] = None,
    target: Annotated[str, typer.Option(help="Class to explain: 'predicted' or its number.")] = "predicted",
    score: Annotated[Score, typer.Option(help="What of that class is explained.")] = Score.LOGIT,
    preprocessing: Annotated[
        str | None, typer.Option(metavar="TEXT", help="'imagenet', 'unit', or resize=256,crop=224,mean=0.5,std=0.5.")
    ] = None,
    classes: Annotated[Path | None, typer.Option(metavar="FILE", help="Class names, one a line.")] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Let the model's author run code here.")] = False,
    batch_size: Annotated[str, typer.Option(help="Images at a time: 'auto' or a number.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Keys all randomness.")] = 0,
    exif: Annotated[Exif, typer.Option(help="Turn photos as their camera was held, or not.")] = Exif.TRANSPOSE,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a folder with other files.")] = False,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw pictures.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output, no bars.")] = False,
) -> None:
    """Explain what in each image spoke for its class: pictures, tensors and a record of how far to trust them.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs failed, 130 interrupted.
    """
    with reported():
        from fringe.cli.run import run_explain

        code = run_explain(
            MethodOptions(method, preset, variant, tuple(settings or ())),
            ModelOptions(model, preprocessing, classes, trust_code, device),
            RunOptions(
                inputs=tuple(inputs),
                out=out,
                target=target,
                score=score,
                batch_size=batch_size,
                seed=seed,
                exif=exif,
                overwrite=overwrite,
                figures=figures,
                json=as_json,
            ),
        )
    raise typer.Exit(code)
