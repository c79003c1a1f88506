"""Longest silence of the README's commands, in a terminal and in a log.

Each command runs twice in a scratch folder: on a pseudo-terminal, where progress is a bar, and into a pipe, where it is
lines. A silence is the time between two writes, or before the first and after the last. Usage:

    python benchmarks/silence.py FOLDER                               # the README's commands that need no data
    python benchmarks/silence.py FOLDER "diffmask demo --out demo"    # these commands
"""

import argparse
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
NEEDS_DATA = ("docs.jsonl", "squad:", "sst", "mind:", "runs/toy")
"""Parts of commands whose files do not come with the package, or which run for hours."""


@dataclass(frozen=True)
class Timing:
    """Duration, longest silence and exit code of a command."""

    seconds: float
    silence: float
    before: str
    """Last words before the longest silence."""
    code: int


def readme_commands() -> list[str]:
    """Return the commands of the README's code blocks that need no other data than the package's."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0].strip() for kind, block in blocks if not kind for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("diffmask ")]
    return [command for command in commands if not any(part in command for part in NEEDS_DATA)]


def measure(command: str, folder: Path, log: Path, *, terminal: bool) -> Timing:
    """Run a command and time the writes to its standard output and error; the text goes to `log` with times."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    words = [str(Path(sys.executable).parent / "diffmask"), *shlex.split(command)[1:]]
    start = last = time.monotonic()
    process = subprocess.Popen(words, cwd=folder, stdout=writer, stderr=writer, stdin=subprocess.DEVNULL)
    os.close(writer)
    silence, before, latest = 0.0, "(start)", "(start)"
    with log.open("wb", buffering=0) as record:
        while True:
            ready, _, _ = select.select([reader], [], [], 0.5)
            try:
                text = os.read(reader, 65_536) if ready else None
            except OSError:  # a terminal whose program has ended
                text = b""
            if text is None:
                continue
            now = time.monotonic()
            if now - last > silence:
                silence, before = now - last, latest
            last, latest = now, (text.decode(errors="replace").strip().splitlines() or [latest])[-1][-80:]
            if not text:
                break
            record.write(f"[{now - start:6.1f} s] ".encode() + text)
    os.close(reader)
    return Timing(time.monotonic() - start, silence, before, process.wait())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Scratch folder, without the outputs of an earlier run.")
    parser.add_argument("commands", nargs="*", help="By default those of the README.")
    parser.add_argument("--kinds", default="terminal,log")
    options = parser.parse_args()
    worst = 0.0
    for kind in options.kinds.split(","):
        home = options.folder / kind
        home.mkdir(parents=True, exist_ok=True)
        _write_reviews(home / "reviews.csv")
        for number, command in enumerate(options.commands or readme_commands()):
            found = measure(command, home, home / f"{number}.txt", terminal=kind == "terminal")
            worst = max(worst, found.silence)
            print(
                f"{kind}: {command}\n    exit {found.code}, {found.seconds:.0f} s, longest silence "
                f"{found.silence:.1f} s, after: {found.before}",
                flush=True,
            )
    print(f"longest silence: {worst:.1f} s")


def _write_reviews(path: Path) -> None:
    """Write the README's `reviews.csv`: the packaged short reviews."""
    import csv

    from diffmask.datasets.loading import load_data
    from diffmask.datasets.tables import Columns

    data = load_data("short-reviews", Columns())
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["text", "label"])
        rows.writerows((row.text, row.label) for split in (data.train, data.valid, data.test) for row in split)


if __name__ == "__main__":
    main()
