"""The chart's geometry: nothing is drawn that was not read, and what was read is drawn where it belongs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.console.chart import HEIGHT, WIDTH, Chart, Sample, ceiling_of, draw

NOW = 1_700_000_000_000
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def chart(*samples: Sample, span: int = 900) -> Chart:
    return draw(samples, now_ms=NOW, span_seconds=span, interval_seconds=5)


def points(path: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in NUMBER.findall(path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize(
    ("highest", "ceiling"),
    [(0, 2), (1, 2), (2, 2), (3, 4), (9, 10), (11, 20), (250, 400), (1000, 1000), (1001, 2000)],
)
def test_the_ceiling_is_even_and_not_far_away(highest: int, ceiling: int) -> None:
    assert ceiling_of(highest) == ceiling


@given(st.integers(min_value=0, max_value=10**7))
def test_every_value_fits_under_its_ceiling(highest: int) -> None:
    ceiling = ceiling_of(highest)
    assert highest <= ceiling and ceiling % 2 == 0
    assert ceiling <= max(2, highest * 2.5)


def test_without_readings_the_picture_is_empty_and_says_so() -> None:
    empty = chart()
    assert [band.path for band in empty.bands] == ["", "", "", ""]
    assert empty.outline == "" and empty.rows == ()
    assert empty.summary == "No readings in the last 15 minutes."


def test_bands_are_stacked_and_the_outline_is_the_sum() -> None:
    drawn = chart(Sample(NOW - 5000, 2, 1, 1), Sample(NOW, 2, 1, 1))
    ready, starting, _, queued = (points(band.path) for band in drawn.bands)
    unit = HEIGHT / drawn.ceiling
    assert {y for _, y in ready} == {HEIGHT, HEIGHT - 2 * unit}
    assert {y for _, y in starting} == {HEIGHT - 2 * unit, HEIGHT - 3 * unit}
    assert {y for _, y in queued} == {HEIGHT - 3 * unit, HEIGHT - 4 * unit}
    assert {y for _, y in points(drawn.outline)} == {HEIGHT - 4 * unit}
    assert max(x for x, _ in ready) == WIDTH


def test_a_hole_in_the_readings_stays_a_hole() -> None:
    before = [Sample(NOW - 60_000 + i * 5000, 1, 0, 0) for i in range(3)]
    after = [Sample(NOW - 10_000 + i * 5000, 1, 0, 0) for i in range(3)]
    drawn = chart(*before, *after, span=60)
    assert drawn.outline.count("M") == 2
    assert drawn.bands[0].path.count("Z") == 2
    gap = (before[-1].at_ms - NOW + 60_000) / 60_000 * WIDTH, (after[0].at_ms - NOW + 60_000) / 60_000 * WIDTH
    assert not any(gap[0] < x < gap[1] for x, _ in points(drawn.bands[0].path))


def test_one_missed_reading_is_no_hole() -> None:
    drawn = chart(Sample(NOW - 10_000, 1, 0, 0), Sample(NOW, 1, 0, 0))
    assert drawn.outline.count("M") == 1


def test_a_lone_reading_can_be_seen() -> None:
    drawn = chart(Sample(NOW, 3, 0, 0))
    xs = [x for x, _ in points(drawn.bands[0].path)]
    assert max(xs) - min(xs) > 0 and max(xs) <= WIDTH


def test_readings_outside_the_span_are_not_drawn() -> None:
    assert chart(Sample(NOW - 901_000, 9, 9, 9), Sample(NOW + 1, 9, 9, 9)).rows == ()


def test_the_table_has_one_reading_a_minute_newest_first() -> None:
    drawn = chart(*(Sample(NOW - 180_000 + i * 5000, i, 0, 1000) for i in range(37)))
    assert 3 <= len(drawn.rows) <= 4
    assert drawn.rows[0].ready == "36" and drawn.rows[0].queued == "1,000"
    assert [row.at for row in drawn.rows] == sorted((row.at for row in drawn.rows), reverse=True)


def test_the_summary_names_now_and_the_highest() -> None:
    text = chart(Sample(NOW - 60_000, 100, 20, 3000), Sample(NOW, 1, 0, 0)).summary
    assert "Now 1 ready, 0 starting, 0 queued" in text
    assert "Highest at 22:12:20 UTC: 100 ready, 20 starting, 3,000 queued" in text


@given(
    st.lists(
        st.tuples(st.integers(0, 900), *(st.integers(0, 10**5),) * 3),
        max_size=60,
        unique_by=lambda entry: entry[0],
    )
)
def test_whatever_is_read_stays_inside_the_picture(readings: list[tuple[int, int, int, int]]) -> None:
    samples = [Sample(NOW - ago * 1000, *numbers) for ago, *numbers in sorted(readings, reverse=True)]
    drawn = chart(*samples)
    for path in (*(band.path for band in drawn.bands), drawn.outline):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points(path))
