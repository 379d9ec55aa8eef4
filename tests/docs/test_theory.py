"""docs/theory.md shows what its snippets print."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text()

PRINTED = re.findall(r"^```python\n(.*?)^```\n\nprints\n\n```text\n(.*?)^```", PAGE, flags=re.M | re.S)


@pytest.mark.parametrize(("code", "printed"), PRINTED)
def test_the_page_shows_what_its_snippets_print(code, printed, capsys):
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    assert capsys.readouterr().out == printed


def test_the_page_has_such_snippets():
    assert len(PRINTED) == 4
