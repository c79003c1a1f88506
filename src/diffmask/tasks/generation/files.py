"""Read documents and chat messages from files."""

import json
from pathlib import Path
from typing import Any

from diffmask.datasets.tables import read_table
from diffmask.errors import InputError


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


def read_messages(path: Path) -> list[dict[str, Any]]:
    """Return the chat messages of a JSON file."""
    try:
        messages = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--messages {path} cannot be read as JSON: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise InputError(f"--messages {path} is not a list of chat messages")
    return messages
