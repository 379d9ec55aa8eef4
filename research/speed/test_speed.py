"""The pages of what a step costs are those of the stored reports."""

import json

from research.speed import bench_page, compiled_step


def test_the_pages_are_up_to_date():
    for path, text in bench_page.pages(json.loads(bench_page.DATA.read_text())).items():
        assert path.read_text() == text


def test_the_tables_of_compiled_steps_are_those_of_the_results():
    begin, end = compiled_step.MARKS
    written = compiled_step.PAGE.read_text().split(begin)[1].split(end)[0]
    assert written.strip().splitlines() == compiled_step.tables(json.loads(compiled_step.RESULTS.read_text()))
