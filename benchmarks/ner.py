"""Which words make an entity? The entity's own words, and planted words of a made-up list of names, ranked first.

    python benchmarks/ner.py --data FOLDER [--model minilm] [--train 1500] [--texts 150] [--keep FOLDER]

Words that occur nowhere else are planted in a third of the training sentences, each always with the same tag. The
tagger can know them only by heart, so a right explanation of a planted word ranks that word first. Prints one JSON line
per figure.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

import diffmask as dm
from diffmask.core.batch import Batch
from diffmask.datasets.conll import TaggedSentence, load_conll, tagged_sentence
from diffmask.metrics.ground_truth import top_token_probability
from diffmask.results.intervals import t_interval
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.tasks.text.retraining import FineTuningSource

PLANTED = {"zorvath": "B-location", "quenmilo": "B-person", "brixolan": "B-product"}


def plant(rows: list[Any], share: float, source: random.Random) -> list[TaggedSentence]:
    """Insert a planted word, with its tag, at a random place outside of entities of some sentences."""
    planted = []
    for row in rows:
        words = [row.text[slice(*span)] for span in row.words]
        tags = list(row.label)
        if source.random() < share:
            word = source.choice(list(PLANTED))
            places = [at for at in range(len(tags) + 1) if at == len(tags) or not tags[at].startswith("I-")]
            at = source.choice(places)
            words.insert(at, word)
            tags.insert(at, PLANTED[word])
        planted.append(tagged_sentence(words, tags))
    return planted


def report(figure: str, **values: Any) -> None:
    """Print one figure with its values."""
    print(json.dumps({"figure": figure, **values}), flush=True)


def train(arguments: argparse.Namespace, rows: list[Any], names: tuple[str, ...]) -> Any:
    """Return a fine-tuned tagger with its tokenizer; one that is kept is loaded."""
    if arguments.keep and (Path(arguments.keep) / "config.json").exists():
        return arguments.keep, None
    tuning = FineTuning(epochs=arguments.epochs, batch_size=16, learning_rate=1e-4)
    source = FineTuningSource(arguments.model, tuning)
    model = source.init_labelled(dm.TokenClassification.spec.auto_class, names, 0)
    task = dm.TokenClassification(
        model, source.load_tokenizer(), train=rows, encoding=dm.TokenEncodingConfig(unit="sentence", max_tokens=96)
    )
    start = time.process_time()
    tuning.fine_tune(task, 0)
    report("fine-tuning", sentences=len(rows), epochs=arguments.epochs, cpu_seconds=time.process_time() - start)
    if arguments.keep:
        task.save_pretrained(arguments.keep)
    return task.model, task.tokenizer


def first(explainer: Any, task: Any, batch: Batch, figure: str, method: str) -> None:
    """Report how often the highest score lies on the entity's own words."""
    start = time.process_time()
    scores = explainer(batch, rows_at_once=16).scores
    values = top_token_probability(scores, batch.maskable, task.ground_truth(batch) > 0)
    low, high = t_interval(values.tolist())
    report(figure, method=method, n=len(values), mean=round(float(values.mean()), 4),
           half_width=round((high - low) / 2, 4), cpu_seconds=round(time.process_time() - start, 1))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--texts", type=int, default=150)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--keep", help="folder in which the tagger is kept")
    arguments = parser.parse_args()
    data, source = load_conll(Path(arguments.data)), random.Random(0)
    rows = plant(data.train, 1 / 3, source)
    step = max(1, len(rows) // arguments.train)
    model, tokenizer = train(arguments, rows[::step], data.names)
    test = data.test[:: max(1, len(data.test) // (4 * arguments.texts))]
    held_out = plant([row for row in test if set(row.label) == {"O"}][: arguments.texts], 1.0, source)
    task = dm.TokenClassification(
        model, tokenizer, train=rows[:: 4 * step], valid=rows[1 :: 8 * step], test=test,
        encoding=dm.TokenEncodingConfig(max_tokens=96),
    )  # fmt: skip
    report("spans", n=len(test), f1=round(task.span_f1(test), 4))
    own = task.data["test"].spread(arguments.texts)
    batch = task.encode_examples(held_out).batch
    known = torch.tensor([label in {tag[2:] for tag in PLANTED.values()} for label in task.outcomes(batch.target)])
    methods: dict[str, dm.Method] = {
        "leave-one-out": dm.LeaveOneOut(),
        "gradient": dm.Gradient(),
        "random": dm.Random(),
        "surrogate-mask": dm.SurrogateMask(steps=arguments.steps, calibration_rows=48),
    }
    for name, method in methods.items():
        explainer = method.fit(task)
        first(explainer, task, own, "own words first", name)
        first(explainer, task, batch[known], "planted word first", name)


if __name__ == "__main__":
    main()
