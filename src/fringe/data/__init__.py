"""Images: files, folders and the embedded digits as samples of mode RGB or L."""

from fringe.data._digits import SOURCE as SOURCE
from fringe.data._digits import digits_samples
from fringe.data._digits import load_digits as load_digits
from fringe.data._images import Sample, open_image
from fringe.data._inputs import ImageRef, find_inputs
from fringe.data._inputs import file_sha256 as file_sha256
from fringe.data._pictures import is_picture as is_picture
from fringe.data._pictures import to_images as to_images
from fringe.errors import ImageError as ImageError

__all__ = ["ImageRef", "Sample", "digits_samples", "find_inputs", "open_image"]
