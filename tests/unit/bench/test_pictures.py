"""The page: every picture with data, no external resources, readable in light and dark."""

from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree as ET

import pytest

from sparkcluster.bench import pictures
from tests.unit.bench import sample

SPEEDS = {
    f"{name} by {axis}"
    for name in ("Decode", "Prefill", "Per user", "TTFT", "Accepted")
    for axis in ("depth", "concurrency")
}
TIMELINES = {"Memory available over the run", "Power of the GPU over the run"}
PARETO = "Decode of all against each request"
A_AND_B = {f"{name}: A against B" for name in ("Decode", "Prefill", "Per user", "TTFT")}


def titles(page):
    found = re.findall(r"<figcaption><b>([^<]*)</b>", page)
    assert len(found) == len(set(found)) == page.count("<svg")
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert ET.fromstring(svg.replace("xlink:href", "href")) is not None
        assert "<path" in svg
    return set(found)


@pytest.fixture(scope="module")
def whole():
    return pictures.html(sample.sweep())


@pytest.fixture(scope="module")
def pair():
    return pictures.html(sample.pair()[0], sample.pair()[::-1])


def test_every_picture_with_data_is_present(whole, pair):
    assert titles(whole) == SPEEDS | TIMELINES | {PARETO}
    assert "B has args.speculative-config=null" in pair
    assert titles(pair) == SPEEDS - {"Per user by concurrency"} | TIMELINES | {PARETO} | A_AND_B


def without(record, *fields, **cell):
    for series in record.samples.values():
        series.update({field: [None] * len(series["at_s"]) for field in fields})
    return dataclasses.replace(record, cells=[dataclasses.replace(each, **cell) for each in record.cells])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (sample.sweep(cells=sample.sweep().cells[:1]), TIMELINES),
        (sample.sweep(cells=[], samples={}), set()),
        (without(sample.sweep(cells=sample.sweep().cells[:3]), "power_w", engine={}),
         {each for each in SPEEDS if "depth" not in each and "Accepted" not in each} | {PARETO} | TIMELINES - {"Power of the GPU over the run"}),
        (without(sample.sweep(), marks=["cached"]), TIMELINES),
        (without(sample.sweep(samples={}), figures={"texts": [9.0, 9.1]}, engine={}), {"Texts by depth", "Texts by concurrency"}),
        (sample.sweep(samples={"a": {"at_s": [1.0], "available_gib": [9.0], "power_w": [9.0], "system_w": [9.0]}}, cells=[]), set()),
    ],
)  # fmt: skip
def test_a_picture_without_data_is_omitted(record, expected):
    assert titles(pictures.html(record)) == expected


def test_an_invalid_run_of_the_pair_omits_the_comparison():
    runs = [without(run, marks=["cached"]) for run in sample.pair()]
    assert titles(pictures.html(runs[0], runs)) == TIMELINES


def test_texts_of_nodes_and_models_are_escaped():
    bad = "<script>alert(1)</script> $x$ & ]]>"
    record = sample.sweep(
        model=bad, cluster=bad, ended=f"failed: {bad}", skipped=[bad], versions={bad: bad}, args={bad: bad}
    )
    record.samples = {f"{bad}{number}": series for number, series in enumerate(record.samples.values())}
    record.cells = [dataclasses.replace(record.cells[0], marks=[bad])]
    page = pictures.html(dataclasses.replace(record, profile=bad, nodes=[bad, bad]))
    assert "<script" not in page
    assert "$x$" in page
    titles(page)


def test_text_in_the_report_is_neither_run_nor_loaded(whole, pair):
    for page in (whole, pair):
        text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
        assert not re.search(r"<script|<link|<img|<iframe|@import|@font-face|url\((?!#)|https?:|\son\w+=", text)
        assert set(re.findall(r'href="(.)', text)) <= {"#"}
        assert "<!DOCTYPE" not in page
        assert "<metadata" not in page


def test_ids_in_pictures_are_unique_on_the_page(pair):
    names = re.findall(r'\sid="([^"]*)"', pair)
    assert len(names) == len(set(names))
    assert {
        found[1:] for found in re.findall(r'href="([^"]*)"|url\((#[^)]*)\)', pair) for found in found if found
    } <= set(names)


def test_colours_match_the_page_and_have_contrast_in_light_and_dark(whole):
    svgs = "".join(re.findall(r"<svg.*?</svg>", whole, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r'(href="|url\()#\w+', "", svgs))
    used = set(re.findall(r"var\(--(\w+)\)", svgs))
    assert used >= {"s1", "s2", "s3"}
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{([^}]*)\}", whole)
    )
    for scheme in (light, dark):
        for ink in {"ink", "soft"} | used:
            for ground in ("ground", "card"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground)


def contrast(one, other):
    """Contrast by WCAG 2.2; text needs 4.5, lines 3."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
