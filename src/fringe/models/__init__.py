"""Models: one string names a classifier, and is loaded with its preprocessing, class names and digest.

>>> model = load_model("embedded:digits")
>>> model.architecture, model.preprocessing.resize
('digits', (32, 32))
"""

from fringe.errors import ModelError as ModelError
from fringe.models._base import seeded as seeded
from fringe.models._base import state_digest as state_digest
from fringe.models._digits import DIGIT_NAMES as DIGIT_NAMES
from fringe.models._digits import DIGIT_PREPROCESSING as DIGIT_PREPROCESSING
from fringe.models._digits import DigitNet as DigitNet
from fringe.models._load import LOADERS as LOADERS
from fringe.models._load import LoadedModel, load_model
from fringe.models._load import devices as devices
from fringe.models._load import resolve_device as resolve_device
from fringe.models._load import usable_device as usable_device
from fringe.models._preprocessing import Preprocessing
from fringe.models._python import run_file as run_file
from fringe.models._python import stated_preprocessing as stated_preprocessing
from fringe.models._torchvision import import_torchvision as import_torchvision
from fringe.models._transformers import import_transformers as import_transformers
from fringe.models._transformers import is_text_model as is_text_model
from fringe.models._transformers import load_text_model as load_text_model

__all__ = ["LoadedModel", "Preprocessing", "load_model"]
