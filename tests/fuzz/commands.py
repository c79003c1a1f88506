"""A grammar of command lines: right ones, in which some words are exchanged, left out, doubled or made up."""

import io
import itertools
import logging
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from hypothesis import strategies as st

from diffmask.cli import main
from fuzz.outcome import Failure, TooLongError, time_limit

HOSTILE = (
    "",
    " ",
    "a",
    "-1",
    "0",
    "1",
    "0.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "true",
    "null",
    "~",
    "[",
    "]",
    "{",
    "{}",
    "[]",
    "'",
    '"',
    "*",
    "&a",
    "!",
    "!!python/object/apply:os.getcwd []",
    "a\nb",
    "../..",
    "/dev/null",
    "ü",
    "\U0001f600",
    "\udcff",
    "x" * 5000,
    "[0,0]",
    "a,b",
    ",",
    "%s",
    "{x}",
    "=",
    "a=b",
    "-",
    "--",
    "0x10",
    "1_0",
    "\uff12",
    "[" * 2000,
)
"""Values that some program has stumbled over."""
TABLES = (
    "reviews.csv",
    "reviews.tsv",
    "reviews.jsonl",
    "reviews.csv.gz",
    "splits",
    "names.csv",
    "latin.csv",
    "utf16.csv",
    "binary.csv",
    "zeros.csv",
    "empty.csv",
    "empty.jsonl",
    "header.csv",
    "no_text.csv",
    "unlabelled.csv",
    "some_labels.csv",
    "one_label.csv",
    "many_labels.csv",
    "blank_texts.csv",
    "open_quote.csv",
    "extra_cells.csv",
    "twice.csv",
    "wide_cell.csv",
    "not_json.jsonl",
    "list.jsonl",
    "number.jsonl",
    "deep.jsonl",
    "surrogate.jsonl",
    "number_text.jsonl",
    "nan_label.jsonl",
    "broken.parquet",
    "broken.csv.gz",
    "not_gzip.csv.gz",
    "reviews.xlsx",
    "no_suffix",
    "folder.csv",
    "empty",
    "loop",
    "nowhere.csv",
    "/dev/null",
    "sst2:empty",
    "sst2:nowhere",
    "snli:empty",
    "eraser:empty",
    "imdb:empty",
    "mimic-anemia:empty",
    "hub:nobody/nothing",
    "hub:",
    "sst2:",
    ":",
)
MODELS = (
    "clf",
    "three_labels",
    "clf_truncated",
    "clf_no_weights",
    "clf_bad_json",
    "clf_no_tokenizer",
    "encoder",
    "nowhere",
    "empty",
    "taken",
    "loop",
    "explainer",
    "run",
    "reviews.csv",
    "/dev/null",
    "a/b/c",
)
EXPLAINERS = (
    "explainer",
    "gradient",
    "clf",
    "run",
    "board",
    "empty",
    "taken",
    "loop",
    "nowhere",
    "a/b/c",
    "reviews.csv",
)
OUTPUTS = (
    "NEW",
    "taken",
    "taken/deeper",
    "loop",
    "loop/deeper",
    "empty",
    "clf",
    "explainer",
    "run",
    "/proc/nothing",
    "/dev/null",
    "/dev/null/x",
    "",
)
TEXTS = (
    "the film is good",
    "",
    " ",
    "good",
    "[MASK]",
    "[CLS] good [SEP]",
    "good " * 3000,
    "\udcff",
    "\U0001f600 good",
    "a\nb\tc",
    "{{ 7 * 7 }}",
)
METHODS = (
    "gradient",
    "leave-one-out",
    "surrogate-mask",
    "diffmask",
    "random",
    "uniform",
    "attention",
    "attention-rollout",
    "mutual-information",
    "noise-tolerance",
    "bottleneck",
    "captum:Lime",
    "captum:Nothing",
    "exact-erasure",
    "greedy-search",
    "nothing",
    "Gradient",
)
METRICS = (
    "comprehensiveness",
    "sufficiency",
    "human-rationales",
    "divergence-to-truth",
    "nothing",
    "fidelity",
    "infidelity",
)
EXPERIMENTS = (
    "small.yaml",
    "empty.yaml",
    "list.yaml",
    "open.yaml",
    "tabs.yaml",
    "python.yaml",
    "alias.yaml",
    "null.yaml",
    "keys.yaml",
    "seeds.yaml",
    "strings.yaml",
    "deep.yaml",
    "binary.yaml",
    "nowhere.yaml",
    "run",
    "loop",
    "taken",
    "/dev/null",
)
CLUSTER = {
    "--address": ("tcp://nowhere", "x", "tcp://127.0.0.1:0"),
    "--queue": ("q",),
    "--memory": ("1GB", "much"),
    "--walltime": ("soon",),
}


@dataclass(frozen=True)
class Verb:
    """A command that is right as it is, and the values that its words may take instead."""

    name: str
    argument: tuple[str, ...] = ()
    """Values of its positional argument; the first is right."""
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Values of options; the first is right."""
    fixed: tuple[str, ...] = ()
    """Words that keep the command short; they are never exchanged."""
    flags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """Keys of overrides that may be added."""


TASK_KEYS = (
    "max_tokens",
    "overlap",
    "long_texts",
    "segments",
    "text_column",
    "pair_column",
    "label_column",
    "encoding",
    "rows",
    "trust_remote_code",
)
VERBS = (
    Verb(
        "train",
        options=(
            ("--out", OUTPUTS),
            ("--model", ("encoder", *MODELS)),
            ("--data", TABLES),
            ("--seed", ("0", *HOSTILE)),
        ),
        fixed=("epochs=1", "batch_size=16"),
        flags=("--force", "--trust-remote-code"),
        keys=(*TASK_KEYS, "learning_rate", "masked_fraction", "problem_type", "epoch", "name", "model", ""),
    ),
    Verb(
        "fit",
        options=(
            ("--model", MODELS),
            ("--data", TABLES),
            ("--out", OUTPUTS),
            ("--method", METHODS),
            ("--seed", ("0", *HOSTILE)),
        ),
        flags=(
            "--force",
            "--mask=inputs",
            "--mask=states",
            "--mask=x",
            "--margin=nan",
            "--margin=-1",
            "--margin=x",
            "--teacher=gradient",
            "--budget=soon",
        ),
        keys=(
            *TASK_KEYS,
            "batch_size",
            "learning_rate",
            "margin",
            "site",
            "quantity",
            "mask",
            "epoch",
            "name",
            "encoder",
        ),
    ),
    Verb(
        "explain",
        argument=EXPLAINERS,
        options=(
            ("--text", TEXTS),
            ("--data", TABLES),
            ("--text-column", ("text", "label", *HOSTILE)),
            ("--pair-column", ("label", "text", "x")),
            (
                "--out",
                (
                    "NEW.jsonl",
                    "NEW.parquet",
                    "NEW.csv",
                    "taken",
                    "loop.jsonl",
                    "loop/x.jsonl",
                    "/proc/x.jsonl",
                    "folder.csv",
                    *HOSTILE,
                ),
            ),
            ("--model", MODELS),
        ),
        flags=("--force", "--verify", "--no-verify"),
    ),
    Verb(
        "benchmark",
        options=(
            ("--model", MODELS),
            ("--data", TABLES),
            ("--methods", METHODS),
            ("--metrics", METRICS),
            ("--out", OUTPUTS),
            ("--seeds", ("0", *HOSTILE)),
            ("--budget", ("20", *HOSTILE)),
            ("--engine", ("serial", "x", "")),
            ("--workers", ("x", "-1", "0")),
        ),
        fixed=("--texts=4", "--quiet"),
        keys=(
            *TASK_KEYS,
            "gradient.site",
            "gradient.quantity",
            "gradient.x",
            "comprehensiveness.mode",
            "x.y",
            "comprehensiveness.bins",
            ".",
        ),
    ),
    Verb(
        "run",
        argument=EXPERIMENTS,
        options=(("--out", OUTPUTS), ("--engine", ("serial", "x", "")), ("--workers", ("x", "-1", "0"))),
        flags=("--dry-run", "--quiet"),
        keys=(
            "seeds",
            "name",
            "tasks.0.epochs",
            "tasks.1",
            "methods.0",
            "methods.x",
            "metrics",
            "methods",
            "tasks",
            "tasks.0",
            "a.b.c",
            "methods.0.site",
            "",
        ),
    ),
    Verb(
        "roar",
        options=(
            ("--task", ("babi-1", "sst", "snli", "x", *HOSTILE)),
            ("--data", ("empty", "nowhere", "hub:a/b")),
            ("--importance-measure", ("attention", "gradient", "nothing", *HOSTILE)),
            ("--roar-strategy", ("count", "quantile", "x")),
            ("--k", ("1", "0", "-1", "120", *HOSTILE)),
            ("--target", ("gold", "x")),
            ("--recursive-step-size", ("1", *HOSTILE)),
            ("--seed", ("0", *HOSTILE)),
            ("--out", OUTPUTS),
        ),
        fixed=("rows=30", "epochs=1"),
        flags=("--recursive", "--signed"),
        keys=("width", "folder", "batch_size", "x"),
    ),
    Verb(
        "analyse",
        options=(
            ("--task", ("x", "sst")),
            ("--findings", ("x", "", "data,x")),
            ("--rows", HOSTILE),
            ("--out", OUTPUTS),
        ),
        fixed=("rows=30", "epochs=1"),
    ),
    Verb("report", argument=("run", "board", "empty", "taken", "nowhere", "loop", "clf", "/dev/null", "")),
    Verb("list", argument=("methods", "tasks", "metrics", "x", ""), flags=("--json", "--x")),
    Verb(
        "demo",
        options=(
            ("--out", ("taken", "taken/x", "/proc/x", "loop")),
            ("--rows", ("-1", "0", "x")),
            ("--steps", ("-1", "x")),
        ),
        flags=("--out=taken",),
    ),
)
FAST = {
    "surrogate-mask": ("steps=2", "batch_size=8"),
    "diffmask": ("steps=2", "batch_size=8"),
    "noise-tolerance": ("max_steps=2",),
    "bottleneck": ("steps=2",),
    "captum:Lime": ("n_samples=8",),
    "subset-search": ("budget=8",),
}
"""Options that keep a method short."""
WEIGHTS = {"train": 4, "fit": 5, "explain": 6, "benchmark": 4, "run": 4, "roar": 2, "report": 2}
"""How often a verb is drawn; once where it is not listed."""

_numbers = itertools.count()


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw a verb and exchange some of its words."""
    verb = draw(st.sampled_from([verb for verb in VERBS for _ in range(WEIGHTS.get(verb.name, 1))]))
    words = [verb.name]
    if verb.argument and draw(st.integers(0, 9)) < 9:
        words.append(draw(_mostly_first(verb.argument)))
    for name, values in verb.options:
        if draw(st.integers(0, 9)) < 8 or name in ("--data", "--out"):
            words += [name, draw(_mostly_first(values))]
    words += draw(st.lists(st.sampled_from(verb.flags), max_size=2)) if verb.flags else []
    words += verb.fixed
    method = next((words[at + 1] for at, word in enumerate(words) if word in ("--method", "--methods")), METHODS[2])
    prefix = f"{method}." if verb.name == "benchmark" else ""
    words += [prefix + choice for choice in FAST.get(method, ()) if verb.name in ("fit", "benchmark")]
    if verb.keys:
        override = st.builds("{}={}".format, st.sampled_from(verb.keys), st.sampled_from(HOSTILE))
        words += draw(st.lists(override, max_size=2))
    extra = st.sampled_from(["--nothing", "-x", "=", "x", "--", "--help"])
    return tuple(words + draw(st.lists(extra, max_size=1) if draw(st.integers(0, 9)) == 0 else st.just([])))


def _mostly_first(values: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.one_of(st.just(values[0]), st.just(values[0]), st.sampled_from(values))


def run_command(words: tuple[str, ...]) -> Failure | None:
    """Run a command in this process and return what is wrong with its end, if anything."""
    number = next(_numbers)
    words = tuple(word.replace("NEW", f"new/{number}") for word in words)
    given = " ".join(word if word and " " not in word else repr(word) for word in words)[:400]
    out, err = io.StringIO(), io.StringIO()
    logging.root.handlers.clear()
    try:
        with (
            patch.object(sys, "argv", ["diffmask", *words]),
            redirect_stdout(out),
            redirect_stderr(err),
            warnings.catch_warnings(),
            time_limit(),
        ):
            warnings.simplefilter("default")
            main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except (Exception, TooLongError) as error:
        return Failure.of(given, error)
    return _judge(given, words, code, err.getvalue())


PROMISED = {"train": "config.json", "fit": "artefact.json", "run": "report.html", "benchmark": "results.json"}
"""File in the folder `--out` that a successful command has written."""


def _judge(given: str, words: tuple[str, ...], code: int, errors: str) -> Failure | None:
    """Check that success has an output and that a refusal is one line, or the usage of the command."""
    if "Traceback" in errors:
        return Failure(given, "a traceback was printed", "printed")
    if code == 0:
        target = Path(words[len(words) - 1 - words[::-1].index("--out") + 1]) if "--out" in words else None
        asked = {"--help", "--dry-run"} & set(words)
        if words[0] in PROMISED and target and not asked and not (target / PROMISED[words[0]]).is_file():
            return Failure(given, f"success, but {target / PROMISED[words[0]]} is missing", "false success")
        return None
    lines = [line for line in errors.splitlines() if line.startswith("diffmask: ")]
    last = errors.rstrip().splitlines()[-1] if errors.strip() else ""
    if "Usage: " in errors or (len(lines) == 1 and (last == lines[0] or last.startswith("  "))):
        return None
    return Failure(given, f"exit {code} without one line on standard error: {errors[-300:]!r}", "message")
