"""A folder with tiny models, explainers, results and tables, whole and broken, that the fuzzer works in."""

import gzip
import json
import os
import warnings
from pathlib import Path

import yaml

import diffmask as dm
from support.tiny_models import tiny_model, word_pieces

WORDS = ("good", "great", "fun", "bad", "dull", "mess")
EXPERIMENT = {
    "name": "small",
    "seeds": [0],
    "tasks": [{"name": "toy", "rows": 60, "epochs": 1}],
    "methods": ["random", "gradient"],
    "metrics": ["divergence-to-truth"],
}
CLASSIFIERS = ("clf", "three_labels", "clf_truncated", "clf_no_weights", "clf_bad_json", "clf_no_tokenizer", "encoder")
"""Folders of models: only the first can be explained with two labels."""


def make_home(folder: Path) -> None:
    """Write everything that commands and calls refer to, with paths relative to `folder`, and go there."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.environ |= {"DIFFMASK_CACHE": str(folder / "cache"), "COLUMNS": "120"}
    _models()
    _tables()
    _experiments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _results()
    Path("taken").write_text("a file of the user")
    Path("loop").symlink_to("loop")
    Path("empty").mkdir()


def rows() -> list[tuple[str, int]]:
    """Labelled texts: three good words, three bad ones."""
    return [(f"the film is {word} , {n} times", int(word in WORDS[:3])) for word in WORDS for n in range(6)]


def small_task(labels: int = 2) -> dm.TextClassification:
    """A tiny classifier in memory."""
    return dm.TextClassification(tiny_model("bert", labels), word_pieces(), train=rows(), valid=rows(), test=rows())


def _models() -> None:
    for name in CLASSIFIERS:
        model = tiny_model("bert", 3 if name == "three_labels" else 2)
        (model.bert if name == "encoder" else model).save_pretrained(name)
        if name != "clf_no_tokenizer":
            word_pieces().save_pretrained(name)
    weights = Path("clf_truncated/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:2000])
    Path("clf_no_weights/model.safetensors").unlink()
    Path("clf_bad_json/config.json").write_text('{"model_type": "bert", "hidden_size": "wide"')


def _tables() -> None:
    table = "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows())
    files: dict[str, str | bytes] = {
        "reviews.csv": table,
        "reviews.tsv": table.replace('",', '"\t').replace("text,label", "text\tlabel"),
        "reviews.jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows()),
        "latin.csv": table.replace("film", "f\xefln").encode("latin-1"),
        "utf16.csv": table.encode("utf-16"),
        "binary.csv": bytes(range(256)) * 8,
        "zeros.csv": b"\0" * 100,
        "empty.csv": "",
        "empty.jsonl": "",
        "header.csv": "text,label\n",
        "no_text.csv": "sentence,label\nfine,1\n",
        "unlabelled.csv": "text\n" + "".join(f'"{text}"\n' for text, _ in rows()),
        "some_labels.csv": table.replace(",0\n", ",\n", 3),
        "one_label.csv": table.replace(",0\n", ",1\n"),
        "many_labels.csv": "text,label\n" + "".join(f'"{text}",{n}\n' for n, (text, _) in enumerate(rows())),
        "names.csv": "text,label\n" + "".join(f'"{text}",{("no", "yes")[label]}\n' for text, label in rows()),
        "blank_texts.csv": "text,label\n" + ",1\n,0\n" * 20,
        "open_quote.csv": table + '"never closed,1\n' + "x\n" * 100,
        "extra_cells.csv": table + "a,b,c,d\n",
        "twice.csv": "text,text,label\na,b,1\n",
        "wide_cell.csv": table + f'"{"good " * 30_000}",1\n',
        "not_json.jsonl": "{\n",
        "list.jsonl": "[1, 2]\n",
        "number.jsonl": "7\n",
        "deep.jsonl": "[" * 100_000 + "\n",
        "surrogate.jsonl": '{"text": "good \\ud800 film", "label": 1}\n' * 12,
        "number_text.jsonl": '{"text": 7, "label": 1}\n',
        "nan_label.jsonl": '{"text": "good film", "label": NaN}\n',
        "broken.parquet": b"PAR1" + b"\0" * 64,
        "reviews.csv.gz": gzip.compress(table.encode()),
        "broken.csv.gz": gzip.compress(table.encode() * 50)[:200],
        "not_gzip.csv.gz": table,
        "reviews.xlsx": b"PK\3\4",
        "no_suffix": table,
    }
    for name, content in files.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    Path("folder.csv").mkdir()
    Path("splits").mkdir()
    for split in ("train", "valid", "test"):
        Path(f"splits/{split}.csv").write_text(table)


def _experiments() -> None:
    texts = {
        "small.yaml": yaml.safe_dump(EXPERIMENT),
        "empty.yaml": "",
        "list.yaml": "- 1\n- 2\n",
        "open.yaml": "name: [1, 2\n",
        "tabs.yaml": "name:\n\t- a\n",
        "python.yaml": "name: !!python/object/apply:os.getcwd []\n",
        "alias.yaml": "name: *nowhere\n",
        "null.yaml": yaml.safe_dump(dict.fromkeys(EXPERIMENT)),
        "keys.yaml": yaml.safe_dump({**EXPERIMENT, "metods": ["random"]}),
        "seeds.yaml": yaml.safe_dump({**EXPERIMENT, "seeds": ["a", -1, 0.5]}),
        "strings.yaml": yaml.safe_dump(dict.fromkeys(EXPERIMENT, "x")),
        "deep.yaml": "[" * 5000,
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    Path("binary.yaml").write_bytes(bytes(range(256)))


def _results() -> None:
    task = dm.TextClassification("clf", train=rows(), valid=rows(), test=rows())
    dm.SurrogateMask(steps=2, batch_size=8).fit(task).save_pretrained("explainer")
    dm.Gradient().fit(task).save_pretrained("gradient")
    dm.run_experiment(dm.Experiment.read("small.yaml"), "run")
    dm.benchmark(task, ["gradient"], texts=8, out="board", say=lambda _: None)
