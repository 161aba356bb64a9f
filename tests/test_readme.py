"""The README is true: its Python runs as one session, its commands are commands, its links lead somewhere."""

import re
from pathlib import Path

from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARK = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_python_examples_run_and_their_assertions_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {}
    assert len(blocks("python")) == 5
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), session)
    assert session["ablated"].gamma_step == 0.0
    assert {row.label for row in session["result"].rows} == {"fringe", "ig", "zero", "random", "uniform", "edge"}
    assert session["page"].is_file()
    assert (session["results"].frame["status"] == "ok").all()
    assert len(list((tmp_path / "out" / "explained").glob("*/explanation.json"))) == 2
    assert len(session["entropy"]) == session["found"].diagnostics["steps"][0] + 1


def test_the_command_for_digits_works_as_printed(tmp_path):
    from fringe.cli import app

    commands = [line for block in blocks("console") for line in block.splitlines() if "embedded:digits" in line]
    arguments = commands[0].split()[1:]
    arguments[arguments.index("--out") + 1] = str(tmp_path / "digits")
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (tmp_path / "digits" / "contact.png").stat().st_size > 10_000


def test_every_option_shown_exists():
    from fringe.cli import app

    shown_texts = [*blocks("console"), *re.findall(r"```console\n(.*?)```", BENCHMARK, flags=re.DOTALL)]
    for command in ("explain", "compare", "benchmark", "status", "report", "tune", "reproduce"):
        known = CliRunner().invoke(app, [command, "--help"]).output
        lines = [line for block in shown_texts for line in block.splitlines() if line.startswith(f"fringe {command}")]
        shown = {option for line in lines for option in re.findall(r"--[a-z-]+", line)}
        assert lines
        assert [option for option in sorted(shown) if option not in known] == []


def test_links_lead_to_files():
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", TEXT) if not t.startswith("http")]
    assert len(targets) >= 6
    assert [t for t in targets if not (ROOT / t).is_file()] == []


def test_the_plan_shown_is_one(tmp_path):
    from fringe.experiments import ExperimentSpec

    (block,) = re.findall(r"```toml\n(.*?)```", BENCHMARK, flags=re.DOTALL)
    path = tmp_path / "plan.toml"
    path.write_text(block, encoding="utf-8")
    spec = ExperimentSpec.from_file(path)
    assert spec.model == {"rn50": "torchvision:resnet50"}
    assert spec.limits == {"max_sensitivity": 64}
    assert spec.set == {"short": {"steps": "20"}}
