"""Make the pictures of the documentation anew: ``python scripts/pictures.py``, after ``make docs``.

Needs Chromium (``make browser``). Look at what it writes before you commit it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES, GALLERY = ROOT / "docs" / "images", ROOT / "docs" / "gallery" / "images"
sys.path.insert(0, str(ROOT / "tests"))
from browser import FLAGS, browser_path  # noqa: E402 - a helper of the tests

#: Pictures of the gallery that a page shows: name, example, number of its figure, width in pixels.
FIGURES = (("text", "text", 1, 680), ("boxes", "boxes", 1, 560))
#: Views of one page: name, width in pixels, colours.
VIEWS = (("page-light", 1280, "light"), ("page-dark", 1280, "dark"), ("page-400", 400, "light"))


def fringe(*arguments: str | Path) -> None:
    """Run a command line; a comparison's exit code 3 names inputs that failed."""
    subprocess.run([sys.executable, "-m", "fringe", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def store(picture: Path, name: str, width: int | None = None) -> None:
    """Store a picture as WebP in the documentation."""
    image = Image.open(picture).convert("RGB")
    if width is not None and image.width > width:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    image.save(IMAGES / f"{name}.webp", quality=88, method=6)


def photograph_app(page: Page, url: str, folder: Path) -> None:
    """Explain a photograph in the app, then compare two methods on it; take a picture of both, by way of ``folder``."""
    page.set_default_timeout(240_000)
    page.goto(url)
    page.get_by_role("button", name="coffee").click()
    page.locator("#image img[src*='coffee']").wait_for()
    page.get_by_role("button", name="Explain", exact=True).click()
    page.get_by_role("button", name="Download page", exact=True).wait_for()  # after the first, fast map
    page.frame_locator("iframe.fringe-page").get_by_role("heading", level=1).wait_for()
    page.wait_for_timeout(2000)  # the frame takes the height of its page
    page.screenshot(path=folder / "app.png", full_page=True)
    store(folder / "app.png", "app")
    page.get_by_role("tab", name="Compare").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("button", name="Download scores (CSV)").wait_for()
    page.wait_for_timeout(1000)
    page.screenshot(path=folder / "app.png", full_page=True)
    store(folder / "app.png", "app-compare")


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder)
        fringe("explain", "embedded:digits:0:6", "--out", out / "digits")
        fringe("explain", "embedded:photos:coffee", "--out", out / "coffee")
        methods = ("--methods", "fringe,ig,smoothgrad,guided_ig", "--set", "ig.baseline=black")
        fringe("compare", "embedded:photos", *methods, "--out", out / "photos")
        store(out / "digits" / "contact.png", "digits")
        store(out / "coffee" / "coffee" / "trajectory.png", "trajectory")
        store(out / "digits" / "digits-0003" / "profile.png", "profile")
        store(out / "photos" / "compare.png", "compare")
        for name, example, number, width in FIGURES:
            store(GALLERY / f"sphx_glr_plot_{example}_{number:03d}.png", f"gallery-{name}", width)
        browser = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        for name, width, colours in VIEWS:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
            page.goto((out / "coffee" / "coffee" / "explanation.html").as_uri())
            page.screenshot(path=out / "page.png", full_page=True)
            store(out / "page.png", name)
        command = [sys.executable, "-m", "fringe", "app", "--model", "efficientnet_lite0", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as app:
            assert app.stdout is not None
            url = next(word for line in app.stdout for word in line.split() if word.startswith("http://127.0.0.1"))
            # high enough for the whole page: a frame is drawn only where it is seen
            photograph_app(browser.new_page(viewport={"width": 1400, "height": 1500}), url, out)
            app.terminate()
        browser.close()


if __name__ == "__main__":
    main()
