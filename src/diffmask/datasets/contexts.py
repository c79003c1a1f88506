"""Prompts with contexts and, where the data set states it, the evidence that decides the answer.

Each row is a mapping with `documents`, `question`, `evidence` (the deciding texts) and `answer` (a word of a right
response). `read_documents` and `read_messages` read the user's own contexts.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from diffmask.datasets.planted_facts import planted_facts
from diffmask.datasets.tables import read_table
from diffmask.errors import InputError, nearest

Row = dict[str, Any]
DISTRACTORS = 5
"""Passages of other questions that are added to a gold or poisoned passage."""


def _read(path: Path) -> Any:
    """Return the JSON of a file, or the list of its JSON lines; `.gz` is unpacked."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if ".jsonl" in path.suffixes:
            return [json.loads(line) for line in raw.decode().splitlines() if line.strip()]
        return json.loads(raw)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error


def gold_passages(path: Path, distractors: int = DISTRACTORS) -> Iterator[Row]:
    """Yield questions of Natural Questions with the gold passage among passages of other questions."""
    rows = _read(path)
    source = random.Random(0)
    for row in rows:
        gold = row["ctxs"][0]["text"]
        others = [other["ctxs"][0]["text"] for other in source.sample(rows, distractors + 1) if other is not row]
        documents = [*others[:distractors], gold]
        source.shuffle(documents)
        yield {"documents": documents, "question": row["question"], "evidence": [gold], "answer": row["answers"][0]}


def key_value_pairs(path: Path, pairs: int = 6) -> Iterator[Row]:
    """Yield questions for the value of one key among `pairs` of a row (Liu et al. 2024)."""
    source = random.Random(0)
    for row in _read(path):
        others = [pair for pair in row["ordered_kv_records"] if pair[0] != row["key"]][: pairs - 1]
        records = [*others, [row["key"], row["value"]]]
        source.shuffle(records)
        lines = {key: f"{key}: {value}" for key, value in records}
        yield {
            "documents": list(lines.values()),
            "question": f"What is the value of the key {row['key']}?",
            "evidence": [lines[row["key"]]],
            "answer": row["value"],
        }


def supporting_facts(path: Path) -> Iterator[Row]:
    """Yield questions of HotpotQA with their paragraphs; the supporting sentences are the evidence."""
    for row in _read(path):
        sentences = {
            (title, number): text.strip() for title, texts in row["context"] for number, text in enumerate(texts)
        }
        evidence = [
            sentences[title, number]
            for title, number in map(tuple, row["supporting_facts"])
            if (title, number) in sentences
        ]
        documents = ["".join(texts).strip() for _, texts in row["context"]]
        yield {"documents": documents, "question": row["question"], "evidence": evidence, "answer": row["answer"]}


def poisoned_passages(path: Path, distractors: int = DISTRACTORS) -> Iterator[Row]:
    """Yield questions with one passage that argues for a wrong answer, among those of others (Zou et al. 2024).

    `answer` is the wrong answer: a response that contains it was fooled.
    """
    rows = list(_read(path).values())
    source = random.Random(0)
    for row in rows:
        poison = row["adv_texts"][0]
        others = [other["adv_texts"][0] for other in source.sample(rows, distractors + 1) if other is not row]
        documents = [*others[:distractors], poison]
        source.shuffle(documents)
        question = f"{row['question']}?"
        yield {"documents": documents, "question": question, "evidence": [poison], "answer": row["incorrect answer"]}


def _planted(count: int, seed: int) -> list[Row]:
    return [
        {"documents": [fact.document], "question": fact.question, "evidence": [fact.sentence], "answer": fact.answer}
        for fact in planted_facts(count, seed)
    ]


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    "nq-gold": gold_passages,
    "kv-retrieval": key_value_pairs,
    "hotpotqa": supporting_facts,
    "poisoned-nq": poisoned_passages,
}


def load_prompts(name: str) -> dict[str, list[Row]]:
    """Return prompts by split: `planted-facts:COUNT`, a known data set such as `nq-gold:FILE`, or a table.

    Planted facts have as many training prompts as test prompts. The rows of a file are shared out in turn, half of them
    to train and half to test. Columns of a table: documents (a list), question, and, if known, response and evidence.
    """
    kind, _, where = name.partition(":")
    if kind == "planted-facts":
        if where and not where.isdecimal():
            raise InputError(f"'{name}': write the number of prompts after the colon, such as planted-facts:100")
        count = int(where or 100)
        return {"train": _planted(count, 1), "test": _planted(count, 0)}
    if kind in READERS and where:
        rows = list(READERS[kind](_existing(where)))
    elif Path(name).is_file():
        rows = [dict(row) for row in read_table(Path(name))]
    else:
        known = ["planted-facts", *(f"{kind}:FILE" for kind in READERS)]
        raise InputError(f"'{name}' is neither a data set of prompts nor a table; {nearest(name, known)}")
    return {"train": rows[::2], "test": rows[1::2]}


def _existing(path: str) -> Path:
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such file")
    return Path(path)


def read_documents(path: Path, text_column: str = "text") -> list[str]:
    """Return the documents of a table, or of a text file, where empty lines separate them."""
    if not path.is_file():
        raise InputError(f"--documents {path}: there is no such file")
    if path.suffix == ".txt":
        documents = [text.strip() for text in path.read_text(encoding="utf-8").split("\n\n") if text.strip()]
    else:
        documents = [_cell(row, text_column, path, number) for number, row in enumerate(read_table(path), start=1)]
    if not documents:
        raise InputError(f"{path} has no documents")
    return documents


def _cell(row: Any, column: str, path: Path, number: int) -> str:
    if column not in row:
        raise InputError(f"{path}, row {number}: no column '{column}', but {', '.join(row)}; give --text-column")
    if not isinstance(row[column], str):
        raise InputError(f"{path}, row {number}: '{column}' is not a text")
    text: str = row[column]
    return text


def read_messages(path: Path) -> dict[str, Any]:
    """Return the chat messages of a JSON file, and the tools of a request `{"messages": [...], "tools": [...]}`."""
    try:
        request = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--messages {path} cannot be read as JSON: {error}") from error
    fields = request if isinstance(request, dict) else {"messages": request}
    if not isinstance(fields.get("messages"), list) or not fields["messages"]:
        raise InputError(
            f"--messages {path} is neither a list of chat messages nor an object with messages and, if any, tools"
        )
    return {name: fields[name] for name in ("messages", "tools") if fields.get(name)}
