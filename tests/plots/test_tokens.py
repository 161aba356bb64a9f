"""Words on coloured ground: in a figure, as HTML and in a terminal."""

import re

from fringe.plots import token_html, token_map, token_text

WORDS, VALUES = ["[CLS]", "a", "great", "<script>", "dull"], [0.0, 0.1, 2.0, -0.1, -1.0]


def test_every_word_is_drawn_on_its_colour():
    figure = token_map(WORDS * 8, VALUES * 8, title="Words", label="positive", note="ok")
    grounds = [text.get_bbox_patch() for text in figure.axes[0].texts]
    grounds = [patch.get_facecolor() for patch in grounds if patch is not None]
    assert len(grounds) == 4 * 8  # what is held fixed has no ground
    assert grounds[1][0] > grounds[1][2]  # great: red
    assert grounds[3][2] > grounds[3][0]  # dull: blue


def test_html_is_escaped_and_loads_nothing():
    html = token_html(WORDS, VALUES)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert set(re.findall(r"<(\w+)", html)) == {"span"}
    assert not re.search(r"https?:|url\(|src=|href=", html)
    assert 'title="+2"' in html


def test_the_terminal_shows_markup_and_control_characters_as_text():
    text = token_text(["[red]x[/red]", "a\x1b[2Jb"], [1.0, -1.0])
    assert text.plain == "[red]x[/red] a\N{REPLACEMENT CHARACTER}[2Jb"
    styles = [str(span.style) for span in text.spans]
    assert all(" on #" in style for style in styles)
