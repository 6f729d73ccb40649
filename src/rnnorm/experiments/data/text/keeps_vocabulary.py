"""Data of symbols whose numbers a checkpoint keeps."""

from __future__ import annotations

from typing import Any

from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.text.vocabulary import Vocabulary


class KeepsVocabulary(LoadedData):
    """Data whose symbols are numbered; checkpoints with other numbers are refused.

    Attributes:
        vocabulary: the symbols, once the data are loaded.
        source: what they are from, for the error.
    """

    vocabulary = Vocabulary(())
    source = ""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the data: their vocabulary."""
        return {"vocabulary": list(self.vocabulary.symbols)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint whose symbols had other numbers.

        Raises:
            ValueError: the vocabularies differ.
        """
        if "vocabulary" in state_dict:
            self.vocabulary.check_same(state_dict["vocabulary"], self.source)
