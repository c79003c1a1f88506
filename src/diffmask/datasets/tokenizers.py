"""From a text to its words, as each data set was read. Madsen et al. 2022, appendix B.

Texts as words: what a model with a vocabulary of its own reads.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffmask.datasets.tables import DataSet, Example

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


PAD, CLS, EOS, MASK, UNKNOWN = range(5)
SPECIAL = ("[PAD]", "[CLS]", "[EOS]", "[MASK]", "[UNK]")


@dataclass(frozen=True)
class TokenizedExample:
    """One text, or a text and what is asked of it, as words, with its class."""

    words: tuple[str, ...]
    pair: tuple[str, ...] | None
    label: int
    evidence: tuple[bool, ...] = ()
    """Whether the label depends on each word, where that is known; else empty."""


@dataclass(frozen=True, kw_only=True)
class TokenizedData:
    """Three splits, and what the classes are called."""

    train: Sequence[TokenizedExample]
    valid: Sequence[TokenizedExample]
    test: Sequence[TokenizedExample]
    names: tuple[str, ...]

    def splits(self) -> dict[str, Sequence[TokenizedExample]]:
        """The splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def tokenize_dataset(
    data: DataSet,
    tokenize: Callable[[str], list[str]],
    shortest: int = 1,
    longest: int | None = None,
) -> TokenizedData:
    """A data set's texts as words; those with fewer or more words than asked for are left out."""

    def kept(rows: Sequence[Example]) -> list[TokenizedExample]:
        read = (
            TokenizedExample(
                tuple(tokenize(row.text)), None if row.pair is None else tuple(tokenize(row.pair)), int(row.label)
            )
            for row in rows
        )
        return [text for text in read if shortest <= len(text.words) <= (longest or len(text.words))]

    return TokenizedData(train=kept(data.train), valid=kept(data.valid), test=kept(data.test), names=data.classes)


@dataclass(frozen=True)
class Vocabulary:
    """Words by number, five special ones first."""

    words: tuple[str, ...]

    @staticmethod
    def of(texts: Iterable[TokenizedExample], min_count: int = 1) -> "Vocabulary":
        """The words that at least `min_count` texts hold, in the order in which they first occur.

        >>> Vocabulary.of([TokenizedExample(("a", "b", "a"), ("b", "c"), 0)]).words[5:]
        ('a', 'b', 'c')
        """
        texts_with: Counter[str] = Counter()
        for text in texts:
            # dict.fromkeys, not set: the order must not depend on the interpreter's hash seed.
            texts_with.update(dict.fromkeys((*text.words, *(text.pair or ()))).keys())
        return Vocabulary((*SPECIAL, *(word for word, count in texts_with.items() if count >= min_count)))

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, words: Sequence[str], numbered: Mapping[str, int]) -> list[int]:
        """A text's words as numbers, between [CLS] and [EOS]."""
        return [CLS, *(numbered.get(word, UNKNOWN) for word in words), EOS]

    def numbered(self) -> dict[str, int]:
        """Each word's number; what stands for a special token in a text is an unknown word."""
        return {word: number for number, word in enumerate(self.words) if number >= len(SPECIAL)}
