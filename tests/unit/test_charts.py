"""The bar charts: the right lengths, and no text over another."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from driftq.charts import BAR_MAX, PANEL_WIDTH, Bar, Curve, Curves, Panel, short, svg

SVG = "{http://www.w3.org/2000/svg}"
CHARACTER_WIDTH = 7.2  # of the widest usual font at this size, on average
LINE_HEIGHT = 13

PANELS = [
    Panel(
        f"Case {number}",
        "messages/s",
        [
            Bar("DriftQ", 1_090_000, "1.09 M/s", is_ours=True),
            Bar("durable-streams", 220_000, "220 k/s"),
            Bar("NATS JetStream", 12, "12.0/s"),
            Bar("beanstalkd", None, "has no counterpart"),
        ],
    )
    for number in range(5)
]


@pytest.fixture(scope="module")
def picture() -> ElementTree.Element:
    return ElementTree.fromstring(svg("Many & few", PANELS))


def boxes(picture: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """Each text with an estimate of the rectangle that it covers."""
    covered = []
    for text in picture.iter(f"{SVG}text"):
        words = "".join(text.itertext())
        width = CHARACTER_WIDTH * len(words)
        left = float(text.attrib["x"]) - (width if text.get("class") == "n" else 0)
        bottom = float(text.attrib["y"])
        covered.append((words, left, bottom - LINE_HEIGHT, left + width, bottom))
    return covered


def test_no_text_overlaps_another_text_or_leaves_the_picture(picture):
    texts = boxes(picture)
    assert len(texts) == 5 * (1 + 2 * 4)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for index, (words, left, top, right, bottom) in enumerate(texts):
        assert left >= 0, words
        assert top >= 0, words
        assert right <= width, words
        assert bottom <= height, words
        for other, other_left, other_top, other_right, other_bottom in texts[index + 1 :]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart, f"{words} covers {other}"


def test_no_bar_covers_a_text(picture):
    texts = boxes(picture)
    for bar in picture.iter(f"{SVG}rect"):
        left, top = float(bar.attrib["x"]), float(bar.attrib["y"])
        right, bottom = left + float(bar.attrib["width"]), top + float(bar.attrib["height"])
        for words, text_left, text_top, text_right, text_bottom in texts:
            if text_top < bottom and top < text_bottom:
                assert text_right <= left or right <= text_left, words


def test_a_bar_is_as_long_as_its_share_of_the_longest(picture):
    lengths = [int(bar.attrib["width"]) for bar in picture.iter(f"{SVG}rect")]
    assert lengths[:3] == [BAR_MAX, -(-BAR_MAX * 220_000 // 1_090_000), 1]
    assert len(lengths) == 5 * 3, "no bar without a value"


def test_panels_are_in_two_columns_and_ours_is_marked(picture):
    titles = [text for text in picture.iter(f"{SVG}text") if text.get("class") == "t"]
    assert [float(title.attrib["x"]) > PANEL_WIDTH for title in titles] == [False, True, False, True, False]
    assert [bar.get("class") for bar in picture.iter(f"{SVG}rect")][:3] == ["o", None, None]


def test_a_dark_page_has_its_own_colours_and_a_name_is_escaped():
    text = svg("Many & few", PANELS)
    assert "prefers-color-scheme: dark" in text
    assert "<title>Many &amp; few</title>" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.127, "0.13"), (1.5, "1.50"), (42, "42.0"), (999, "999"), (999.7, "1.00 k"), (64_040, "64.0 k"),
     (1_094_000, "1.09 M")],
)  # fmt: skip
def test_a_number_has_three_digits(value, text):
    assert short(value) == text


def test_curves_are_steps_to_one_scale_with_a_legend():
    curves = Curves(
        "Depth", "messages", [Curve("waiting", [0, 4, 2, 2]), Curve("leased", [1, 1, 1, 0])], "8:00", "9:00"
    )
    tree = ElementTree.fromstring(svg("t", [curves]))
    axis, waiting, _, leased, _ = (path.get("d") or "" for path in tree.iter(f"{SVG}path"))
    floor = float(axis.split(" ")[1].split("H")[0])
    levels = [floor - float(step.split("H")[0]) for step in waiting.replace("M0.0 ", "V").split("V")[1:]]
    assert levels == [0, max(levels), max(levels) / 2, max(levels) / 2]
    assert leased.startswith(f"M0.0 {floor - max(levels) / 4:.1f}")
    texts = ["".join(text.itertext()) for text in tree.iter(f"{SVG}text")]
    assert texts == ["Depth messages", "waiting at most 4.00", "leased at most 1.00", "8:00", "9:00"]
