"""The costs on the page are those that were measured."""

import json

from research.set_costs import set_costs


def test_the_costs_on_the_page_are_those_that_were_measured():
    page = set_costs.PAGE.read_text(encoding="utf-8")
    written = page.partition(set_costs.BEGIN)[2].partition(set_costs.END)[0].strip()
    stored = json.loads(set_costs.RAW.read_text(encoding="utf-8"))
    assert written == set_costs.target_table(stored)
    assert len({len(times) for times in stored["milliseconds"].values()}) == 1
