"""A checkup of a checkpoint, a configuration, a model or a batch: what is wrong with it, or risky."""

from mrope.hf.checkup.doctor import doctor
from mrope.hf.checkup.report import Finding, Report

__all__ = ["Finding", "Report", "doctor"]
