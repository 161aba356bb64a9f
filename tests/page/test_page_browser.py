"""The page in a real browser, opened from a file: what a person sees, presses and prints."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from page_toys import MALICE, answered, explained, renamed

import fringe
from fringe.page import IndexEntry, decode_maps, page_document, render_index, render_page
from fringe.plots._maps import for_display

pytestmark = pytest.mark.thorough
#: Milliseconds between two points of a path that plays.
STEP = 450


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return fringe.write_page(explained(), tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture
def visit(browser):
    """Opens a file; at the end, the browser must have reported no error and asked for nothing else."""
    pages, faults = [], []

    def go(path, *, width=1400, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.append(request.url) if not is_local(request.url) else None)
        page.goto(Path(path).as_uri())
        pages.append(page)
        if "index" not in Path(path).name:
            page.wait_for_selector("body[data-ready]")
        return page

    yield go
    for page in pages:
        page.close()
    assert faults == []


def is_local(url):
    return url.startswith(("file:", "data:"))


def pixels(page, canvas):
    code = """id => {
      const { width, height } = document.getElementById(id), context = document.getElementById(id).getContext("2d");
      return [width, height, ...context.getImageData(0, 0, width, height).data];
    }"""
    width, height, *values = page.evaluate(code, canvas)
    return np.array(values).reshape(height, width, 4)


def hold_time(page):
    """Time stands still on the page from here on, and goes on by what ``page.clock.run_for`` is told."""
    page.clock.install(time=0)
    page.clock.pause_at(1)


def slide(page, point):
    page.locator("#slider").evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')) }", point)


def test_it_begins_with_the_complete_map_of_the_explained_class(visit, file):
    page, document = visit(file), page_document(explained())
    first = document["classes"][0]
    assert page.locator("h1").inner_text() == f"Why {first['label']}?"
    assert page.locator("#sentence").inner_text() == first["sentence"]
    shown, last = pixels(page, "map"), decode_maps(document)[-1, 0]
    assert shown.shape[:2] == last.shape
    strength = np.abs(last) / np.quantile(np.abs(last), 0.99, method="higher")
    expected = 255 * 0.9 * np.clip(strength, 0, 1) ** 0.8
    assert np.abs(shown[..., 3] - expected).max() <= 2


def test_the_slider_moves_image_map_bars_and_curve(visit, file):
    page, document = visit(file), page_document(explained())
    last = {name: pixels(page, name) for name in ("image", "map")}
    slide(page, 0)
    assert not pixels(page, "map")[..., 3].any()  # no evidence yet
    assert np.abs(pixels(page, "image") - last["image"]).max() > 2
    start = document["snapshots"][0]
    numbers = page.locator("#bars .number").all_inner_texts()
    assert numbers[0] == f"{100 * start['probabilities'][0]:.1f}%"
    assert page.locator("#status").inner_text().startswith("Step 0 of ")
    assert page.locator("#entropy").inner_text().startswith(f"{start['entropy']:.2f} of ")
    before = page.locator("#chart .now").get_attribute("cx")
    slide(page, 5)
    assert page.locator("#chart .now").get_attribute("cx") != before
    assert 0 < pixels(page, "map")[..., 3].sum() < last["map"][..., 3].sum()
    page.locator("#chart").click(position={"x": 2, "y": 40})
    assert page.locator("#slider").input_value() == "0"


def test_each_class_has_its_map_verdict_and_bar(visit, file):
    page, document = visit(file), page_document(explained())
    maps = [pixels(page, "map")]
    for number, one in enumerate(document["classes"][1:], 1):
        page.locator(f"#classes input[value='{number}']").check(force=True)
        maps.append(pixels(page, "map"))
        assert page.locator("#name").inner_text() == one["label"]
        assert page.locator("#advice").inner_text() == one["advice"]
        assert page.locator("#bars .target .label").inner_text() == one["label"]
        strength = np.abs(decode_maps(document)[-1, number])
        expected = 255 * 0.9 * np.clip(strength / np.quantile(strength, 0.99, method="higher"), 0, 1) ** 0.8
        assert np.abs(maps[-1][..., 3] - expected).max() <= 2
    assert all(np.abs(one - maps[0]).max() > 20 for one in maps[1:])


def test_signs_are_red_and_blue_and_opacity_fades(visit, file):
    page, document = visit(file), page_document(explained())
    page.locator("input[name=view][value=signed]").check(force=True)
    shown, last = pixels(page, "map"), decode_maps(document)[-1, 0]
    strong = np.abs(last) > 0.5 * np.quantile(np.abs(last), 0.99)
    red = shown[..., 0] > shown[..., 2]
    assert (red == (last > 0))[strong].all()
    page.locator("#opacity").evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')) }")
    assert not pixels(page, "map")[..., 3].any()


def test_a_signed_map_is_as_smooth_as_the_picture_of_it(visit, tmp_path):
    """Signs of neighbours cancel: the strength alone is smoothed less."""
    document = page_document(explained(size=(90, 90), target="predicted", images=1))
    (tmp_path / "page.html").write_text(render_page(document), encoding="utf-8")
    page, last = visit(tmp_path / "page.html"), decode_maps(document)[-1, 0]
    page.locator("input[name=view][value=signed]").check(force=True)
    share = for_display(last) / np.quantile(np.abs(for_display(last)), 0.99, method="higher")
    expected = 255 * 0.9 * np.abs(np.clip(share, -1, 1)) ** 0.6
    assert np.abs(pixels(page, "map")[..., 3] - expected).max() <= 2


def test_keys_move_play_and_choose(visit, file):
    page = visit(file)
    count = len(page_document(explained())["snapshots"])
    page.keyboard.press("ArrowLeft")
    assert page.locator("#slider").input_value() == str(count - 2)
    page.keyboard.press("2")
    assert page.locator("#classes input[value='1']").is_checked()
    page.keyboard.press("s")
    assert page.locator("input[value=signed]").is_checked()
    hold_time(page)
    page.keyboard.press(" ")
    assert page.locator("#play").get_attribute("aria-label") == "Stop"
    page.clock.run_for(STEP)
    assert page.locator("#play").get_attribute("aria-label") == "Play the path"
    assert page.locator("#slider").input_value() == str(count - 1)
    page.keyboard.press("Tab")
    outline = page.evaluate(
        "(() => { const e = document.activeElement; return getComputedStyle(e).opacity === '0' ?"
        " getComputedStyle(e.nextElementSibling).outlineStyle : getComputedStyle(e).outlineStyle })()"
    )
    assert outline == "solid"
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    assert page.locator("#slider").input_value() == "0"
    assert page.locator("#slider").get_attribute("aria-valuetext").startswith("step 0 of ")


def test_keys_work_wherever_the_focus_is(visit, file):
    page = visit(file, width=320)
    page.locator("#classes label").nth(1).click()
    page.keyboard.press("3")
    assert page.locator("#classes input[value='2']").is_checked()
    page.keyboard.press("s")
    assert page.locator("input[value=signed]").is_checked()
    page.locator("summary").first.click()
    table = page.locator(".scroll").nth(1)
    table.focus()
    last = page.locator("#slider").input_value()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("e => e.scrollLeft > 0", arg=table.element_handle())
    page.keyboard.press("ArrowLeft")
    assert page.locator("#slider").input_value() == last


def test_the_choice_of_a_picture_is_one_line_on_a_telephone(visit, tmp_path):
    document = page_document(explained()) | {"gain": 222.8}
    (tmp_path / "page.html").write_text(render_page(document), encoding="utf-8")
    page = visit(tmp_path / "page.html", width=360)
    heights = "[...document.querySelectorAll('.choice')].map(e => e.offsetHeight)"
    image, view = page.evaluate(heights)
    assert image == view


def test_the_path_plays_to_its_end(visit, file):
    page, last = visit(file), str(len(page_document(explained())["snapshots"]) - 1)
    button, slider = page.locator("#play"), page.locator("#slider")
    hold_time(page)
    button.click()
    assert slider.input_value() == "0"
    page.clock.run_for(STEP)
    assert slider.input_value() == "1"
    button.click()
    assert button.get_attribute("aria-label") == "Play the path"
    page.clock.run_for(9 * STEP)
    assert slider.input_value() == "1"
    button.click()
    assert button.get_attribute("aria-label") == "Stop"
    page.clock.run_for((int(last) - 1) * STEP)
    assert (slider.input_value(), button.get_attribute("aria-label")) == (last, "Play the path")


def test_each_class_that_a_key_can_name_has_one(visit, tmp_path):
    result = explained(classes=12, target="top12", images=1)
    page = visit(fringe.write_page(result, tmp_path / "page.html"))
    page.keyboard.press("9")
    assert page.locator("#classes input[value='8']").is_checked()
    assert "1–9 choose the class" in page.locator(".keys").inner_text()


def test_the_map_lies_where_its_pixels_are(visit, tmp_path):
    """113 pixels are 57 squares of two: the last one reaches over the edge."""
    result = explained(size=(3, 113), target="predicted", images=1)
    page = visit(fringe.write_page(result, tmp_path / "page.html"))
    boxes = {name: page.locator(f"#{name}").bounding_box() for name in ("base", "map")}
    assert boxes["map"]["width"] == pytest.approx(boxes["base"]["width"] * 114 / 113, rel=1e-3)
    assert boxes["map"]["height"] == pytest.approx(boxes["base"]["height"] * 4 / 3, rel=1e-2)
    assert boxes["map"]["x"] == boxes["base"]["x"]


def test_the_score_of_an_improbable_class_is_named(visit, tmp_path):
    """Where the sentence before it ends with another class."""
    result = fringe.explain("embedded:digits", "embedded:digits:0", target=5, contrast=3, method="fringe:fast")
    shown = visit(fringe.write_page(result, tmp_path / "page.html")).locator("#status").inner_text()
    assert "The score of “5, not 3” went from" in shown


def test_a_small_negative_score_has_two_minus_signs(visit, tmp_path):
    document = page_document(explained())
    document["path"]["scores"][0][0] = -0.00123
    (tmp_path / "page.html").write_text(render_page(document), encoding="utf-8")
    assert " went from −1.2×10⁻³ to" in visit(tmp_path / "page.html").locator("#status").inner_text()


def test_coming_back_shows_what_is_chosen(visit, file):
    page = visit(file)
    page.locator("#classes input[value='2']").check(force=True)
    page.locator("input[value=signed]").check(force=True)
    page.goto("about:blank")
    page.go_back()
    page.wait_for_selector("body[data-ready]")
    chosen = int(page.locator("#classes input:checked").input_value())
    assert page.locator("#name").inner_text() == page_document(explained())["classes"][chosen]["label"]
    signed = page.locator("input[value=signed]").is_checked()
    assert page.evaluate("document.body.classList.contains('signed')") == signed


def test_probabilities_that_are_not_finite_leave_nothing_to_others(visit, tmp_path):
    result = explained(images=1)
    nan = torch.full_like(result.context.probabilities, torch.nan)
    result = dataclasses.replace(renamed(result, probabilities=nan), trajectory=None)
    page = visit(fringe.write_page(result, tmp_path / "page.html"))
    assert set(page.locator("#bars li:not(.rest) .number").all_inner_texts()) == {"–"}
    assert not page.locator("#bars .rest").is_visible()
    status, score = page.locator("#status").inner_text(), float(result.score.flatten()[0])
    assert status == f"“{page.locator('#name').inner_text()}” has a score of {score:.3g}."


def test_a_probability_is_on_one_line(visit, tmp_path):
    """At one of these widths the end of a line falls between the number and its unit."""
    page = visit(fringe.write_page(explained(), tmp_path / "page.html"))
    for width in range(320, 480, 8):
        page.set_viewport_size({"width": width, "height": 600})
        assert page.locator("#chance").evaluate("e => e.getClientRects().length") == 1, width


@pytest.mark.parametrize("width", [320, 400, 1400])
def test_nothing_is_cut(visit, tmp_path, width):
    """Also with long names, which may have no spaces, and with everything open."""
    result = renamed(explained(), class_names=("Rindfleischetikettierungsueberwachung" * 2,) * 6, ids=("a" * 90,) * 2)
    page = visit(fringe.write_page(result, tmp_path / "page.html"), width=width)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && e.offsetParent &&
      getComputedStyle(e).opacity !== '0' && (e.getBoundingClientRect().right > innerWidth + 1 ||
      (e.matches('.choice') && e.scrollWidth > e.clientWidth))).map(e => e.outerHTML)"""
    assert page.evaluate(cut) == []


def test_a_number_stands_behind_a_name_that_is_read_from_the_right(visit, tmp_path):
    result = renamed(explained(), class_names=("\u0633\u0645\u0643\u0629",) * 6)
    page = visit(fringe.write_page(result, tmp_path / "page.html"))
    name, number = (page.locator(f"#classes {tag}").first.bounding_box() for tag in ("bdi", "small"))
    assert name["x"] + name["width"] <= number["x"]
    assert page.locator("#classes small").first.evaluate("e => e.getClientRects().length") == 1


def test_a_tall_image_fits_a_screen(visit, tmp_path):
    page = visit(fringe.write_page(explained(size=(90, 6), channels=3), tmp_path / "page.html"))
    box = page.locator("#map").bounding_box()
    assert box["height"] <= 750
    assert box["height"] / box["width"] == pytest.approx(15, rel=0.05)
    assert page.locator("figcaption").last.bounding_box()["y"] > box["y"] + box["height"]


def test_dark_and_print_have_their_colours(visit, file):
    colours = {}
    style = "(({ color, backgroundColor }) => [color, backgroundColor])(getComputedStyle(document.body))"
    for scheme in ("light", "dark"):
        page = visit(file, color_scheme=scheme)
        colours[scheme] = page.evaluate(style)
    assert colours["light"] == ["rgb(31, 35, 40)", "rgb(255, 255, 255)"]
    assert colours["dark"] == ["rgb(232, 234, 238)", "rgb(18, 22, 27)"]
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 35, 40)"
    assert not page.locator("#slider").is_visible()
    assert page.locator("#map").is_visible()


def test_the_parts_have_sizes_that_can_be_read_at_every_width(visit, file):
    page = visit(file, width=886)  # the frame of the app: one column
    chart, bars = (page.locator(part).bounding_box() for part in ("#chart", "#bars"))
    assert chart["width"] <= 480  # else its words are larger than a heading
    assert bars["y"] <= chart["y"] < bars["y"] + bars["height"]  # side by side: the page of the app is not that long
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 430, "height": 900})
    assert page.locator("canvas").first.bounding_box()["width"] > 150  # one column, too


def test_print_shows_the_final_state(visit, file):
    page = visit(file)
    count = len(page_document(explained())["snapshots"])
    slide(page, 1)
    before = page.evaluate("""(() => {
      dispatchEvent(new Event('beforeprint'));
      const printed = document.getElementById('slider').value;
      dispatchEvent(new Event('afterprint'));
      return [printed, document.getElementById('slider').value];
    })()""")
    assert before == [str(count - 1), "1"]
    assert len(page.pdf()) > 10_000


def test_names_do_nothing(visit, tmp_path):
    result = renamed(explained(), ids=(MALICE,) * 2, model=MALICE, class_names=(MALICE,) * 6)
    page = visit(fringe.write_page(result, tmp_path / "page.html"))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.keyboard.press("2")
    assert page.locator("img").count() == 0
    assert page.locator("#name").inner_text().startswith("<img src=x onerror=alert(1)></script>")


def test_a_page_without_a_path(visit, tmp_path):
    result = explained(method=fringe.SmoothGrad(samples=3), target="predicted", images=1)
    page = visit(fringe.write_page(result, tmp_path / "page.html"))
    assert page.locator("#slider").count() == 0
    assert pixels(page, "map")[..., 3].any()
    page.keyboard.press(" ")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".keys").inner_text() == "Keys: S changes the view."


def test_the_index_filters_by_verdict(visit, tmp_path):
    entries = [
        IndexEntry("one", "one", "", "cat · 90.0%", "ok"),
        IndexEntry(MALICE, "two #?", "", MALICE, "short"),
        IndexEntry("three.jpg", "", "", "no image", "failed"),
    ]
    (tmp_path / "two #?").mkdir()
    fringe.write_page(explained(), tmp_path / "two #?" / "explanation.html")
    (tmp_path / "index.html").write_text(render_index(MALICE, entries), encoding="utf-8")
    page = visit(tmp_path / "index.html", width=400)
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.locator("input[value=short]").check(force=True)
    assert [card.is_visible() for card in page.locator("#cards > li").all()] == [False, True, False]
    assert page.locator("#count").inner_text() == "1 input"
    page.locator("#cards a:visible").click()
    page.wait_for_selector("body[data-ready]")
    page.go_back()
    chosen = page.locator("input:checked").get_attribute("value")
    assert [card.is_visible() for card in page.locator("#cards > li").all()] == [
        chosen in ("", entry.verdict) for entry in entries
    ]


def test_a_click_on_a_token_of_an_answer_colours_the_prompt(visit, tmp_path):
    page = visit(fringe.write_page(answered(), tmp_path / "answer.html"))

    def ground(selector):
        return page.eval_on_selector(selector, "element => getComputedStyle(element).backgroundColor")

    first, second, last = ("#words span:nth-of-type(1)", "#words span:nth-of-type(2)", "#words span:nth-of-type(1000)")
    red, blue, _ = (
        np.array(eval(ground(one)[3:])) for one in (first, second, "#words span:nth-of-type(3)")
    )  # "rgb(r, g, b)"
    assert red[0] > 1.5 * red[2]
    assert blue[2] > blue[0]
    assert ground(last) == "rgba(0, 0, 0, 0)"  # held fixed
    assert page.get_attribute(first, "title") == "1.00"
    page.click("#items label:nth-of-type(3)")
    assert page.inner_text("#name") == "answer2"
    assert page.get_attribute(first, "title") == "0.333"
    assert page.get_attribute("#items label:nth-of-type(1) bdi", "title") == "2.00"
    assert "the strongest word has 0.333" in page.inner_text("#status")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#name") == "answer1"
    assert page.get_attribute(first, "title") == "0.500"
    height = page.eval_on_selector("#words", "element => element.clientHeight")
    assert height <= 0.7 * 900 + 1  # scrolls within the page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
