"""Templates: words in capitals, replaced by what they stand for."""

import re
from collections.abc import Mapping


def filled(text: str, words: Mapping[str, str]) -> str:
    """The text with whole words replaced.

    >>> filled("cd NAME && ls NAMES", {"NAME": "wards"})
    'cd wards && ls NAMES'
    """
    any_word = "|".join(words)

    def meaning(word: re.Match[str]) -> str:
        return words[word[0]]

    return re.sub(rf"\b({any_word})\b", meaning, text)
