"""The page of the app: its layout and its event handlers."""

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Default

from fringe.app._fragments import comparison, ended_line, error_box, page_frame, sample_buttons, status_line
from fringe.app._service import Service
from fringe.app._worker import Job, Status, reason
from fringe.errors import FringeError

STYLE = Path(__file__).with_name("style.css")
#: Sets the height of each frame to that of the page in it, which reports its height in a message.
HEAD = """<meta name="color-scheme" content="light dark"><script>
addEventListener("message", (event) => {
  const height = Number(event.data && event.data.fringeHeight);
  for (const frame of document.querySelectorAll("iframe.fringe-page"))
    if (frame.contentWindow === event.source && height > 0)
      frame.style.height = Math.min(Math.max(height, 300), 8000) + 2 + "px";  // with its borders
});
</script>"""
TITLE = (
    "<header class='fringe-head'><h1>fringe</h1><p>See what a classifier saw: choose an image, a model and a method."
    "</p></header>"
)
#: Sends the index of the clicked sample to the server.
_PICK = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) trigger("click", { index: Number(button.dataset.index) });
});"""
EMPTY = "<p class='fringe-empty'>{}</p>"
#: Seconds between two status updates of a running job.
INTERVAL = 0.25
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "DejaVu Sans", "sans-serif")

Start = Callable[..., Job]
Show = Callable[[Any], str]


def image_field() -> gr.Image:
    """Make a field that returns the path of an uploaded image; gradio's own field would open it with any decoder.

    The method is replaced, because gradio writes a ``.pyi`` file beside the module of every subclass of a component.
    """
    field = gr.Image(
        label="Image", type="filepath", sources=["upload", "clipboard"], height=260, buttons=[], elem_id="image"
    )

    def path(payload: Any) -> str | None:
        return None if payload is None else payload.path or None

    field.preprocess = path
    return field


def theme() -> gr.Theme:
    """Gradio's theme with system fonts: its own fonts are fetched from a network."""
    plain = Default(
        primary_hue="blue", neutral_hue="slate", font=list(FONTS), font_mono=["ui-monospace", "DejaVu Sans Mono"]
    )
    # darker than gradio's own, for contrast
    return plain.set(
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_label_text_color="*neutral_600",
        block_label_text_color_dark="*neutral_300",
        color_accent="*primary_700",
    )


def build_app(service: Service) -> gr.Blocks:
    """Build the page of a service."""

    def forget(request: gr.Request) -> None:
        service.forget(str(request.session_hash))

    with gr.Blocks(title="fringe", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True) as blocks:
        gr.HTML(TITLE)
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=280):
                image, model = _choices(service)
            with gr.Column(scale=3, min_width=280), gr.Tabs():
                with gr.Tab("Explain", id="explain"):
                    _explain_tab(service, image, model)
                with gr.Tab("Compare", id="compare"):
                    _compare_tab(service, image, model)
        blocks.unload(forget)
    blocks.queue(max_size=4 * (service.limits.queue + 8), default_concurrency_limit=None)
    return blocks


def _choices(service: Service) -> tuple[gr.Image, gr.Dropdown]:
    """Make the fields of the image, the samples and the model."""
    image = image_field()
    if service.samples:
        samples = gr.HTML(sample_buttons(service.samples), js_on_load=_PICK, elem_id="samples")

        def pick(event: gr.EventData) -> str:
            index = event._data["index"]  # pyright: ignore[reportPrivateUsage] - its attributes are not typed
            return str(service.sample_file(int(index)))

        samples.click(pick, None, image, show_progress="hidden", api_visibility="private")
    names = list(service.models)
    model = gr.Dropdown(names, value=names[0], label="Model", elem_id="model", filterable=False)
    return image, model


def _explain_tab(service: Service, image: gr.Image, model: gr.Dropdown) -> None:
    method = _method(service, "Method", 0)
    run, stop = _buttons("Explain")
    status = gr.HTML(elem_id="explain-status")
    result = gr.HTML(EMPTY.format("The explanation appears here: the page that you can download and send."))
    with gr.Row():
        files = [_download(f"Download {kind}") for kind in ("page", "NPZ", "PNG")]

    _connect(service, (run, stop), (image, model, method), (status, result, *files), service.explain, page_frame)


def _compare_tab(service: Service, image: gr.Image, model: gr.Dropdown) -> None:
    with gr.Row():
        first = _method(service, "First method", 0)
        second = _method(service, "Second method", list(service.methods).index("ig"))
    run, stop = _buttons("Compare")
    status = gr.HTML(elem_id="compare-status")
    result = gr.HTML(
        EMPTY.format("Two maps of the same image appear here, and their scores beside those of control maps.")
    )
    with gr.Row():
        files = [_download(f"Download {kind}") for kind in ("scores (CSV)", "NPZ", "PNG")]

    def start(owner: str, file: str | None, model: str, first: str, second: str) -> Job:
        return service.compare(owner, file, model, (first, second))

    _connect(service, (run, stop), (image, model, first, second), (status, result, *files), start, comparison)


def _method(service: Service, label: str, index: int) -> gr.Dropdown:
    choices = [(title, name) for name, title in service.methods.items()]
    return gr.Dropdown(choices, value=choices[index][1], label=label, filterable=False, min_width=260)


def _buttons(label: str) -> tuple[gr.Button, gr.Button]:
    with gr.Row():
        run = gr.Button(label, variant="primary", scale=3)
        stop = gr.Button("Stop", interactive=False, scale=1, min_width=90)
    return run, stop


def _download(label: str) -> gr.DownloadButton:
    return gr.DownloadButton(label, visible=False, size="sm", min_width=90)


def _connect(
    service: Service, buttons: tuple[gr.Button, gr.Button], inputs: Any, outputs: Any, start: Start, show: Show
) -> None:
    """Connect a run button and its stop button to their inputs and outputs: status, result and three files."""
    run, stop = buttons
    newest: dict[str, object] = {}  # the last press of each owner: only the job it started may write

    def follow(request: gr.Request, *values: Any) -> Generator[list[Any]]:
        owner, press = str(request.session_hash), object()
        newest[owner] = press
        try:
            with closing(_follow(service, lambda: start(owner, *values), show)) as updates:
                for update in updates:
                    yield update if newest.get(owner) is press else [gr.skip()] * len(update)
        finally:
            if newest.get(owner) is press:
                del newest[owner]

    def end(request: gr.Request) -> None:
        service.worker.stop(str(request.session_hash))

    hidden: Any = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
    # gradio would ignore a second press, which should stop the first
    run.click(follow, list(inputs), [*outputs, stop], trigger_mode="multiple", **hidden)
    stop.click(end, None, None, **hidden)


def _follow(service: Service, start: Callable[[], Job], show: Show) -> Generator[list[Any]]:
    """Start a job and yield the outputs until it ends; closing the tab stops it."""
    none, idle, busy = [gr.skip()] * 4, gr.Button(interactive=False), gr.Button(interactive=True)
    empty = ["", *[gr.DownloadButton(visible=False)] * 3]
    yield [status_line(Status("waiting")), *none, gr.skip()]
    try:
        job = start()
    except FringeError as error:
        yield [error_box(reason(error)), *empty, idle]
        return
    try:
        yield [status_line(service.worker.status(job)), *empty, busy]
        while not job.wait(INTERVAL):
            yield [status_line(service.worker.status(job)), *none, gr.skip()]
    finally:
        job.stop()
    if job.state == "done":
        files = [gr.DownloadButton(value=str(file), visible=True) for file in job.result.files]
        yield ["", show(job.result), *files, idle]
    elif job.state == "failed":
        yield [error_box(reason(job.error)), *empty, idle]
    else:
        yield [ended_line(job.status(), service.limits.time_limit), *empty, idle]
