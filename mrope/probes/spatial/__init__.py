"""Spatial probes: ask any model where things are, mark its answers, and keep every sample."""

from mrope.probes.spatial.comparing import Comparison, compare_runs
from mrope.probes.spatial.config import Config, make_config, read_config
from mrope.probes.spatial.marking import mark
from mrope.probes.spatial.page import write_page
from mrope.probes.spatial.records import read_records, read_run
from mrope.probes.spatial.reply import Mark, Reply, Respondent
from mrope.probes.spatial.requirements import shortfalls
from mrope.probes.spatial.respondents import (
    Blind,
    CallableRespondent,
    ReaderRespondent,
    ServerRespondent,
    TransformersRespondent,
    respondent,
)
from mrope.probes.spatial.runs import Settings, ask
from mrope.probes.spatial.summary import Score, TaskSummary, summarise, write_summary
from mrope.probes.spatial.table import comparison_table, summary_table

__all__ = [
    "Blind",
    "CallableRespondent",
    "Comparison",
    "Config",
    "Mark",
    "ReaderRespondent",
    "Reply",
    "Respondent",
    "Score",
    "ServerRespondent",
    "Settings",
    "TaskSummary",
    "TransformersRespondent",
    "ask",
    "compare_runs",
    "comparison_table",
    "make_config",
    "mark",
    "read_config",
    "read_records",
    "read_run",
    "respondent",
    "shortfalls",
    "summarise",
    "summary_table",
    "write_page",
    "write_summary",
]
