import pytest

pytest.register_assert_rewrite("sets.conditions", "sets.coupled", "sets.wide")
