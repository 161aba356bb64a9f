"""Build the site of every release: a folder for each, and the list by which their pages switch.

    python scripts/site.py https://NAME.github.io/fringe/      # the address that the site will have

The newest tags ``vX.Y.Z`` are built, each by its own ``make docs``; without a tag the checkout itself is built. The
first page leads to the newest release. The result is in docs/_build/site.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs" / "_build" / "site"
#: Releases that are kept: each takes minutes to build.
LIMIT = 5


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it writes to its output; its messages are shown."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def releases() -> list[str]:
    """Return the newest versions that have a tag, the newest first."""
    found = [tuple(map(int, v.groups())) for v in re.finditer(r"^v(\d+)\.(\d+)\.(\d+)$", run("git", "tag"), re.M)]
    return [".".join(map(str, version)) for version in sorted(found, reverse=True)[:LIMIT]]


def build(checkout: Path, version: str) -> None:
    """Build the site of a checkout, whose pages read the list beside the folder of their version."""
    run("make", "docs", folder=checkout, FRINGE_SWITCHER="../switcher.json")
    shutil.copytree(checkout / "docs" / "_build" / "html", SITE / version)


def main() -> None:
    """Build all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="address that the site will have")
    url = parser.parse_args().url.rstrip("/")
    shutil.rmtree(SITE, ignore_errors=True)
    versions = releases()
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            checkout = Path(folder, "checkout")
            run("git", "worktree", "add", "--detach", checkout, f"v{version}")
            try:
                build(checkout, version)
            finally:
                run("git", "worktree", "remove", "--force", checkout)
    if not versions:
        versions = ["latest"]
        build(ROOT, "latest")
    entries: list[dict[str, object]] = [
        {"name": version, "version": version, "url": f"{url}/{version}/"} for version in versions
    ]
    entries[0] |= {"name": f"{versions[0]} (newest)", "preferred": True}
    (SITE / "switcher.json").write_text(json.dumps(entries, indent=1), encoding="utf-8")
    refresh = f'<meta http-equiv="refresh" content="0; url={versions[0]}/">'
    lead = f'<!doctype html><meta charset="utf-8"><title>fringe</title>{refresh}'
    (SITE / "index.html").write_text(f'{lead}<a href="{versions[0]}/">fringe {versions[0]}</a>\n', encoding="utf-8")
    print(f"{len(versions)} in {SITE.relative_to(ROOT)}: {', '.join(versions)}")


if __name__ == "__main__":
    main()
