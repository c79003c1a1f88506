"""From a text to its words, as each data set was read. Madsen et al. 2022, appendix B."""

import re

DIGITS = "[DIGITS]"
_WORDS = re.compile(r"\[DIGITS\]|<de>|\w+(?=n't)|n't|'\w+|\w+|[^\w\s]")
_KERAS = re.compile(r"[!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~\t\n]")


def split_words(text: str) -> list[str]:
    """Lower-case words, with contractions and punctuation apart.

    >>> split_words("He doesn't, does he?")
    ['he', 'does', "n't", ',', 'does', 'he', '?']
    """
    return _WORDS.findall(text.lower())


def without_punctuation(text: str) -> list[str]:
    """Lower-case words, everything between them left out: the Sentiment Treebank.

    >>> without_punctuation("A gem -LRB- of sorts -RRB- , really")
    ['a', 'gem', 'of', 'sorts', 'really']
    """
    return re.sub(r"\W+", " ", re.sub(r"-[LR]RB-", " ", text)).lower().split()


def with_digits_hidden(text: str) -> list[str]:
    """Words, every one with a digit in it replaced: SNLI.

    >>> with_digits_hidden("In 2004 it rained")
    ['in', '[DIGITS]', 'it', 'rained']
    """
    return [DIGITS if any(letter.isdigit() for letter in word) else word for word in split_words(text)]


def review_words(text: str) -> list[str]:
    """Lower-case words without punctuation, markup left out: IMDB as Keras reads it.

    >>> review_words("Great!<br />Just great.")
    ['great', 'just', 'great']
    """
    return _KERAS.sub(" ", text.lower().replace("<br />", " ")).split()


def note_words(text: str) -> list[str]:
    """Words of a clinical note: what was blacked out is `<de>`, repeated signs are one, digits are hidden.

    >>> note_words("Mr. [**Known 12**] had 3 ---- episodes")
    ['mr', '.', '<de>', 'had', '[DIGITS]', '-', 'episodes']
    """
    hidden = re.sub(r"\[\*\*.*?\*\*\]", "<de>", text, flags=re.DOTALL)
    return with_digits_hidden(re.sub(r"([^a-zA-Z0-9])\1+", r"\1", hidden))
