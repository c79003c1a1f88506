"""A table begun with one explainer, table or shard is not continued with another."""

import random
import shutil
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from trials.commands import Terminal, prepare_home
from trials.count import Count

KINDS = ("explainer", "table", "shard", "job file")


def run(seed: int, trials: int = 20) -> Count:
    """Kill `explain --data` after its first shard, change one thing, and start it again."""
    count, source = Count("resume with a changed explainer, table, shard or job file: trials"), random.Random(seed)
    with TemporaryDirectory(prefix="trials-") as name:
        home = Path(name)
        prepare_home(home / "home")
        terminal = Terminal(home)
        alone = home / "alone.jsonl"
        if terminal.run(_command("seed0", Path("table.csv"), alone)).code:
            raise RuntimeError("explain fails without any change")
        for number in range(trials):
            kind = KINDS[number % len(KINDS)]
            out = home / f"{number}.jsonl"
            count.add(f"{kind}, trial {number}", _trial(kind, out, alone.read_bytes(), terminal, source))
    return count


def _command(explainer: str, table: Path, out: Path) -> list[str]:
    return ["explain", explainer, "--data", str(table), "--out", str(out), "--quiet"]


def _trial(kind: str, out: Path, expected: bytes, terminal: Terminal, source: random.Random) -> str | None:
    table = out.with_suffix(".csv")
    shutil.copy("table.csv", table)
    child = terminal.start(_command("seed0", table, out))
    parts = out.with_name(f"{out.name}.parts")
    while not list(parts.glob("shard/*/artefact.json")):
        time.sleep(0.002)
    child.send(signal.SIGKILL)
    child.wait()
    if out.exists():
        return "the command was finished before it was killed"
    _change(kind, parts, table, source)
    ended = terminal.run(_command("seed1" if kind == "explainer" else "seed0", table, out))
    if kind == "shard":  # a damaged shard is made again
        whole = ended.code == 0 and out.read_bytes() == expected
        return ended.problem() if whole else "the damaged shard was merged"
    refused = ended.code == 2 and not out.exists() and ("begun with another" in ended.errors or "job" in ended.errors)
    return ended.problem() if refused else f"accepted: exit {ended.code}, {ended.errors[-200:]}"


def _change(kind: str, parts: Path, table: Path, source: random.Random) -> None:
    """Change the table without changing its size, bytes of a shard, or the file that identifies the job."""
    if kind == "table":
        lines = table.read_text().splitlines(keepends=True)
        at = source.randrange(1, len(lines))
        lines[at] = lines[at][:-2] + ("x" if lines[at][-2] != "x" else "y") + "\n"
        table.write_text("".join(lines))
    if kind == "shard":
        file = source.choice([file for file in parts.glob("shard/*/*") if file.is_file()])
        content = bytearray(file.read_bytes())
        at = source.randrange(len(content))
        content[at : at + 8] = bytes(byte ^ 0x55 for byte in content[at : at + 8])
        file.write_bytes(bytes(content) if source.random() < 0.7 else b"garbage")
    if kind == "job file":
        job = parts / "job.json"
        job.write_bytes(source.choice([b"", job.read_bytes()[:-20], b"[]", b"{}"]))
