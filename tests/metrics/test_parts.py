"""Metrics of parts, computed again in plain Python on a tiny language model."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr

import diffmask as dm
from diffmask.core.distributions import divergence, log_odds
from diffmask.core.store import Store
from diffmask.core.training import generator
from diffmask.core.units import unit_scores
from diffmask.datasets.contexts import load_prompts
from diffmask.datasets.planted_facts import planted_facts
from diffmask.errors import ConfigError, InputError
from diffmask.metrics.ground_truth import MassOnEvidence
from diffmask.metrics.prompt_parts import LinearDatamodelling, PartErasure
from diffmask.tasks.generation.prompt_encoding import PART, PromptEncodingConfig
from diffmask.tasks.generation.text_generation import TextGeneration
from diffmask.workspace.workspace import Workspace
from support.tiny_language_models import tiny_language_model, word_tokenizer

torch.set_num_threads(1)
PROMPTS = [
    {
        "documents": ["ann lives in oslo. bob lives in lima. ann is a pilot."],
        "question": "where does bob live?",
        "evidence": "bob lives in lima.",
    },
    {"documents": ["bob is a pilot. ann is a baker."], "question": "what is bob?", "evidence": "bob is a pilot."},
]


@cache
def task() -> TextGeneration:
    encoding = PromptEncodingConfig(max_new_tokens=4)
    return TextGeneration(
        tiny_language_model("llama"), word_tokenizer(), train=PROMPTS, test=PROMPTS, encoding=encoding
    )


def workspace(folder: Path) -> Workspace:
    return Workspace.over(Store(folder), task())


def test_the_linear_datamodelling_score_is_a_rank_correlation_over_ablations(tmp_path: Path) -> None:
    method = dm.LeaveOneOut()
    (record,) = LinearDatamodelling(ablations=12).run(method, workspace(tmp_path))
    batch = task().data["test"]
    scores = unit_scores(method.fit(task())(batch).scores, task().unit_numbers(batch))
    kept = torch.rand(24, 3, generator=generator(0, "linear datamodelling", 3)) < 0.5
    for row in range(2):
        single = batch[row : row + 1]
        predicted, measured = [], []
        for chosen in kept[12 * row : 12 * row + 12]:
            keep = torch.cat([torch.tensor([True]), chosen])[single.token_inputs[PART]]
            with torch.no_grad():
                answer = task().predict(task().erase(single, ~keep))
            predicted.append(float((scores[row] * chosen).sum()))
            measured.append(float(log_odds(answer, single.target)))
        assert record.per_row[row] == pytest.approx(spearmanr(predicted, measured).statistic, abs=0.02)


def test_part_erasure_measures_the_top_part_removed_and_alone(tmp_path: Path) -> None:
    method = dm.LeaveOneOut()
    drop, alone, same = PartErasure().run(method, workspace(tmp_path))
    batch = task().data["test"]
    scores = unit_scores(method.fit(task())(batch).scores, task().unit_numbers(batch))
    single, best = batch[:1].trim(), int(scores[0].argmax()) + 1
    part = single.token_inputs[PART]
    with torch.no_grad():
        whole = task().predict(single)
        without = task().predict(task().erase(single, part == best))
        kept = task().predict(task().erase(single, part != best))
    tokens = int(single.inputs["scored"].sum())
    expected = float(whole.log_prob(single.target) - without.log_prob(single.target)) / tokens
    assert drop.per_row[0] == pytest.approx(expected, abs=1e-4)
    assert alone.per_row[0] == pytest.approx(float(divergence(whole, kept)), abs=1e-4)
    assert {record.metric for record in (drop, alone, same)} == {"top_k_drop", "part_sufficiency", "identical_response"}


def test_the_known_evidence_is_a_ground_truth(tmp_path: Path) -> None:
    truth = task().ground_truth(task().data["test"])
    part = task().data["test"].token_inputs[PART]
    assert torch.equal(truth[0] > 0, part[0] == 2) and torch.equal(truth[1] > 0, part[1] == 1)
    records = list(MassOnEvidence().run(dm.LeaveOneOut(), workspace(tmp_path)))
    assert {record.metric for record in records} == {"evidence_mass", "evidence_first"}


def test_planted_facts_are_seeded_and_only_the_name_decides() -> None:
    first, again = list(planted_facts(20, seed=3)), list(planted_facts(20, seed=3))
    assert first == again and first != list(planted_facts(20, seed=4))
    for fact in first:
        assert len(set(fact.facts)) == 6 and fact.facts[fact.evidence] == fact.sentence
        assert fact.answered_by(f"It is {fact.answer.upper()}.") and fact.answer in fact.sentence
        assert len({text.split()[0] for text in fact.facts}) == 6
    with pytest.raises(ConfigError, match="1 to 20 facts"):
        list(planted_facts(1, facts=21))


def test_prompts_of_files_carry_their_evidence(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answers": [f"a{n}"], "ctxs": [{"text": f"passage {n}"}]} for n in range(8)]
    (tmp_path / "nq.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = load_prompts(f"nq-gold:{tmp_path / 'nq.jsonl'}")
    assert len(found["train"]) == len(found["test"]) == 4
    for row in found["test"]:
        assert row["evidence"][0] in row["documents"] and len(set(row["documents"])) == 6
    poison = {f"t{n}": {"question": "q", "incorrect answer": "x", "adv_texts": [f"lie {n}"]} for n in range(7)}
    (tmp_path / "poison.json").write_text(json.dumps(poison))
    assert all(
        row["evidence"][0] in row["documents"]
        for row in load_prompts(f"poisoned-nq:{tmp_path / 'poison.json'}")["test"]
    )
    pairs = {"ordered_kv_records": [[f"k{n}", f"v{n}"] for n in range(9)], "key": "k8", "value": "v8"}
    (tmp_path / "kv.jsonl").write_text(json.dumps(pairs))
    assert load_prompts(f"kv-retrieval:{tmp_path / 'kv.jsonl'}")["train"][0]["evidence"] == ["k8: v8"]
    hops = [{"context": [["T", ["One.", " Two."]]], "supporting_facts": [["T", 1]], "question": "q", "answer": "a"}]
    (tmp_path / "hops.json").write_text(json.dumps(hops))
    assert load_prompts(f"hotpotqa:{tmp_path / 'hops.json'}")["train"][0]["evidence"] == ["Two."]
    with pytest.raises(InputError, match="neither a data set of prompts"):
        load_prompts("nowhere")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_benchmark_of_a_language_model_ends_with_a_result(tmp_path: Path) -> None:
    result = dm.benchmark(
        task(),
        ["leave-one-out", "attention", {"name": "context-cite", "ablations": 8}],
        ["mass-on-evidence", "part-erasure", {"name": "linear-datamodelling", "ablations": 6}],
        out=tmp_path / "run",
        say=lambda _: None,
    )
    names = {info.name for info in result.metrics}
    assert {"evidence_first", "top_k_drop", "lds"} <= names
