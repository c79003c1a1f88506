"""Recipes: small frozen values that are a YAML node, a cache key and a row of a table at once."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from diffmask import registry
from diffmask.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class Config:
    """A named, frozen set of choices. Subclasses set `kind` and `name` and add fields."""

    kind: ClassVar[str]
    name: ClassVar[str]
    revision: ClassVar[int] = 0
    """Raised when the same choices come to give other numbers: what a store holds from before is not found again."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values only: what a YAML file would say."""
        return {"name": self.name, **{field.name: _plain(getattr(self, field.name)) for field in fields(self)}}

    @property
    def digest(self) -> str:
        """A name for these exact choices, the same on every machine."""
        return digest_of([self.kind, self.to_dict(), self.revision])

    @property
    def label(self) -> str:
        """The recipe's name with the choices that differ from the defaults."""
        return self.label_without("site")

    def label_without(self, *hidden: str) -> str:
        """The recipe's name with the choices that differ from the defaults, some of them left out."""
        default = {field.name: field.default for field in fields(self) if field.name not in hidden}
        changed = {
            name: value for name, value in self.to_dict().items() if name in default and value != _plain(default[name])
        }
        choices = ", ".join(
            text for name, value in sorted(changed.items()) for text in _choices(name, value, _plain(default[name]))
        )
        return f"{self.name} ({choices})" if choices else self.name

    @classmethod
    def from_dict(cls, node: Mapping[str, Any], where: str = "recipe") -> Any:
        """Choices checked against the fields' types; a mistake is named with its place."""
        from pydantic import TypeAdapter, ValidationError

        known = {field.name for field in fields(cls)}
        for key in node:
            if key not in known and key != "name":
                raise ConfigError(
                    f"{where}: '{key}' is not an option of {cls.kind} '{cls.name}'; {nearest(str(key), known)}"
                )
        choices = {key: value for key, value in node.items() if key != "name"}
        try:
            return TypeAdapter(cls).validate_python(choices)
        except ValidationError as error:
            raise ConfigError(_explain(error, where)) from None


def parse(kind: str, node: Any, where: str) -> Any:
    """A recipe from `name` or from `{name: ..., option: ...}`."""
    node = {"name": node} if isinstance(node, str) else node
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        raise ConfigError(f"{where}: a {kind} is a name, or a mapping with a 'name'; found {node!r}")
    return registry.find(kind, node["name"], where).load().from_dict(node, where)


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Choices written as `key=value`, the value read as YAML.

    >>> parse_overrides(["steps=500", "sites=[embedding]"])
    {'steps': 500, 'sites': ['embedding']}
    """
    import yaml

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' is not a choice; write key=value, for example steps=500")
        found[name] = yaml.safe_load(value)
    return found


def digest_of(value: Any) -> str:
    """Sixteen hex digits of the SHA-256 of a plain value's canonical JSON.

    >>> digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _choices(name: str, value: Any, default: Any) -> list[str]:
    """Return `name=value`; for a mapping with a default, one per entry that differs from it."""
    if isinstance(value, dict) and isinstance(default, dict):
        return [f"{name}.{key}={value[key]}" for key in sorted(value) if value[key] != default.get(key)]
    return [name if value is True else f"{name}={value}"]


def _explain(error: Any, where: str) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in (where, *first["loc"]))
    return f"{place}: {first['msg']}; found {first['input']!r}"
