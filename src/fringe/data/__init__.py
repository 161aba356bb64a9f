"""Images: files, folders, and the embedded digits and photographs, as samples of mode RGB or L."""

from fringe.data._images import SOURCE, Sample, digits_samples, is_picture, open_image, to_images
from fringe.data._images import digit_image as digit_image
from fringe.data._images import load_digits as load_digits
from fringe.data._inputs import EMBEDDED, PHOTOS, ImageRef, file_sha256, find_inputs
from fringe.errors import ImageError

__all__ = ["ImageRef", "Sample", "digits_samples", "find_inputs", "open_image"]
