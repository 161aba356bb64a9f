"""Text classifiers as functions of embeddings, and attributions per word."""

from fringe.text._classifier import TextClassifier as TextClassifier
from fringe.text._classifier import merge_words as merge_words
