"""The SST study after `diffmask run` of experiments/sst.yaml and experiments/sst2.yaml: its table, and its figures.

    python benchmarks/sst.py runs/sst runs/sst2

Prints what was measured beside what was published and what must be reached, and draws into `runs/sst/figures`: one
sentence as every method sees it, and the mean number of layers a word is kept, by its sentiment and by its part of
speech, which a spaCy pipeline tags.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from diffmask.core.explainer import Method
from diffmask.core.store import Store
from diffmask.datasets.sentiment import read_trees
from diffmask.experiments.experiment import Experiment
from diffmask.methods.attention import Attention
from diffmask.methods.bottleneck import Bottleneck
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.methods.gradients import IntegratedGradients
from diffmask.methods.noise.method import NoiseTolerance
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.records import Record, read_jsonl
from diffmask.results.word_tags import WordTagger
from diffmask.workspace.derived import ReseededWorkspace
from diffmask.workspace.workspace import Workspace
from sst_words import SENTIMENTS, layers_kept

SENTENCE = "the plot is a mess and the acting is dreadful , but i loved it ."
Line = tuple[str, str, str, str, bool]


def figures_of(records: Sequence[Record], method: Method, metric: str) -> dict[str, float]:
    """One number of a method's masks, seen from each state; means over the seeds."""
    site_values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.metric == metric and record.method == method.label:
            site_values[record.site].append(record.value)
    return {site: mean(values) for site, values in site_values.items()}


def masked_line(records: Sequence[Record], method: SurrogateMask, published: str, share: float) -> Line:
    """Share masked, F1 and divergence under hard masks on five classes.

    Inputs are seen from the last state. Hidden states are masked at one state or another: means over the states, as
    published, and beside them the state at which most is lost.
    """
    kept, before, after, caused = (
        figures_of(records, method, metric) for metric in ("kept", "f1_before", "f1_after", "divergence")
    )
    if method.mask == "inputs":
        kept, after, caused = ({"output": values["output"]} for values in (kept, after, caused))
    masked, first, last, moved = 1 - mean(kept.values()), before["output"], mean(after.values()), mean(caused.values())
    shown = f"{100 * masked:.1f} %, F1 {100 * first:.1f} -> {100 * last:.1f}, KL {moved:.3f}"
    if method.mask == "states":
        shown += f"; at worst F1 {100 * min(after.values()):.1f}, KL {max(caused.values()):.3f}"
    wanted = f">= {100 * share:.1f} % masked, F1 at most .5 points lower, KL <= {method.margin:g}"
    reached = masked >= share and last >= first - 0.005 and max(caused.values()) <= method.margin
    return f"sst5, {method.mask}", published, shown, wanted, reached


def two_class_line(records: Sequence[Record], method: SurrogateMask) -> Line:
    """The row of the prototype."""
    kept, caused, agreed = (
        figures_of(records, method, metric)["output"] for metric in ("kept", "divergence", "agreement")
    )
    seconds = mean(
        record.cost["fit_seconds"] for record in records if record.method == method.label and record.metric == "kept"
    )
    shown = f"{100 * (1 - kept):.1f} % masked, KL {caused:.3f}, agreement {agreed:.3f}, fitted in {seconds:.0f} s"
    reached = kept <= 0.3 and caused <= 0.1 and agreed >= 0.95 and seconds <= 360
    wanted = ">= 70 % masked, KL <= .1, agreement >= .95, fitted within 360 s"
    return "sst2, inputs, margin .1", "prototype: 60 %, .09, .95 after 386 s", shown, wanted, reached


def sentiment_line(kept: Mapping[str, Sequence[float]]) -> Line:
    """The U over the words' own sentiments."""
    means = [mean(kept[name]) for name in SENTIMENTS]
    left, right = means[:3], means[:1:-1]
    reached = all(strong > weak for side in (left, right) for strong, weak in pairwise(side))
    shown = " ".join(f"{value:.1f}" for value in means)
    return (
        "states that keep a word, by its sentiment",
        "8.6 7.0 5.3 7.3 9.0 of 14",
        shown,
        "strong > weak > neutral",
        reached,
    )


def stability_line(workspace: Workspace, method: Method, seeds: int, rows: int = 200) -> Line:
    """Rank correlation, text by text, between fits of one model at several seeds."""
    task = workspace.task()
    batch = task.data["valid"][:rows]
    others = (ReseededWorkspace.of(workspace, workspace.seed + further) for further in range(1, seeds))
    scores = [seed_workspace.explainer(method)(batch).scores for seed_workspace in (workspace, *others)]
    correlations = [rank_correlation(first, second, batch.maskable) for first, second in combinations(scores, 2)]
    value = torch.cat(correlations).mean().item()
    shown = f"{value:.3f} over {seeds} fits, {len(batch)} texts"
    return "rank correlation between seeds", '"stable"', shown, ">= .8", value >= 0.8


def draw_means(kept: Mapping[str, Sequence[float]], title: str, file: Path) -> None:
    """A bar for each group of words, with the standard error of its mean."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = drawing.add_subplot()
    names = [name for name in kept if len(kept[name]) > 1]
    errors = [torch.tensor(kept[name]).std().item() / len(kept[name]) ** 0.5 for name in names]
    axes.bar(range(len(names)), [mean(kept[name]) for name in names], yerr=errors, color="#4477aa", capsize=3)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylabel("states that keep the word")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    drawing.savefig(file, dpi=150)


def draw_sentence(workspace: Workspace, methods: Sequence[Method], file: Path) -> None:
    """One sentence, word by word: SurrogateMask's layers, and beside them the other methods."""
    from matplotlib.figure import Figure

    task: Any = workspace.task()
    task.model.set_attn_implementation("eager")
    ours = [workspace.explainer(method)(SENTENCE) for method in methods]
    others: dict[str, Method] = {
        "IG": IntegratedGradients(n_steps=50),
        "attention": Attention(),
        "Schulz": Bottleneck(),
        "Guan": NoiseTolerance(),
    }
    columns = {name: method.fit(task, workspace.seed)(SENTENCE).scores.abs() for name, method in others.items()}
    words = ours[0].words
    drawing = Figure(figsize=(3.2 * len(ours) + 3, 1.2 + 0.27 * len(words)), layout="constrained")
    axes = drawing.subplots(1, len(ours) + 1, sharey=True)
    for axis, explanation, method in zip(axes, ours, methods, strict=False):
        axis.imshow(explanation.by_layer.T, aspect="auto", cmap="Oranges", vmin=0, vmax=1)
        axis.set_xticks(range(len(explanation.layers)), ["E", *map(str, range(1, len(explanation.layers)))])
        axis.set_title(f"SurrogateMask, {method.to_dict()['mask']}", fontsize=10)
    shares = torch.stack([column / column.max().clamp(min=1e-12) for column in columns.values()], dim=1)
    axes[-1].imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    axes[-1].set_xticks(range(len(columns)), list(columns), rotation=30, ha="right")
    axes[-1].set_title("as shares of the largest", fontsize=10)
    axes[0].set_yticks(range(len(words)), words)
    drawing.suptitle(f"The model says {ours[0].prediction}.", x=0.01, ha="left", fontsize=11)
    drawing.savefig(file, dpi=150)


@dataclass(frozen=True)
class Study:
    """One run: its numbers, its task, and SurrogateMask on inputs and on hidden states."""

    records: list[Record]
    workspace: Workspace
    inputs: SurrogateMask
    states: SurrogateMask

    @staticmethod
    def read(run: Path) -> "Study":
        """From the folder of the run."""
        experiment = Experiment.from_dict(json.loads((run / "manifest.json").read_text())["experiment"])
        masks = {method.mask: method for method in experiment.methods if isinstance(method, SurrogateMask)}
        workspace = Workspace(Store(run / "store"), experiment.tasks[0], experiment.seeds[0])
        return Study(read_jsonl(run / "records.jsonl"), workspace, masks["inputs"], masks["states"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("five", type=Path, help="the run on five classes")
    parser.add_argument("two", type=Path, help="the run on two")
    parser.add_argument("--seeds", type=int, default=3, help="fits whose scores are correlated")
    asked = parser.parse_args()
    five, two = Study.read(asked.five), Study.read(asked.two)
    folder = Path(five.workspace.task_config.to_dict()["data"].partition(":")[2])
    sentences = list(read_trees(folder, "dev"))
    explanations = five.workspace.explainer(five.inputs)([tree.text for tree in sentences])
    kept = layers_kept(explanations, sentences)
    by_sentiment: dict[str, list[float]] = defaultdict(list)
    for word in kept:
        by_sentiment[word.sentiment].append(word.states)
    figures = asked.five / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    lines = [
        masked_line(five.records, five.inputs, "46.3 %, F1 37.9 -> 38.3", 0.463),
        masked_line(five.records, five.states, "67.6 %, F1 -> 38.9", 0.676),
        two_class_line(two.records, two.inputs),
        sentiment_line(by_sentiment),
        stability_line(two.workspace, two.inputs, asked.seeds),
    ]
    print("| figure | published | measured | must reach | reached |\n|---|---|---|---|---|")
    for *cells, reached in lines:
        print(f"| {' | '.join(cells)} | {'yes' if reached else 'NO'} |")
    draw_means(
        {name: by_sentiment[name] for name in SENTIMENTS}, "By the word's own sentiment", figures / "sentiment.png"
    )
    by_tag: dict[str, list[float]] = defaultdict(list)
    tags = WordTagger("part-of-speech").tag(tree.words for tree in sentences)
    for word, tag in zip(kept, chain.from_iterable(tags), strict=True):
        by_tag[tag].append(word.states)
    ordered = dict(sorted(by_tag.items(), key=lambda item: -mean(item[1])))
    print("\n| part of speech | words | states that keep it |\n|---|---|---|")
    for tag, states in ordered.items():
        print(f"| {tag} | {len(states)} | {mean(states):.2f} |")
    draw_means(ordered, "By part of speech", figures / "part_of_speech.png")
    draw_sentence(two.workspace, [two.inputs, two.states], figures / "sentence.png")
    print(f"\nfigures: {figures}")


if __name__ == "__main__":
    main()
