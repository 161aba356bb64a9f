"""Models: one string names a classifier, and is loaded with its preprocessing, class names and digest.

>>> model = load_model("embedded:digits")
>>> model.architecture, model.preprocessing.resize
('digits', (32, 32))
"""

from fringe.errors import ModelError
from fringe.models._base import Answers, rounding_of, seeded, state_digest
from fringe.models._digits import DIGIT_NAMES, DIGIT_PREPROCESSING, DigitNet
from fringe.models._efficientnet import NAME as EFFICIENTNET
from fringe.models._efficientnet import has_efficientnet
from fringe.models._hubs import BlueFirst, is_text_model, is_tokenizer, load_text_model, of_pipeline, preprocessing_of
from fringe.models._hubs import import_transformers as import_transformers
from fringe.models._load import LOADERS, LoadedModel, load_model, resolve_device, usable_device
from fringe.models._preprocessing import Preprocessing
from fringe.models._python import beside, run_file, stated_names, stated_preprocessing
from fringe.models._torchvision import import_torchvision

__all__ = ["LoadedModel", "Preprocessing", "load_model"]
