"""Masks of an extractive question answering model: what they erase, what the answer needs, and where it is found.

    python benchmarks/squad.py --model QA --data squad:FOLDER [--fit 2000] [--texts 200] [--margins 1.0 0.1]
        [KEY=VALUE ...]

Prints one JSON line per figure. Test questions are spread evenly over the test articles. Fits are seeded with 0. The
options are those of the method, such as `name=diffmask sites=[output]` for gates; the default is `surrogate-mask` with
the mean divergence bounded, as in the paper. With `--explainer FOLDER` the fitted explainer is saved there, and loaded
if it is already there. Thresholds are calibrated again for every further margin. `--figures` chooses some of model,
masks, verified, words, orders, time and evidence.
"""

import argparse
import json
import time
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import diffmask as dm
from diffmask.core.batch import Batch, iter_by_length
from diffmask.core.config import parse, parse_overrides
from diffmask.core.distributions import agreement, concatenate, divergence, predicted_outcome
from diffmask.core.explainer import ForwardTrace
from diffmask.core.training import generator, infinite_minibatches
from diffmask.datasets.squad import answer_f1, exact_match
from diffmask.methods.diffmask.base import SiteMaskMethod
from diffmask.methods.diffmask.baseline import learn_baselines
from diffmask.methods.diffmask.calibration import calibrate, calibration_split
from diffmask.methods.diffmask.surrogate_target import DivergenceCosts
from diffmask.metrics.evidence import top_sentence_probability
from diffmask.results.intervals import t_interval
from diffmask.results.word_tags import TAGS, WordTagger
from diffmask.tasks.question_answering import ANSWERABLE, QUESTION, QuestionAnswering, answer_text, predicted_spans
from diffmask.tasks.text.encoding import EVIDENCE, SENTENCE
from diffmask.tasks.text.text_configs import QuestionAnsweringConfig

ROWS_AT_ONCE = 8
FIGURES = ["model", "masks", "verified", "words", "orders", "time", "evidence"]
LEAST_WORDS = 20
"""Words of a kind whose mean is reported, at least."""


def report(figure: str, **values: Any) -> None:
    """Print one figure with its values."""
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}
    print(json.dumps({"figure": figure, **rounded}), flush=True)


def load(arguments: argparse.Namespace) -> QuestionAnswering:
    """Return the task with the asked number of training and test questions."""
    config = QuestionAnsweringConfig(model=arguments.model, data=arguments.data, rows=arguments.fit)
    data = config.dataset()
    count = arguments.texts

    def spread(rows: list[Any]) -> list[Any]:
        return [rows[number * len(rows) // count] for number in range(min(count, len(rows)))]

    splits: dict[str, Any] = {"train": data.train, "valid": spread(data.valid), "test": spread(data.test)}
    return QuestionAnswering(arguments.model, **splits, encoding=config)


def interval(values: Tensor) -> dict[str, float]:
    """Return the mean and half the width of its 95 % interval."""
    low, high = t_interval(values.tolist())
    return {"mean": float(values.mean()), "half_width": (high - low) / 2}


def mask_figures(task: QuestionAnswering, explainer: Any, margin: float, batch: Batch) -> None:
    """Report what hard masks of every site erase, and what the answer is afterwards."""
    site = explainer.sites[-1]
    traces = [ForwardTrace.of(task, part) for _, part in iter_by_length(batch, ROWS_AT_ONCE)]
    order = torch.cat([rows for rows, _ in iter_by_length(batch, ROWS_AT_ONCE)])
    masks = {name: [explainer.hard_mask(trace, name) for trace in traces] for name in explainer.sites}
    pairs = list(zip(traces, masks[site], strict=True))
    masked = concatenate(*(explainer.predict_masked(trace, site, mask) for trace, mask in pairs))
    original = concatenate(*(trace.answer for trace in traces))
    erased = torch.cat([1 - share(mask.bool(), trace.rows.maskable) for trace, mask in pairs])
    before, after = (f1_of(task, batch[order], answer) for answer in (original, masked))
    nats = divergence(original, masked)
    report(
        "hard masks, inputs", margin=margin, n=len(batch), masked=float(erased.mean()), kl=float(nats.mean()),
        agreement=float(agreement(original, masked).float().mean()), f1_before=before, f1_after=after,
        texts_within_margin=float((nats <= margin).float().mean()),
    )  # fmt: skip
    for name in explainer.sites:
        kept = list(zip(masks[name], traces, strict=True))
        parts = {
            "question": lambda rows: rows.maskable & (rows.token_inputs[ANSWERABLE] == 0),
            "passage": lambda rows: rows.maskable & (rows.token_inputs[ANSWERABLE] > 0),
        }
        shares = {part: torch.cat([share(m.bool(), of(t.rows)) for m, t in kept]) for part, of in parts.items()}
        shares["answer"] = torch.cat([share(m.bool(), answer_tokens(t)) for m, t in kept])
        for part, values in shares.items():
            report("kept", margin=margin, site=name, part=part, n=len(values), **interval(values))


def share(kept: Tensor, among: Tensor) -> Tensor:
    """Return the share of the given tokens that is kept, per row."""
    return (kept & among).sum(dim=1) / among.sum(dim=1).clamp(min=1)


def answer_tokens(trace: ForwardTrace) -> Tensor:
    """Return the tokens of the predicted answer."""
    first, last = predicted_outcome(trace.answer).T[..., None]
    place = trace.rows.token_inputs[ANSWERABLE] - 1
    return (place >= first) & (place <= last)


def f1_of(task: QuestionAnswering, batch: Batch, answer: Any) -> float:
    """Return the mean F1 of given answers."""
    scores = []
    for number, span in zip(batch.inputs[QUESTION].tolist(), predicted_spans(answer)[0].tolist(), strict=True):
        example, encoding = task.questions.rows[number]
        scores.append(answer_f1(answer_text(example, encoding, span), example.label.texts))
    return sum(scores) / len(scores)


def evidence_figures(task: QuestionAnswering, explainers: dict[str, Any], batch: Batch) -> None:
    """Report how often the answer's sentence is ranked first, where the model is right."""
    sentences = batch.token_inputs[SENTENCE] * batch.maskable
    evidence = batch.token_inputs[EVIDENCE] > 0
    known = evidence.any(dim=1) & ((sentences > 0) & ~evidence).any(dim=1)
    known &= task.row_scores(batch) > 0.5
    rows = batch[known]
    for name, explainer in explainers.items():
        start = time.process_time()
        scores = explainer(rows, rows_at_once=ROWS_AT_ONCE).scores
        seconds = time.process_time() - start
        first = top_sentence_probability(scores, sentences[known], evidence[known])
        report("answer sentence first", method=name, n=len(first), seconds=seconds, **interval(first))


def verified_figures(task: QuestionAnswering, explainer: Any, margin: float, split: str, count: int) -> None:
    """Report how many single explanations were measured to hold, what they mask, and F1 of the answers they keep."""
    examples = task.texts[split]
    chosen = [examples[number * len(examples) // count] for number in range(count)]
    explanations = task.explain_examples(explainer, chosen, verify=True)
    pairs = [
        (explanation.prediction.label, explanation.verified, example.label.texts)
        for explanation, example in zip(explanations, chosen, strict=True)
        if explanation.verified is not None
    ]
    sets = [verified for _, verified, _ in pairs]
    words = sorted(len(verified.words) for verified in sets)
    masked = torch.tensor([1 - len(verified.words) / max(1, len(verified.kept)) for verified in sets])
    report(
        "verified", margin=margin, n=count, hold=sum(map(bool, sets)) / count, median_words=words[count // 2],
        masked=interval(masked), kl=mean(verified.kl for verified in sets),
        agreement=mean(verified.same_prediction for verified in sets),
        minimal=mean(verified.minimal for verified in sets),
        f1_before=mean(answer_f1(answer, gold) for answer, _, gold in pairs),
        f1_after=mean(answer_f1(verified.prediction.label, gold) for _, verified, gold in pairs),
        rows=mean(verified.rows for verified in sets),
    )  # fmt: skip
    explanations[0].show()


def word_figures(task: QuestionAnswering, explainer: Any, split: str) -> None:
    """Report the number of sites that keep a word of the question or the passage, by part of speech and entity type."""
    explanations = task.explain_examples(explainer, task.texts[split], verify=False)
    for kind, (segment, part) in product(TAGS, enumerate(("question", "passage"))):
        places = [
            [index for index, unit in enumerate(explanation.units) if unit.segment == segment]
            for explanation in explanations
        ]
        words = [
            [explanation.units[index].text for index in chosen]
            for explanation, chosen in zip(explanations, places, strict=True)
        ]
        sites: dict[str, list[int]] = defaultdict(list)
        for explanation, chosen, tags in zip(explanations, places, WordTagger(kind).tag(words), strict=True):
            assert explanation.by_layer is not None
            kept = (explanation.by_layer > 0.5).sum(dim=0).tolist()
            for index, tag in zip(chosen, tags, strict=True):
                sites[tag].append(kept[index])
        for tag, values in sorted(sites.items(), key=lambda item: -mean(item[1])):
            if len(values) >= LEAST_WORDS:
                report("sites that keep a word", part=part, kind=kind, tag=tag, words=len(values),
                       sites=len(explainer.sites), **interval(torch.tensor(values).double()))  # fmt: skip


def order_figures(task: QuestionAnswering, explainer: Any, batch: Batch) -> None:
    """Report what erasing the same share of every text costs, in the order of the surrogate and of gradients."""
    site = explainer.sites[-1]
    nats: dict[tuple[str, float], list[Tensor]] = {}
    for _, part in iter_by_length(batch, ROWS_AT_ONCE):
        trace = ForwardTrace.of(task, part)
        orders = {
            "surrogate": explainer.elimination_cost(trace, site),
            "gradient": DivergenceCosts().token_guide(task, trace),
        }
        for (name, cost), erased in product(orders.items(), (0.4, 0.7)):
            rank = cost.masked_fill(~part.maskable, torch.inf).argsort(dim=1).argsort(dim=1)
            kept = part.maskable & (rank >= (erased * part.maskable.sum(dim=1, keepdim=True)).round())
            nats.setdefault((name, erased), []).append(explainer.masking_divergence(trace, site, kept))
    for (name, erased), parts in nats.items():
        report("same share of every text erased", order=name, share=erased, n=len(batch), **interval(torch.cat(parts)))


def long_rows(task: QuestionAnswering, count: int) -> Batch:
    """Return rows of the largest length: test questions on their passage, written several times."""
    examples = [(row.text, " ".join([row.pair or ""] * 6)) for row in task.texts["test"]]
    batch = task.encode(examples[:count])
    return batch[batch.present.all(dim=1)][:count]


def time_figures(task: QuestionAnswering, explainer: Any, batch: Batch) -> None:
    """Report the CPU time of explanations over that of bare forward passes, alternating between both."""
    parts = [part for _, part in iter_by_length(batch, ROWS_AT_ONCE)]
    spent = {"bare": 0.0, "explain": 0.0}
    with torch.no_grad():
        for part in parts[:1] + parts:
            for name, run in (("bare", task.predict), ("explain", explainer)):
                start = time.process_time()
                run(part)
                spent[name] += time.process_time() - start
    report("time over a bare pass", n=len(batch), tokens=batch.tokens.shape[1], ratio=spent["explain"] / spent["bare"])


def model_figures(task: QuestionAnswering) -> None:
    """Report exact match and F1 of the model, with the interval of F1 over questions."""
    answers = [(text, example.label.texts) for example, text in task.answers(task.data["test"])]
    scores = torch.tensor([answer_f1(text, gold) for text, gold in answers])
    exact = sum(exact_match(text, gold) for text, gold in answers) / len(answers)
    report("model", n=len(answers), exact_match=exact, f1=float(scores.mean()), **interval(scores))


def fitted(arguments: argparse.Namespace, task: QuestionAnswering) -> Any:
    """Return the saved explainer, or fit one and save it."""
    folder = arguments.explainer
    if folder is not None and folder.is_dir():
        return dm.load_explainer(folder, task)
    start, cpu = time.perf_counter(), time.process_time()
    choices = {"name": "surrogate-mask", "margin": arguments.margins[0], **parse_overrides(arguments.choices)}
    if choices["name"] == "surrogate-mask":
        choices = {"coverage": None, "steps": 128, "batch_size": 16, "steps_per_batch": 4, **choices}
    method = parse("method", choices, "squad")
    explainer = method.fit(task)
    report("fit", method=method.label, questions=len(task.data["train"]),
           seconds=time.perf_counter() - start, cpu_seconds=time.process_time() - cpu,
           peak_megabytes=getrusage(RUSAGE_SELF).ru_maxrss / 1024)  # fmt: skip
    if folder is not None:
        explainer.save_pretrained(folder)
    return explainer


def learn_baseline(task: QuestionAnswering, explainer: Any, updates: int) -> None:
    """Replace the mask token's state by one that changes the answers of randomly masked questions least."""
    source, start = generator(0, "baseline"), time.process_time()
    explainer.baselines.requires_grad_(True)
    batches = infinite_minibatches(task.data["train"], ROWS_AT_ONCE, source)
    learn_baselines(explainer, batches, 1, source, updates, 64)
    report("learned baseline", updates=updates, cpu_seconds=time.process_time() - start)


def calibrate_again(task: QuestionAnswering, explainer: Any, method: SiteMaskMethod) -> None:
    """Calibrate the thresholds for another margin; a surrogate does not depend on it."""
    rows = calibration_split(task)[0].spread(method.calibration_rows)
    calibrate(explainer, rows, method.site_margins(explainer.sites))
    explainer.config = method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--fit", type=int, default=2000, help="training questions of a fit")
    parser.add_argument("--texts", type=int, default=200, help="test questions")
    parser.add_argument("--verified", type=int, default=20)
    parser.add_argument("--slow", type=int, default=60, help="test questions for slow methods")
    parser.add_argument("--long", type=int, default=500, help="questions of the largest length whose time is measured")
    parser.add_argument("--margins", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--baseline-updates", type=int, default=0, help="learn the erased state after the fit")
    parser.add_argument("--explainer", type=Path, help="folder of the fitted explainer")
    parser.add_argument("--figures", nargs="+", default=FIGURES)
    parser.add_argument("choices", nargs="*", metavar="KEY=VALUE", help="options of the method")
    arguments = parser.parse_args()
    task = load(arguments)
    if "model" in arguments.figures:
        model_figures(task)
    explainer = fitted(arguments, task)
    if arguments.baseline_updates:
        learn_baseline(task, explainer, arguments.baseline_updates)
    for margin in arguments.margins:
        if arguments.baseline_updates or margin != explainer.config.margin:
            calibrate_again(task, explainer, replace(explainer.config, margin=margin))
        if "masks" in arguments.figures:
            mask_figures(task, explainer, margin, task.data["test"])
        if "verified" in arguments.figures:
            verified_figures(task, explainer, margin, "test", arguments.verified)
    if "words" in arguments.figures:
        word_figures(task, explainer, "test")
    if "orders" in arguments.figures:
        order_figures(task, explainer, task.data["valid"].spread(arguments.slow))
    if "time" in arguments.figures:
        time_figures(task, explainer, long_rows(task, arguments.long))
    if "evidence" in arguments.figures:
        evidence_figures(task, {explainer.config.name: explainer}, task.data["test"])
        others = {
            "gradient": dm.Gradient(),
            "integrated-gradients": dm.IntegratedGradients(n_steps=10),
            "attention": dm.Attention(),
            "random": dm.Random(),
        }
        slow = task.data["test"].spread(arguments.slow)
        evidence_figures(task, {name: method.fit(task) for name, method in others.items()}, slow)


if __name__ == "__main__":
    main()
