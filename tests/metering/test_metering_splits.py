"""Each unit stands in one meter alone, whatever an answer says of a whole and its parts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from finomw.metering.splits import Split, apart
from finomw.types import UsageStatus

SPLITS = (
    Split("cached", "input", inside=True),
    Split("audio", "input", inside=True),
    Split("write", "input", inside=False),
    Split("long", "write", inside=True),
)
METERS = ("input", "cached", "audio", "write", "long", "output")

outcomes = st.integers(0, 50) | st.sampled_from([UsageStatus.MISSING, UsageStatus.INVALID])


def known(outcome: int | UsageStatus) -> bool:
    return not isinstance(outcome, UsageStatus)


@settings(derandomize=True, max_examples=1000)
@given(st.fixed_dictionaries(dict.fromkeys(METERS, outcomes)))
def test_nothing_is_counted_twice_lost_or_below_zero(told: dict[str, int | UsageStatus]) -> None:
    found = apart(told, SPLITS)
    assert found.keys() == told.keys()
    assert found["output"] is told["output"] or found["output"] == told["output"]
    assert min(found.values()) >= 0
    if all(map(known, found.values())):
        assert found["input"] + found["cached"] + found["audio"] == told["input"]
        write = told["write"] if known(told["write"]) else 0
        assert found["write"] + found["long"] == write
    for meter in METERS:
        if told[meter] is UsageStatus.INVALID:
            assert found[meter] is UsageStatus.INVALID


def test_a_part_that_is_not_mentioned_is_nothing_where_the_whole_is_known() -> None:
    missing = dict.fromkeys(METERS, UsageStatus.MISSING)
    assert apart(missing, SPLITS) == missing
    assert apart({**missing, "input": 7}, SPLITS) == {
        **missing,
        "input": 7,
        "cached": 0,
        "audio": 0,
        "write": 0,
        "long": 0,
    }


def test_a_part_larger_than_its_whole_is_wrong_and_the_whole_stays() -> None:
    found = apart({"input": 7, "cached": 8}, SPLITS)
    assert found == {"input": 7, "cached": UsageStatus.INVALID}


def test_parts_that_overlap_share_what_there_is() -> None:
    found = apart({"input": 10, "cached": 8, "audio": 9}, SPLITS)
    assert found == {"input": 0, "cached": 8, "audio": 2}
