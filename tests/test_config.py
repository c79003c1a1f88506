"""Configs are frozen, survive YAML, check their values, and have the same digest on every machine."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar

import pytest
import yaml

from diffmask import registry
from diffmask.core.config import Config, parse, require_between
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.gate_training import GateSchedule
from diffmask.methods.diffmask.gated import DiffMask


@dataclass(frozen=True, kw_only=True)
class Sample(Config):
    kind: ClassVar[str] = "method"
    name: ClassVar[str] = "sample"

    width: int = 3
    rates: tuple[float, ...] = (0.1,)
    site: str | None = None

    def __post_init__(self) -> None:
        require_between(self, "width", 1)
        require_between(self, "rates", 0, 1, open_low=True)


def test_a_config_survives_yaml() -> None:
    config = DiffMask(mask="states", margin=0.05, sites=("a", "b"), schedule=GateSchedule(logit_range=(1.0, 2.0)))
    node = yaml.safe_load(yaml.safe_dump(config.to_dict()))
    assert parse("method", node, "here") == config


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Sample().width = 4  # type: ignore[misc]


def test_the_digest_is_the_same_in_another_process() -> None:
    code = "from diffmask.methods.diffmask.gated import DiffMask; print(DiffMask(margin=0.2).digest)"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert DiffMask(margin=0.2).digest == there


def test_every_field_is_in_the_digest() -> None:
    assert len({Sample().digest, Sample(width=4).digest, Sample(rates=(0.2,)).digest, Sample(site="x").digest}) == 4


def test_a_new_revision_has_a_new_digest_and_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    before, text = Sample().digest, Sample().to_dict()
    monkeypatch.setattr(Sample, "revision", 1)
    assert Sample().digest != before
    assert Sample().to_dict() == text


def test_the_label_lists_the_fields_that_differ_from_the_defaults_except_the_site() -> None:
    assert Sample().label == "sample"
    assert Sample(width=5, site="h", rates=(0.5,)).label == "sample (rates=[0.5], width=5)"


def test_a_number_that_yaml_reads_as_text_is_understood() -> None:
    # YAML 1.1 needs a dot in 1e-3.
    assert Sample.from_dict({"rates": ["1e-3"]}).rates == (0.001,)


def test_a_misspelt_option_is_named_with_its_place_and_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"e\.yaml: methods\[0\]: 'widht' is not an option.*nearest: 'width'"):
        Sample.from_dict({"widht": 4}, "e.yaml: methods[0]")


def test_a_wrong_type_is_named_with_its_place_and_value() -> None:
    with pytest.raises(ConfigError, match=r"here\.width: .*integer.*found 'wide'"):
        Sample.from_dict({"width": "wide"}, "here")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"width": 0}, "sample: width must be at least 1; found 0"),
        ({"rates": (0.5, 0.0)}, r"sample: rates must be above 0 and at most 1; found \(0.5, 0.0\)"),
        ({"rates": (float("nan"),)}, "sample: rates must be above 0 and at most 1"),
        ({"rates": (1.5,)}, "sample: rates must be above 0 and at most 1"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_its_field_and_bounds(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sample(**choices)
    with pytest.raises(ConfigError, match=f"here: .*{message}"):
        Sample.from_dict(choices, "here")


def test_values_at_the_bounds_are_accepted() -> None:
    assert Sample(width=1, rates=(1.0,)).width == 1


def test_an_unknown_method_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"there is no method 'difmask'; nearest: 'diffmask'"):
        parse("method", "difmask", "here")


def test_a_method_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="a method is a name"):
        parse("method", {"margin": 1}, "here")


@pytest.mark.parametrize("kind", ["method", "task", "metric"])
def test_the_registry_agrees_with_the_classes(kind: str) -> None:
    entries = registry.entries(kind)
    assert entries
    for entry in entries:
        config = entry.load()
        assert (config.kind, config.name) == (kind, entry.name)
        assert entry.summary
