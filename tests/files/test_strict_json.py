"""JSON whose numbers can be computed with and written again."""

from __future__ import annotations

import pytest

from latfix.files.strict_json import read_json


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '{"a": [NaN]}', "1e999", "-1e999", "1" + "0" * 400, "1" * 5000])
def test_numbers_that_no_float_holds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        read_json(text)


def test_other_columns_are_unchanged() -> None:
    assert read_json('{"a": [1, -2.5, 1e300, true, null, "NaN"]}') == {"a": [1, -2.5, 1e300, True, None, "NaN"]}
    assert float(read_json("9" * 300)) == pytest.approx(1e300)
