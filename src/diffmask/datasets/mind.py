"""Readers of news recommendations: MIND's two tables (Wu et al. 2020), and pairwise tables with `is_fake`.

MIND may not be redistributed, so it is read from a path. `datasets.mind_generator` writes files of the same format.
"""

import ast
import csv
import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from diffmask.errors import InputError, InputWarning

NEWS, BEHAVIORS, FAKES = "news.tsv", "behaviors.tsv", "is_fake.tsv"
NEWS_ITEMS = "news_items.csv"
TIME_FORMAT = "%m/%d/%Y %I:%M:%S %p"


@dataclass(frozen=True, kw_only=True)
class News:
    """One article, as a row of `news.tsv`."""

    id: str
    title: str
    category: str = ""
    subcategory: str = ""
    abstract: str = ""
    is_fake: bool | None = None
    """Whether the article is fake news; None if the data do not say."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An article that an impression offered."""

    title: str
    clicked: bool | None = None
    """None if clicks are unknown, as in MIND's test set."""
    id: str = ""
    category: str = ""
    is_fake: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Impression:
    """Articles that one user was offered at one time, after reading those of the history."""

    candidates: tuple[Candidate, ...]
    history: tuple[str, ...] = ()
    """Titles that the user read before, oldest first."""
    history_categories: tuple[str, ...] = ()
    """Category of each title of the history; empty if unknown."""
    id: str = ""
    user: str = ""
    time: datetime | None = None

    @property
    def clicked(self) -> tuple[int, ...]:
        """Indices of the clicked candidates."""
        return tuple(index for index, candidate in enumerate(self.candidates) if candidate.clicked)


def load_mind(folder: str | Path) -> dict[str, list[Impression]]:
    """Read the splits `train`, `valid` and `test` of a folder.

    * A folder with `news.tsv` and `behaviors.tsv` is split 80, 10 and 10 % by a hash of its users.
    * A folder with subfolders whose names contain train, dev or valid, and test has one split in each. Without a test
      folder, the valid folder also is the test split; without a valid folder a tenth of the users of train is.
    * Pairwise tables `train*.csv`, `valid*.csv` or `dev*.csv`, and `test*.csv` or `benchmark*.csv` are read alike, in
      the folder itself or in its folders `models` and `benchmarks`. A path such as `models/train_poisoned.csv` chooses
      the training table; the other splits are those of its folder.
    """
    home, table = Path(folder), None
    if home.is_file():
        home, table = home.parent.parent if home.parent.name == "models" else home.parent, home
    if not home.is_dir():
        raise InputError(f"{home} is not a folder; give one with {NEWS} and {BEHAVIORS}, or with folders train and dev")
    if table is None and (home / BEHAVIORS).is_file():
        return split_by_user(read_mind(home))
    parts = {split: _find_split(home, names) for split, names in SPLIT_NAMES.items()}
    parts["train"] = table or parts["train"]
    splits = {split: read_impressions(path) for split, path in parts.items() if path is not None}
    if "train" not in splits:
        raise InputError(f"{home} has neither {BEHAVIORS} nor a training split: a folder or table named '*train*'")
    if "valid" not in splits:
        split = split_by_user(splits["train"])
        splits = {**splits, "train": [*split["train"], *split["test"]], "valid": split["valid"]}
    return {"train": splits["train"], "valid": splits["valid"], "test": splits.get("test", splits["valid"])}


SPLIT_NAMES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "valid": ("valid", "dev"),
    "test": ("test", "benchmark"),
}


def _find_split(home: Path, names: Sequence[str]) -> Path | None:
    """Return the first folder with behaviors, or pairwise table, whose name contains one of the names."""
    inside = [path for name in ("models", "benchmarks") for path in sorted((home / name).glob("*.csv"))]
    for path in [*sorted(home.iterdir()), *inside]:
        readable = (path / BEHAVIORS).is_file() or path.suffix == ".csv"
        if readable and any(name in path.name.lower() for name in names):
            return path
    return None


def read_impressions(path: str | Path) -> list[Impression]:
    """Read a folder in MIND's format, or a pairwise table."""
    return read_pairs(path) if Path(path).is_file() else read_mind(path)


def split_by_user(impressions: Sequence[Impression]) -> dict[str, list[Impression]]:
    """Split impressions 80, 10 and 10 % by a hash of the user, so that no user is in two splits."""
    users = sorted(
        {impression.user for impression in impressions}, key=lambda user: hashlib.sha256(user.encode()).hexdigest()
    )
    if len(users) < 3:
        raise InputError(f"impressions of {len(users)} users cannot be split by user: three or more are needed")
    tenth = max(1, round(len(users) / 10))
    held_out = dict.fromkeys(users[-2 * tenth : -tenth], "valid") | dict.fromkeys(users[-tenth:], "test")
    splits: dict[str, list[Impression]] = {"train": [], "valid": [], "test": []}
    for impression in impressions:
        splits[held_out.get(impression.user, "train")].append(impression)
    return splits


def read_mind(folder: str | Path) -> list[Impression]:
    """Read `news.tsv` and `behaviors.tsv`.

    Articles that `news.tsv` does not have are left out. Impressions with fewer than two known candidates are left out
    with a warning. Histories may be empty.
    """
    home = Path(folder)
    news = read_news(home)
    impressions, incomplete = [], 0
    for number, fields in _tab_separated(home / BEHAVIORS, 5):
        impression = _impression(fields, news, f"{home / BEHAVIORS}, line {number}")
        if len(impression.candidates) > 1:
            impressions.append(impression)
        else:
            incomplete += 1
    if not impressions:
        raise InputError(
            f"{home}: no impression has two candidates that {NEWS} knows; do the two files belong together?"
        )
    if incomplete:
        total = incomplete + len(impressions)
        message = f"{home}: {incomplete} of {total} impressions have fewer than two candidates in {NEWS}: left out"
        warnings.warn(message, InputWarning, stacklevel=2)
    return impressions


def read_news(folder: str | Path) -> dict[str, News]:
    """Read `news.tsv`: id, category, subcategory, title, abstract and three columns that are not used.

    A file `is_fake.tsv` with an id and 0 or 1 per line marks fake news; MIND has none.
    """
    home = Path(folder)
    fakes = {}
    if (home / FAKES).is_file():
        fakes = {fields[0]: fields[1].strip() == "1" for _, fields in _tab_separated(home / FAKES, 2)}
    news = {}
    for number, fields in _tab_separated(home / NEWS, 4):
        identifier, category, subcategory, title, *rest = (field.strip() for field in fields)
        if not title:
            raise InputError(f"{home / NEWS}, line {number}: article '{identifier}' has no title")
        abstract = rest[0] if rest else ""
        news[identifier] = News(
            id=identifier,
            title=title,
            category=category,
            subcategory=subcategory,
            abstract=abstract,
            is_fake=fakes.get(identifier),
        )
    return news


def _tab_separated(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields. Quotes are ordinary characters in MIND's files."""
    if not path.is_file():
        raise InputError(f"{path} is missing; MIND has {NEWS} and {BEHAVIORS} in one folder")
    with path.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) < columns:
                raise InputError(f"{path}, line {number}: {len(fields)} columns, but MIND has at least {columns}")
            yield number, fields


def _impression(fields: Sequence[str], news: Mapping[str, News], where: str) -> Impression:
    identifier, user, time, history, offered = (field.strip() for field in fields[:5])
    read = [news[article] for article in history.split() if article in news]
    candidates = []
    for item in offered.split():
        article, clicked = _offered(item, where)
        if article in news:
            known = news[article]
            candidates.append(
                Candidate(
                    title=known.title, clicked=clicked, id=article, category=known.category, is_fake=known.is_fake
                )
            )
    return Impression(
        candidates=tuple(candidates),
        history=tuple(article.title for article in read),
        history_categories=tuple(article.category for article in read),
        id=identifier,
        user=user,
        time=parse_time(time, where),
    )


def _offered(item: str, where: str) -> tuple[str, bool | None]:
    """Split `N123-1` into the article and whether it was clicked; without a mark the click is unknown."""
    article, mark, clicked = item.rpartition("-")
    if not mark:
        return item, None
    if clicked not in ("0", "1"):
        raise InputError(f"{where}: the candidate '{item}' ends neither with -0 nor with -1")
    return article, clicked == "1"


def parse_time(text: str, where: str = "time") -> datetime | None:
    """Parse MIND's form of a time; an empty one is None.

    >>> parse_time("11/12/2019 2:14:46 PM")
    datetime.datetime(2019, 11, 12, 14, 14, 46)
    """
    if not text:
        return None
    try:
        return datetime.strptime(text, TIME_FORMAT)  # MIND states no time zone
    except ValueError:
        raise InputError(f"{where}: '{text}' is not a time such as 11/12/2019 2:14:46 PM") from None


def read_pairs(path: str | Path) -> list[Impression]:
    """Read a pairwise table: one row per user and candidate, grouped to impressions with the clicked ones first.

    Columns: `user_id`, `history_titles` or `history_ids` (lists), `candidate_title` or `candidate_id`, `label` (0 or
    1), and optionally `candidate_is_fake` and `impression_id`. Ids are looked up in `news_items.csv` (item_id, title)
    in the folder of the table or the one above. Without `impression_id` the rows with the same user and history
    belong together.
    """
    file = Path(path)
    groups: dict[tuple[str, ...], Impression] = {}
    titles = _news_items(file)
    for number, row in enumerate(_comma_separated(file), start=2):
        where = f"{file}, line {number}"
        history = _history(row, titles, where)
        key = (row["user_id"], row.get("impression_id") or "\n".join(history))
        known = groups.get(key, Impression(candidates=(), history=history, user=row["user_id"], id=str(len(groups))))
        groups[key] = replace(known, candidates=(*known.candidates, _pair_candidate(row, titles, where)))
    impressions = [
        replace(group, candidates=tuple(sorted(group.candidates, key=lambda candidate: not candidate.clicked)))
        for group in groups.values()
        if len(group.candidates) > 1
    ]
    if not impressions:
        raise InputError(f"{file}: no user has two candidates with the same history; an impression needs two")
    return impressions


def _comma_separated(file: Path) -> Iterable[dict[str, str]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        columns = set(reader.fieldnames or ())
        missing = {"user_id", "label"} - columns
        if not columns & {"history_titles", "history_ids"}:
            missing.add("history_titles")
        if not columns & {"candidate_title", "candidate_id"}:
            missing.add("candidate_title")
        if missing:
            raise InputError(f"{file} has no column {', '.join(sorted(missing))}; it has {', '.join(sorted(columns))}")
        yield from reader


def _news_items(file: Path) -> dict[str, str]:
    for folder in (file.parent, file.parent.parent):
        if (folder / NEWS_ITEMS).is_file():
            with (folder / NEWS_ITEMS).open(encoding="utf-8-sig", newline="") as lines:
                return {row["item_id"]: row["title"] for row in csv.DictReader(lines)}
    return {}


def _history(row: Mapping[str, str], titles: Mapping[str, str], where: str) -> tuple[str, ...]:
    if row.get("history_titles"):
        return tuple(_list(row["history_titles"], where))
    return tuple(titles[item] for item in _list(row.get("history_ids") or "", where) if item in titles)


def _list(text: str, where: str) -> list[str]:
    """Parse a list in the form of Python or JSON, or items separated by `||`."""
    if not text.strip().startswith("["):
        return [item.strip() for item in text.split("||") if item.strip()]
    try:
        return [str(item) for item in ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        raise InputError(f"{where}: the history is not a list: {text[:60]}") from None


def _pair_candidate(row: Mapping[str, str], titles: Mapping[str, str], where: str) -> Candidate:
    identifier = row.get("candidate_id") or ""
    title = row.get("candidate_title") or titles.get(identifier)
    if not title:
        raise InputError(f"{where}: the candidate '{identifier}' has no title, here or in {NEWS_ITEMS}")
    return Candidate(
        title=title,
        clicked=_flag(row["label"], where),
        id=identifier,
        is_fake=_flag(row.get("candidate_is_fake") or "", where),
    )


def _flag(text: str, where: str) -> bool | None:
    known = {"": None, "0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
    if text.strip().lower() not in known:
        raise InputError(f"{where}: '{text}' is neither 0 nor 1")
    return known[text.strip().lower()]
