"""Text from files and folders as a terminal may show it."""

import json


def printable(text: str) -> str:
    r"""``text`` with each character that is not printable, line feeds apart, as its escape: ``\x1b`` for ESC.

    Terminals obey control characters: a file name could move the cursor, change the window's title or hide what is
    printed. Characters without a width, such as those that turn the direction of text, deceive the eye.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def printable_json(text: str) -> str:
    r"""A JSON document with the same content, in which such characters are written ``\u009b``."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
