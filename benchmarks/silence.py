"""Longest silence of the README's commands, in a terminal and in a log.

Each command runs twice in a scratch folder: on a pseudo-terminal, where progress is a bar, and into a pipe, where it is
lines. A silence is the time between two writes, or before the first and after the last. Usage:

    python benchmarks/silence.py FOLDER                               # the README's commands
    python benchmarks/silence.py --data DATA --limit 90 FOLDER        # also those that need data, each for 90 s at most
    python benchmarks/silence.py FOLDER "diffmask demo --out demo"    # these commands

The README's commands use the packaged encoder and reviews. DATA holds the folders squad/ and sst/.
"""

import argparse
import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA_COMMANDS = (
    "diffmask explain clf/ --text 'A fast, funny, highly enjoyable movie.'",
    "diffmask explain explainer/ --data reviews.csv --out scores.parquet",
    "diffmask aggregate scores.parquet",
    "diffmask fit --model clf/ --data reviews.csv --method amortised --budget 30s --out fast/",
    "diffmask needs --model smollm2 --documents docs.jsonl --question 'Where does Maria live?'",
    "diffmask train --task question-answering --model minilm --data squad:{data}/squad --out qa/ rows=200 epochs=1",
    "diffmask roar --task sst --data {data}/sst --k 0 --seed 0",
    "diffmask demo --out demo/",
)
"""Commands that the README names without a block of their own, or with files of the reader."""
DOCUMENTS = ("Maria lives in Turin. She works in a bank.", "Paul lives in Rome.", "The bank opens at nine.")


@dataclass(frozen=True)
class Timing:
    """Duration, longest silence and exit code of a command."""

    seconds: float
    silence: float
    before: str
    """Last words before the longest silence."""
    code: int


def readme_commands() -> list[str]:
    """Return the commands of the README's code blocks, with the experiments of this repository."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0].strip() for kind, block in blocks if not kind for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("diffmask ")]
    return [command.replace(" experiments/", f" {ROOT}/experiments/") for command in commands]


def measure(command: str, folder: Path, log: Path, *, terminal: bool, limit: float | None = None) -> Timing:
    """Run a command and time the writes to its standard output and error; the text goes to `log` with times.

    After `limit` seconds the command is asked to end.
    """
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        termios.tcsetwinsize(writer, (24, 80))  # bars are not drawn in a terminal without a size
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
            now = time.monotonic()
            if limit is not None and now - start > limit:
                process.terminate()
                limit = None
            if text is None:
                continue
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
    parser.add_argument("--data", type=Path, help="Folder with the data sets squad/ and sst/.")
    parser.add_argument("--limit", type=float, help="End each command after so many seconds.")
    options = parser.parse_args()
    worst = 0.0
    for kind in options.kinds.split(","):
        home = options.folder / kind
        home.mkdir(parents=True, exist_ok=True)
        _write_reviews(home / "reviews.csv")
        (home / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
        commands = options.commands or readme_commands()
        if options.data is not None:
            commands = [*commands, *(command.format(data=options.data.resolve()) for command in DATA_COMMANDS)]
        for number, command in enumerate(commands):
            timing = measure(command, home, home / f"{number}.txt", terminal=kind == "terminal", limit=options.limit)
            worst = max(worst, timing.silence)
            print(
                f"{kind}: {command}\n    exit {timing.code}, {timing.seconds:.0f} s, longest silence "
                f"{timing.silence:.1f} s, after: {timing.before}",
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
