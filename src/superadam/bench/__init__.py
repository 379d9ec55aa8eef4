"""How long a step takes, and what it takes: `superadam bench`.

Every composition of the zoo and the paper's cases, next to torch's AdamW and to what the machine's memory allows. All
candidates take turns, in an order that changes from round to round, so that a slow moment of the machine hits all of
them alike; the clock is the wall's. Reports are plain data, for JSON.
"""

from superadam.bench.runs import measure_model, measure_sizes, report
from superadam.bench.tables import Table, tables

__all__ = ["Table", "measure_model", "measure_sizes", "report", "tables"]
