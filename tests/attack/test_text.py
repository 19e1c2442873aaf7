"""Hostile text through every engine, format and mechanism: one line out for every line in, each the
translation of its own line, and nothing but UTF-8."""

import json
import random

import pytest

from tests.attack.support import MAX_LENGTH
from tests.support import demo_pairs, make_config, make_model_directory

PAIRS = demo_pairs(260)
ODD = [
    *(b"", b" ", b"\t", b"\r", b"\0", b"\x1b[31mred\x1b[0m", b"\x85", b"\xff\xfe", b"\xc3"),
    *(b"a\0b", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\rb", b"a\x0bb\x0cc", b"@@ @@", b"\\n"),
    *(b'{"source": 1}', b"a\tb\tc", b"<s> </s> <pad> <unk>"),
    *(b"." * 3000, b"word " * 700, b" " * 4000),
]
TEXTS = ["\u2028line\u2029paragraph", "\u0085next", "\ufeffbyte order mark", "\ufeff", "\u2047"]
TEXTS += ["\u202eright to left", "\u2581piece\u2581", "\u2585", "e\u0301\u0302\u0303" * 50]
TEXTS += ["\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u4f60\u597d\uff0c\u4e16\u754c\u3002"]
TEXTS += ["\u0645\u0631\u062d\u0628\u0627", "\U0010ffff\ufffe\uffff", "A dog runs."]


def hostile(count: int, seed: int) -> list[bytes]:
    """Lines without their ends: odd ones, random bytes, and ordinary ones between."""
    drawn = random.Random(seed)
    lines = [*ODD, *(text.encode() for text in TEXTS)]
    while len(lines) < count:
        points = [drawn.choice((drawn.randrange(0x250), drawn.randrange(0xD800))) for _ in "." * 20]
        kinds = (
            drawn.randbytes(drawn.randrange(60)),
            "".join(map(chr, points)).encode(),
            b"".join(drawn.choices(ODD[:18], k=3)),
            drawn.choice(PAIRS)[0].encode(),
        )
        lines.append(drawn.choice(kinds).replace(b"\n", b""))
    drawn.shuffle(lines)
    return lines


def check(answer, lines: list[bytes], format: str, n_best: int, alignment: bool) -> list[str]:
    """The best translation of each line, from an answer in any format."""
    answer.require_clear()
    assert answer.code == 0, answer.stderr
    assert answer.stdout.endswith("\n")
    out = answer.stdout[:-1].split("\n")
    assert len(out) == len(lines)
    if format == "plain":
        return out
    if format == "tsv":
        rows = [line.split("\t") for line in out]
        assert {len(row) for row in rows} == {1 + n_best * (2 + alignment)}
        return [row[1] for row in rows]
    values = [json.loads(line) for line in out]
    assert all(1 <= len(value["outputs"]) <= n_best for value in values)
    return [value["outputs"][0]["text"] for value in values]


# The format, the outputs of each line, and whether there is an alignment.
FORMATS = [("plain", 1, False), ("tsv", 3, True), ("jsonl", 2, True)]
ENGINES = [".", "export/ctranslate2", "export/paddle_inference"]
MECHANISMS = {
    "copying": {"copying": True},
    "mask_predict": {"non_autoregressive": "length"},
    "ctc_like": {"non_autoregressive": "end"},
    "post_norm": {"norm": "post", "tie_embeddings": False, "bias": False},
}


@pytest.mark.parametrize("kind", [*ENGINES, *MECHANISMS])
def test_of_every_engine_and_mechanism(driver, model, tmp_path, kind, is_large):
    folder, formats, options = model / kind, FORMATS, ("--threads", 1, "--beam-size", 3)
    if kind in MECHANISMS:
        config = make_config(tmp_path, model=MECHANISMS[kind], data={"max_length": MAX_LENGTH})
        folder = make_model_directory(tmp_path / "model", PAIRS, config).path
        formats, options = [("plain", 1, False), ("jsonl", 1, False)], ("--threads", 1)
    path = tmp_path / "source"
    for seed in range(6 if is_large else 1):
        lines = hostile(400 if is_large else 60, seed)
        path.write_bytes(b"\n".join(lines) + b"\n" * (seed % 2 == 0))
        results = set()
        for format, n_best, alignment in formats:
            shape = ["--format", format, *(["--n-best", n_best] if n_best > 1 else [])]
            shape += ["--alignment"] * alignment
            answer = driver.run("translate", folder, *options, *shape, "--input", path)
            # A tab of an output is a space in a table.
            texts = check(answer, lines, format, n_best, alignment)
            results.add(tuple(text.replace("\t", " ") for text in texts))
        stream = driver.run("translate", folder, *options, stdin=path.read_bytes())
        results.add(tuple(check(stream, lines, "plain", 1, False)))
        assert len(results) == 1, f"seed {seed}"
        for verb in ("score", "align") if folder.name == "model" else ():
            answer = driver.run(verb, folder, "--threads", 1, "--source", path, "--target", path)
            answer.require_clear()
            if answer.code == 0:
                assert answer.stdout.count("\n") == len(lines)
            else:
                assert "non-autoregressive" in answer.stderr
