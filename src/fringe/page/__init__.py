"""One explanation as one HTML file that needs no network: the path, the maps of several classes and the verdict; and
the same path as an animated picture.

>>> from fringe.page import write_page
>>> write_page(result, "explanation.html")  # doctest: +SKIP

The page is made from a document, JSON data of the schema ``fringe/explanation/1``, which the page contains.
"""

from fringe.page._document import Box as Box
from fringe.page._document import Document, decode_maps, page_document
from fringe.page._render import (
    IndexEntry,
    animation,
    page_text,
    render_index,
    render_page,
    thumbnail,
    write_animation,
    write_page,
)

__all__ = ["Document", "decode_maps", "page_document", "render_page", "write_animation", "write_page"]
