"""Edits reach the state exactly once and leave the model unchanged."""

from typing import Any

import pytest
import torch
from torch import nn

from diffmask.core.hooks import (
    Edit,
    Site,
    edit_argument,
    edit_sites,
    erase_states,
    frozen,
    interpolate,
    on_output,
    persistent_edit,
    record_calls,
    remove_added_hooks,
    select_tokens,
    skip_modules,
    undone,
)
from diffmask.errors import SiteError


class Twice(nn.Module):
    """Calls one module twice."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.part(x))


class Tupled(nn.Module):
    """A block that returns a tuple and takes its state as a keyword argument."""

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, str]:
        return hidden_states + 1, "extra"


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Tupled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(hidden_states=x)[0] * 10


X = torch.ones(1, 2, 3)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize(("side", "expected"), [("input", 60.0), ("output", 70.0)])
def test_the_state_is_edited_at_the_input_or_the_output(side: str, expected: float) -> None:
    model = Stack()
    # in: (1 + 4) + 1 = 6; out: (1 + 1) + 5 = 7
    change = {"input": 4.0, "output": 5.0}[side]
    with edit_sites(model, {Site("block", side): lambda state: state + change}):  # type: ignore[arg-type]
        assert (model(X) == expected).all()
    assert (model(X) == 20.0).all()


def test_a_site_called_twice_is_an_error_that_names_the_remedy() -> None:
    model = Twice()
    with pytest.raises(SiteError, match=r"seen 2 times.*nn\.Identity"), edit_sites(model, {Site("part"): lambda h: h}):
        model(X)
    assert hooks_of(model) == 0


def test_a_site_never_called_is_an_error() -> None:
    model = Stack()
    with pytest.raises(SiteError, match="seen 0 times"), edit_sites(model, {Site("block"): lambda h: h}):
        pass


def test_an_unknown_module_is_an_error_with_the_nearest_name() -> None:
    model = Stack()
    with pytest.raises(SiteError, match="nearest: 'block'"), edit_sites(model, {Site("blok"): lambda h: h}):
        model(X)


def test_hooks_are_removed_when_an_edit_raises() -> None:
    model = Stack()

    def broken(state: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("edit")

    with pytest.raises(ArithmeticError, match="edit"), edit_sites(model, {Site("block"): broken}):
        model(X)
    assert hooks_of(model) == 0


def test_interpolation_mixes_state_and_baseline_at_maskable_tokens_only() -> None:
    gate, maskable = torch.tensor([[0.25, 0.25]]), torch.tensor([[True, False]])
    edited = interpolate(gate, torch.tensor([5.0, 5.0, 9.0]), maskable)(X)
    # 0.25 * 1 + 0.75 * 5 = 4 and 0.25 * 1 + 0.75 * 9 = 7
    assert edited.tolist() == [[[4.0, 4.0, 7.0], [1.0, 1.0, 1.0]]]
    assert interpolate(gate, torch.zeros(3))(X)[0, :, 0].tolist() == [0.25, 0.25]


def test_erased_states_are_the_baseline() -> None:
    edited = erase_states(torch.tensor([[False, True]]), torch.tensor([7.0, 8.0, 9.0]))(X)
    assert edited.tolist() == [[[1.0, 1.0, 1.0], [7.0, 8.0, 9.0]]]


def test_a_persistent_edit_holds_for_several_passes_and_then_ends() -> None:
    model = Stack()
    with persistent_edit(model, Site("block"), torch.zeros_like):
        assert (model(X) == 0).all() and (model(X) == 0).all()
    assert (model(X) == 20.0).all() and hooks_of(model) == 0


def test_calls_are_recorded_with_their_first_input_and_output() -> None:
    model = Stack()
    with record_calls(model, ["block"]) as calls:
        model(X)
    (call,) = calls
    assert call.module == "block" and call.input is not None and call.output is not None
    assert (call.output - call.input == 1).all() and hooks_of(model) == 0


def test_a_frozen_model_is_restored_module_by_module_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    model[1].eval()
    model[0].bias.requires_grad_(False)

    def fail() -> None:
        with frozen(model):
            assert not any(module.training for module in model.modules())
            assert not any(parameter.requires_grad for parameter in model.parameters())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [module.training for module in model.modules()] == [True, True, False]
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False]


def test_hooks_that_a_library_adds_are_removed_and_older_ones_stay() -> None:
    model = Stack()
    calls: list[str] = []
    model.block.register_forward_hook(lambda *_: calls.append("older"))
    with remove_added_hooks(model):
        model.block.register_forward_hook(lambda *_: calls.append("added"))
        model.block.register_forward_pre_hook(lambda *_: calls.append("added"))
        model.block._output_capturing_hooks_installed = True  # type: ignore[assignment]  # as transformers marks it
        model(X)
    assert calls == ["added", "older", "added"]
    model(X)
    assert calls[3:] == ["older"] and "_output_capturing_hooks_installed" not in model.block.__dict__


class InterruptedOnce(nn.Linear):
    """Ctrl-C arrives once: when it is put back into train mode, or when a hook on it has just been registered."""

    interrupts = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "training" and value and self.interrupts:
            self.__dict__["interrupts"] = 0
            raise KeyboardInterrupt

    def register_forward_hook(self, *arguments: Any, **named: Any) -> Any:
        super().register_forward_hook(*arguments, **named)
        raise KeyboardInterrupt


def test_ctrl_c_while_a_model_is_restored_leaves_it_restored() -> None:
    model = nn.Sequential(InterruptedOnce(2, 2), nn.Dropout(), nn.Linear(2, 2))
    model[0].__dict__["interrupts"] = 1
    with pytest.raises(KeyboardInterrupt), frozen(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_ctrl_c_while_a_hook_is_registered_leaves_no_hook() -> None:
    model = nn.Sequential(nn.Identity(), InterruptedOnce(3, 3))
    sites: dict[Site, Edit] = {Site("0"): torch.zeros_like, Site("1"): torch.zeros_like}
    with pytest.raises(KeyboardInterrupt), edit_sites(model, sites):
        pytest.fail("the block was entered")
    assert hooks_of(model) == 0


def test_what_is_undone_is_undone_again_after_an_interrupt() -> None:
    calls = []

    def undo() -> None:
        calls.append("begun")
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append("done")

    with pytest.raises(KeyboardInterrupt), undone(undo):
        pass
    assert calls == ["begun", "begun", "done"]


class Counter(nn.Module):
    """Calls one block three times; the block returns a tuple of three members."""

    class Block(nn.Module):
        def forward(self, state: torch.Tensor, scale: float = 1.0, shift: float = 0.0) -> tuple[torch.Tensor, str, str]:
            return scale * state + shift, "second", "third"

    def __init__(self) -> None:
        super().__init__()
        self.block = self.Block()
        self.seen: list[tuple[str, ...]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x, *rest = self.block(x, 2.0, shift=1.0)
            self.seen.append(tuple(rest))
        return x


@pytest.mark.parametrize(("call", "expected"), [(0, 11.0), (1, 9.0), (2, 8.0)])
def test_one_call_of_several_is_edited_and_the_rest_of_its_output_stays(call: int, expected: float) -> None:
    model = Counter()
    # Without an edit: 1 -> 3 -> 7 -> 15. The edited call's output is (halved and rounded up): 2, 4 or 8.
    edits: dict[Site, Edit] = {Site("block", call=call): lambda state: (state + 1) / 2}
    with edit_sites(model, edits):
        assert model(torch.ones(1, 1, 1)).item() == expected
    assert model.seen == [("second", "third")] * 3
    missing: dict[Site, Edit] = {Site("block", call=3): lambda state: state}
    with (
        pytest.raises(SiteError, match="was called 3 times in one forward pass; there is no call 3"),
        edit_sites(model, missing),
    ):
        model(torch.ones(1, 1, 1))


def test_the_other_arguments_of_an_edited_input_stay() -> None:
    model = Counter()
    with edit_sites(model, {Site("block", "input", call=0): lambda state: state + 10}):
        assert model(torch.ones(1, 1, 1)).item() == ((2 * 11 + 1) * 2 + 1) * 2 + 1


def test_states_that_have_the_token_first_are_edited_with_the_row_first() -> None:
    shapes = []

    def note(state: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(state.shape))
        return state * torch.tensor([[[1.0]], [[10.0]]])  # by row

    model, states = nn.Sequential(nn.Identity()), torch.ones(3, 2, 4)  # three tokens, two rows
    for site in (Site("0", token_first=True), Site("0", "input", token_first=True)):
        with edit_sites(model, {site: note}):
            assert model(states)[:, :, 0].tolist() == [[1.0, 10.0]] * 3
    assert shapes == [(2, 3, 4)] * 2 and not Site("0").token_first


def test_a_gate_between_zero_and_one_mixes_the_state_with_the_baseline() -> None:
    state = torch.tensor([[[4.0], [4.0], [4.0], [4.0]]])
    gate = torch.tensor([[1.0, 0.5, 0.0, 0.0]])
    maskable = torch.tensor([[True, True, True, False]])
    assert interpolate(gate, torch.tensor([2.0]), maskable)(state).flatten().tolist() == [4.0, 3.0, 2.0, 4.0]
    assert interpolate(gate, torch.tensor([2.0]))(state).flatten().tolist() == [4.0, 3.0, 2.0, 2.0]


def test_calls_are_recorded_with_their_first_input_and_output_however_they_are_passed() -> None:
    model = Stack()
    with record_calls(model, ["block"]) as calls:
        model(X)
    (call,) = calls
    assert call.module == "block" and torch.equal(call.input, X) and torch.equal(call.output, X + 1)  # type: ignore[arg-type]
    counter = Counter()
    with record_calls(counter, ["block"]) as calls:
        counter(torch.ones(1, 1, 1))
    assert [(call.input.item(), call.output.item()) for call in calls] == [(1, 3), (3, 7), (7, 15)]  # type: ignore[union-attr]


@pytest.mark.parametrize("columns", [slice(1, 3), torch.tensor([[1, 2], [0, 2]])])
def test_a_head_sees_the_selected_tokens_only(columns: Any) -> None:
    class Head(nn.Module):
        def forward(self, state: torch.Tensor, factor: float) -> torch.Tensor:
            return factor * state

    model, state = nn.ModuleDict({"head": Head()}), torch.arange(6.0).reshape(2, 3, 1)
    with select_tokens(model, "head", columns):
        found = model["head"](state, 10.0)
    expected = [[10, 20], [40, 50]] if isinstance(columns, slice) else [[10, 20], [30, 50]]
    assert found.squeeze(-1).tolist() == expected
    assert model["head"](state, 1.0).shape == (2, 3, 1)


def test_arguments_after_an_edited_one_stay() -> None:
    model = Counter()
    with edit_argument(model, ["block"], "state", lambda state: state + 1):
        assert model.block(torch.ones(1), 3.0, 4.0)[0].item() == 10.0


def test_a_forward_that_was_replaced_before_is_restored() -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    own = lambda x: x + 1  # noqa: E731  # as a library sets it on an instance
    model[0].forward = own  # type: ignore[method-assign]
    with skip_modules(model, ["0", "1"], members=0):
        assert model(torch.zeros(1)).item() == 0.0
    assert model[0].__dict__["forward"] is own and "forward" not in model[1].__dict__


@pytest.mark.parametrize(
    "output",
    [
        torch.ones(2),
        (torch.ones(2), torch.zeros(2)),
        (None, torch.ones(2)),
        {"loss": None, "logits": torch.ones(2)},
        ((torch.ones(2),),),
    ],
)
def test_the_first_tensor_of_any_output_is_counted(output: Any) -> None:
    class Model(nn.Module):
        def forward(self) -> Any:
            return output

    seen: list[list[float]] = []
    with on_output(model := Model(), lambda tensor: seen.append(tensor.tolist())):
        model()
    assert seen == [[1.0, 1.0]] and hooks_of(model) == 0


def test_hooks_with_keyword_arguments_leave_no_mark() -> None:
    model = Stack()
    with record_calls(model, ["block"]), edit_argument(model, ["block"], "hidden_states", lambda state: state):
        model(X)
    assert not model.block._forward_hooks_with_kwargs and not model.block._forward_pre_hooks_with_kwargs
