"""The page is one file that the server's Content-Security-Policy allows, and inserts no markup from text."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "sparkcluster/telemetry/page.html"


def test_the_page_is_one_script_and_one_style_and_inserts_no_markup():
    text = PAGE.read_text()
    assert [text.count(each) for each in ("<script>", "<script", "<style>", "<style")] == [1, 1, 1, 1]
    # it contains no address except the namespaces of SVG and of this page's elements
    assert set(re.findall(r"\w+://[^\"'\s]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert not re.findall(r"""\b(?:src|href)\s*=|url\(|@import|@font-face|import\s*\(""", text)
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|\beval\b|new Function|\son\w+=|style="
    assert not re.findall(markup, text)
    assert not re.findall(r"\banimation|\btransition|requestAnimationFrame", text)
