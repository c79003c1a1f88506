"""Tokenizers and vocabulary of models that are trained from scratch on words. Madsen et al. 2022, appendix B.

Each data set of NLP-ROAR has its own rules; a tokenizer here is a function from a text to its words.
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
    """Split a text into lower-case words, contractions and punctuation marks.

    >>> split_words("He doesn't, does he?")
    ['he', 'does', "n't", ',', 'does', 'he', '?']
    """
    return _WORDS.findall(text.lower())


def sst_words(text: str) -> list[str]:
    """Split a sentence of the Sentiment Treebank into lower-case words without punctuation.

    >>> sst_words("A gem -LRB- of sorts -RRB- , really")
    ['a', 'gem', 'of', 'sorts', 'really']
    """
    return re.sub(r"\W+", " ", re.sub(r"-[LR]RB-", " ", text)).lower().split()


def snli_words(text: str) -> list[str]:
    """Split a sentence of SNLI into words, and replace every word that contains a digit.

    >>> snli_words("In 2004 it rained")
    ['in', '[DIGITS]', 'it', 'rained']
    """
    return [DIGITS if any(letter.isdigit() for letter in word) else word for word in split_words(text)]


def imdb_words(text: str) -> list[str]:
    """Split a review of IMDB into lower-case words without punctuation and markup, as Keras does.

    >>> imdb_words("Great!<br />Just great.")
    ['great', 'just', 'great']
    """
    return _KERAS.sub(" ", text.lower().replace("<br />", " ")).split()


def mimic_words(text: str) -> list[str]:
    """Split a clinical note into words; de-identified spans become `<de>`, repeated signs one, digits are replaced.

    >>> mimic_words("Mr. [**Known 12**] had 3 ---- episodes")
    ['mr', '.', '<de>', 'had', '[DIGITS]', '-', 'episodes']
    """
    deidentified = re.sub(r"\[\*\*.*?\*\*\]", "<de>", text, flags=re.DOTALL)
    return snli_words(re.sub(r"([^a-zA-Z0-9])\1+", r"\1", deidentified))


PAD, CLS, EOS, MASK, UNKNOWN = range(5)
SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[EOS]", "[MASK]", "[UNK]")


@dataclass(frozen=True)
class TokenizedExample:
    """Words of a text, or of a text and a question, with the index of its class."""

    words: tuple[str, ...]
    pair: tuple[str, ...] | None
    label: int
    evidence: tuple[bool, ...] = ()
    """Whether the label depends on each word; empty if that is unknown."""


@dataclass(frozen=True, kw_only=True)
class TokenizedData:
    """Tokenized examples of the three splits, and the names of the classes."""

    train: Sequence[TokenizedExample]
    valid: Sequence[TokenizedExample]
    test: Sequence[TokenizedExample]
    names: tuple[str, ...]

    def splits(self) -> dict[str, Sequence[TokenizedExample]]:
        """Return the splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def tokenize_dataset(
    data: DataSet,
    tokenize: Callable[[str], list[str]],
    min_words: int = 1,
    max_words: int | None = None,
) -> TokenizedData:
    """Tokenize the texts of a data set and drop those with fewer than `min_words` or more than `max_words`."""

    def tokenized(rows: Sequence[Example]) -> list[TokenizedExample]:
        examples = (
            TokenizedExample(
                tuple(tokenize(row.text)), None if row.pair is None else tuple(tokenize(row.pair)), int(row.label)
            )
            for row in rows
        )
        return [text for text in examples if min_words <= len(text.words) <= (max_words or len(text.words))]

    return TokenizedData(
        train=tokenized(data.train), valid=tokenized(data.valid), test=tokenized(data.test), names=data.classes
    )


@dataclass(frozen=True)
class Vocabulary:
    """Words by index, five special tokens first."""

    words: tuple[str, ...]

    @staticmethod
    def of(texts: Iterable[TokenizedExample], min_count: int = 1) -> "Vocabulary":
        """Return the words that at least `min_count` texts contain, in the order of their first occurrence.

        >>> Vocabulary.of([TokenizedExample(("a", "b", "a"), ("b", "c"), 0)]).words[5:]
        ('a', 'b', 'c')
        """
        document_count: Counter[str] = Counter()
        for text in texts:
            # dict.fromkeys, not set: the order must not depend on the interpreter's hash seed.
            document_count.update(dict.fromkeys((*text.words, *(text.pair or ()))).keys())
        return Vocabulary((*SPECIAL_TOKENS, *(word for word, count in document_count.items() if count >= min_count)))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str], index: Mapping[str, int]) -> list[int]:
        """Return the token ids of a text, between [CLS] and [EOS]; `index` comes from `index_by_word`."""
        return [CLS, *(index.get(word, UNKNOWN) for word in words), EOS]

    def index_by_word(self) -> dict[str, int]:
        """Return the id of each word; a special token that a text spells out is an unknown word."""
        return {word: number for number, word in enumerate(self.words) if number >= len(SPECIAL_TOKENS)}
