"""Build the wheel and the sdist, and try both outside the checkout with the oldest and the newest dependencies allowed.

python scripts/dist.py                 # about 10 minutes on two cores: it installs PyTorch twice
python scripts/dist.py --only newest   # one of the two environments
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
TORCH = "2.13.0"
#: Extras that are tried. torchvision has to be the release made for one PyTorch, so those that need it are left out.
EXTRAS = ("bench", "graph", "tune", "captum", "photo", "lightning", "tensorboard", "mlflow", "wandb")
#: Packages that the tests import besides the extras.
TESTS = ("pytest", "pytest-timeout", "hypothesis", "mpmath", "saliency")

SNIPPET = """
import importlib.metadata
import fringe
from pathlib import Path
from fringe.errors import DISTRIBUTION, install_hint
from fringe.models import load_model
from fringe.data import digits_samples
assert Path(fringe.__file__).is_relative_to(Path.cwd()), fringe.__file__
assert importlib.metadata.version(DISTRIBUTION) == fringe.__version__
assert install_hint("timm").startswith(f'run pip install "{DISTRIBUTION}[timm] @ file:'), install_hint("timm")
loaded = load_model("embedded:digits")
x = loaded.prepare([sample.image for sample in digits_samples()[:2]])
result = fringe.attribute(loaded.module, x)
assert result.verdict == ("ok", "ok"), result.verdict
assert result.completeness_residual.max() < 0.1, result.completeness_residual
table = fringe.compare(loaded.module, x, ["ig", "smoothgrad"], ["insertion"])
assert len(table.rows) >= 2
print("python: maps with verdicts", *result.verdict)
"""
TRACKERS = """
import os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # no database: its packages have bounds of their own
import fringe, fringe.captum, fringe.quantus, mlflow, wandb
from fringe.integrations import ExplainCallback, log_explanations
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
result = fringe.explain("embedded:digits", "embedded:digits:3", method="ig")
mlflow.set_tracking_uri("file:mlruns")
with mlflow.start_run() as run, wandb.init(mode="offline", dir=".", settings=wandb.Settings(silent=True)) as other:
    for tracker in (CSVLogger("csv"), TensorBoardLogger("tb"), run, other):
        log_explanations(result, tracker, step=1)
ExplainCallback(every=2)
print("trackers: explanations logged to four")
"""
#: Commands of an environment with the core alone, and with the extras.
CORE = (("--help",), ("explain", "--help"), ("--version",), ("explain", "embedded:digits:0:2", "--out", "explained"))
MORE = (
    ("benchmark", "--n", "2", "--methods", "ig,geoig_knn", "--metrics", "sparseness,insertion", "--out", "scored"),
    ("tune", "--n", "1", "--trials", "1", "--methods", "ig", "--out", "tuned"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the two files (default: dist)")
    parser.add_argument("--only", choices=("oldest", "newest"), help="one of the two environments")
    options = parser.parse_args()
    wheel, sdist = build(options.out)
    with tempfile.TemporaryDirectory(prefix="fringe-dist-") as name:
        folder = Path(name)
        check_contents(wheel, sdist, folder)
        for kind in ("oldest", "newest"):
            if options.only in (None, kind):
                try_environment(kind, wheel, folder / kind)
                if kind == "newest":
                    collect_tests(sdist, folder)
                shutil.rmtree(folder / kind)
    print(f"done: {wheel.name} and {sdist.name} in {options.out}")


def build(out: Path) -> tuple[Path, Path]:
    """Build both; the wheel is made from the sdist."""
    shutil.rmtree(out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path, folder: Path) -> None:
    """The wheel holds every file of the package and nothing else, and the tree gives the same wheel as the sdist."""
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "tree", ROOT)
    (direct,) = (folder / "tree").glob("*.whl")
    contents, other = files_of(wheel), files_of(direct)
    differing = sorted(name for name in contents.keys() | other.keys() if contents.get(name) != other.get(name))
    require(not differing, f"the wheels of the tree and of the sdist differ in {differing}")
    names = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tracked = {name.removeprefix("src/") for name in names.split()}
    packed = {name for name in contents if ".dist-info/" not in name}
    require(packed == tracked, f"the wheel and the package differ in {sorted(packed ^ tracked)}")
    data = sorted(name for name in packed if not name.endswith(".py"))
    for suffix in ("py.typed", ".safetensors", ".csv", ".html.j2", ".css", ".js"):
        require(any(name.endswith(suffix) for name in data), f"the wheel holds no {suffix}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py"):
        require(name in inside, f"the sdist holds no {name}")
    print(f"contents: {len(packed)} files, {len(data)} of them data; the same wheel from the tree and from the sdist")


def files_of(wheel: Path) -> dict[str, str]:
    """Digests of the files of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def try_environment(kind: str, wheel: Path, folder: Path) -> None:
    """Install the wheel into an empty environment, and use it as somebody would who has nothing else."""
    venv.create(folder, with_pip=True)
    python, environment = folder / "bin" / "python", {**os.environ, "MPLBACKEND": "Agg"}
    environment.pop("PYTHONPATH", None)
    constraints = folder / "constraints.txt"
    constraints.write_text(f"torch=={TORCH}\n" + ("\n".join(oldest()) if kind == "oldest" else ""), encoding="utf-8")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", constraints)
    note = " (the only CPU build here: an older one is not tried)" if kind == "oldest" else ""
    print(f"{kind}: torch {TORCH}{note}")
    run(*pip, f"torch=={TORCH}", cwd=folder, env=environment)
    run(*pip, wheel, cwd=folder, env=environment)
    print_versions(kind, python, environment)
    run(python, "-c", SNIPPET, cwd=folder, env=environment)
    for command in CORE:
        run(folder / "bin" / "fringe", *command, cwd=folder, env=environment)
    run(*pip, f"{wheel}[{','.join(EXTRAS)}]", cwd=folder, env=environment)
    print_versions(kind, python, environment)
    for command in MORE:
        run(folder / "bin" / "fringe", *command, cwd=folder, env=environment)
    run(python, "-c", TRACKERS, cwd=folder, env=environment)


def collect_tests(sdist: Path, folder: Path) -> None:
    """Collect the tests of the sdist in the newest environment, with the installed package and not the unpacked one."""
    python, environment = folder / "newest" / "bin" / "python", {**os.environ}
    environment.pop("PYTHONPATH", None)
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *TESTS, env=environment)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    shutil.rmtree(source / "src")
    run(python, "-m", "pytest", "--collect-only", "-q", "-q", "tests", cwd=source, env=environment, quiet=True)
    print("sdist: its tests are collected")


def oldest() -> list[str]:
    """The lower bounds of the metadata as constraints; PyTorch has its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in EXTRAS for text in project["optional-dependencies"][extra])]
    bounds: dict[str, str] = {}
    for requirement in map(Requirement, texts):
        lower = next((s.version for s in requirement.specifier if s.operator == ">="), None)
        require(lower is not None, f"{requirement} has no lower bound")
        bounds[requirement.name] = str(lower)
    return [f"{name}=={version}" for name, version in bounds.items() if name != "torch"]


def print_versions(kind: str, python: Path, environment: dict[str, str]) -> None:
    command = [python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    print(f"{kind}: {' '.join(line for line in done.stdout.split() if not line.startswith(('pip=', 'setuptools=')))}")


def run(*command: object, quiet: bool = False, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command, and end with its output if it fails."""
    texts = list(map(str, command))
    done = subprocess.run(texts, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    require(done.returncode == 0, f"{' '.join(texts)[:200]} failed with {done.returncode}:\n{done.stdout[-4000:]}")
    if not quiet and "pip" not in texts and "build" not in texts:
        print("\n".join(f"  {line}" for line in done.stdout.strip().splitlines()[-2:]), flush=True)


def require(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"dist: {message}")


if __name__ == "__main__":
    main()
