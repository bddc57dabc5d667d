"""From stored runs to what people read: statistics, tables, figures, one HTML page.

| module | its one idea |
|---|---|
| ``paper`` | the curves of the paper's figures, as numbers |
| ``panels`` | runs become series, panels and rows of a figure |
| ``statistics`` | estimates with intervals, from few runs |
| ``entropy`` | the entropy of policies while they are learned |
| ``configurations`` | runs with random configurations become points with scores |
| ``sensitivity`` | how much the choice of hyper-parameters matters |
| ``robustness`` | that, as tables and figures |
| ``tables`` | the numbers, for Markdown and for HTML |
| ``style`` | colours and order of the series |
| ``figure`` | the figure in the paper's layout, as PNG and PDF |
| ``page`` | one HTML file with everything, which needs no network; Jinja writes it from ``templates/`` |
| ``page_curves`` | its curves, as data for the script in it |
| ``write`` | all of it into a folder |

Nothing here trains or prints, and Matplotlib is imported only by the functions that draw with it.
"""

from bdpi.report.panels import Panel, Row, StoredSeries, rows_of
from bdpi.report.write import write_report

__all__ = ["Panel", "Row", "StoredSeries", "rows_of", "write_report"]
