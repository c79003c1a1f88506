"""Words of the Sentiment Treebank: the number of states that keep each, its sentiment, its part of speech."""

import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    found = []
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
        found += [
            Word(word, SST_NAMES[sentiment], states.get(span, 0.0))
            for word, sentiment, span in zip(tree.words, tree.sentiments, spans, strict=True)
        ]
    return found


def parts_of_speech(sentences: Iterable[Tree], folder: Path) -> list[str]:
    """The universal tag of every word, by NLTK's perceptron tagger, read from the packed files in `folder`."""
    tagger, universal = _tagger(folder), _universal(folder)
    tags = [tag for tree in sentences for _, tag in tagger.tag(list(tree.words))]
    return [universal.get(tag, "X") for tag in tags]


def _tagger(folder: Path) -> Any:
    from nltk.tag.perceptron import PerceptronTagger

    tagger = PerceptronTagger(load=False)
    with zipfile.ZipFile(folder / "averaged_perceptron_tagger_eng.zip") as packed:
        parts = {
            Path(name).name.split(".")[-2]: json.loads(packed.read(name))
            for name in packed.namelist()
            if name.endswith(".json")
        }
    tagger.model.weights, tagger.tagdict, tagger.classes = parts["weights"], parts["tagdict"], set(parts["classes"])
    tagger.model.classes = tagger.classes
    return tagger


def _universal(folder: Path) -> dict[str, str]:
    with zipfile.ZipFile(folder / "universal_tagset.zip") as packed:
        name = next(name for name in packed.namelist() if name.endswith("en-ptb.map"))
        return dict(line.split("\t") for line in packed.read(name).decode().splitlines() if line)
