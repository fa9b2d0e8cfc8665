"""The pages: what a parser can tell of them, then what only a browser can."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from sme2_assets.errors import printable
from sme2_assets.report.claims import EMULATED
from sme2_assets.report.document import Action, Answer, Commands, Document, Finding, Grid, Section, Text
from sme2_assets.report.html import html_of
from sme2_assets.report.markdown import markdown_of
from sme2_assets.report.pictures.chart import inline_svg, library
from sme2_assets.report.pictures.modules import module_pictures
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.browser import PATIENCE_MS
from sme2_assets_tests.report.hostile import FRAGMENTS, hostile_text, markdown_skeleton, parsed
from sme2_assets_tests.screenshots import draw_all

PHONE = {"width": 390, "height": 844}
KINDS = ("faster", "emulated", "baseline", "few", "wrong")
# What a time, or anything made of times, is written like.
TIMES = re.compile(r"\d ?(ms|us|µs|ns)\b|GF?L?OP/s|\d\.\d+x|[Ll]atency|\bmedian\b|spread|time to gain")


def section(page: str, anchor: str) -> str:
    return page.split(f'<section id="{anchor}">')[1].split("</section>")[0]


def answer_of(page: str) -> str:
    return page.split('id="answer"')[1].split("</section>")[0]


def test_the_answer_comes_first_with_its_interval_and_its_n(pages: dict[str, str]):
    page = pages["faster"]
    assert page.index('id="answer"') < page.index("<h2")
    answer = " ".join(parsed(answer_of(page)).text)
    assert re.search(
        r"Speedup \(off / on\) 1\.\d\dx \(1\.\d\d to 1\.\d\d, n=6\): faster with SME2 on", answer
    )
    assert "<code>sme2 advise toy_cnn-fp32</code>" in answer_of(page)
    assert "`" not in answer
    assert re.search(r"fidelity\s+hardware", " ".join(parsed(section(page, "what-it-rests-on")).text))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_needs_nothing_but_itself(pages: dict[str, str], kind: str):
    page = pages[kind]
    skeleton = parsed(page)
    inside = [link for link in skeleton.links if link != "data:,"]
    assert inside
    assert all(link.startswith("#") for link in inside)
    assert {link[1:] for link in inside} <= set(skeleton.ids), "every link leads somewhere"
    assert [name for name, times in Counter(skeleton.ids).items() if times > 1] == []
    # Names of formats are no addresses; of the library the policy and the browser tell, below.
    own = re.sub(r'(xmlns[:a-z]*=|"\$schema":)"[^"]*"', "", page.replace(library(), ""))
    assert re.findall(r".{30}(?:https?:|//[a-z]|@import|@font-face|url\((?!#)).{30}", own) == []
    policy = page.replace("&#39;", "'").split('Content-Security-Policy" content="')[1].split('"')[0]
    assert "default-src 'none'" in policy
    assert not re.search("unsafe-eval|https?:|script-src[^;]*unsafe|connect-src", policy)
    assert page.count(library()) == 1, "once for all pictures"
    assert len(page.encode()) < 3_000_000


def test_a_page_has_every_part_of_the_measurement(pages: dict[str, str]):
    page = pages["faster"]
    parts = ["categories", "operators", "what-it-rests-on", "conv-and-gemm-not-on-the-sme-unit", "insights"]
    parts += ["latency", "modules", "numerics", "noise", "what-was-measured", "do-it-again"]
    places = [page.index(f'<section id="{part}">') for part in parts]
    assert places == sorted(places)
    operators = section(page, "operators")
    for shown in ("F32) IGEMM #1 -&gt; Convolution (NHWC, PF32", "model.py:2: x = self.features.0.conv(x)"):
        assert shown in operators
    assert "_sme2_mopa (" in operators
    assert "libexecutorch_backend_xnnpack.so+0x2000 (" in operators, "and the kernel of the other arm"
    for part in ("latency", "categories", "modules"):
        assert "<svg " in section(page, part)
    for label in ("Next", "Rules out", "Confidence"):
        assert f"<dt>{label}</dt>" in section(page, "insights")
    again = section(page, "do-it-again")
    command = (
        "sme2 profile toy_cnn-fp32 --platform linux --sme2 both --threads 1 --rounds 6 --runs 3 --warmup 1"
    )
    assert command in again
    assert "seed of the arms&#39; order 1" in again


def test_an_emulated_page_has_counts_and_kernels_and_no_time(
    documents: dict[str, Document], pages: dict[str, str]
):
    for text in (
        " ".join(parsed(pages["emulated"].split("<body>")[1]).text),
        markdown_of(documents["emulated"]),
    ):
        # What is not a time there: how near the outputs are, and the script of the page.
        told = re.sub(r'"use strict".*', "", text, flags=re.DOTALL)
        assert TIMES.findall(told) == []
        assert EMULATED.text in told
        assert "SME unit" in told
    assert 'id="latency"' not in pages["emulated"]
    assert TIMES.search(" ".join(parsed(pages["faster"]).text)), "which a page of hardware is full of"


def test_an_emulated_report_does_not_change_with_its_times(
    documents: dict[str, Document], pages: dict[str, str]
):
    """Whatever depends on emulated times in any way, were it the order of rows, would show here."""
    assert pages["slow"] == pages["fast"].replace("fast-fp32", "slow-fp32")
    slow, fast = (markdown_of(documents[name]) for name in ("slow", "fast"))
    assert slow == fast.replace("fast-fp32", "slow-fp32")


def test_too_few_rounds_make_no_large_number(pages: dict[str, str]):
    answer = answer_of(pages["few"])
    assert "insufficient data" in answer
    assert "at least 6 are needed" in answer
    assert 'class="figure"' not in answer
    assert "no interval, n=2" in section(pages["few"], "what-it-rests-on")
    assert "Speedup of the model" not in pages["few"], "no picture of intervals that there are none of"


def test_wrong_outputs_are_said_wherever_times_stand_side_by_side(pages: dict[str, str]):
    answer = answer_of(pages["wrong"])
    assert "not comparable" in answer
    assert "the outputs are wrong" in answer
    assert "WRONG" in section(pages["wrong"], "what-it-rests-on")
    assert 'class="figure"' not in answer
    for part in ("latency", "categories"):
        assert "These times do not compare." in section(pages["wrong"], part)


def test_a_baseline_has_no_verdict_and_no_speedup(pages: dict[str, str]):
    text = " ".join(parsed(pages["baseline"].split("<main>")[1].split("</main>")[0]).text)
    assert "measured alone" in text
    assert "Verdict" not in text
    assert "off / on" not in text
    assert "--sme2 off" in text


def made_of(text: str) -> Document:
    """A document with this text wherever one can stand."""
    # The last row keeps a number from making a column of numbers, which is set differently.
    table = TextTable.of([text, "b"], [[text, text], ["x", text], ["x", "x"]])
    return Document(
        text,
        Answer(text, "good", text, text, text, (Action(text, text, text),)),
        [
            Section(
                "A section",
                [
                    Text(text),
                    Text(text, note=True),
                    Grid(table),
                    Grid(table, long=True, links=("a/b.html", None, None)),
                    Finding(1, text, text, (("Next", text),)),
                    Commands((text,)),
                ],
            )
        ],
        stamp=text,
    )


@settings(max_examples=40)
@given(text=hostile_text)
def test_no_text_becomes_markup_in_html(text: str):
    plain, hostile = parsed(html_of(made_of("plain"))), parsed(html_of(made_of(text)))
    # What stands between backquotes is code, and nothing more than that.
    code = (("code", ()), ("/code", ()))
    assert [tag for tag in hostile.tags if tag not in code] == [tag for tag in plain.tags if tag not in code]
    assert hostile.links == plain.links
    assert text in hostile.text, "and it is shown as it is"


def test_a_command_in_a_sentence_is_code_with_nothing_but_text_in_it():
    step = "Type `sme2 sql \"FROM a WHERE b < '</code><i>'\"`, then `again`. One ` stays."
    document = Document(
        "a page",
        Answer("a word", "open", "A sentence.", actions=(Action("what", "", step),)),
        [Section("A section", [Finding(1, "title", "detail", (("Next", step),))])],
    )
    shown = (
        "Type <code>sme2 sql &#34;FROM a WHERE b &lt; &#39;&lt;/code&gt;&lt;i&gt;&#39;&#34;</code>, "
        "then <code>again</code>. One ` stays."
    )
    assert html_of(document).count(shown) == 2, "in what to do, and in the finding"
    said = "Type `sme2 sql \"FROM a WHERE b < '</code><i>'\"`, then `again`. One \\` stays."
    assert markdown_of(document).count(said) == 2


@settings(max_examples=100)
@given(text=hostile_text)
def test_no_text_becomes_markup_in_markdown(text: str):
    plain, hostile = (markdown_skeleton(markdown_of(made_of(each))) for each in ("plain", text))
    assert [kind for kind in hostile if kind != "code_inline"] == plain


def test_no_name_becomes_markup_in_a_picture(paired: Warehouse):
    modules, operators = (
        paired.query(f"FROM {view} WHERE platform = 'linux' AND sme2 = 'on'")
        for view in ("module_summary", "bottlenecks")
    )
    skeletons = []
    # The renderer aborts the process on letters that XML does not have.
    for name in ("x", "".join([*FRAGMENTS, "\0", "\x1b[31m", "\ufffe"]).replace(".", "")):
        modules_of, operators_of = (
            frame.replace({"module": {"head.linear": f"head.{name}"}}) for frame in (modules, operators)
        )
        [picture] = module_pictures(modules_of, operators_of)
        assert printable(name) in {row["label"] for row in picture.spec["data"][0]["values"]}
        skeletons.append(parsed(inline_svg(picture.spec, name)).tags)
        page = html_of(Document("a page", None, [Section("A section", [picture])]))
        skeletons[-1] += parsed(page.replace(library(), "")).tags
    assert sorted(skeletons[0]) == sorted(skeletons[1])


@pytest.fixture
def files(pages: dict[str, str], tmp_path: Path) -> dict[str, Path]:
    written = {}
    for name, page in pages.items():
        written[name] = tmp_path / f"{name}.html"
        written[name].write_text(page)
    return written


def opened(browser: Any, path: Path, said: list[str], **options: Any) -> Any:
    """The page, with everything the browser complains about or asks for in `said`."""
    page = browser.new_context(viewport=PHONE, **options).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(path.as_uri())
    return page


def test_pages_fit_a_phone_and_ask_for_nothing(browser: Any, files: dict[str, Path]):
    for name in ("faster", "emulated", "baseline"):
        said: list[str] = []
        page = opened(browser, files[name], said, color_scheme="dark")
        draw_all(page)
        assert [text for text in said if text not in (files[name].as_uri(), "data:,")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        ink, ground = page.evaluate(
            "[getComputedStyle(document.querySelector('.picture svg text[fill=\"#1f2328\"]')).fill, "
            "getComputedStyle(document.body).backgroundColor]"
        )
        assert (ink, ground) == ("rgb(230, 237, 243)", "rgb(13, 17, 23)"), "pictures are dark with the page"
        page.context.close()


@pytest.mark.thorough
def test_a_picture_takes_the_place_of_the_still_one(browser: Any, files: dict[str, Path]):
    """The two never stand below one another, which would move the page by a whole picture, and back."""
    page = opened(browser, files["faster"], [])
    page.add_init_script(
        """addEventListener('DOMContentLoaded', () => {
            window.most = 0;
            const look = () => {
                for (const box of document.querySelectorAll('.picture'))
                    window.most = Math.max(window.most, box.querySelectorAll('svg').length);
            };
            new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
        })"""
    )
    page.reload()
    draw_all(page)
    assert page.evaluate("window.most") == 1
    page.context.close()


def column(page: Any, title: str) -> list[str]:
    return page.evaluate(
        """title => {
            const table = document.querySelector('#operators table');
            const heads = [...table.querySelectorAll('th')].map(head => head.textContent);
            const rows = [...table.tBodies[0].rows].filter(row => !row.hidden);
            return rows.map(row => row.cells[heads.indexOf(title)].textContent);
        }""",
        title,
    )


def test_operators_can_be_sorted_and_filtered(browser: Any, files: dict[str, Path]):
    page = opened(browser, files["faster"], [])
    # A picture that is drawn takes the place of one of another height: whoever clicks then may miss.
    draw_all(page)
    assert column(page, "order") == ["2", "4", "7", "3", "5", "1", "6", "8"], "by their time at first"
    head = page.locator("#operators th button", has_text="order")
    head.click()
    assert column(page, "order") == ["1", "2", "3", "4", "5", "6", "7", "8"]
    head.click()
    assert column(page, "order") == ["8", "7", "6", "5", "4", "3", "2", "1"]
    page.locator("#operators th button", has_text="on ms").click()
    times = [float(text) for text in column(page, "on ms")]
    assert times == sorted(times)
    page.locator("#operators input").fill("gemm head")
    assert column(page, "module") == ["head.linear"]
    page.context.close()


def test_a_page_is_whole_without_scripts(browser: Any, files: dict[str, Path]):
    page = opened(browser, files["faster"], [], java_script_enabled=False)
    assert page.locator("#operators tbody tr").count() == 8
    assert page.locator(".filter").count() == 0
    assert page.locator(".picture svg").count() == page.locator(".picture").count() > 0
    page.context.close()


def icicle(page: Any) -> dict[str, float]:
    """How wide each box of the modules is by its name, in pixels."""
    boxes = page.evaluate(
        """() => [...document.querySelectorAll('#picture-modules .mark-rect.role-mark path')].map(
            box => [box.__data__.datum.path || 'all', box.getBoundingClientRect().width])"""
    )
    return dict(boxes)


def eventually(page: Any, holds: Callable[[], bool]) -> bool:
    """Whether it holds once the page has drawn itself again."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not holds() and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    return holds()


def test_hovering_tells_and_a_click_looks_into_a_module(browser: Any, files: dict[str, Path]):
    said: list[str] = []
    page = opened(browser, files["faster"], said)
    page.set_viewport_size({"width": 1280, "height": 900})
    draw_all(page)
    before = icicle(page)
    assert 1000 < before["all"] <= 1280, "as wide as the page"
    box = page.locator("#picture-modules text", has_text=re.compile("^head")).first
    box.hover()
    tooltip = page.locator("#vg-tooltip-element")
    tooltip.wait_for(state="visible")
    assert "head" in tooltip.inner_text()
    assert "CONV or GEMM not on it" in tooltip.inner_text()
    box.click()
    inside = pytest.approx({"head": before["all"], "features": 0}, abs=2)
    assert eventually(page, lambda: {name: icicle(page).get(name) for name in ("head", "features")} == inside)
    page.locator("#picture-modules text", has_text=re.compile("^inference")).first.click()
    assert eventually(page, lambda: icicle(page) == pytest.approx(before, abs=2))
    page.set_viewport_size(PHONE)
    narrow = eventually(page, lambda: icicle(page).get("all", PHONE["width"] + 1) <= PHONE["width"])
    assert narrow, "and it follows the width of the page"
    assert eventually(page, lambda: page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"])
    assert [text for text in said if text not in (files["faster"].as_uri(), "data:,")] == []
    page.context.close()


def test_a_picture_that_asks_for_a_file_gets_none(
    browser: Any, tmp_path: Path, documents: dict[str, Document]
):
    """A planted fault: what would fetch is stopped by the page, and the still picture stays."""
    picture = next(each for each in documents["faster"].pictures() if each.name == "categories")
    page = html_of(Document("a page", None, [Section("A section", [picture])]))
    start = page.index('"data":{"values":[')
    end = page.index("]}", start) + 2
    (tmp_path / "page.html").write_text(
        page[:start] + '"data":{"url":"https://example.org/rows.json"}' + page[end:]
    )
    said: list[str] = []
    shown = opened(browser, tmp_path / "page.html", said)
    shown.wait_for_timeout(1500)
    asked = [text for text in said if text.startswith("http")]
    assert asked == []
    shown.context.close()


def test_all_columns_of_the_operators_are_seen_on_a_laptop(browser: Any, files: dict[str, Path]):
    page = opened(browser, files["faster"], [])
    page.set_viewport_size({"width": 1280, "height": 900})
    heads = page.locator("#operators th").all()
    assert len(heads) > 10
    for head in heads:
        box = head.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= 1280, head.inner_text()
    page.context.close()
