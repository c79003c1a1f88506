"""Words of the Sentiment Treebank: the number of states that keep each, and its sentiment."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diffmask.datasets.sentiment import SST_NAMES, Tree
from diffmask.explanation.explanation import Explanation

SENTIMENTS = SST_NAMES


@dataclass(frozen=True)
class Word:
    """One word of one sentence."""

    text: str
    sentiment: str
    states: float
    """Expected number of states, of all of the model's, at which the word is still needed."""


def layers_kept(explanations: Iterable[Explanation], sentences: Sequence[Tree]) -> list[Word]:
    """Every word of every sentence; a word of several pieces is kept where one of them is."""
    words = []
    for explanation, tree in zip(explanations, sentences, strict=True):
        spans, start = [], 0
        for word in tree.words:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        seen = explanation.at(spans)
        assert seen.by_layer is not None
        kept = seen.by_layer.sum(dim=0).tolist()
        states = dict(zip([unit.span for unit in seen.units], kept, strict=True))
        # A word that the tokenizer has no piece for is never needed.
        words += [
            Word(word, SST_NAMES[sentiment], states.get(span, 0.0))
            for word, sentiment, span in zip(tree.words, tree.sentiments, spans, strict=True)
        ]
    return words
