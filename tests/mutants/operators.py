"""Small changes to Python code that tests should notice: other comparisons, operators, constants and conditions."""

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
    ast.Mod: ast.Mult,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "zeros_like": "ones_like", "ones_like": "zeros_like"}
NAMES |= {"argmin": "argmax", "argmax": "argmin", "cummin": "cummax", "cummax": "cummin"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    line: int
    code: str
    """The line itself."""
    change: str
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module.

    Annotations, messages and decorators are left alone, and so is the `strict` of a zip: it is an assertion.
    """
    tree, lines = ast.parse(source), source.splitlines()
    for index, node in enumerate(_code(tree)):
        for variant in range(_variants(node)):
            copy = deepcopy(tree)
            target = list(_code(copy))[index]
            before = ast.unparse(target)
            _change(target, variant)
            after = ast.unparse(target)
            if before != after:
                line = getattr(node, "lineno", 0)
                yield Mutant(line, lines[line - 1].strip(), f"{before}  ->  {after}", copy)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run, in a fixed order."""
    if isinstance(tree, ast.keyword) and tree.arg == "strict":
        return
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "bases", "exc"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
                yield node
                yield from _code(node)


def _variants(node: ast.AST) -> int:
    if isinstance(node, ast.Compare):
        return int(type(node.ops[0]) in COMPARISONS)
    if isinstance(node, ast.BinOp):
        return int(type(node.op) in OPERATORS and not _is_text(node))
    if isinstance(node, ast.Constant):
        return int(type(node.value) in (int, float, bool))
    if isinstance(node, ast.Name | ast.Attribute):
        return int((node.id if isinstance(node, ast.Name) else node.attr) in NAMES)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return 1
    return int(isinstance(node, ast.BoolOp | ast.UnaryOp))


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.Constant | ast.JoinedStr) and not _is_number(side) for side in (node.left, node.right)
    )


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _change(node: ast.AST, variant: int) -> None:
    """Change a node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else value
    elif isinstance(node, ast.Name):
        node.id = NAMES[node.id]
    elif isinstance(node, ast.Attribute):
        node.attr = NAMES[node.attr]
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.op = (
            ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not() if isinstance(node.op, ast.Invert) else node.op
        )
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
