"""A language model's response, its parts, and what erasing them does, on tiny models of six families."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import diffmask as dm
from diffmask.core.answers import TokenCategoricals
from diffmask.core.batch import Batch, hide_tokens
from diffmask.core.distributions import divergence, log_odds, predicted_outcome
from diffmask.core.units import unit_scores
from diffmask.errors import ConfigError, InputError, TaskError
from diffmask.explanation.response import ResponseExplanation
from diffmask.tasks.generation.prompt import read_prompt, render
from diffmask.tasks.generation.prompt_encoding import EVENT, PART, POSITION, PromptEncodingConfig
from diffmask.tasks.generation.text_generation import TextGeneration
from support.tiny_language_models import FAMILIES, tiny_encoder_decoder, tiny_language_model, word_tokenizer
from support.transformer import TransformerTask

torch.set_num_threads(1)
PROMPTS: list[Any] = [
    {
        "documents": ["ann lives in oslo. bob lives in lima.", "ann works as a baker."],
        "question": "where does bob live?",
    },
    {"documents": ["bob is a pilot."], "question": "what is bob?", "response": "a pilot."},
    {
        "documents": ["ann is a baker. bob is a pilot. ann lives in lima. bob lives in oslo."],
        "question": "what is ann?",
    },
]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
each_family = pytest.mark.parametrize("kind", FAMILIES)


@cache
def task_of(kind: str = "llama", **choices: Any) -> TextGeneration:
    encoding = PromptEncodingConfig(max_new_tokens=6, **{"replacement": "the", **choices})
    return TextGeneration(tiny_language_model(kind), word_tokenizer(), train=PROMPTS, encoding=encoding)


def answer(task: TextGeneration, batch: Batch) -> TokenCategoricals:
    with torch.no_grad():
        found = task.predict(batch)
    assert isinstance(found, TokenCategoricals)
    return found


def test_parts_are_located_in_the_rendered_prompt() -> None:
    rendered = render(read_prompt(PROMPTS[0]), word_tokenizer())
    assert [part.text for part in rendered.parts] == [
        "ann lives in oslo.",
        "bob lives in lima.",
        "ann works as a baker.",
    ]
    assert all(rendered.text[slice(*part.span)] == part.text for part in rendered.parts)
    assert rendered.parts[2].name == "document 2"


def test_turns_and_the_system_message_are_parts_but_the_last_question_is_not() -> None:
    chat = [
        {"role": "system", "content": "the answer is yes"},
        {"role": "user", "content": "where does ann live?"},
        {"role": "assistant", "content": "oslo"},
        {"role": "user", "content": "what is bob?"},
    ]
    rendered = render(read_prompt(chat, "turn"), word_tokenizer())
    assert [part.name for part in rendered.parts] == ["system", "turn 2 (user)", "turn 3 (assistant)"]


def test_tools_are_parts_located_by_their_own_text() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "oslo")]
    rendered = render(read_prompt({"messages": [{"role": "user", "content": "yes"}], "tools": tools}), word_tokenizer())
    assert [part.name for part in rendered.parts] == ["tool weather", "tool oslo"]
    assert "weather" in rendered.parts[0].text and "oslo" in rendered.parts[1].text


def test_a_single_text_is_split_into_its_own_sentences() -> None:
    parts = render(read_prompt("ann is a baker. what is ann?"), word_tokenizer()).parts
    assert [part.text for part in parts] == ["ann is a baker.", "what is ann?"]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"documents": [], "question": "x"}, "documents"),
        ({"documents": ["a"], "query": "x"}, "'query' is not a field"),
        ({"documents": [3], "question": "x"}, "found a int"),
        ("  ", "empty"),
        (7, "a prompt is a text"),
    ],
)
def test_bad_prompts_are_refused_with_the_reason(prompt: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_prompt(prompt)


def test_a_prompt_longer_than_the_model_is_refused_before_it_runs() -> None:
    with pytest.raises(InputError, match="exceeds the model's 128"):
        task_of().encode([{"documents": ["ann lives in oslo. " * 40], "question": "where?"}])


@each_family
def test_answers_are_the_plain_model_s_next_token_distributions(kind: str) -> None:
    task = task_of(kind)
    row = task.rows["train"][0]
    ids = torch.tensor([[*row.prompt.ids, *row.response]])
    with torch.no_grad():
        logits = task.model(ids).logits[0, len(row.prompt.ids) - 1 : -1]
    found = answer(task, task.data["train"][:1].trim())
    torch.testing.assert_close(found.base_dist.logits[0, : len(row.response)], logits.log_softmax(-1), **CLOSE)


def padded_on_the_left(batch: Batch) -> Batch:
    def shift(value: torch.Tensor) -> torch.Tensor:
        per_token = value.shape[1:2] == batch.tokens.shape[1:]
        return torch.cat([torch.zeros_like(value[:, :3]), value], 1) if per_token else value

    return batch.map(lambda value: shift(value) if value.ndim > 1 else value)


@each_family
def test_batched_rows_equal_single_rows_and_left_padding_is_neutral(kind: str) -> None:
    task, batch = task_of(kind), task_of(kind).data["train"]
    together = answer(task, batch)

    padded = answer(task, padded_on_the_left(batch))
    for row in range(len(batch)):
        events = batch.inputs["scored"][row]
        single = answer(task, batch[row : row + 1].trim())
        torch.testing.assert_close(together.base_dist.logits[row][events], single.base_dist.logits[0][events], **CLOSE)
        torch.testing.assert_close(padded.base_dist.logits[row][events], single.base_dist.logits[0][events], **CLOSE)


@each_family
def test_leaving_a_hidden_part_out_equals_an_attention_mask(kind: str) -> None:
    task = task_of(kind)
    batch = task.data["train"][:1].trim()
    gone = batch.token_inputs[PART] == 2
    short, masked = answer(task, task.erase(batch, gone)), answer(task, hide_tokens(batch, gone))
    torch.testing.assert_close(short.base_dist.logits, masked.base_dist.logits, **CLOSE)
    with torch.no_grad():
        everywhere: Any = task.predict_hidden_from(batch, gone, 0)
        nowhere: Any = task.predict_hidden_from(batch, gone, 3)
    torch.testing.assert_close(everywhere.base_dist.logits, masked.base_dist.logits, **CLOSE)
    torch.testing.assert_close(nowhere.base_dist.logits, answer(task, batch).base_dist.logits, **CLOSE)


@each_family
def test_a_shared_prefix_gives_the_answers_of_whole_passes(kind: str) -> None:
    task = task_of(kind)
    batch = task.data["train"][:1].trim().repeat(3)
    erased = torch.stack([batch.token_inputs[PART][0] == number for number in (1, 2, 3)])
    copies = task.erase(batch, erased)
    shared = answer(task, copies)
    for row in range(3):
        alone = answer(task, copies[row : row + 1].trim())
        torch.testing.assert_close(shared.base_dist.logits[row], alone.base_dist.logits[0], **CLOSE)


def test_gradients_that_would_not_fit_into_memory_are_refused_before_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from diffmask.tasks.generation import gradient_memory

    task = task_of()
    batch = task.data["train"]
    monkeypatch.setattr(gradient_memory, "LONG_PROMPT", 8)
    monkeypatch.setattr(gradient_memory, "free_memory", lambda device: 10**4)
    with pytest.raises(InputError, match=r"keep about .* GB of states, .* without gradients"):
        dm.Gradient().fit(task)(batch)
    assert dm.LeaveOneOut().fit(task)(batch).scores.isfinite().all()
    monkeypatch.setattr(gradient_memory, "free_memory", lambda device: 10**9)
    assert dm.Gradient().fit(task)(batch).scores.isfinite().all()


def test_the_bytes_of_a_backward_pass_are_those_of_the_states_that_it_keeps() -> None:
    from diffmask.tasks.generation.gradient_memory import bytes_per_token

    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Tanh(), torch.nn.Tanh())

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.table = model, torch.nn.Embedding(5, 4)

        def get_input_embeddings(self) -> torch.nn.Embedding:
            return self.table

        def forward(self, inputs_embeds: torch.Tensor, use_cache: bool) -> torch.Tensor:
            return self.body(inputs_embeds)

    # Each tanh keeps its output of four floats; the linear layer keeps only its weight, because it is frozen.
    assert bytes_per_token(Model(), torch.zeros(1, 3, dtype=torch.long)) == 2 * 4 * 4


def test_removing_a_part_equals_a_prompt_that_never_had_it() -> None:
    task = task_of(erasing="remove")
    prompt = {"documents": ["ann is a baker. bob is a pilot."], "question": "what?", "response": "a pilot."}
    shorter = {"documents": ["ann is a baker."], "question": "what?", "response": "a pilot."}
    batch = task.encode([prompt])
    removed = answer(task, task.erase(batch, batch.token_inputs[PART] == 2))
    torch.testing.assert_close(removed.base_dist.logits, answer(task, task.encode([shorter])).base_dist.logits, **CLOSE)


def test_replaced_tokens_keep_their_places() -> None:
    task = task_of(erasing="replace")
    batch = task.data["train"][:1].trim()
    replaced = task.erase(batch, batch.token_inputs[PART] == 1)
    the = task.tokenizer.convert_tokens_to_ids("the")
    assert set(replaced.tokens[batch.token_inputs[PART] == 1].tolist()) == {the}
    assert torch.equal(replaced.tokens[batch.token_inputs[PART] != 1], batch.tokens[batch.token_inputs[PART] != 1])


def test_a_replacement_without_a_token_is_refused() -> None:
    with pytest.raises(InputError, match="has no token"):
        TextGeneration(tiny_language_model("llama"), word_tokenizer(), encoding=PromptEncodingConfig(erasing="replace"))


def test_the_model_s_own_response_is_greedy_and_includes_its_end() -> None:
    task = task_of()
    row = task.rows["train"][0]
    found = answer(task, task.data["train"][:1].trim())
    assert predicted_outcome(found)[0, : len(row.response)].tolist() == list(row.response)
    assert len(row.response) == 6 or row.response[-1] in task.ends


def test_one_token_of_a_response_is_explained_alone() -> None:
    task = task_of()
    whole, third = task.encode(PROMPTS[:1]), task.encode(PROMPTS[:1], span=(2, 3))
    logits = answer(task, whole).base_dist.logits[:, 2]
    expected = logits.gather(1, whole.target[:, 2:3]).squeeze(1)
    torch.testing.assert_close(answer(task, third).log_prob(third.target), expected, **CLOSE)


def test_attention_of_the_response_matches_the_model_s_own_weights() -> None:
    task = task_of()
    model = tiny_language_model("llama", attn_implementation="eager")
    row, batch = task.rows["train"][0], task.data["train"][:1].trim()
    with torch.no_grad():
        weights = model(batch.tokens, output_attentions=True).attentions
    found = task.attentions(batch)
    last = len(row.prompt.ids) - 1
    for layer in range(3):
        expected = weights[layer][0, :, last : last + len(row.response)]
        torch.testing.assert_close(found[0, layer, :, : len(row.response)], expected, **CLOSE)


def test_the_log_odds_of_a_response_are_those_of_its_probability() -> None:
    found = TokenCategoricals(
        torch.randn(2, 3, 5, generator=torch.manual_seed(0)), torch.tensor([[True] * 3, [True] * 2 + [False]])
    )
    outcome = torch.tensor([[1, 2, 3], [0, 4, 0]])
    probability = found.log_prob(outcome).exp()
    torch.testing.assert_close(log_odds(found, outcome), (probability / (1 - probability)).log(), **CLOSE)


def test_the_divergence_is_a_mean_over_scored_tokens() -> None:
    first, second = torch.randn(2, 1, 3, 4, generator=torch.manual_seed(0))
    scored = torch.tensor([[True, True, False]])
    p, q = first.softmax(-1)[0], second.softmax(-1)[0]
    expected = float((p * (p.log() - q.log())).sum(-1)[:2].mean())
    found = divergence(TokenCategoricals(first, scored), TokenCategoricals(second, scored))
    assert float(found) == pytest.approx(expected, rel=1e-4)


METHODS: list[dm.Method] = [
    dm.LeaveOneOut(),
    dm.ContextCite(ablations=8),
    dm.KernelShap(ablations=8),
    dm.Attention(),
    dm.Gradient(),
    dm.InputXGradient(),
    dm.IntegratedGradients(n_steps=4),
    dm.LeaveOneOut(mode="cached"),
]


def check_contract(task: TextGeneration, method: dm.Method) -> None:
    """Batched rows are single rows, and the model is as it was."""
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    explainer, batch = method.fit(task, seed=0), task.data["train"]
    together = explainer(batch).scores
    for row in range(len(batch)):
        single = batch[row : row + 1].trim()
        alone = explainer(single).scores
        torch.testing.assert_close(together[row : row + 1, : alone.shape[1]], alone, rtol=1e-3, atol=1e-3)
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.model.modules())
    assert not task.model.training and task.model.config._attn_implementation == "sdpa"


@each_family
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
def test_methods_score_batches_like_single_rows_and_leave_the_model_alone(kind: str, method: dm.Method) -> None:
    check_contract(task_of(kind), method)


LEARNED: list[dm.Method] = [
    dm.Amortised(mask_pairs=2),
    dm.DiffMask(steps=4, batch_size=4),
    dm.SurrogateMask(budget="16 texts", batch_size=4),
]


@each_family
@pytest.mark.usefixtures("cache")
@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
@pytest.mark.parametrize("method", LEARNED, ids=lambda method: method.name)
def test_learned_methods_do_so_too(kind: str, method: dm.Method) -> None:
    check_contract(facts_task(kind), method)


def test_leave_one_part_out_is_the_change_of_the_log_odds() -> None:
    task = task_of()
    batch = task.data["train"][:1].trim()
    scores = unit_scores(dm.LeaveOneOut().fit(task)(batch).scores, task.unit_numbers(batch))[0]
    for part in (1, 2, 3):
        without = task.erase(batch, batch.token_inputs[PART] == part)
        expected = log_odds(answer(task, batch), batch.target) - log_odds(answer(task, without), batch.target)
        assert float(scores[part - 1]) == pytest.approx(float(expected), abs=1e-3)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_hiding_from_the_end_equals_one_pass_with_a_mask_of_queries_and_keys(kind: str) -> None:
    task = task_of(kind)
    row = task.data["train"][2:3].trim()
    parts, tokens = task.unit_numbers(row)[0], row.tokens.shape[1]
    end = int((parts > 0).nonzero().max()) + 1
    hidden = torch.stack([parts == part for part in (1, 4)])
    answers: Any = task.cache_row(row).predict_hidden(hidden)
    for copy, gone in enumerate(hidden):
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        seen[end:] &= ~gone
        with torch.no_grad():
            logits = task.model(input_ids=row.tokens, attention_mask=seen[None, None]).logits
        expected = logits[0, row.token_inputs[EVENT][0] > 0].log_softmax(-1)
        torch.testing.assert_close(answers.base_dist.logits[copy], expected, **CLOSE)


def test_scores_from_the_end_of_a_padded_batch_are_those_of_single_rows() -> None:
    task = task_of()
    batch = task.data["train"]
    explainer = dm.LeaveOneOut(mode="cached").fit(task)
    together = explainer(batch).scores
    assert not torch.allclose(together, dm.LeaveOneOut().fit(task)(batch).scores, atol=1e-3)
    for row in range(len(batch)):
        single = batch[row : row + 1].trim()
        width = single.tokens.shape[1]
        torch.testing.assert_close(together[row : row + 1, :width], explainer(single).scores, **CLOSE)
        torch.testing.assert_close(
            explainer(padded_on_the_left(single)).scores[:, 3:], explainer(single).scores, **CLOSE
        )


def lengths_of_passes(task: TextGeneration, run: Callable[[], object]) -> list[int]:
    """Return the number of tokens of every forward pass of a function."""
    lengths: list[int] = []

    def count(module: torch.nn.Module, inputs: tuple[Any, ...], names: dict[str, Any]) -> None:
        lengths.append(names["input_ids"].shape[1])

    handle = task.model.register_forward_pre_hook(count, with_kwargs=True)
    run()
    handle.remove()
    return lengths


@pytest.mark.usefixtures("cache")
@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_the_keys_and_values_of_a_prompt_are_computed_once_for_all_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffmask.methods.unit_ablation.TOKENS_AT_ONCE", 1)
    task = facts_task("llama")
    row = task.data["train"][2:3].trim()
    parts = task.unit_numbers(row)[0]
    end = int((parts > 0).nonzero().max()) + 1
    rest = row.tokens.shape[1] - end
    single = dm.LeaveOneOut(mode="cached").fit(task)
    assert lengths_of_passes(task, lambda: single(row)) == [end] + [rest] * (1 + int(parts.max()))
    refined = dm.Amortised(mask_pairs=2, refine=6, cached=True).fit(task)
    # One pass reads the attention, the others are the whole prompt and its six copies.
    assert lengths_of_passes(task, lambda: refined(row)) == [end] + [rest] * 8


def test_kernel_shap_of_all_coalitions_is_the_shapley_value() -> None:
    task = task_of()
    batch = task.data["train"][:1].trim()

    def value(kept: set[int]) -> float:
        gone = batch.maskable & ~torch.isin(batch.token_inputs[PART], torch.tensor(sorted(kept) or [99]))
        return float(log_odds(answer(task, task.erase(batch, gone)), batch.target))

    weights = {0: 1 / 3, 1: 1 / 6, 2: 1 / 3}
    scores = unit_scores(dm.KernelShap().fit(task)(batch).scores, task.unit_numbers(batch))[0]
    for part in (1, 2, 3):
        others = {1, 2, 3} - {part}
        subsets: list[set[int]] = [set(), *({other} for other in others), others]
        shapley = sum(weights[len(kept)] * (value(kept | {part}) - value(kept)) for kept in subsets)
        assert float(scores[part - 1]) == pytest.approx(shapley, abs=1e-3)


def test_context_cite_solves_the_lasso_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    from diffmask.methods.unit_ablation import lasso

    source = torch.manual_seed(0)
    kept = (torch.rand(40, 5, generator=source) < 0.5).double().numpy()
    values = kept @ [3.0, 0.0, -1.0, 0.1, 0.0] + 0.1 * torch.randn(40, generator=source).double().numpy()
    deviation = kept.std(axis=0)
    model = linear_model.Lasso(alpha=0.05).fit((kept - kept.mean(axis=0)) / deviation, values)
    assert lasso(kept, values, 0.05) == pytest.approx(model.coef_ / deviation, abs=1e-3)


def explanation(**choices: Any) -> ResponseExplanation:
    found = dm.LeaveOneOut().fit(task_of(**choices))(PROMPTS[2])
    assert isinstance(found, ResponseExplanation)
    return found


@pytest.mark.parametrize("erasing", ["hide", "remove", "replace"])
def test_needed_parts_keep_the_response_and_none_can_be_dropped(erasing: str) -> None:
    task, found = task_of(erasing=erasing), explanation(erasing=erasing).verify(0.5)
    assert found.verified is not None and found.verified and found.verified.minimal and found.verified.same_response
    batch = task.encode([PROMPTS[2]])

    def kl(kept: tuple[bool, ...]) -> tuple[float, bool]:
        keep = torch.tensor((True, *kept))[batch.token_inputs[PART]]
        changed = answer(task, task.erase(batch, ~keep))
        whole = answer(task, batch)
        same = torch.equal(predicted_outcome(changed), predicted_outcome(whole))
        return float(divergence(whole, changed)), same

    assert kl(found.verified.kept)[0] == pytest.approx(found.verified.kl, abs=1e-4)
    for part, stays in enumerate(found.verified.kept):
        if stays:
            fewer = tuple(kept and index != part for index, kept in enumerate(found.verified.kept))
            distance, same = kl(fewer)
            assert distance > 0.5 or not same
    assert found.without_the_rest().same


def test_an_explanation_shows_itself_as_text_and_plain_values(capsys: pytest.CaptureFixture[str]) -> None:
    found = explanation()
    found.show()
    assert "needed; verified: KL" in capsys.readouterr().out
    values = found.to_dict()
    assert [found.prompt[slice(*part["span"])] for part in values["parts"]] == [
        part["text"] for part in values["parts"]
    ]
    assert len(found.links) == 4 and len(found.links[0]) == len(found.response_tokens)
    names, table = found.layers
    assert names == ("block1", "block2", "block3") and len(table) == 4


def test_the_page_escapes_what_the_model_wrote_and_runs_only_its_own_script(tmp_path: Path) -> None:
    found = replace(explanation(), response_tokens=("</script><b>",) * 6)
    page = found.to_html(tmp_path / "answer.html", layers=True)
    assert (tmp_path / "answer.html").read_text() == page
    assert "<b>" not in page and "script-src 'sha256-" in page and page.count("<mark") == 4


def test_fields_and_mappings_are_the_same_prompt_and_a_list_is_several() -> None:
    explainer = dm.LeaveOneOut().fit(task_of())
    first = explainer(**PROMPTS[0], verify=False)
    both = explainer(PROMPTS[:2], verify=False)
    assert first.scores == pytest.approx(both[0].scores, abs=1e-3) and both[1].response == "a pilot ."
    assert not both[1].own_response
    with pytest.raises(InputError, match="not both"):
        explainer("ann", documents=["bob"])
    with pytest.raises(InputError, match="not verified"):
        _ = first.needed


def test_leave_one_out_refuses_a_mode_of_its_own_for_parts() -> None:
    with pytest.raises(TaskError, match="erases its units"):
        dm.LeaveOneOut(mode="delete").fit(task_of())


def test_cached_copies_are_refused_without_parts_or_without_copies() -> None:
    classifier = TransformerTask()
    with pytest.raises(TaskError, match="for parts of prompts"):
        dm.LeaveOneOut(mode="cached").fit(classifier)
    with pytest.raises(ConfigError, match="for parts of prompts"):
        dm.Amortised(refine=4, cached=True).fit(classifier)
    with pytest.raises(ConfigError, match="give refine"):
        dm.Amortised(cached=True)


def test_a_model_in_half_precision_answers_in_single_precision() -> None:
    task = TextGeneration(tiny_language_model("llama").to(torch.bfloat16), word_tokenizer(), train=PROMPTS)
    assert answer(task, task.data["train"]).base_dist.logits.dtype == torch.float32


def test_events_and_positions_travel_with_their_tokens() -> None:
    task = task_of()
    batch = task.data["train"][:1].trim()
    shorter = task.erase(batch, batch.token_inputs[PART] == 1)
    assert shorter.token_inputs[EVENT].sum() == batch.token_inputs[EVENT].sum()
    gone = int((batch.token_inputs[PART] == 1).sum())
    assert int(shorter.token_inputs[POSITION][0, -1]) - int(shorter.present.sum()) + 1 == gone
    assert replace(shorter).tokens.shape[1] == batch.tokens.shape[1] - gone


def facts_task(kind: str = "llama") -> TextGeneration:
    prompts = [
        {"documents": [f"{one} lives in {place}. {two} is a {job}. {one} is a {job}."], "question": f"where is {one}?"}
        for one, two in (("ann", "bob"), ("bob", "ann"))
        for place in ("oslo", "lima")
        for job in ("baker", "pilot")
    ]
    # A shorter response and fewer parts than in the other prompts.
    prompts.append({"documents": ["bob is a pilot."], "question": "what is bob?", "response": "pilot."})
    encoding = PromptEncodingConfig(max_new_tokens=3)
    return TextGeneration(tiny_language_model(kind), word_tokenizer(), train=prompts, encoding=encoding)


@pytest.mark.usefixtures("cache")
@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_amortised_weighs_attention_heads_and_explains_in_one_pass() -> None:
    task = facts_task()
    explainer = dm.Amortised(mask_pairs=2).fit(task, seed=0)
    again = dm.Amortised(mask_pairs=2).fit(task, seed=0)
    batch = task.data["train"]
    assert torch.equal(explainer(batch).scores, again(batch).scores)
    assert explainer.diagnostics["heads"]["masked_passes"] == 8 * (2 * 2 + 3) + 2 * 2 + 1
    explainer.cost.rows = 0
    single = explainer(batch[:1].trim()).scores
    # The prompt and the response are two parts of one pass over the row.
    assert explainer.cost.rows == 2 and explainer.cost.backwards == 0
    torch.testing.assert_close(single, explainer(batch).scores[:1, : single.shape[1]], **CLOSE)


def test_head_weights_recover_effects_that_are_linear_in_attention() -> None:
    from diffmask.methods.amortised.ablations import AblationSamples
    from diffmask.methods.amortised.parts import choose_penalty, fit_heads

    source = torch.manual_seed(0)
    features = torch.randn(40, 4, 6, generator=source)
    truth = torch.tensor([1.0, -2.0, 0.0, 0.0, 0.5, 0.0])
    effects = features @ truth + 3.0
    rows = torch.arange(40).repeat_interleave(10)
    kept = torch.rand(400, 4, generator=source) < 0.5
    values = (effects[rows] * kept).sum(dim=1) + 7.0 * rows
    samples = AblationSamples(features, rows, kept, values)
    penalty, correlation = choose_penalty(samples, source)
    assert correlation > 0.99
    # Weights are those of standardised features: compare the scores of units within a prompt.
    found = fit_heads(samples, penalty).scores(features)
    both = torch.stack([found.flatten(), effects.flatten()])
    assert float(torch.corrcoef(both)[0, 1]) > 0.97
    # The effect that all units have in common is found, too: their sign is right.
    assert ((found > 0) == (effects > 0)).float().mean() > 0.95


def test_refined_scores_are_exact_for_additive_effects() -> None:
    from diffmask.methods.amortised.refine_parts import refine_scores, refining_masks

    truth, prior = torch.tensor([4.0, -1.0, 0.5, 2.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    kept = refining_masks(4, 40, torch.manual_seed(0))
    assert kept.shape == (41, 4) and kept[0].all()
    torch.testing.assert_close(refine_scores(prior, kept, kept.float() @ truth + 7.0), truth, rtol=0, atol=0.05)


@pytest.mark.parametrize(("units", "copies"), [(6, 16), (3, 8), (8, 16), (9, 40)])
def test_interactions_of_two_parts_do_not_bias_the_refined_effect_of_a_third(units: int, copies: int) -> None:
    from diffmask.methods.amortised.refine_parts import refining_masks

    kept = refining_masks(units, copies, torch.Generator().manual_seed(1))
    assert len(kept) == copies + 1 and kept[0].all()
    design = 2 ** (copies // 2).bit_length()  # The last copies are random pairs where copies are no power of two.
    signs = 2.0 * kept[1 : design + 1].double() - 1
    assert signs.sum(dim=0).abs().max() == 0
    assert (signs.T @ signs - len(signs) * torch.eye(units)).abs().max() == 0
    of_pairs = torch.einsum("ki,kj,kl->ijl", signs, signs, signs)
    assert of_pairs.abs().max() == 0


def test_more_parts_than_the_design_has_columns_are_refined_by_random_pairs() -> None:
    from diffmask.methods.amortised.refine_parts import refining_masks

    kept = refining_masks(20, 16, torch.Generator().manual_seed(1))
    assert kept.shape == (17, 20) and (kept[1::2] ^ kept[2::2]).all()


def test_without_a_design_that_fits_each_part_is_left_out_once() -> None:
    from diffmask.methods.amortised.refine_parts import refining_masks

    kept = refining_masks(6, 8, torch.Generator().manual_seed(1))
    assert kept.shape == (9, 6) and kept[1:7].equal(~torch.eye(6, dtype=torch.bool))
    assert (kept[7] ^ kept[8]).all()


@pytest.mark.usefixtures("cache")
@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_refined_scores_of_a_batch_are_those_of_single_rows() -> None:
    task = facts_task()
    explainer = dm.Amortised(mask_pairs=2).fit(task, seed=0)
    refined, batch = explainer.refined(copies=6), task.data["train"]  # type: ignore[operator]
    together, before = refined(batch).scores, explainer(batch).scores
    single = refined(batch[8:9].trim()).scores
    torch.testing.assert_close(together[8:9, : single.shape[1]], single, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(dm.Amortised(mask_pairs=2, refine=6).fit(task, seed=0)(batch).scores, together)
    assert not torch.allclose(together, before)
    cached = dm.Amortised(mask_pairs=2, refine=6, cached=True).fit(task, seed=0)
    from_end = cached(batch).scores
    assert not torch.allclose(from_end, together)
    single = cached(batch[8:9].trim()).scores
    torch.testing.assert_close(from_end[8:9, : single.shape[1]], single, rtol=1e-3, atol=1e-3)
    with pytest.raises(ConfigError, match="at least 2 copies"):
        explainer.refined(copies=1)  # type: ignore[operator]


def test_features_are_the_attention_that_a_part_receives() -> None:
    from diffmask.methods.amortised.part_features import part_features

    task = task_of()
    batch = task.data["train"][:1].trim()
    received = task.attentions(batch).mean(dim=3)[0].flatten(0, 1)
    found = part_features(task, batch)[0]
    for part in (1, 2, 3):
        expected = received[:, batch.token_inputs[PART][0] == part].sum(dim=1)
        torch.testing.assert_close(found[part - 1], expected, **CLOSE)


def test_too_few_prompts_to_learn_from_are_refused() -> None:
    with pytest.raises(InputError, match="at least 4"):
        dm.Amortised().fit(task_of())


def test_the_command_prints_the_needed_parts_and_writes_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from diffmask.cli import app

    model, tokenizer = tiny_language_model("llama"), word_tokenizer()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "docs.jsonl").write_text(
        '{"text": "ann lives in oslo. bob is a pilot."}\n{"text": "bob is in lima."}\n'
    )
    run = CliRunner().invoke(
        app,
        [
            *("needs", "--model", str(tmp_path / "model"), "--documents", str(tmp_path / "docs.jsonl")),
            *("--question", "where is bob?", "--max-new-tokens", "4", "--method", "gradient"),
            *("--out", str(tmp_path / "e.json"), "--html", str(tmp_path / "e.html")),
        ],
        catch_exceptions=False,
    )
    assert run.exit_code == 0 and "needed; verified" in run.output and "whole prompt:" in run.output
    values = json.loads((tmp_path / "e.json").read_text())
    assert len(values["parts"]) == 3 and values["verified"]["holds"] and (tmp_path / "e.html").is_file()


def test_documents_of_files_are_read_or_refused(tmp_path: Path) -> None:
    from diffmask.datasets.contexts import read_documents, read_messages

    (tmp_path / "a.txt").write_text("one\n\n two\nlines \n\n\n")
    assert read_documents(tmp_path / "a.txt") == ["one", "two\nlines"]
    (tmp_path / "b.csv").write_text("body\nx\n")
    with pytest.raises(InputError, match="no column 'text'"):
        read_documents(tmp_path / "b.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_messages(tmp_path / "none.json")
    turn = {"role": "user", "content": "hello"}
    for content, fields in (([turn], {"messages": [turn]}), ({"messages": [turn], "tools": [{}]}, None)):
        (tmp_path / "chat.json").write_text(json.dumps(content))
        assert read_messages(tmp_path / "chat.json") == (fields or content)
    (tmp_path / "chat.json").write_text('{"turns": []}')
    with pytest.raises(InputError, match="object with messages"):
        read_messages(tmp_path / "chat.json")


def test_a_verified_set_takes_no_more_passes_than_allowed() -> None:
    found = explanation()
    for passes in (1, 3):
        verified = found.verify(0.5, passes=passes).verified
        assert verified is not None and verified and verified.passes <= passes
    with pytest.raises(InputError, match="at least 1 pass"):
        found.verify(passes=0)


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_a_second_fit_runs_only_prompts_that_the_first_did_not(cache: Path) -> None:
    task = facts_task()
    first = dm.Amortised(mask_pairs=2).fit(task.subset("train", torch.arange(5)), seed=0)
    stored = {folder.name for folder in (cache / "ablations").iterdir()}
    whole = dm.Amortised(mask_pairs=2).fit(task, seed=0)
    assert len(stored) == 5 and stored < {folder.name for folder in (cache / "ablations").iterdir()}
    assert whole.cost.rows < first.cost.rows + 9 * 2 + 4 * 7


def test_a_response_without_room_for_a_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_new_tokens"):
        PromptEncodingConfig(max_new_tokens=0)


@cache
def encoder_decoder() -> dm.SequenceToSequence:
    encoding = PromptEncodingConfig(max_new_tokens=4)
    return dm.SequenceToSequence(tiny_encoder_decoder(), word_tokenizer(), train=PROMPTS, encoding=encoding)


def test_an_encoder_decoder_answers_like_the_plain_model() -> None:
    task = encoder_decoder()
    row, batch = task.rows["train"][0], task.data["train"][:1].trim()
    ids = torch.tensor([row.prompt.ids])
    with torch.no_grad():
        logits = task.model(input_ids=ids, labels=torch.tensor([row.response])).logits[0]
        own = task.model.generate(input_ids=ids, max_new_tokens=4, do_sample=False)[0, 1:]
    found = answer(task, batch).base_dist.logits[0, : len(row.response)]
    torch.testing.assert_close(found, logits.log_softmax(-1), **CLOSE)
    assert own.tolist() == list(row.response)
    together = answer(task, task.data["train"]).base_dist.logits[0, : len(row.response)]
    torch.testing.assert_close(together, found, **CLOSE)


def test_parts_of_an_encoder_are_hidden_needed_and_linked() -> None:
    task = encoder_decoder()
    found = dm.LeaveOneOut().fit(task)(PROMPTS[2]).verify(0.5)
    assert found.verified.minimal and found.without_the_rest().same
    assert len(found.links) == 4 and found.layers[0] == ("block1", "block2", "block3")
    batch = task.data["train"][:1].trim()
    gone = batch.token_inputs[PART] == 1
    with torch.no_grad():
        late: Any = task.predict_hidden_from(batch, gone, 3)
    torch.testing.assert_close(late.base_dist.logits, answer(task, batch).base_dist.logits, **CLOSE)
    # Every block of the decoder: nothing else reads the encoder.
    everywhere: Any = task.predict_hidden_from(batch, gone, 0)
    from_end: Any = task.cache_row(batch).predict_hidden(gone)
    torch.testing.assert_close(from_end.base_dist.logits, everywhere.base_dist.logits, **CLOSE)
    for method in (dm.Attention(), dm.Gradient(), dm.ContextCite(ablations=6)):
        assert method.fit(task)(batch).scores.shape == batch.tokens.shape


def test_each_kind_of_model_names_the_class_to_use() -> None:
    with pytest.raises(InputError, match="SequenceToSequence"):
        TextGeneration(tiny_encoder_decoder(), word_tokenizer())
    with pytest.raises(InputError, match="TextGeneration"):
        dm.SequenceToSequence(tiny_language_model("llama"), word_tokenizer())
