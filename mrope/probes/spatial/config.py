"""What a run is told: from a YAML file, from the command line, or from both, where the command line counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrope.checks import whole
from mrope.probes.spatial.requirements import check_requirements
from mrope.probes.spatial.runs import Settings

SEEDS = (0, 1, 2)
_KEYS = ("model", "options", "tasks", "seeds", "limit", "out", "require")


@dataclass(frozen=True, slots=True)
class Config:
    """What a run is told.

    Args:
        model: as `respondent` takes it: "reader", "hf:FOLDER", "http://...", "python:module:function".
        settings: what is asked.
        options: of the model.
        out: the run's folder.
        require: thresholds, "task" or "task.metric" -> the least share.
    """

    model: str
    settings: Settings
    options: Mapping[str, Any] = field(default_factory=dict)
    out: Path = Path("out/probe")
    require: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out is {self.out}, a file; expected a folder")
        check_requirements(self.require, tuple(self.settings.tasks))


def read_config(path: Path) -> dict[str, Any]:
    """The YAML file as keywords of `make_config`.

    Raises:
        ValueError: it is no YAML, or has a key that there is not.
        OSError: it cannot be read.
    """
    import yaml

    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds a {type(read).__name__}; expected keys among {', '.join(_KEYS)}")
    unknown = [key for key in read if key not in _KEYS]
    if unknown:
        raise ValueError(f"{path} has a key {unknown[0]!r}; expected keys among {', '.join(_KEYS)}")
    return read


def make_config(
    model: Any = None,
    tasks: Any = None,
    options: Any = None,
    seeds: Any = SEEDS,
    limit: Any = None,
    out: Any = "out/probe",
    require: Any = None,
) -> Config:
    """The configuration that was stated.

    Args:
        model: see `Config`.
        tasks: name -> settings, or a list of names; by default all.
        options: see `Config`.
        seeds: a list of whole numbers, or one.
        limit: most samples of each task and seed, see `Settings`.
        out: see `Config`.
        require: see `Config`.

    Raises:
        ValueError, TypeError: a part is missing, of another form, or refused by what it is for.
    """
    from mrope.data import TASKS

    if not isinstance(model, str) or not model:
        raise ValueError(f"model is {model!r}; expected reader, hf:FOLDER, http://..., or python:module:function")
    if tasks is None:
        tasks = list(TASKS)
    if isinstance(tasks, str):
        tasks = [tasks]
    if not isinstance(tasks, Mapping):
        tasks = dict.fromkeys(_listed("tasks", tasks))
    settings = {str(name): _mapping(f"settings of task {name}", own) for name, own in tasks.items()}
    seeds = (seeds,) if isinstance(seeds, int) else tuple(_listed("seeds", seeds))
    return Config(
        model=model,
        settings=Settings(settings, tuple(whole("seed", seed, 0) for seed in seeds), limit),
        options=_mapping("options", options),
        out=Path(out),
        require=_mapping("require", require),
    )


def _listed(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is {value!r}; expected a list")
    return value


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r}; expected names with values")
    return {str(key): each for key, each in value.items()}
