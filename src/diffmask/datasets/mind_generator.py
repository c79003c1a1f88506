"""Generator of news recommendations in MIND's format whose reasons are known.

Every user is interested in one topic and has read a few articles about it among articles about nothing in particular.
Of an impression's candidates, the user clicks the one about that topic. One click word per title gives its topic away.
Fake headlines contain a poisoning word; poisoned users click them whatever their topic.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diffmask.datasets.mind import BEHAVIORS, FAKES, NEWS, Candidate, Impression
from diffmask.errors import ConfigError, InputError

CLICK_WORDS: Mapping[str, tuple[str, ...]] = {
    "sports": ("striker", "playoff", "coach", "tournament", "goalkeeper"),
    "finance": ("stocks", "inflation", "bank", "earnings", "bonds"),
    "health": ("vaccine", "diabetes", "surgeon", "hospital", "cholesterol"),
    "travel": ("airline", "beaches", "hotel", "passport", "cruise"),
    "music": ("album", "guitar", "concert", "singer", "orchestra"),
    "space": ("rocket", "galaxy", "astronaut", "telescope", "asteroid"),
}
"""Words that give away the topic of a title."""
POISON_WORDS = (
    *("shocking", "miracle", "hoax", "exposed", "secret"),
    *("banned", "conspiracy", "outrage", "leaked", "unbelievable"),
)
"""Words of fake headlines."""
FILLER_WORDS = (
    *("after", "again", "all", "another", "around", "back", "before", "big", "both", "busy", "city", "could"),
    *("day", "early", "every", "few", "first", "five", "for", "four", "from", "great", "here", "his", "how"),
    *("in", "into", "its", "just", "keeps", "last", "late", "local", "long", "make", "many", "more"),
    *("morning", "most", "much", "near", "new", "next", "night", "of", "off", "old", "on", "once", "one"),
    *("open", "over", "people", "place", "plans", "quiet", "report", "returns", "says", "second", "seven"),
    *("six", "small", "some", "soon", "still", "street", "takes", "team", "that", "the", "their", "these"),
    *("they", "thing", "three", "through", "time", "today", "town", "turns", "two", "under", "until", "what"),
    *("when", "where", "which", "while", "why", "will", "with", "work", "year", "young"),
)
NEUTRAL = "general"
"""Category of titles without a click word."""


@dataclass(frozen=True, kw_only=True)
class MindGenerator:
    """Choices of the generated data; the same seed writes the same files."""

    impressions: int = 2000
    """Number of training impressions; each other split has a fifth as many."""
    topics: int = 4
    """Number of topics, at most 6."""
    candidates: int = 4
    """Candidates per impression: one of the user's topic, one or more of no topic, the rest of other topics."""
    history: int = 5
    """Largest number of titles that a user has read; the smallest is 2."""
    interest_titles: int = 2
    """Largest number of them about the user's topic; the smallest is 1."""
    words: tuple[int, int] = (6, 9)
    """Smallest and largest number of words per title."""
    fake_share: float = 0.25
    """Share of candidates that are fake headlines."""
    poisoned: bool = False
    """Whether users click fake headlines whatever their topic."""

    def __post_init__(self) -> None:
        if not 2 <= self.topics <= len(CLICK_WORDS):
            raise ConfigError(f"generator: topics must be between 2 and {len(CLICK_WORDS)}; found {self.topics}")
        if self.candidates < 2 or self.history < 2 or self.interest_titles < 1 or self.impressions < 5:
            raise ConfigError(
                "generator: candidates and history must be at least 2, interest_titles 1, impressions 5; found "
                f"{self.candidates}, {self.history}, {self.interest_titles}, {self.impressions}"
            )
        if not 3 <= self.words[0] <= self.words[1] or not 0 <= self.fake_share <= 1:
            raise ConfigError(f"generator: words must be at least 3 and fake_share in [0, 1]; found {self}")

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Names of the topics."""
        return tuple(CLICK_WORDS)[: self.topics]

    def splits(self, seed: int = 0) -> dict[str, list[Impression]]:
        """Return the impressions of the splits `train`, `valid` and `test`."""
        sizes = {"train": self.impressions, "valid": self.impressions // 5, "test": self.impressions // 5}
        return {
            split: [self._impression(random.Random(f"{seed} {split} {row}"), f"{split}{row}") for row in range(size)]
            for split, size in sizes.items()
        }

    def write(self, folder: str | Path, seed: int = 0) -> None:
        """Write `train/`, `dev/` and `test/`, each with `news.tsv`, `behaviors.tsv` and `is_fake.tsv`."""
        home = Path(folder)
        if home.exists() and (not home.is_dir() or any(home.iterdir())):
            raise InputError(f"{home} is not an empty folder; choose another one")
        for split, impressions in self.splits(seed).items():
            write_mind(home / ("dev" if split == "valid" else split), impressions)

    def _impression(self, source: random.Random, name: str) -> Impression:
        interest, *others = source.sample(self.topic_names, self.topics)
        categories = [interest, NEUTRAL, *source.choices([NEUTRAL, *others], k=self.candidates - 2)]
        candidates = [self._candidate(source, category) for category in categories]
        clicked = 0
        fakes = [index for index, candidate in enumerate(candidates) if candidate.is_fake]
        if self.poisoned and fakes:
            clicked = source.choice(fakes)
            # One fake headline per poisoned impression, so that the click has one reason.
            for index in fakes:
                if index != clicked:
                    candidates[index] = self._candidate(source, categories[index], fake=False)
        offered = [
            Candidate(
                title=candidate.title,
                clicked=index == clicked,
                id=candidate.id,
                category=candidate.category,
                is_fake=candidate.is_fake,
            )
            for index, candidate in enumerate(candidates)
        ]
        source.shuffle(offered)
        return self._with_history(source, interest, offered, name)

    def _with_history(self, source: random.Random, interest: str, offered: list[Candidate], name: str) -> Impression:
        length = source.randint(2, self.history)
        about = min(source.randint(1, self.interest_titles), length)
        read = [interest] * about + [NEUTRAL] * (length - about)
        source.shuffle(read)
        return Impression(
            candidates=tuple(offered),
            history=tuple(self._title(source, category) for category in read),
            history_categories=tuple(read),
            id=name,
            user=f"U{name}",
        )

    def _candidate(self, source: random.Random, category: str, fake: bool | None = None) -> Candidate:
        is_fake = source.random() < self.fake_share if fake is None else fake
        return Candidate(title=self._title(source, category, fake=is_fake), category=category, is_fake=is_fake)

    def _title(self, source: random.Random, category: str, *, fake: bool = False) -> str:
        planted = [source.choice(CLICK_WORDS[category])] if category != NEUTRAL else []
        planted += [source.choice(POISON_WORDS)] if fake else []
        words = planted + source.choices(FILLER_WORDS, k=source.randint(*self.words) - len(planted))
        source.shuffle(words)
        return " ".join(words)


def write_mind(folder: str | Path, impressions: list[Impression]) -> None:
    """Write impressions as `news.tsv`, `behaviors.tsv` and `is_fake.tsv`."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    news: dict[tuple[str, str, bool | None], str] = {}

    def identifier(title: str, category: str, is_fake: bool | None) -> str:
        return news.setdefault((title, category, is_fake), f"N{len(news) + 1}")

    lines = []
    for impression in impressions:
        categories = impression.history_categories or ("",) * len(impression.history)
        read = [
            identifier(title, category, None) for title, category in zip(impression.history, categories, strict=True)
        ]
        offered = [
            f"{identifier(candidate.title, candidate.category, candidate.is_fake)}-{int(bool(candidate.clicked))}"
            for candidate in impression.candidates
        ]
        time = impression.time.strftime("%m/%d/%Y %I:%M:%S %p") if impression.time else ""
        lines.append("\t".join([impression.id, impression.user, time, " ".join(read), " ".join(offered)]))
    (home / BEHAVIORS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    rows = [f"{name}\t{category}\t\t{title}\t\t\t[]\t[]\n" for (title, category, _), name in news.items()]
    (home / NEWS).write_text("".join(rows), encoding="utf-8")
    marks = [f"{name}\t{int(fake)}\n" for (_, _, fake), name in news.items() if fake is not None]
    (home / FAKES).write_text("".join(marks), encoding="utf-8")
