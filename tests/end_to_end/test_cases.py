"""Small inputs that failed once, from reports about other tools. They lie beside the project, each
with a script that runs it; what is asserted here is what a user would expect."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT, TIMEOUT, run_command

CASES = ROOT.parent / "shared" / "cases"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CASES.is_dir(), reason=f"{CASES} is not there"),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's model, after fewer steps than usual."""
    folder = tmp_path_factory.mktemp("demo")
    steps = [f"training.{key}=300" for key in ("max_steps", "validate_every", "save_every")]
    changes = [f"model_dir={folder / 'model'}", f"data.cache={folder / 'cache'}", *steps]
    run_command(
        "train", ROOT / "configs" / "demo.yaml", f"data.root={ROOT / 'data/demo'}", *changes
    )
    return folder / "model"


def sections(output: str) -> dict[str, str]:
    """What a script prints below each of its headings, `--- HEADING`."""
    parts = re.split(r"^--- (.*)$", output, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def held_out_frequent(output):
    half, labels = sections(output).values()
    assert int(re.search(r"training pairs +(\d+)", half)[1]) >= 30
    assert "error" not in labels and "training pairs" in labels


def language_codes(output):
    scores = [re.search(r"BLEU ([\d.]+)", text)[1] for text in sections(output).values()]
    assert len(scores) == 4 and len(set(scores)) == 1


def long_dev_pair(output):
    first, control = re.split(r"^--- control.*$", output, flags=re.M)
    assert "out of memory" not in output and "step 4/4" in control
    assert re.search(r"warning: .*data\.dev", first)


def output_length_limit(output):
    limited, free = sections(output).values()
    trained = float(re.search(r"test set.*BLEU ([\d.]+)", output)[1])
    assert trained > 80 and trained == float(re.search(r"BLEU ([\d.]+)", free)[1])
    assert float(re.search(r"BLEU ([\d.]+)", limited)[1]) < 50
    assert "reached the limit" in limited and "more translations" in limited


def sentences_on_one_line(output):
    first, counts = output.split("--- 60 sentences")
    assert first.count("?") == 1 and first.strip().endswith(".")
    joined, apart = map(int, re.findall(r"^\d+$", counts, re.M))
    assert joined == apart > 400


def thai_spaces(output):
    thai = next(line for line in output.splitlines() if re.search("[\u0e00-\u0e7f]", line))
    return thai.count(" ")


def second_line(output):
    lines = [line for line in output.splitlines() if not line.startswith("warning: ")]
    return lines[1] if all(lines) else "⁇"


UNKNOWN = r"warning: .*(unknown|not in the vocabulary)|error: .*unknown"
REFUSED = r"-> (TypeError|UserError|UsageError) .*lines\["
# What must be true of the output of each script.
CHECKS = {
    "compressed_input": lambda out: out.count("exit code 0") == 4 and "not UTF-8" not in out,
    "evaluate_form_of_text": lambda out: all("warning: " in t for t in sections(out).values()),
    "gz_output": lambda out: out.count("gzip compressed data") == 4 and "exit code 0" in out,
    "home_not_writable": lambda out: out.count("estimated") == 2 and "error" not in out,
    "join_without_spaces": lambda out: thai_spaces(out) == 3,  # between four sentences
    "legacy_locale": lambda out: all(part in out for part in ("report.html", "README.md", "\\u")),
    "prefix": lambda out: "⁇" not in second_line(out),
    "python_values": lambda out: all(re.search(REFUSED, line) for line in out.splitlines()),
    "tilde": lambda out: (
        "exit code 0" in out and "runs" in out.splitlines() and not re.search(r"^\./~", out, re.M)
    ),
    "unknown_characters": lambda out: all(re.search(UNKNOWN, t) for t in sections(out).values()),
    "utf16_stdin": lambda out: out.count("exit code 1") == 3 and out.count("UTF-16") >= 3,
    **{
        check.__name__: check
        for check in (
            *(held_out_frequent, language_codes, long_dev_pair, output_length_limit),
            sentences_on_one_line,
        )
    },
}


# These train models of their own. What they are about has a shorter test too.
LONG = {
    *("held_out_frequent", "home_not_writable", "join_without_spaces", "legacy_locale"),
    *("long_dev_pair", "output_length_limit", "unknown_characters"),
}


@pytest.mark.parametrize("name", sorted(path.parent.name for path in CASES.glob("*/run.sh")))
def test_case(demo, name, tmp_path, pytestconfig):
    if name in LONG and not pytestconfig.getoption("--attack"):
        pytest.skip("runs with --attack")
    environment = os.environ | {"PROJECT": str(ROOT), "DEMO": str(demo), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(Path(CASES, name, "run.sh"))],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT,
        check=False,
    )
    output = done.stdout.decode("utf-8", "replace")
    assert "Traceback" not in output and "should not happen" not in output
    assert CHECKS.get(name, lambda output: None)(output) in (True, None), output
