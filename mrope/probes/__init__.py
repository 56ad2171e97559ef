"""Probes: what a reader knows of its position space, what becomes of a picture, and the report that shows both."""

from mrope.probes.advice import Advice, advise
from mrope.probes.audits.attention import AttentionAudit, audit_attention
from mrope.probes.audits.decay_plot import plot_decay
from mrope.probes.audits.encoding import audit_encoding
from mrope.probes.audits.frequencies import FrequencyReport, Trained, decay, frequency_report
from mrope.probes.audits.layout import Audit, audit
from mrope.probes.audits.report import AuditCheck, AuditReport
from mrope.probes.audits.whole import full_audit
from mrope.probes.demo import Screen, run_demo
from mrope.probes.exam import Exam, Syllabus, take_exam
from mrope.probes.grid import CHANCE, GridScore, ask_everything, draw_grids, effective_resolution, score_grid, swap_axes
from mrope.probes.inside import (
    AttentionInside,
    AttentionMap,
    LinearProbe,
    Places,
    RelativeAttention,
    VisionShare,
    attention_inside,
    draw_attention,
    linear_probe,
    measure_attention,
    places_of,
    plot_attention,
    probe_states,
)
from mrope.probes.look import Look, look
from mrope.probes.overlay import Label, Mark, Window, busiest, draw_questions, draw_token_grid, draw_tokens
from mrope.probes.position_plot import plot_positions
from mrope.probes.report import Run, render, write_report
from mrope.probes.space import Panel, position_space

__all__ = [
    "CHANCE",
    "Advice",
    "AttentionAudit",
    "AttentionInside",
    "AttentionMap",
    "Audit",
    "AuditCheck",
    "AuditReport",
    "Exam",
    "FrequencyReport",
    "GridScore",
    "Label",
    "LinearProbe",
    "Look",
    "Mark",
    "Panel",
    "Places",
    "RelativeAttention",
    "Run",
    "Screen",
    "Syllabus",
    "Trained",
    "VisionShare",
    "Window",
    "advise",
    "ask_everything",
    "attention_inside",
    "audit",
    "audit_attention",
    "audit_encoding",
    "busiest",
    "decay",
    "draw_attention",
    "draw_grids",
    "draw_questions",
    "draw_token_grid",
    "draw_tokens",
    "effective_resolution",
    "frequency_report",
    "full_audit",
    "linear_probe",
    "look",
    "measure_attention",
    "places_of",
    "plot_attention",
    "plot_decay",
    "plot_positions",
    "position_space",
    "probe_states",
    "render",
    "run_demo",
    "score_grid",
    "swap_axes",
    "take_exam",
    "write_report",
]
