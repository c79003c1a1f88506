"""Configs: frozen dataclasses that are at once a YAML node, a cache key and a label in tables."""

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast, get_type_hints

from diffmask import registry
from diffmask.errors import ConfigError, InputError, nearest


@dataclass(frozen=True, kw_only=True)
class Config:
    """A named, frozen set of choices. Subclasses set `kind` and `name` and add fields.

    A subclass checks the values of its fields in `__post_init__`, with `require_between`.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    revision: ClassVar[int] = 0
    """Part of the cache key. Increase it when a code change alters results, so that old artefacts are not reused."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the types of all fields before the `__post_init__` of any subclass, which may then compare them."""
        super().__init_subclass__(**options)
        check = cls.__post_init__
        if getattr(check, "checks_types", False):
            return

        def checked(self: "Config") -> None:
            require_types(self)
            check(self)
            _refuse_nan(self)

        checked.checks_types = True  # type: ignore[attr-defined]  # a mark on the function
        cls.__post_init__ = checked  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Check the values of the fields; subclasses override this."""

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the fields as plain values, as in a YAML file."""
        return {"name": self.name, **{field.name: _plain(getattr(self, field.name)) for field in fields(self)}}

    @property
    def digest(self) -> str:
        """Cache key of these choices, the same on every machine."""
        return digest_of([self.kind, self.to_dict(), self.revision])

    @property
    def label(self) -> str:
        """Name of the config with the fields that differ from their defaults."""
        return self.label_without("site")

    def label_without(self, *hidden: str) -> str:
        """Return the label without the `hidden` fields."""
        default = {field.name: field.default for field in fields(self) if field.name not in hidden}
        changed = {
            name: value for name, value in self.to_dict().items() if name in default and value != _plain(default[name])
        }
        choices = ", ".join(
            text for name, value in sorted(changed.items()) for text in _choices(name, value, _plain(default[name]))
        )
        return f"{self.name} ({choices})" if choices else self.name

    @classmethod
    def from_dict(cls, node: Mapping[str, Any], where: str = "config") -> Any:
        """Build the config from plain values, checked against the types of the fields.

        Raises:
            ConfigError: A key is unknown or a value has a wrong type; the message begins with `where`.
        """
        known = {field.name for field in fields(cls)}
        for key in node:
            if key not in known and key != "name":
                raise ConfigError(
                    f"{where}: '{key}' is not an option of {cls.kind} '{cls.name}'; {nearest(str(key), known)}"
                )
        choices = {key: value for key, value in node.items() if key != "name"}
        if not choices and all(_has_default(field) for field in fields(cls)):
            return cls()
        from pydantic import ValidationError  # only here: importing it takes a tenth of a second

        try:
            return _validator(cast(Any, cls)).validate_python(choices)
        except ValidationError as error:
            raise ConfigError(_explain(error, where)) from None


def parse(kind: str, node: Any, where: str) -> Any:
    """Build a registered config from `name` or from `{name: ..., option: ...}`."""
    node = {"name": node} if isinstance(node, str) else node
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        raise ConfigError(f"{where}: a {kind} is a name, or a mapping with a 'name'; found {_short(node)}")
    return registry.find(kind, node["name"], where).load().from_dict(node, where)


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Parse overrides of the form `key=value`, with YAML values.

    >>> parse_overrides(["steps=500", "sites=[embedding]"])
    {'steps': 500, 'sites': ['embedding']}
    """
    overrides = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{_short(text)} is not an override; write key=value, for example steps=500")
        overrides[name] = parse_yaml(value, _short(text))
    return overrides


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; the error begins with `where` and names the line."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark and "\n" in text.strip() else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{where}{line}: not YAML: {problem}; put special characters between quotes") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{where}: not YAML: {reason}") from None


def require_types(config: Config) -> None:
    """Check the type of every field that has not its default; a list serves as a tuple.

    Raises:
        ConfigError: A value has another type. The message names config, field, type and value.
    """
    changed = [field.name for field in fields(config) if getattr(config, field.name) is not field.default]
    if not changed:
        return
    from pydantic import ValidationError

    adapters = _field_types(cast(Any, type(config)))
    for name in changed:
        value = getattr(config, name)
        try:
            converted = adapters[name].validate_python(_as_tuples(value), strict=True)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_context=False, include_url=False)[0]["msg"]
            raise ConfigError(f"{config.name}: {name}: {problem}; found {_short(value)}") from None
        # Some objects, such as a tensor of one number, pass as a number but cannot be written to a file.
        if not isinstance(value, type(converted) | int | list) or (type(value) is int and abs(value) >= 2**63):
            kind = type(converted).__name__
            raise ConfigError(f"{config.name}: {name}: Input should be a plain {kind}; found {_short(value)}")


def _has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


@cache
def _field_types(config: Any) -> dict[str, Any]:
    """Return a validator per field."""
    from pydantic import ConfigDict
    from pydantic.errors import PydanticUserError

    allowing = ConfigDict(arbitrary_types_allowed=True)
    adapters = {}
    hints = get_type_hints(config, include_extras=True)
    for field in fields(config):
        try:
            adapters[field.name] = _new_validator(hints[field.name], allowing)
        except PydanticUserError:  # a config that has its own rules
            adapters[field.name] = _new_validator(hints[field.name])
    return adapters


@cache
def _validator(config: Any) -> Any:
    """Return the validator of a config's class, which takes milliseconds to build."""
    return _new_validator(config)


def _new_validator(kind: Any, options: Any = None) -> Any:
    """Build a validator of pydantic, which turns Ctrl-C in its work into an error of its own."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaError

    try:
        return TypeAdapter(kind, config=options)
    except SchemaError as error:
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from None
        raise


def _refuse_nan(config: Config) -> None:
    """Raise a ConfigError for NaN, which every comparison with bounds lets pass."""
    for field in fields(config):
        value = getattr(config, field.name)
        if any(isinstance(number, float) and math.isnan(number) for number in _as_list(value)):
            raise ConfigError(f"{config.name}: {field.name} must be a number; found {_short(value)}")


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


def _short(value: Any) -> str:
    """Return the value as Python code, shortened."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 80
    return shortener.repr(value)


def require_between(
    config: Config, field: str, low: int | float, high: int | float = math.inf, *, open_low: bool = False
) -> None:
    """Check that the number in a field, or every number of a tuple there, is in [low, high]; None is accepted.

    With `open_low` the lower bound itself is excluded.

    Raises:
        ConfigError: The value is NaN or out of bounds. The message names config, field, value and bounds.
    """
    value = getattr(config, field)
    for number in _as_list(value):
        if number is None or ((low < number if open_low else low <= number) and number <= high):
            continue
        lower = f"above {low:g}" if open_low else f"at least {low:g}"
        upper = "" if high == math.inf else f" and at most {high:g}"
        raise ConfigError(f"{config.name}: {field} must be {lower}{upper}; found {value!r}")


def digest_of(value: Any) -> str:
    """Return sixteen hex digits of the SHA-256 of the canonical JSON of a plain value.

    >>> digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of_files(path: Path) -> str:
    """Return a digest of a file's content, or of the names and contents of all files in a folder.

    Time and place do not count: a copy of a folder has the same digest. Hidden files, folders behind symbolic links and
    the results of runs, which are folders with a `store`, are left out. A file is read again only if its size or its
    time of change is another one.
    """
    try:
        if not path.is_dir():
            state = path.stat()
            return _digest_of_file(path, state.st_size, state.st_mtime_ns)
        inputs = sorted(entry for entry in path.iterdir() if _is_input(entry))
        return digest_of([[entry.name, digest_of_files(entry)] for entry in inputs])
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be read: {error.strerror or error}") from None


def _is_input(entry: Path) -> bool:
    if entry.name.startswith(".") or not entry.exists():
        return False
    return not (entry.is_dir() and (entry.is_symlink() or (entry / "store").is_dir()))


@lru_cache(maxsize=4096)
def _digest_of_file(path: Path, size: int, changed: int) -> str:
    """Return the digest of a file in one state; the state is the key of the cache."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


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
    location = ".".join(str(step) for step in (where, *first["loc"]))
    if first["type"] == "value_error":  # an error of our own, which says what was found
        return f"{location}: {first['msg'].removeprefix('Value error, ')}"
    return f"{location}: {first['msg']}; found {_short(first['input'])}"
