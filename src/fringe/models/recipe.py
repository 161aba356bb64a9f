"""The compact text form of a preprocessing recipe, as it is typed on a command line."""

from collections.abc import Callable
from typing import Any, TypedDict, cast

from fringe.models.errors import ModelError, did_you_mean


class Recipe(TypedDict):
    """The fields of ``Preprocessing``, before it checks them."""

    resize: tuple[int, ...] | None
    crop: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int
    interpolation: str


_UNIT: Recipe = {
    "resize": None,
    "crop": None,
    "mean": (0.0,),
    "std": (1.0,),
    "channels": 3,
    "interpolation": "bilinear",
}

SHORTCUTS: dict[str, Recipe] = {
    "unit": _UNIT,
    "imagenet": {
        **_UNIT,
        "resize": (256,),
        "crop": (224, 224),
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
    },
}


def read_recipe(text: str) -> Recipe:
    """Parse the text form described at ``Preprocessing.parse``; without a shortcut it starts from ``unit``.

    Raises ``ModelError`` on unknown keys, repeated keys and values that are no numbers.
    """
    items = [item.strip() for item in text.split(",")]
    recipe: dict[str, Any] = dict(_UNIT)
    if "=" not in items[0]:
        recipe.update(_shortcut(items.pop(0)))
    seen: set[str] = set()
    for item in items:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in _READERS:
            hint = did_you_mean(key, _READERS) or f"; known: {', '.join(_READERS)}"
            raise ModelError(f"preprocessing item {item!r} is not one of KEY=VALUE with a known key{hint}")
        if key in seen:
            raise ModelError(f"preprocessing key {key!r} is given twice")
        seen.add(key)
        recipe[key] = _READERS[key](key, value)
    for key in ("mean", "std"):
        recipe[key] = _per_channel(recipe[key], recipe["channels"])
    return cast(Recipe, recipe)


def _shortcut(name: str) -> Recipe:
    if name not in SHORTCUTS:
        hint = did_you_mean(name, SHORTCUTS)
        raise ModelError(f"preprocessing {name!r} is neither a shortcut ({', '.join(SHORTCUTS)}) nor KEY=VALUE{hint}")
    return SHORTCUTS[name]


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values * channels if len(values) == 1 else values


def _whole(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ModelError(f"preprocessing {key}={value!r}: expected a whole number") from None


def _resize(key: str, value: str) -> tuple[int, ...] | None:
    return None if value == "none" else tuple(_whole(key, side) for side in value.split("x"))


def _crop(key: str, value: str) -> tuple[int, ...] | None:
    sides = _resize(key, value)
    return sides * 2 if sides is not None and len(sides) == 1 else sides


def _numbers(key: str, value: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in value.split("/"))
    except ValueError:
        raise ModelError(f"preprocessing {key}={value!r}: expected numbers separated by '/'") from None


def _text(key: str, value: str) -> str:
    return value


_READERS: dict[str, Callable[[str, str], object]] = {
    "resize": _resize,
    "crop": _crop,
    "mean": _numbers,
    "std": _numbers,
    "channels": _whole,
    "interpolation": _text,
}
