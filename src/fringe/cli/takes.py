"""Options that several commands share, written once."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

from fringe.cli.problems import reported, require_extra


def takes(**providers: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose argument NAME is what ``providers[NAME]`` makes of its own options; the command line shows the
    options of all of them, and then the command's own. It needs what benchmarks need."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for name, p in inspect.signature(command).parameters.items() if name not in providers]
        parts = {name: list(inspect.signature(maker).parameters.values()) for name, maker in providers.items()}
        hints = {name: hint for maker in providers.values() for name, hint in _hints(maker).items()}
        hints |= {name: hint for name, hint in _hints(command).items() if name not in providers}

        @wraps(command)
        def run(**given: Any) -> None:
            with reported():  # a maker may read a file, and find it wrong
                require_extra("bench")
                made = {
                    name: maker(**{p.name: given.pop(p.name) for p in parts[name]}) for name, maker in providers.items()
                }
            command(**made, **given)

        every = [p for part in parts.values() for p in part] + own
        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in every]
        run.__signature__ = inspect.Signature(every)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = hints
        return run

    return decorate


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(function, include_extras=True).items() if name != "return"}
