from data.scanning.report import Report as Report
from data.scanning.report import as_markdown as as_markdown
from data.scanning.report import render_report as render_report
