"""The probes as tests of your own: `pytest --mrope-model=hf:FOLDER`, and a fixture that asks.

    def test_cells(mrope_probe):
        assert mrope_probe("cell", shapes=[[6, 9]]).accuracy.low > 0.9

Without `--mrope-model` such tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mrope.probes.spatial.summary import TaskSummary


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("mrope", "spatial probes of a vision-language model")
    group.addoption(
        "--mrope-model", metavar="MODEL", help="as `mrope probe run` takes it: reader, hf:FOLDER, http://..."
    )
    group.addoption("--mrope-option", metavar="NAME=VALUE", action="append", default=[], help="an option of the model")
    group.addoption("--mrope-seeds", metavar="N,N", default="0", help="seeds of the samples")
    limit = "most samples of each task and seed; sets stay whole, one at least"
    group.addoption("--mrope-limit", metavar="N", type=int, default=100, help=limit)
    group.addoption("--mrope-out", metavar="FOLDER", help="where the runs are kept, by default in a temporary folder")


@pytest.fixture(scope="session")
def mrope_respondent(request: pytest.FixtureRequest) -> Any:
    """The model of `--mrope-model`, made once."""
    import yaml

    from mrope.probes.spatial import respondent

    get: Any = request.config.getoption
    model = get("--mrope-model")
    if model is None:
        pytest.skip("no --mrope-model to ask")
    options = dict(word.split("=", 1) for word in get("--mrope-option"))
    return respondent(model, **{name: yaml.safe_load(value) for name, value in options.items()})


@pytest.fixture
def mrope_probe(request: pytest.FixtureRequest, mrope_respondent: Any, tmp_path: Path) -> Callable[..., TaskSummary]:
    """A function: the name of a task, and its settings, to what the model's answers come to."""
    from mrope.probes.spatial import Settings, ask, summarise

    get: Any = request.config.getoption
    folder = Path(get("--mrope-out")) if get("--mrope-out") else tmp_path
    seeds = tuple(int(word) for word in get("--mrope-seeds").split(","))
    count = 0

    def probe(task: str, **settings: Any) -> TaskSummary:
        nonlocal count
        count += 1
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{request.node.name}-{count}-{task}")
        records = ask(mrope_respondent, Settings({task: settings}, seeds, get("--mrope-limit")), folder / name)
        return summarise(records)[0]

    return probe
