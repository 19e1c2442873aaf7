"""The command `report`: what is on the page, and that any text on it is shown and not run."""

import json
import re
import shutil

import pytest

from tests import fabricated_run
from tests.fabricated_run import fabricate, samples, train, validation, write_metrics, write_text
from tests.reports.elements import Elements, visit
from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    write_lines,
)
from transformer_mt.reports import record
from transformer_mt.utils.errors import UserError

PAIRS = demo_pairs(60)
HOSTILE = [
    "</script><script>hacked()</script>",
    "<img src=https://evil.invalid/x onerror=hacked()>",
    "\"'><svg onload=hacked()>",
    "]]> --> </textarea></style></title></iframe>",
    "{{7*7}} ${hacked()} %s {0} \\u003cb\\u003e",
    "\u202eright to left\u2066 \u2028 \u0085 \0\x1b[2J \ufeff",
    "&lt;b&gt; &amp;amp; &#60;i&#62;",
    "محطة القطار <b>א",
    "图书馆在哪里？",
    "",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The model directories of two runs that have ended, one of which has a hostile name."""
    root = tmp_path_factory.mktemp("runs")
    found = []
    for seed, name in enumerate(["plain", "\"><img src=x onerror=hacked()>$x_1$'"]):
        config = make_config(root, training={"learning_rate": 0.003 / (seed + 1)})
        path = make_model_directory(root / name, PAIRS, config, seed).path
        fabricate(path, PAIRS, seed, quality=1 - seed / 4)
        found.append(path)
    return found


def written(*folders, output):
    run_command("report", *folders, output=output)
    page = output.read_text(encoding="utf-8")
    assert len(page) < 5_000_000
    return page


def figures(page):
    return re.findall(r"<figcaption><b>(.*?)</b>", page)


ELEMENTS = (
    "html head meta title style body h1 h2 h3 nav a div section table caption thead tbody tr th td "
    "p ul li figure figcaption svg g defs path use clippath rect text b i span details summary dl "
    "dt dd mark label input select option button iframe script pre"
)


def test_one_run(runs, capsys, tmp_path):
    run_command("report", runs[0])
    path = runs[0] / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    page = path.read_text(encoding="utf-8")
    path.unlink()
    assert page == written(runs[0], output=tmp_path / "again")
    shown = figures(page)
    assert len(shown) == 21 and {"Loss", "BLEU of the dev set", "Lengths of sentences"} < {*shown}
    for text in ("34.00 ± 1.30", "3,190,784", "2 h 0 min", "8,000 of 8,000", "A processor",
                 "training.learning_rate", "empty on one side", "chrF2|nrefs:1|"):  # fmt: skip
        assert text in page, text
    # The final score comes first, then the loss and the score of the dev set. The rest is folded.
    headline = page.index('<p class="headline"><b>34.00</b> <span>± 1.30</span>')
    assert headline < page.index("<figure>")
    open_ones, folded = page.split('<details class="more-curves">')
    assert figures(open_ones) == 2 * ["Loss", "BLEU of the dev set"]
    assert {"Padding", "Gradient norm"} < {*figures(folded.split("</section>")[0])}
    texts = Elements(page).definitions
    assert all(source in texts and reference in texts for source, reference in PAIRS)
    scores = [float(score) for score in re.findall(r'data-score="([\d.]+)"', page)]
    assert len(scores) == len(PAIRS) and scores == sorted(scores)
    assert page.count("<iframe") == 3 and "There are no attention maps" not in page


def test_several_runs(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_command("report", *runs)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    between = page.split("Between the runs, these differ:")[1].split("</table>")[0]
    assert "<td>0.003</td><td>0.0015</td>" in between
    titles = re.findall("<summary>([^<]*)</summary><iframe", page)
    assert len(titles) == 2 and len({title.rpartition(": ")[2] for title in titles}) == 1
    # Each sentence is there once, with both translations.
    assert page.count('<div class="pair" data-line=') == len(PAIRS)


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_while_it_trains(runs, tmp_path):
    folder = shutil.copytree(runs[0], tmp_path / "run")
    for name in ("test.source", "test.reference", "test.hypothesis", "data.json"):
        (folder / name).unlink()
    kept = [line for line in metrics_of(folder) if line["kind"] != "test"]
    write_metrics(folder, [line for line in kept if line.get("step", 9999) <= 700])
    for step in range(1000, 8001, 500):
        (folder / "dev" / f"step_{step}.hypothesis").unlink()
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    page = written(folder, output=tmp_path / "page")
    assert "training, or stopped: no end is recorded" in page
    assert "700 of 8,000" in page and "These facts were not recorded (data.json)" in page
    assert "All 20 sentences of the dev set (run: step_500)" in page
    assert page.count("<iframe") == 3


def test_what_is_missing_or_damaged_is_told_on_the_page(runs, tmp_path):
    folder = tmp_path / "nothing"
    folder.mkdir()
    for name in ("config.yaml", "format_version"):
        shutil.copy(runs[0] / name, folder)
    page = written(folder, output=tmp_path / "page")
    assert figures(page) == []
    assert "No measurements have been recorded yet" in page and "There are no scores yet" in page
    folder = shutil.copytree(runs[0], tmp_path / "run")
    (folder / "config.yaml").write_text("nonsense")
    (folder / "test.source").write_text("one line\n")
    for path in folder.rglob("model.safetensors"):
        path.write_bytes(b"nonsense")
    page = written(folder, output=tmp_path / "page")
    assert "What could not be read" in page and "damaged, or edited" in page
    assert "different numbers of lines: 1, 60" in page
    assert "There are no attention maps of run" in page
    assert "Loss" in figures(page) and "34.00 ± 1.30" in page


def test_a_non_autoregressive_model_has_no_attention_maps(tmp_path):
    config = make_config(tmp_path, model={"non_autoregressive": "length"})
    folder = make_model_directory(tmp_path / "run", PAIRS, config).path
    page = written(folder, output=tmp_path / "page")
    assert "There are no attention maps of run" in page and "<iframe" not in page


@pytest.mark.slow
def test_a_large_test_set(runs, tmp_path, monkeypatch):
    folder = shutil.copytree(runs[0], tmp_path / "run")
    many = [(source * 3, target * 3) for source, target in PAIRS] * 10
    many[7] = ("x" * 100_000, "好" * 100_000)
    write_text(folder, "test.", many)
    write_lines(folder / "test.hypothesis", [target[:-5] for _, target in many])
    monkeypatch.setattr(record, "MOST_BYTES", 100_000)
    page = written(folder, output=tmp_path / "page")
    shown = page.count('<div class="pair" data-line=')
    assert 50 < shown < 500
    assert f"{shown:,} of the 600 sentences of the test set" in page
    assert "more characters)" in page
    assert sum(map(len, Elements(page).definitions)) < 60_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("none", "there is no such folder"),
        (".", "there is neither config.yaml nor metrics.jsonl in it"),
        ("run --output=run/config.yaml", "belongs to the model"),
        ("run --output=none/report.html", "can't be written"),
        ("run", "link to a place outside"),
    ],
)
def test_refused(runs, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(runs[0], tmp_path / "run")
    outside = write_lines(tmp_path / "outside", ["mine"])
    (run / "report.html").symlink_to(outside)
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=message):
        run_command("report", *arguments.split())
    assert (run / "config.yaml").read_bytes() == before and outside.read_text() == "mine\n"


# ---- Hostile text, and what a browser makes of it, which runs once for all tests ----


@pytest.fixture(scope="module")
def hostile(runs, tmp_path_factory):
    """A page of two runs with hostile text in every place that takes one."""
    root = tmp_path_factory.mktemp("hostile")
    folders = []
    random = fabricated_run.np.random.default_rng(5)
    pairs = [(text, text[::-1]) for text in HOSTILE] + PAIRS[:30]
    for run in runs:
        folder = shutil.copytree(run, root / run.name)
        write_text(folder, "test.", pairs)
        write_lines(folder / "test.hypothesis", [f"{text} x" for text, _ in pairs])
        keys = ("loss", "nll", "bleu", "time", "seconds", "epoch", "padding", "gradient_norm")
        names = ("time", "version", "device_name", "memory_gb", "parameters", "total_steps")
        lines = [samples(pairs[:10]), {"kind": "start", **dict.fromkeys(names, HOSTILE[1])}]
        for step in range(50, 2001, 50):
            lines += [train(step, 1, random), validation(step, 1, HOSTILE)]
            lines.append(lines[-1] | dict.fromkeys(keys, HOSTILE[step % len(HOSTILE)]))
        own = {"checkpoint": HOSTILE[0], "signature": HOSTILE[1], "note": HOSTILE[2]}
        lines.append({"kind": "test", "bleu": 1.5, "intervals": HOSTILE, **own})
        write_metrics(folder, [*lines, {"kind": "end", "step": 5, "reason": HOSTILE[0]}])
        facts = {
            "files": {HOSTILE[0]: HOSTILE}, "pairs": HOSTILE[1],
            "dropped": {HOSTILE[0]: {"count": 2, "examples": [HOSTILE[:2], HOSTILE]}},
            "source": {"lengths": [[1, 2, 3], HOSTILE], "rare": HOSTILE[0]}, "target": HOSTILE,
            "overlap": {HOSTILE[0]: {"lines": 3, "examples": [HOSTILE]}}, "copies": [],
        }  # fmt: skip
        (folder / "data.json").write_text(json.dumps(facts))
        folders.append(folder)
    return written(*folders, output=root / "page.html"), root


def test_hostile_text_stays_text(hostile):
    page, _ = hostile
    parsed = Elements(page)
    assert parsed.names <= set(ELEMENTS.split())
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    assert page.count("<script>") == 1
    for text in HOSTILE[:5]:
        assert any(text in shown for shown in parsed.definitions), text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\0\x1b]", page)


# A window of the browser can't be as narrow as a phone; a frame can.
PHONE = """<!doctype html><iframe src="visit.html" style="width: 360px; height: 800px"></iframe>
<script>addEventListener("message", event =>
  document.documentElement.setAttribute("data-seen", JSON.stringify(event.data)))</script>"""
BEFORE = """<script>
const violations = [];
addEventListener("securitypolicyviolation", event => violations.push(event.blockedURI));
addEventListener("error", event => violations.push(String(event.message)), true);
function hacked() { violations.push("hacked"); }
</script>"""
VISIT = """<script>{  // a block, because the page has names of its own
const seen = {width: document.documentElement.scrollWidth, inner: innerWidth};
const shown = element => element.getBoundingClientRect().width > 0;
const sentences = key => [...document.querySelectorAll(".sentences .pair")].filter(shown)
  .map(one => Number(one.dataset[key]));
seen.figures = [...document.querySelectorAll("figure svg")].filter(shown).length;
seen.scores = sentences("score");
const change = (selector, value, kind) => {
  const control = document.querySelector(selector);
  control.value = value;
  control.dispatchEvent(new Event(kind, {bubbles: true}));
};
change("input[type=search]", "<IMG src", "input");
seen.found = sentences("line");
seen.status = document.querySelector("[role=status]").textContent;
change("input[type=search]", "", "input");
change("select", "best", "change");
seen.best = sentences("score");
change("select", "line", "change");
seen.in_order = sentences("line");
document.querySelector(".more").click();
seen.after_more = sentences("line").length;
document.querySelector("[data-axis=time]").click();
seen.over_time = [...document.querySelectorAll(".over-time figure svg")].filter(shown).length;
for (const details of document.querySelectorAll("details.attention")) details.open = true;
const tell = attempts => {
  seen.heights = [...document.querySelectorAll("iframe")].map(one => parseInt(one.style.height));
  if (attempts && seen.heights.some(isNaN)) return setTimeout(tell, 50, attempts - 1);
  seen.fetched = performance.getEntriesByType("resource").map(one => one.name);
  parent.postMessage({...seen, policy: violations}, "*");
};
tell(100);
}</script>"""


def test_in_a_browser_on_a_phone(hostile):
    """What it shows, what it prints to its console, and what it fetches."""
    page, folder = hostile
    page = page.replace("<head>", f"<head>{BEFORE}", 1).replace("</body>\n</html>", VISIT)
    (folder / "visit.html").write_text(page, encoding="utf-8")
    (folder / "phone.html").write_text(PHONE, encoding="utf-8")
    log = folder / "net.json"
    # The browser's virtual time can be over before a busy machine has drawn the inner frames.
    for _ in range(4):
        flags = [f"--log-net-log={log}", "--virtual-time-budget=8000"]
        seen, console = visit(folder, *flags, file="phone.html")
        if seen and None not in seen["heights"]:
            break
    assert console == seen["policy"] == seen["fetched"] == []
    assert "evil.invalid" not in log.read_text("utf-8", "replace")
    assert (seen["figures"], seen["over_time"]) == (10, 9)
    assert seen["width"] <= seen["inner"] == 360
    assert len(seen["heights"]) == 2 and all(height > 300 for height in seen["heights"])
    assert len(seen["scores"]) == 20 and seen["scores"] == sorted(seen["scores"])
    assert seen["found"] == [1] and seen["status"] == "1 of 1 sentence"
    assert seen["best"] == sorted(seen["best"], reverse=True)
    assert seen["best"][0] > seen["scores"][-1]
    assert seen["in_order"] == list(range(20)) and seen["after_more"] == 40
