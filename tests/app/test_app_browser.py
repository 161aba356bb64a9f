"""The app in a real browser, as a person uses it."""

import io
import re
import time

import numpy as np
import pytest
from PIL import Image

from browser import PATIENCE, expect
from fringe import GGIG

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600, func_only=True)]  # the start of the app is not theirs


def open_app(visit, server, **options):
    visited = visit(server.url, **options)
    visited.page.get_by_role("button", name="Explain", exact=True).wait_for()
    return visited


def press(visited, name):
    visited.page.get_by_role("button", name=name, exact=True).click()


def choose(visited, label, option):
    visited.page.get_by_role("combobox", name=label, exact=True).click()
    visited.page.get_by_role("option", name=option, exact=True).click()


def pick_sample(visited, digit=3):
    visited.page.get_by_role("button", name=f"digit {digit}").click()
    visited.page.locator(f"#image img[src*='digits-000{digit}']").wait_for()


def explanation(visited):
    """The page of the explanation, in its frame, once the last one is there."""
    visited.page.get_by_role("button", name="Download page", exact=True).wait_for()
    frame = visited.page.frame_locator("iframe.fringe-page")
    frame.get_by_role("heading", level=1).wait_for()
    return frame


def digit_file(server, folder, index=3, name="my-digit.png"):
    path = folder / name
    path.write_bytes(server.service.samples[index].png)
    return path


def test_upload_run_slide_switch_the_class_and_download(visit, server, tmp_path):
    visited = open_app(visit, server)
    visited.page.locator("#image input[type=file]").set_input_files(digit_file(server, tmp_path))
    visited.page.locator("#image img").wait_for()
    press(visited, "Explain")
    frame = explanation(visited)
    expect(frame.get_by_role("heading", level=1)).to_contain_text("3")
    expect(frame.locator("body")).to_contain_text("my-digit")

    slider = frame.get_by_role("slider").first
    before = frame.locator("main, body").first.inner_text()
    slider.focus()
    visited.page.keyboard.press("Home")
    at_input = frame.locator("main, body").first.inner_text()
    assert at_input != before
    expect(frame.locator("body")).to_contain_text("99")  # the prediction at the input

    frame.locator("label", has=frame.get_by_role("radio", name=re.compile("^8 "))).click()
    expect(frame.get_by_role("heading", level=1)).to_contain_text("8")

    sizes = {}
    for name in ("page", "NPZ", "PNG"):
        with visited.page.expect_download() as download:
            press(visited, f"Download {name}")
        path = download.value.path()
        sizes[download.value.suggested_filename] = path.read_bytes()
    assert sorted(sizes) == ["my-digit.html", "my-digit.npz", "my-digit.png"]
    assert len(sizes["my-digit.html"]) < 2 * 2**20
    assert np.load(io.BytesIO(sizes["my-digit.npz"]))["input"].shape == (1, 32, 32)
    assert Image.open(io.BytesIO(sizes["my-digit.png"])).format == "PNG"
    assert visited.problems == []
    assert [url for url in visited.requests if not url.startswith(server.url)] == []

    (tmp_path / "page.html").write_bytes(sizes["my-digit.html"])
    alone = visit((tmp_path / "page.html").as_uri())
    alone.page.get_by_role("slider").first.focus()
    alone.page.keyboard.press("Home")
    assert alone.problems == []
    assert alone.requests == [(tmp_path / "page.html").as_uri()]
    assert alone.serious_findings() == []


def test_a_fast_map_comes_first_and_the_one_that_was_asked_for_takes_its_place(visit, server):
    visited = open_app(visit, server)
    pick_sample(visited)
    hook = server.service.models["digits"].module.register_forward_pre_hook(
        lambda *_: time.sleep(0.1)
    )  # the first map is seen
    press(visited, "Explain")
    said = visited.page.get_by_text("By FRInGe, fast. FRInGe comes next.")
    said.wait_for()
    frame = visited.page.frame_locator("iframe.fringe-page")
    expect(frame.get_by_role("heading", level=1)).to_contain_text("3")
    assert frame.get_by_role("radio", name=re.compile("^8 ")).count() == 0
    assert visited.page.get_by_role("button", name="Stop").first.is_enabled()
    assert not visited.page.get_by_role("button", name="Download page", exact=True).is_visible()
    hook.remove()
    expect(explanation(visited).get_by_role("radio", name=re.compile("^8 "))).to_have_count(1)
    expect(said).to_have_count(0)
    assert visited.problems == []


def test_print_shows_the_explanation_alone_and_over_the_whole_width(visit, server):
    visited = open_app(visit, server)
    pick_sample(visited)
    press(visited, "Explain")
    frame = explanation(visited)
    expect(visited.page.locator("iframe.fringe-page")).to_be_visible()
    visited.page.emulate_media(media="print")
    visited.page.set_viewport_size({"width": 794, "height": 1123})  # A4
    expect(visited.page.locator("#image")).to_be_hidden()
    expect(visited.page.locator("button:visible")).to_have_count(0)
    assert visited.page.locator("iframe.fringe-page").bounding_box()["width"] > 700
    assert frame.locator("canvas").first.bounding_box()["width"] > 150


def test_the_frame_is_as_high_as_the_page_and_reaches_nothing_of_the_app(visit, server):
    visited = open_app(visit, server)
    pick_sample(visited)
    press(visited, "Explain")
    explanation(visited)
    element = visited.page.locator("iframe.fringe-page")
    assert element.get_attribute("sandbox") == "allow-scripts"
    frame = element.element_handle().content_frame()
    fits = "() => innerHeight - document.documentElement.offsetHeight === 0"
    frame.wait_for_function(fits)
    before = element.evaluate("e => e.clientHeight")
    for summary in (*frame.query_selector_all("summary"), *frame.query_selector_all("summary")):
        summary.click()  # open, then closed again
        frame.wait_for_function(fits)
    assert element.evaluate("e => e.clientHeight") == before
    assert frame.evaluate("self.origin") == "null"
    title = "(() => { try { return parent.document.title } catch (e) { return e.name } })()"
    assert frame.evaluate(title) == "SecurityError"


def test_compare_two_methods_with_blind_maps_beside_them(visit, server):
    visited = open_app(visit, server)
    pick_sample(visited)
    visited.page.get_by_role("tab", name="Compare").click()
    choose(visited, "First method", "FRInGe, fast")
    press(visited, "Compare")
    table = visited.page.get_by_role("table")
    table.wait_for()
    rows = [re.sub(r"\s+", " ", row) for row in table.get_by_role("row").all_inner_texts()]
    expected = ["map", "FRInGe, fast", "Integrated Gradients", "zero", "random"]
    expected += ["uniform", "edge", "diffusion", "power(1.5):fringe:fast", "centre_prior:fringe:fast"]
    assert [re.split(r" (?:control )?(?:\d|–|−|ROAD)", row)[0] for row in rows] == expected
    assert [len(re.findall(r"\d\.\d{2,3}|–", row)) for row in rows[1:]] == [6] * 9
    assert visited.page.get_by_role("img", name=re.compile("Map by Integrated Gradients for 3")).is_visible()
    with visited.page.expect_download() as download:
        press(visited, "Download scores (CSV)")
    assert download.value.path().read_text().startswith("method,control,metric,image,score,flags")
    choose(visited, "First method", "Integrated Gradients")
    press(visited, "Compare")
    expect(visited.page.get_by_role("alert")).to_contain_text("Both methods are the same; choose two different ones.")
    choose(visited, "First method", "SmoothGrad")
    expect(visited.page.get_by_role("alert")).to_have_count(0)
    assert visited.problems == []


def test_the_keyboard_alone_is_enough_and_shows_where_it_is(visit, server):
    visited = open_app(visit, server)
    visited.page.get_by_role("button", name="digit 3").focus()
    visited.page.keyboard.press("Space")
    visited.page.locator("#image img[src*='digits-0003']").wait_for()
    method = visited.page.get_by_role("combobox", name="Method", exact=True)
    method.focus()
    assert method.evaluate("e => getComputedStyle(e).outlineWidth") == "2px"
    visited.page.keyboard.press("ArrowDown")
    visited.page.keyboard.press("Enter")
    expect(method).to_have_value(re.compile("fast"))
    visited.page.keyboard.press("Tab")
    expect(visited.page.get_by_role("button", name="Explain", exact=True)).to_be_focused()
    visited.page.keyboard.press("Enter")
    expect(explanation(visited).get_by_role("heading", level=1)).to_contain_text("3")


def test_errors_are_sentences(visit, server, tmp_path):
    visited = open_app(visit, server)
    press(visited, "Explain")
    alert = visited.page.get_by_role("alert")
    expect(alert).to_contain_text("No image is chosen; drop one into the field, or pick a sample.")
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image at all")
    visited.page.locator("#image input[type=file]").set_input_files(bad)
    visited.page.locator("#image img").wait_for(state="attached")
    press(visited, "Explain")
    expect(alert).to_contain_text("This file: not an image of the formats")
    assert str(tmp_path) not in visited.page.content()
    pick_sample(visited, 1)
    expect(alert).to_have_count(0)  # it was not about this image
    press(visited, "Explain")
    explanation(visited)
    expect(alert).to_have_count(0)


def begin_slow(visited):
    """Start a computation that lasts until it is stopped, see ``slow_model``."""
    pick_sample(visited)
    choose(visited, "Method", "Geometrically guided IG")
    press(visited, "Explain")


def running(visited, text="steps"):
    """The progress of a computation."""
    return visited.page.locator(".fringe-status .wrap").filter(has_text=re.compile(text)).first


def the_job(server):
    """The only job of the server."""
    (job,) = server.service.jobs._newest.values()
    return job


@pytest.fixture
def slow_model(server, monkeypatch):
    """Every pass through the model takes two hundredths of a second more, and the method of :func:`begin_slow` begins
    again and again: on a busy machine, too, it is still at work when the page comes to stop it."""
    explain = GGIG.attribute

    def forever(method, problem):
        while True:
            explain(method, problem)

    monkeypatch.setattr(GGIG, "attribute", forever)
    hook = server.service.models["digits"].module.register_forward_pre_hook(
        lambda *_: time.sleep(0.1)
    )  # the first map is seen
    yield
    hook.remove()
    server.service.jobs.stop_all()


def test_stop_in_the_middle_and_the_next_one_runs(visit, server, slow_model):
    visited = open_app(visit, server)
    stop = visited.page.get_by_role("button", name="Stop").first
    expect(stop).to_be_disabled()
    begin_slow(visited)
    running(visited, r"about .* left - \d").wait_for()
    pick_sample(visited, 7)  # the next image may be chosen meanwhile
    running(visited, r"about .* left - \d").wait_for()
    stop.click()
    expect(visited.page.get_by_text("Stopped. Nothing is computed any more.")).to_be_visible()
    expect(stop).to_be_disabled()
    choose(visited, "Method", "Integrated Gradients")
    press(visited, "Explain")
    explanation(visited)
    assert visited.problems == []


def test_a_comparison_waits_for_the_explanation_in_the_other_tab_and_each_has_its_stop(visit, server, slow_model):
    visited = open_app(visit, server)
    begin_slow(visited)
    running(visited).wait_for()
    visited.page.get_by_role("tab", name="Compare").click()
    choose(visited, "First method", "FRInGe, fast")
    press(visited, "Compare")
    visited.page.locator(".fringe-status:visible").filter(has_text="queue: 1/1").wait_for()
    visited.page.get_by_role("tab", name="Explain").click()
    running(visited).wait_for()
    press(visited, "Stop")
    expect(visited.page.get_by_text("Stopped. Nothing is computed any more.")).to_be_visible()
    visited.page.get_by_role("tab", name="Compare").click()
    visited.page.get_by_role("table").wait_for()
    expect(visited.page.locator("button:visible", has_text="Stop")).to_be_disabled()
    assert visited.problems == []


def test_a_second_press_begins_again_with_what_is_chosen_now(visit, server, slow_model):
    visited = open_app(visit, server)
    stop = visited.page.get_by_role("button", name="Stop").first
    begin_slow(visited)
    running(visited).wait_for()
    first = the_job(server)
    pick_sample(visited, 7)
    press(visited, "Explain")
    running(visited).wait_for()
    assert first.is_stopped
    visited.page.wait_for_timeout(1000)  # the first one must neither say so nor take the stop button
    assert stop.is_enabled()
    assert "Stopped" not in visited.page.locator(".fringe-status").first.inner_text()
    stop.click()
    expect(visited.page.get_by_text("Stopped. Nothing is computed any more.")).to_be_visible()
    choose(visited, "Method", "Integrated Gradients")
    press(visited, "Explain")
    expect(explanation(visited).get_by_role("heading", level=1)).to_contain_text("7")
    assert visited.problems == []


def test_people_wait_for_each_other_and_a_full_queue_says_so(visit, server, slow_model):
    first, second = open_app(visit, server), open_app(visit, server)
    begin_slow(first)
    running(first).wait_for()
    pick_sample(second, 7)
    choose(second, "Method", "Integrated Gradients")
    for _ in range(2):  # the second press takes the place of the first in the queue
        press(second, "Explain")
        second.page.wait_for_timeout(700)
    expect(running(second, "queue")).to_contain_text("queue: 1/1")
    third, late = open_app(visit, server), open_app(visit, server)  # the server fixture lets two wait
    for visited in (third, late):
        pick_sample(visited, 5)
    press(third, "Explain")
    expect(running(third, "queue")).to_contain_text("queue: 2/2")
    press(late, "Explain")
    expect(late.page.get_by_text("This application is currently busy. Please try again.")).to_be_visible()
    press(first, "Stop")
    expect(explanation(second).get_by_role("heading", level=1)).to_contain_text("7")
    expect(first.page.get_by_text("Stopped.")).to_be_visible()
    assert first.page.locator("iframe.fringe-page").count() == 0


def test_a_closed_tab_stops_its_computation(visit, server, slow_model):
    visited = open_app(visit, server)
    begin_slow(visited)
    running(visited).wait_for()
    job = the_job(server)
    visited.page.close()
    deadline = time.monotonic() + PATIENCE / 1000
    while server.service.jobs._newest and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.is_stopped
    assert server.service.jobs._newest == {}


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_everyone_can_read_it_and_nothing_is_cut(visit, server, width, scheme):
    visited = open_app(visit, server, width=width, color_scheme=scheme)
    assert visited.serious_findings() == []
    press(visited, "Explain")
    visited.page.get_by_role("alert").wait_for()
    assert visited.serious_findings() == []
    pick_sample(visited)
    press(visited, "Explain")
    explanation(visited)
    assert visited.serious_findings() == []
    frame = visited.page.locator("iframe.fringe-page").element_handle().content_frame()
    assert visited.serious_findings(frame) == []
    visited.page.get_by_role("tab", name="Compare").click()
    press(visited, "Compare")
    visited.page.get_by_role("table").wait_for()
    assert visited.serious_findings() == []
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= width
