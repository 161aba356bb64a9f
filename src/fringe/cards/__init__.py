"""Cards of attribution methods: its assumptions, cost, scores and failures, measured by this library."""

from fringe.cards._card import card_of_run as card_of_run
from fringe.cards._card import describe_card as describe_card
from fringe.cards._card import failures as failures
from fringe.cards._card import summarise_measurement as summarise_measurement
from fringe.cards._card import write_card as write_card
from fringe.cards._measure import SCENES_OF_CARDS as SCENES_OF_CARDS
from fringe.cards._measure import Card as Card
from fringe.cards._measure import Measurement as Measurement
from fringe.cards._measure import verify as verify
from fringe.cards._target import read_target as read_target

__all__ = ["Card", "card_of_run", "read_target", "verify", "write_card"]
