"""Reports results: rows in files, tables on the screen, figures, and self-contained HTML pages."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.report import figures as figures
    from dpaudit.report.boundary_figure import round_figure as round_figure
    from dpaudit.report.page import write_audit_page as write_audit_page
    from dpaudit.report.page import write_examination_page as write_examination_page
    from dpaudit.report.page import write_page as write_page
    from dpaudit.report.page import write_secure_page as write_secure_page
    from dpaudit.report.page import write_training_page as write_training_page
    from dpaudit.report.page_secure import secure_table as secure_table
    from dpaudit.report.rows import read_rows as read_rows
    from dpaudit.report.rows import write_rows as write_rows
    from dpaudit.report.table import audit_table as audit_table
    from dpaudit.report.table import examination_table as examination_table
    from dpaudit.report.table import plan_table as plan_table
    from dpaudit.report.table import result_table as result_table
    from dpaudit.report.table import training_table as training_table

__getattr__, __dir__, __all__ = attach(__name__)
