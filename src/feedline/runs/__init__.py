"""Whole runs: what a config will consume, and what the logs say was consumed."""

from feedline.runs.audit import audit_logs
from feedline.runs.audit_result import AuditResult, EpochAudit, RunAudit, SourceAudit
from feedline.runs.consumption_log import (
    ConsumptionLog,
    LogFile,
    LogHeader,
    iter_log,
    read_log,
    read_log_header,
)
from feedline.runs.dry_run import DryRun, dry_run
from feedline.runs.log_records import LoggedBatch, LoggedEvent
from feedline.runs.plan_report import PlanReport, report_plan
from feedline.runs.run_config import RunConfig
from feedline.runs.run_log import LoggedLoader, RunLog
from feedline.runs.sample_places import samples_of_step, times_of_sample
from feedline.runs.shuffle_quality import measure_quality

__all__ = [
    "AuditResult",
    "ConsumptionLog",
    "DryRun",
    "EpochAudit",
    "LogFile",
    "LogHeader",
    "LoggedBatch",
    "LoggedEvent",
    "LoggedLoader",
    "PlanReport",
    "RunAudit",
    "RunConfig",
    "RunLog",
    "SourceAudit",
    "audit_logs",
    "dry_run",
    "iter_log",
    "measure_quality",
    "read_log",
    "read_log_header",
    "report_plan",
    "samples_of_step",
    "times_of_sample",
]
