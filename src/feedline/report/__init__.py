"""Pictures of a plan or a run, in one self-contained HTML file."""

from feedline.report.charts import Report
from feedline.report.page import render, write_report
from feedline.report.reports import report_config, report_logs

__all__ = ["Report", "render", "report_config", "report_logs", "write_report"]
