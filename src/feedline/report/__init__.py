"""Pictures of a plan or a run, in one HTML file that needs nothing else."""

from feedline.report.charts import Report
from feedline.report.config_report import report_config
from feedline.report.logs_report import report_logs
from feedline.report.page import render, write_report

__all__ = ["Report", "render", "report_config", "report_logs", "write_report"]
