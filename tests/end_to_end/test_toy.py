"""The toy task as it is shipped: from two pairs to their exact translations, in real processes."""

import json

from tests.support import ROOT, run

PAIRS = [("ich mochte ein bier", "i want a beer ."), ("ich mochte ein cola", "i want a coke .")]


def test_two_pairs_are_learnt_to_the_word(tmp_path):
    for side, lang in enumerate(("de", "en")):
        text = (ROOT / "data" / "toy" / f"train.{lang}").read_text(encoding="utf-8")
        assert text == "".join(f"{pair[side]}\n" for pair in PAIRS)

    model, cache = tmp_path / "model", tmp_path / "cache"
    done = run(
        *("train", "configs/toy_de_en.yaml", f"model_dir={model}", f"data.cache={cache}"),
        "training.devices=1",
    )
    assert done.returncode == 0, done.stderr
    # Word for word, and each side for itself: its words, and the four special pieces.
    assert "source subwords 8 " in done.stderr and "target subwords 10 " in done.stderr
    assert "vocabulary      9 source, 10 target\n" in done.stderr
    assert "BLEU 100.00" in done.stdout
    log = (model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (tested,) = [line for line in map(json.loads, log) if line["kind"] == "test"]
    assert tested["lines"] == 2

    sources, targets = zip(*reversed(PAIRS), strict=True)
    done = run("translate", model, stdin="\n".join(sources))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(targets)
