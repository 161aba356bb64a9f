"""Classifiers of texts: a sentence as embeddings that can move, and its attribution by words."""

from fringe.text._classifier import EncodedTexts as EncodedTexts
from fringe.text._classifier import TextClassifier as TextClassifier
from fringe.text._words import merge_words as merge_words
