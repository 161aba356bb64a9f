"""The page of the app: its layout and its event handlers."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Default

from fringe._strings.html import fragment
from fringe.app._jobs import STOPPED, StoppedError, reason
from fringe.app._service import Result, Service

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
    "<header class='fringe-head'><h1>fringe</h1><p>See why a network gave its answer: choose an image, a model and a "
    "method.</p></header>"
)
#: Sends the index of the clicked sample to the server.
_PICK = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) trigger("click", { index: Number(button.dataset.index) });
});"""
#: The outputs of a tab without a result.
_NOTHING: list[Any] = ["", *[gr.DownloadButton(visible=False)] * 3, gr.Button(interactive=False)]
EMPTY = "<p class='fringe-empty'>{}</p>"
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "DejaVu Sans", "sans-serif")

#: The progress of the event that calls a function.
_PROGRESS = gr.Progress()
#: Each press of a button calls a function that no other program may call.
_HIDDEN: Any = {"api_visibility": "private"}
#: A function that neither waits for a computation nor shows that it runs.
_AT_ONCE: Any = {**_HIDDEN, "queue": False, "show_progress": "hidden"}


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
        for label in ("Explain", "Compare"):
            service.forget(_owner(request, label))

    def explain(
        image: str | None, model: str, method: str, request: gr.Request, progress: gr.Progress = _PROGRESS
    ) -> Iterator[list[Any]]:
        yield from _answer(service.explain, _owner(request, "Explain"), progress, image, model, method)

    def compare(
        image: str | None, model: str, one: str, two: str, request: gr.Request, progress: gr.Progress = _PROGRESS
    ) -> Iterator[list[Any]]:
        yield from _answer(service.compare, _owner(request, "Compare"), progress, image, model, one, two)

    with gr.Blocks(title="fringe", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True) as blocks:
        gr.HTML(TITLE)
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=280):
                image, model = _choices(service)
            with gr.Column(scale=3, min_width=280), gr.Tabs():
                with gr.Tab("Explain", id="explain"):
                    inputs = (image, model, _method(service, "Method", 0))
                    empty = "The explanation appears here: the page that you can download and send."
                    _connect(service, "Explain", explain, inputs, empty, ("page", "NPZ", "PNG"))
                with gr.Tab("Compare", id="compare"):
                    with gr.Row():
                        one = _method(service, "First method", 0)
                        two = _method(service, "Second method", list(service.methods).index("ig"))
                    empty = "Two maps of the same image appear here, and their scores beside those of control maps."
                    files = ("scores (CSV)", "NPZ", "PNG")
                    _connect(service, "Compare", compare, (image, model, one, two), empty, files)
        blocks.unload(forget)
    blocks.queue(max_size=service.spec.queue, default_concurrency_limit=1, api_open=False)
    return blocks


def _choices(service: Service) -> tuple[gr.Image, gr.Dropdown]:
    """Make the fields of the image, the samples and the model."""
    image = image_field()
    if service.samples:
        samples = gr.HTML(
            fragment("app", "samples", ((sample.title, sample.png) for sample in service.samples)),
            js_on_load=_PICK,
            elem_id="samples",
        )

        def pick(event: gr.EventData) -> str:
            index = event._data["index"]  # pyright: ignore[reportPrivateUsage] - its attributes are not typed
            return str(service.sample_file(int(index)))

        samples.click(pick, None, image, **_AT_ONCE)
        # gradio removes other files after an hour
        image.keep_in_cache.update(str(service.sample_file(index)) for index in range(len(service.samples)))
    names = list(service.models)
    model = gr.Dropdown(names, value=names[0], label="Model", elem_id="model", filterable=False)
    return image, model


def _method(service: Service, label: str, index: int) -> gr.Dropdown:
    choices = [(title, name) for name, title in service.methods.items()]
    return gr.Dropdown(choices, value=choices[index][1], label=label, filterable=False, min_width=260)


def _owner(request: gr.Request, label: str) -> str:
    """The owner of a computation: each tab of a page has one of its own."""
    return f"{request.session_hash} {label}"


def _answer(
    compute: Callable[..., Iterator[Result]], owner: str, progress: gr.Progress, *values: Any
) -> Iterator[list[Any]]:
    """Compute, and return the outputs of a tab for each result: status, result, three files, and the stop button."""
    results = compute(owner, progress, *values)
    while True:
        try:
            result = next(results, None)
        except StoppedError as stopped:
            said = fragment("app", "status", str(stopped))
            yield [said, *_NOTHING] if stopped.is_late else [gr.skip()] * 6  # the button has said so
            return
        except BaseException as error:  # the server must survive
            yield [fragment("app", "error", reason(error)), *_NOTHING]
            return
        if result is None:
            return
        if result.next:  # whose files the next result replaces
            # an element of its own: of the same frame, a browser that still loads it would drop the next document
            html = f"<section>{result.html}</section>"
            yield [fragment("app", "status", result.next), html, *_NOTHING[1:-1], gr.skip()]
            continue
        files = [gr.DownloadButton(value=str(file), visible=True) for file in result.files]
        yield ["", result.html, *files, gr.Button(interactive=False)]


def _connect(
    service: Service,
    label: str,
    compute: Callable[..., Iterator[list[Any]]],
    inputs: Any,
    empty: str,
    files: Sequence[str],
) -> None:
    """Make the buttons and outputs of a tab, and connect them to its inputs."""
    with gr.Row():
        run = gr.Button(label, variant="primary", scale=3)
        stop = gr.Button("Stop", interactive=False, scale=1, min_width=90)
    status = gr.HTML(elem_classes="fringe-status")
    result = gr.HTML(EMPTY.format(empty))
    with gr.Row():
        downloads = [gr.DownloadButton(f"Download {file}", visible=False, size="sm", min_width=90) for file in files]
    outputs = [status, result, *downloads, stop]
    # an error is about what was chosen before
    gr.on([field.change for field in inputs], None, None, status, js="() => ''")

    def press(request: gr.Request) -> list[Any]:
        service.jobs.stop(_owner(request, label))
        return ["", *_NOTHING[:-1], gr.Button(interactive=True)]

    def end(request: gr.Request) -> list[Any]:
        service.jobs.stop(_owner(request, label))
        return [fragment("app", "status", STOPPED), gr.Button(interactive=False)]

    pressed = run.click(press, None, outputs, **_AT_ONCE)
    computed = pressed.then(
        compute,
        list(inputs),
        outputs,
        show_progress_on=status,
        trigger_mode="multiple",
        concurrency_id="compute",
        **_HIDDEN,
    )
    run.click(None, cancels=[computed])  # else the one before keeps its place in the queue
    stop.click(end, None, [status, stop], cancels=[computed], **_AT_ONCE)
