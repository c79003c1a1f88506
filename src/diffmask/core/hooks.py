"""Borrowing a model that belongs to somebody else: frozen while it is used, as it was found afterwards.

Reading and editing a model's states while it runs: the only file that touches hooks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from diffmask.errors import SiteError, nearest


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Within this block no module is in train mode and no parameter asks for a gradient; then each is as it was."""
    training = [module for module in model.modules() if module.training]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for module in training:
            module.training = False
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for module in training:
            module.training = True
        for parameter in learning:
            parameter.requires_grad_(True)


State = Float[Tensor, "row token width"]
Edit = Callable[[State], State]


@dataclass(frozen=True)
class Site:
    """A place where a state can be read and replaced: what goes into a module, or comes out of it."""

    module: str
    """Path of the module, as `model.named_modules()` spells it."""
    side: Literal["input", "output"] = "output"
    call: int | None = None
    """Which call of the module, from 0, where one pass calls it several times; None where it calls it once."""
    token_first: bool = False
    """Whether the module keeps its states as [token, row, width]; edits see [row, token, width] all the same."""


@contextmanager
def editing(model: nn.Module, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Within this block one forward pass of the model runs with each site's state replaced by `edit(state)`.

    The hooks go when the block ends, also by an error. A site that the pass does not reach is an error, and so is a
    site without a call number that the pass reaches more than once.
    """
    calls = dict.fromkeys(edits, 0)

    def counted(site: Site, edit: Edit) -> Edit:
        def chosen(state: State) -> State:
            calls[site] += 1
            return _apply(site, edit, state) if site.call in (None, calls[site] - 1) else state

        return chosen

    with ExitStack() as hooks:
        for site, edit in edits.items():
            hooks.callback(_attach(model, site, counted(site, edit)).remove)
        yield
    for site, count in calls.items():
        _require_reached(site, count)


@contextmanager
def persistent_edit(model: nn.Module, site: Site, edit: Edit) -> Iterator[None]:
    """Within this block every pass of the model, whoever asks for it, runs with the site's state replaced.

    What `editing` does to the same site comes after it and sees the replaced state.
    """
    if site.call is not None:
        raise SiteError(f"'{site.module}' is called several times in one pass: its states cannot be told apart here")
    handle = _attach(model, site, lambda state: _apply(site, edit, state))
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class Call:
    """One call of a module: the states that went in and came out, where they were tensors."""

    module: str
    taken: Tensor | None
    given: Tensor | None


@contextmanager
def record_calls(model: nn.Module, modules: Iterable[str]) -> Iterator[list[Call]]:
    """Within this block every call of the named modules is added to the list, in the order in which they end."""
    calls: list[Call] = []

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
            taken = arguments[0] if arguments else named.get("hidden_states")
            given = output[0] if isinstance(output, tuple) else output
            calls.append(Call(path, *(state if isinstance(state, Tensor) else None for state in (taken, given))))

        return hook

    with ExitStack() as hooks:
        for path in modules:
            hooks.callback(model.get_submodule(path).register_forward_hook(note(path), with_kwargs=True).remove)
        yield calls


@contextmanager
def on_output(model: nn.Module, seen: Callable[[Tensor], None]) -> Iterator[None]:
    """Within this block `seen` is given the first tensor of every answer of the model."""

    def hook(module: nn.Module, arguments: Any, output: Any) -> None:
        seen(_first_tensor(output))

    handle = model.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def skip_modules(model: nn.Module, modules: Iterable[str], *, members: int) -> Iterator[None]:
    """Within this block the named modules compute nothing: each answers with the state it is given.

    It is the first of a tuple of so many members, the others None; with no members, the answer itself.
    """

    def hand_on(*arguments: Any, **named: Any) -> Any:
        state = arguments[0] if arguments else named["hidden_states"]
        return (state, *[None] * (members - 1)) if members else state

    with ExitStack() as patches:
        for path in modules:
            patches.enter_context(_replaced_forward(model.get_submodule(path), hand_on))
        yield


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The module with another `forward`; one that was set on this very module comes back."""
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.__dict__["forward"] = own


def _apply(site: Site, edit: Edit, state: Tensor) -> Tensor:
    return edit(state.transpose(0, 1)).transpose(0, 1) if site.token_first else edit(state)


def _require_reached(site: Site, count: int) -> None:
    if site.call is None and count != 1:
        raise SiteError(
            f"the {site.side} of '{site.module}' was seen {count} times in one forward pass, not once; "
            "name the call to edit, or give the model an nn.Identity of its own at the place"
        )
    if site.call is not None and count <= site.call:
        raise SiteError(f"'{site.module}' was called {count} times in one forward pass; there is no call {site.call}")


def _attach(model: nn.Module, site: Site, edit: Edit) -> Any:
    modules = dict(model.named_modules())
    if site.module not in modules:
        raise SiteError(f"'{site.module}' is not a module of {type(model).__name__}; {nearest(site.module, modules)}")
    module = modules[site.module]
    if site.side == "output":
        return module.register_forward_hook(lambda _module, _arguments, output: _edit_output(output, edit))
    return module.register_forward_pre_hook(
        lambda _module, arguments, named: _edit_input(arguments, named, edit), with_kwargs=True
    )


def _edit_output(output: Any, edit: Edit) -> Any:
    """Blocks answer with a tensor, or with a tuple whose first member is the state."""
    return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)


def _edit_input(
    arguments: tuple[Any, ...], named: dict[str, Any], edit: Edit
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Blocks take their state first, or by the name every library gives it."""
    if arguments:
        return (edit(arguments[0]), *arguments[1:]), named
    if "hidden_states" not in named:
        raise SiteError(f"a block that takes {', '.join(named) or 'nothing'} has no state to edit: pass it first")
    return arguments, {**named, "hidden_states": edit(named["hidden_states"])}


def _first_tensor(output: Any) -> Tensor:
    """The answer itself: a tensor, or the first of a tuple or of a library's output record."""
    while not isinstance(output, Tensor):
        output = next(
            value for value in (output.values() if isinstance(output, Mapping) else output) if value is not None
        )
    return output
