"""The pages of what a step costs are those of the stored reports."""

import json

from research.speed import bench_page


def test_the_pages_are_up_to_date():
    for path, text in bench_page.pages(json.loads(bench_page.DATA.read_text())).items():
        assert path.read_text() == text
