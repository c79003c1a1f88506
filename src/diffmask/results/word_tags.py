"""Part of speech and entity type of words, by a spaCy pipeline in the language of the texts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from diffmask.errors import ExtraError, InputError, nearest

TAGS: Mapping[str, Callable[[Any], str]] = {
    "part-of-speech": lambda token: token.pos_,
    "entity-type": lambda token: token.ent_type_,
}
"""How a tag is read from a token of spaCy."""
COMPONENTS = {"part-of-speech": ("tagger", "morphologizer"), "entity-type": ("ner",)}
"""Components of a pipeline that assign the tags; a pipeline has at least one of them."""
NO_ENTITY = "no entity"
INSTALL = "pip install 'diffmask[tags]'; python -m spacy download en_core_web_sm"


class WordTagger:
    """Tags of the words of a text: universal parts of speech in words ("proper noun"), or types of named entities.

    Args:
        kind: "part-of-speech" or "entity-type".
        pipeline: Name of an installed spaCy pipeline; by default the only one, or the first for English.
    """

    def __init__(self, kind: str, pipeline: str | None = None) -> None:
        self.kind = kind
        self.pipeline = pipeline

    def tag(self, texts: Iterable[Sequence[str]]) -> Iterator[list[str]]:
        """Yield the tag of each word, text by text; the pipeline reads several texts at once."""
        nlp = self._nlp
        from spacy.glossary import GLOSSARY
        from spacy.tokens import Doc

        for document in nlp.pipe(Doc(nlp.vocab, words=list(words)) for words in texts):
            tags = [TAGS[self.kind](token) for token in document]
            yield [tag or NO_ENTITY if self.kind == "entity-type" else GLOSSARY.get(tag, tag) for tag in tags]

    @cached_property
    def _nlp(self) -> Any:
        try:
            import spacy
        except ImportError:
            raise ExtraError(f"by='{self.kind}' needs spaCy and a pipeline: {INSTALL}") from None
        installed = sorted(spacy.util.get_installed_models())
        nlp = spacy.load(self._name(installed), exclude=["parser", "lemmatizer"])
        if not set(COMPONENTS[self.kind]) & set(nlp.pipe_names):
            raise InputError(f"the spaCy pipeline {nlp.meta['name']} assigns no {self.kind}; it has {nlp.pipe_names}")
        return nlp

    def _name(self, installed: Sequence[str]) -> str:
        if self.pipeline in installed:
            return str(self.pipeline)
        if self.pipeline is not None:
            raise InputError(f"no spaCy pipeline '{self.pipeline}' is installed; {nearest(self.pipeline, installed)}")
        if not installed:
            raise ExtraError(f"no spaCy pipeline is installed: {INSTALL}; or give by= a function from a word")
        return next((name for name in installed if name.startswith("en_")), installed[0])
