"""Time and memory of a step: `superadam bench`.

It measures every method of the zoo and the paper's cases, torch's AdamW, and the memory bandwidth of the machine. All
candidates take turns, in an order that changes from round to round, so that slow moments of the machine affect all of
them alike. Times are wall-clock times. Reports are plain data, for JSON.
"""

from superadam_lab.bench.runs import measure_model, measure_sizes, report
from superadam_lab.bench.tables import Table, tables

__all__ = ["Table", "measure_model", "measure_sizes", "report", "tables"]
