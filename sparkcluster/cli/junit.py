"""Findings as JUnit XML for CI: one test case per check and node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkcluster.printable import LINES, clean

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from sparkcluster.findings import Finding
    from sparkcluster.inspect.preflight import Preflight


_CODE = r"\b[A-Z][A-Z0-9]*-\d{3}\b"


def document(found: Preflight) -> bytes:
    """The report as UTF-8 XML."""
    from xml.etree.ElementTree import Element, SubElement, tostring

    suites = Element("testsuites", name="sparkcluster preflight")
    places: list[str | None] = [node.label for node in found.spec.inventory.nodes]
    for place in [*places, None]:
        SubElement(suites, "testsuite", name=place or "cluster").extend(_cases(found, place))
    for element in (*suites, suites):
        for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            element.set(key, str(len([*element.iter(tag)])))
    suites.set("time", f"{found.seconds:.3f}")
    content: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return content


def _cases(found: Preflight, node: str | None) -> Iterator[Element]:
    """Every check of one node (None: of the cluster as a whole, where it found something), then other findings."""
    from sparkcluster.checks.registry import CATALOGUE

    of_node = [finding for finding in found.findings if finding.node == node]
    unread = {code for finding in of_node if finding.code == "FACT-001" for code in re.findall(_CODE, finding.why)}
    away = "the node did not answer" if node in found.errors else ""
    names = {code: check.title for code, check in CATALOGUE.items() if check.stage in found.stages}
    for code, name in (names | {each.code: each.summary for each in of_node if each.code not in CATALOGUE}).items():
        seen = [finding for finding in of_node if finding.code == code]
        if node is not None or seen:
            skip = away or ("a fact that it needs could not be read" if code in unread else "")
            yield _case(node, f"{code} {name}", seen, skip)
    if node is not None and not away:
        yield _case(node, "the node answers", [], "")


def _case(node: str | None, name: str, seen: list[Finding], skip: str) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    case = Element("testcase", classname=f"preflight.{_legal(node or 'cluster')}", name=_legal(name), time="0")
    errors = [finding for finding in seen if finding.severity == "error"]
    others = [finding for finding in seen if finding.severity != "error"]
    if errors:
        failure = SubElement(case, "failure", type=errors[0].code, message=_legal(errors[0].summary))
        failure.text = _legal("\n\n".join(_text(finding) for finding in errors))
    elif skip and not seen:
        SubElement(case, "skipped", message=_legal(skip))
    if others:
        SubElement(case, "system-out").text = _legal("\n\n".join(_text(finding) for finding in others))
    return case


def _text(finding: Finding) -> str:
    details = (f"{word}: {text}" for word, text in finding.details())
    return "\n".join([f"{finding.severity}: {finding.code} {finding.summary}", *details])


def _legal(text: str) -> str:
    """``text`` without characters that XML 1.0 does not allow."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", clean(text, LINES))
