"""What is said of a wrong option or a wrong command: the usage, and what may have been meant."""

import argparse

import pytest

from transformer_mt import cli
from transformer_mt.cli import COMMANDS
from transformer_mt.commands import suggestions


def refusal(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli.parse(list(arguments))
    output, message = capsys.readouterr()
    assert end.value.code == 2 and output == ""
    return message


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["translate", "m", "--beamsize", "4"], {"--beamsize": "--beam-size"}),
        (["translate", "m", "--beam_size=4"], {"--beam_size": "--beam-size"}),
        (["translate", "--imput", "x"], {"--imput": "--input"}),
        (["translate", "m", "-o", "x", "--nbest", "3"], {"-o": "--output", "--nbest": "--n-best"}),
        (["translate", "m", "--length-penaly", "1"], {"--length-penaly": "--length-penalty"}),
        # What is misspelled here is required; that it is missing would be said otherwise.
        (["score", "m", "--sorce", "s", "--target", "t"], {"--sorce": "--source"}),
        (["train", "my.yaml", "--Restart"], {"--Restart": "--restart"}),
        (["train", "my.yaml", "--max-steps", "9"], {"--max-steps": "training.max_steps=..."}),
        (["train", "my.yaml", "--batch_size=9"], {"--batch_size": "training.batch_tokens=..."}),
    ],
)
def test_the_nearest_option(capsys, arguments, options):
    message = refusal(capsys, *arguments)
    assert message.startswith(f"usage: python -m transformer_mt {arguments[0]} ")
    for option, meant in options.items():
        assert f"{option}: unknown option; did you mean {meant}?\n" in message


def test_an_option_like_no_other(capsys):
    message = refusal(capsys, "translate", "m", "--zzz")
    assert message.endswith("python -m transformer_mt translate: error: --zzz: unknown option\n")


def test_the_nearest_command(capsys):
    assert "'trian': there is no such command; did you mean train?" in refusal(capsys, "trian", "x")
    assert "did you mean evaluate?" in refusal(capsys, "eval", "--help")
    message = refusal(capsys, "zzz")
    assert f"the commands are {', '.join(COMMANDS)}\n" in message
    assert message.startswith("usage: python -m transformer_mt [-h] [--version] COMMAND ...\n")


def test_too_many_names_show_the_usage_of_the_command(capsys):
    message = refusal(capsys, "translate", "m", "in", "out", "more")
    assert message.startswith("usage: python -m transformer_mt translate ")
    assert message.endswith("unrecognized arguments: more\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_found_without_its_dashes_and_its_last_letter(command):
    """The nearest option is that one, or a shorter one that begins alike."""
    _, parser = cli.parsers_of(command)
    known = [flag for action in parser._actions for flag in action.option_strings]
    for flag in known:
        if flag.startswith("--"):
            assert flag in suggestions.nearest(flag[2:-1].replace("-", "_"), known), flag


def test_values_are_not_taken_for_options(capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--number")
    known = ["--number", "-1", "-0.5", "-", "-- a text", "--number=--other", "--", "--after"]
    suggestions.require_known_options(parser, known)
    assert capsys.readouterr() == ("", "")


def test_names_after_two_dashes_may_begin_with_a_dash():
    options = cli.parse(["translate", "--threads", "1", "--", "m", "-in"])
    assert (options.model_dir, options.input_by_position) == ("m", "./-in")


def test_options_and_names_in_any_order():
    options = cli.parse(["translate", "--threads", "2", "m", "--format", "tsv", "in", "--n-best",
                         "3", "out"])  # fmt: skip
    names = options.model_dir, options.input_by_position, options.output_by_position
    assert names == ("m", "in", "out")
    assert (options.threads, options.format, options.n_best) == (2, "tsv", 3)
    options = cli.parse(["train", "a.b=1", "--check", "my.yaml", "c.d=-2"])
    assert [options.config, *options.overrides] == ["a.b=1", "my.yaml", "c.d=-2"]
