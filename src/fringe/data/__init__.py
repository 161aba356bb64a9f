"""Images: files, folders and the shipped digits become samples of mode RGB or L, or a reason why not."""

from fringe.data.decode import open_image
from fringe.data.digits import digits_samples
from fringe.data.errors import ImageError
from fringe.data.inputs import InputRef, find_inputs
from fringe.data.sample import Sample

__all__ = ["ImageError", "InputRef", "Sample", "digits_samples", "find_inputs", "open_image"]
from fringe.data.digits import SOURCE as SOURCE
from fringe.data.digits import load_digits as load_digits
