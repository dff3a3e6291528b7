"""Findings as JUnit XML for CI: one test case per check and node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkcluster.hints import Typed
from sparkcluster.printable import LINES, clean

if TYPE_CHECKING:
    from sparkcluster.inspect.preflight import Preflight


_CODE = r"\b[A-Z][A-Z0-9]*-\d{3}\b"


def document(found: Preflight) -> bytes:
    """The report as UTF-8 XML: every check of each node; of the cluster as a whole what was found."""
    from xml.etree.ElementTree import Element, SubElement, tostring

    from sparkcluster.checks.registry import CATALOGUE

    suite = Element("testsuite", name="sparkcluster preflight", time=f"{found.seconds:.3f}")
    titles = {code: check.title for code, check in CATALOGUE.items() if check.stage in found.stages}
    for node in [*(node.label for node in found.spec.inventory.nodes), None]:
        seen = [finding for finding in found.findings if finding.node == node]
        unread = {code for each in seen if each.code == "FACT-001" for code in re.findall(_CODE, each.why)}
        for code, title in ({each.code: each.summary for each in seen} | (titles if node else {})).items():
            place = f"preflight.{_legal(node or 'cluster')}"
            case = SubElement(suite, "testcase", classname=place, name=_legal(f"{code} {title}"))
            for each in (each for each in seen if each.code == code):
                about = {"type": code, "message": _legal(each.summary)} if each.severity == "error" else {}
                SubElement(case, "failure" if about else "system-out", about).text = _legal(
                    "\n".join(each.notes(Typed()))
                )
            if not len(case) and (node in found.errors or code in unread):
                SubElement(case, "skipped", message="the node, or a fact that it needs, could not be read")
    for key, tag in (("tests", ""), ("failures", "/failure"), ("skipped", "/skipped")):
        suite.set(key, str(len(suite.findall(f"testcase{tag}"))))
    content: bytes = tostring(suite, encoding="utf-8", xml_declaration=True)
    return content


def _legal(text: str) -> str:
    """``text`` without characters that XML 1.0 does not allow."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", clean(text, LINES))
