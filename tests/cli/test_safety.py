"""The command line over files that somebody else prepared: nothing of theirs runs, hangs, fills the memory, leads out
of a run's folder or steers the terminal; and absurd settings are asked about."""

import json
import os
import pty
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from PIL import Image

from command_line import picture, run
from fringe.bench.experiments import Store
from fringe.bench.experiments._records import seal

pytestmark = pytest.mark.usefixtures("small_figures")

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
SMALL = ("--methods", "ig", "--set", "ig.steps=2", "--no-controls", "--metrics", "sparseness", "--n", "2")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two images that kept its maps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = run("benchmark", "--out", folder, *SMALL, "--save-maps", "--no-report")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of that run, to be tampered with."""
    return shutil.copytree(finished, tmp_path / "run")


def forge(folder, kind, name, content):
    """Put a text in place of a record of a run, or add one, as a stranger does who computes its digest anew."""
    with closing(sqlite3.connect(folder / "run.db")) as database:
        row = (kind, name, content, seal(kind, name, content))
        database.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?)", row)
        database.commit()


def tamper(folder, change, name="benchmark"):
    """Change the plan of a run as a stranger does; under another name, add it."""
    record = Store(folder, create=False).records("plan")["benchmark"]
    change(record)
    forge(folder, "plan", name, json.dumps(record))


def remove_maps(folder):
    shutil.rmtree(folder / "maps")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package among the installed ones whose import and whose function leave a file each."""
    site = tmp_path / "site-packages"
    (site / "well_known").mkdir(parents=True)
    marks = [tmp_path / "imported", tmp_path / "called"]
    (site / "well_known" / "__init__.py").write_text(
        f"open({str(marks[0])!r}, 'w')\ndef main():\n    open({str(marks[1])!r}, 'w')\n"
    )
    monkeypatch.setattr("site.getsitepackages", lambda: [str(site)])
    monkeypatch.syspath_prepend(str(site))
    return marks


def ran(marks):
    return [mark.name for mark in marks if mark.exists()]


# Code


@pytest.mark.parametrize("maps", ["kept", "not kept"])
def test_a_report_runs_nothing_that_the_folder_names(folder, installed, maps):
    (folder / "evil.py").write_text(f"open({str(installed[0])!r}, 'w')\n")
    if maps == "not kept":
        remove_maps(folder)
    for spec in ("well_known:main", f"{folder / 'evil.py'}:f"):

        def name(record, spec=spec):
            record["plan"]["models"]["digits"] = record["models"]["digits"]["spec"] = spec
            record["plan"]["preprocessing"]["digits"] = "resize=32,mean=0.3,std=0.35,channels=1"
            record["models"]["digits"]["trust_code"] = True

        tamper(folder, name)
        result = run("report", folder)
        assert result.exit_code == 0, result.output
        assert ran(installed) == []
        page = (folder / "report" / "report.html").read_text(encoding="utf-8")
        assert (folder / "report" / "figures" / "maps-first.png").exists() == (maps == "kept")
        assert ("Maps are left out: the run stored no maps" in page) == (maps == "not kept")


def test_a_plan_file_runs_nothing_without_trust_that_is_typed(tmp_path, installed):
    plan = tmp_path / "plan.toml"
    text = 'model = "net=well_known:main"\npreprocessing = "unit"\ndata = "embedded:digits:0:2"\n'
    plan.write_text(text)
    result = run("benchmark", "--config", plan, "--out", tmp_path / "run", *SMALL)
    assert result.exit_code == 2
    assert "--trust-code" in result.output
    for key in ("trust_code", "trust-code", "trust"):
        plan.write_text(f"{text}{key} = true\n")
        assert run("benchmark", "--config", plan, "--out", tmp_path / "run", *SMALL).exit_code == 2
    assert ran(installed) == []


def test_a_report_searches_no_folder_for_the_images_of_a_run(tmp_path):
    data = picture(tmp_path / "data" / "a.png").parent
    rest = (*SMALL[:-1], "1", "--model", "embedded:digits", "--save-maps", "--no-report")
    assert run("benchmark", "--data", data, "--out", tmp_path / "run", *rest).exit_code == 0
    tamper(tmp_path / "run", lambda record: record["images"][0].update(source=str(data)))
    assert run("report", tmp_path / "run").exit_code == 0
    page = (tmp_path / "run" / "report" / "report.html").read_text(encoding="utf-8")
    assert "Maps are left out: image &#39;a&#39; is no longer there" in page


# Names


def test_names_that_are_not_utf8_stop_no_command(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xfe"
    os.mkdir(folder)
    for name in ("a.png", "b.png"):
        Image.effect_noise((8, 8), 80).save(os.path.join(folder, name.encode()), "PNG")
    os.rename(folder + b"/a.png", folder + b"/\xff.png")
    data, net = os.fsdecode(folder), os.fsdecode(folder + b"/\xfc.py")
    net_of = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))"
    code = f"import torch\ndef make():\n    torch.manual_seed(0)\n    return {net_of}\n"
    with open(net, "w") as file:
        file.write(code)
    model = ("--model", f"{net}:make", "--trust-code", "--preprocessing", "resize=8,mean=0,std=1,channels=1")
    compared = run("compare", data, "--out", tmp_path / "compared", *model, *SMALL[:4], "--no-controls")
    assert compared.exit_code == 0, compared.output
    assert STEERING.search(compared.output) is None
    out = os.fsdecode(os.fsencode(tmp_path) + b"/\xfd")
    done = run("benchmark", "--data", data, "--references", data, "--out", out, *model, *SMALL)
    assert done.exit_code == 0, done.output
    with open(out + "/report/report.md", encoding="utf-8") as file:
        assert "\\udcfe" in file.read()
    assert run("status", out).exit_code == 0


def test_half_a_character_in_the_name_of_a_file_stops_no_command(folder):
    name = "half\ud800"

    def rename(record):
        record["plan"].update(data=[name], references=name, models={"digits": name}, preprocessing={"digits": name})
        record["models"]["digits"]["spec"] = record["images"][0]["source"] = name
        record["missing"] = [name]

    tamper(folder, rename)
    for command in (("status",), ("status", "--json"), ("report",)):
        result = run(*command, folder)
        assert result.exit_code == 0, (command, result.output, result.exception)
    assert "half\\ud800" in run("status", folder).output


# Files that do not end, and files that grow


@pytest.mark.timeout(120)
def test_pipes_and_devices_among_the_images_are_named_and_the_rest_goes_on(tmp_path):
    data = tmp_path / "data"
    picture(data / "good.png")
    os.mkfifo(data / "pipe.png")
    (data / "endless.png").symlink_to("/dev/zero")
    (data / "again").mkdir()
    os.mkfifo(data / "again" / "pipe.png")
    model = ("--model", "embedded:digits")
    result = run("explain", data, "--out", tmp_path / "out", *model, "--no-figures", "--set", "steps=1")
    assert result.exit_code == 3, result.output
    assert result.output.count("is not a regular file") == 3
    assert (tmp_path / "out" / "good").is_dir()
    small = (*SMALL[:-1], "4", "--no-report")
    result = run("benchmark", "--data", data, "--out", tmp_path / "run", *model, *small)
    assert result.exit_code == 3, result.output
    assert "1 image; 1 map made now" in result.output
    assert result.output.count("is not a regular file") == 3


@pytest.mark.timeout(120)
def test_plan_files_that_grow_or_do_not_end_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    contents = {
        "plan.yaml": ("data: [x]", "is no valid TOML"),
        "deep.toml": ("data = " + "[" * 20000, "nests its values too deeply"),
        "dotted.toml": (".".join("a" * 300_000) + " = 1", "a key has more than 16 parts with dots between them"),
        "quoted.toml": ("[x]\n" + " . ".join(["'a'", '"b"'] * 60_000) + " = 1", "a key has more than 16 parts"),
        "header.toml": ("[" + ".".join("a" * 300_000) + "]", "a key has more than 16 parts"),
        "long.toml": ("# " + "x" * 2**20, "has 1048578 bytes; at most 1048576 are read"),
        "pipe.toml": (None, "is not a regular file"),
        "endless.toml": (None, "is not a regular file"),
        "preset.toml": (f'preset = "{tmp_path / "pipe.json"}"', "is not a regular file"),
    }
    os.mkfifo(tmp_path / "pipe.json")
    for name, (text, reason) in contents.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        result = run("benchmark", "--config", tmp_path / name, "--out", tmp_path / "run")
        assert (result.exit_code, reason in result.output) == (2, True), result.output
        assert len(result.output) < 1000


@pytest.mark.timeout(120)
def test_presets_that_do_not_end_are_refused(tmp_path):
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(2**26 + 1)
    (tmp_path / "deep.json").write_text("[" * 10**5)
    for name, reason in (("sparse.json", "at most 67108864 are read"), ("deep.json", "cannot be read")):
        result = run("explain", "embedded:digits:0", "--preset", tmp_path / name, "--out", tmp_path / "out")
        assert (result.exit_code, reason in result.output) == (2, True), result.output


# Links and names that lead out of a run


@pytest.mark.parametrize("link", ["report", "report/figures", "report/report.html"])
def test_nothing_is_written_through_a_link_that_leads_out_of_the_run(folder, tmp_path, link):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "report.html").write_text("precious")
    (folder / "report").mkdir(exist_ok=True)
    if link == "report":
        (folder / "report").rmdir()
    (folder / link).symlink_to(outside / "report.html" if link.endswith("html") else outside)
    for command in (("report", folder), ("benchmark", "--out", folder, *SMALL)):
        result = run(*command)
        assert result.exit_code == 2
        assert "is a link that leads out of" in result.output
    assert [path.name for path in outside.iterdir()] == ["report.html"]
    assert (outside / "report.html").read_text() == "precious"
    assert run("report", folder, "--out", tmp_path / "elsewhere").exit_code == 0


def test_a_half_written_file_that_is_a_link_is_not_written_through(tmp_path):
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("kept")
    model = ("--model", "embedded:digits", "--set", "steps=1")
    command = ("explain", "embedded:digits:0", "--out", out, *model, "--no-figures")
    assert run(*command).exit_code == 0
    (out / ".partial-summary.json").symlink_to(precious)
    assert run(*command).exit_code == 0
    assert precious.read_text() == "kept"


# Terminals


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("explain", ("--no-figures", "--set", "steps=1")),
        ("compare", ("--methods", "ig", "--set", "ig.steps=2", "--metrics", "sparseness")),
    ],
)
def test_explain_and_compare_show_names_as_escapes(tmp_path, command, more):
    broken = tmp_path / f"a{ESCAPES}.png"
    broken.write_bytes(b"no image")
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"class{ESCAPES}" for _ in range(10)), encoding="utf-8")
    given = ("embedded:digits:0", broken, tmp_path / f"gone{ESCAPES}")
    given = (*given, "--model", "embedded:digits", "--classes", names, "--out", tmp_path / command)
    for form in ((), ("--json",)):
        result = run(command, *given, *more, *form)
        assert result.exit_code == 3, result.output
        assert not STEERING.search(result.output), repr(result.output)
        assert r"\x1b]0;owned" in result.output
    entries = json.loads(result.stdout)["inputs" if command == "explain" else "images"]
    assert any(ESCAPES in str(one.get("source")) for one in entries)  # nothing is lost: it says the name as it is


def test_status_and_report_show_a_stranger_s_names_as_escapes(folder):
    def rename(record):
        for part in (record["settings"], record["plan"]["methods"], record["plan"]["models"], record["models"]):
            part[f"net{ESCAPES}[bold]"] = part.pop("digits")
        record["missing"] = [f"gone{ESCAPES}.png"]
        record["plan"]["preprocessing"] = {f"net{ESCAPES}[bold]": None}

    tamper(folder, rename)
    forge(folder, "plan", f"k{ESCAPES}", "{}")
    for command in (("status",), ("status", "--json"), ("report",), ("report", "--plan", ESCAPES)):
        result = run(*command, folder)
        assert result.exit_code in (0, 2, 75), result.output
        assert not STEERING.search(result.output), repr(result.output)
    assert "net\\x1b[2J" in run("status", folder).output
    assert not re.search("[\x1b\x9b\u202e]", (folder / "report" / "report.md").read_text(encoding="utf-8"))


@pytest.mark.timeout(120)
def test_a_damaged_record_is_passed_over_by_status_and_report(folder):
    for name, content in {"bare": "{}", "list": "[1]", "deep": "[" * 10**5}.items():
        forge(folder, "plan", name, content)
    status = run("status", folder)
    assert (status.exit_code, type(status.exception)) == (75, SystemExit), status.output
    for name in ("bare", "list", "deep"):
        assert f"the plan '{name}' is damaged" in status.output
    report = run("report", folder)
    assert (report.exit_code, report.exception) == (0, None), report.output


def test_a_benchmark_shows_names_as_escapes(tmp_path):
    data = tmp_path / "data"
    picture(data / "good.png")
    (data / f"a{ESCAPES}.png").symlink_to("/dev/zero")
    plan = tmp_path / "plan.toml"
    label = f"x{ESCAPES}[/]"
    plan.write_text(f"methods = [{json.dumps(label + '=ig')}]\nset = {{ {json.dumps(label + '.steps')} = 2 }}\n")
    rest = ("--no-controls", "--metrics", "sparseness", "--n", "2", "--no-report", "--model", "embedded:digits")
    result = run("benchmark", "--config", plan, "--data", data, "--out", tmp_path / "run", *rest)
    assert result.exit_code == 3, result.output
    assert "1 map made now" in result.output
    assert not STEERING.search(result.output), repr(result.output)


# Absurd settings

ABSURD = {
    "explain": ("explain", "embedded:digits:0", "--method", "ig", "--set", "steps=100000000"),
    "compare": ("compare", "embedded:digits:0", "--methods", "ig", "--set", "ig.steps=100000000"),
    "scores": ("benchmark", "--methods", "ig", "--set", "infidelity.samples=100000000", "--metrics", "infidelity"),
    "benchmark": ("benchmark", "--methods", "fringe", "--set", "fringe.tau=1e-16"),
    "tune": ("tune", "--set", "fringe.steps=100000000", "--n", "8"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_settings_do_not_start_without_yes(tmp_path, name):
    result = run(*ABSURD[name], "--model", "embedded:digits", "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert re.search(r"error: --yes: the settings mean about \S+e\+\d+ forward and backward passes", result.output)
    assert "pass --yes to start all the same" in result.output
    assert not (tmp_path / "out").exists()


def test_yes_starts(tmp_path):
    """What comes after the question is the model, which is not there."""
    for name in ("explain", "compare"):
        result = run(*ABSURD[name], "--model", "embedded:nothing", "--out", tmp_path / "out", "--yes")
        assert "no embedded model 'nothing'" in result.output


def test_the_paper_s_settings_need_no_consent(tmp_path):
    papers = "paper:resnet50,ig:paper,smoothgrad:paper,guided_ig:paper,agi:paper,ig2:paper,ggig:paper,geoig_svi:paper"
    result = run("compare", "embedded:digits:0", "--methods", papers, "--model", "embedded:nothing", "--out", tmp_path)
    assert "no embedded model 'nothing'" in result.output


@pytest.mark.thorough
@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 2)])
def test_a_person_at_a_terminal_is_asked(tmp_path, answer, code):
    theirs, ours = pty.openpty()
    command = [sys.executable, "-m", "fringe", *ABSURD["explain"], "--model", "embedded:nothing", "--out", tmp_path]
    with subprocess.Popen(command, stdin=ours, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.write(theirs, f"{answer}\n".encode())
        said = process.communicate(timeout=120)[0].decode()
    os.close(theirs)
    os.close(ours)
    assert "forward and backward passes" in said
    assert "Start?" in said
    assert ("no embedded model 'nothing'" in said) == (answer == "y")
    assert process.returncode == code
