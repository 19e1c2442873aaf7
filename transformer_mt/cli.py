"""The command line: finds the command that is asked for, and turns errors into exit codes.

Only the module of the command that is asked for is imported, and it imports what takes long when it
runs, so that help and errors in the arguments are quick.
"""

import argparse
import difflib
import io
import itertools
import keyword
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any

from transformer_mt import __version__
from transformer_mt.utils import signals
from transformer_mt.utils.errors import Interrupted, UserError, describe

# Each command and what it does. The module that `module_of` names holds its `add_arguments` and
# `run`. Its docstring, without the first line, is the text below the arguments in `--help`.
COMMANDS = {
    "new": "Write a recipe that fits your text and your time. The command looks at the text and "
    "measures the speed of this computer.",
    "train": "Train the model that a recipe describes, or continue its training, and score it on "
    "the test set.",
    "import": "Make a model directory of an OPUS-MT model, to translate with it, serve it or "
    "fine-tune it: a folder of Hugging Face's MarianMT, a zip archive of Marian, or a name on the "
    "Hugging Face hub.",
    "translate": "Translate text, of which each line gives one line of output, or documents such "
    "as PO, XLIFF, Word and HTML.",
    "augment": "Make synthetic pairs from existing models and text, to train on: back-translation, "
    "data diversification, and distillation.",
    "serve": "Serve models as a web page on which people translate, and as an HTTP service for "
    "other programs.",
    "evaluate": "Score translations with sacreBLEU: those of one model, of several models side by "
    "side, or of a file.",
    "compare": "Compare systems with a baseline and decide which one is better: paired "
    "significance tests, a verdict in a sentence, and where the systems differ.",
    "tune": "Choose the length penalty and the beam size of a model on its dev set, and write them "
    "into its config.",
    "shortlist": "Learn which translations each source subword has in the training text, so that a "
    "model translates faster on a CPU.",
    "report": "Write a report of a run, or of several side by side, as an HTML page: curves, "
    "scores, translations, config and data. A run can still be training.",
    "score": "Show how probable given translations are for a model.",
    "align": "Find which words of sentences and given translations belong together, or measure how "
    "well a model finds them.",
    "attention": "Draw the attention weights of a model for a sentence and its translation, as an "
    "HTML page.",
    "average": "Average the weights of several checkpoints. The average often translates better "
    "than each of them.",
    "export": "Write a model for another library: CTranslate2, which translates on a CPU without "
    "Paddle, or Paddle Inference. The export is a folder that holds everything that is needed, and "
    "that can be moved. Or write the weights alone as Paddle's own file.",
    "info": "Count the parameters, FLOPs and memory of a model and of its training, without "
    "reading data.",
    "check-device": "Check a GPU, or the CPU: whether training and translation compute the right "
    "numbers on it, and how fast it is. No data is needed.",
}

EXIT_CODES = """\
exit codes:
  0 done    1 failed    2 wrong config or arguments    130 Ctrl-C    143 SIGTERM
  129 SIGHUP (the terminal was lost)    6 something was lost in translation (translate --strict)
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    # Text of any language can be printed in any locale: characters that its encoding lacks are
    # shown as escapes, as Python itself does on stderr.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with signals.raised():
            options = parse(sys.argv[1:] if arguments is None else arguments)
            options.run(options)
            if sys.stdout is not None:
                sys.stdout.flush()
        _end()
        return 0
    except Interrupted as stop:
        _end("interrupted")
        return stop.exit_code
    except BrokenPipeError:
        # The reader of our output, such as head or less, has read enough.
        _end()
        return 1
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        _end(f"error: {describe(error)}")
        return error.exit_code if isinstance(error, UserError) else 1


def _end(message: str = "") -> None:
    """Prints what is left to say, and flushes the output."""
    from transformer_mt.utils import console

    console.say_counts()
    if message:
        console.log(message)
        message = f"{console.visible(message)}\n"
    console.end_log()
    for stream, text in ((sys.stdout, ""), (sys.stderr, message)):
        if stream is None:  # It was closed before the program started.
            continue
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            console.discard(stream)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the options of a command, which `options.run(options)` runs.

    If the arguments are wrong or ask for help, it ends the program, as argparse does.
    """
    command = next(iter(arguments), "-")
    main_parser, parser = parsers_of(command)
    if command.startswith("-"):
        _require_known_options(main_parser, arguments[:1])
        main_parser.parse_args(arguments[:1])  # prints the help or the version, or asks for COMMAND
    if parser is None:
        hint = _did_you_mean(command, COMMANDS) or f"; the commands are {', '.join(COMMANDS)}"
        main_parser.error(f"{command!r}: there is no such command{hint}")
    # A shell does not expand the ~ of --output=~/out.txt.
    home = os.path.expanduser("~/")
    arguments = [
        re.sub(r"^(--[\w-]+=|)~/", lambda match: match[1] + home, text) for text in arguments[1:]
    ]
    _require_known_options(parser, arguments)
    if "--" in arguments:  # What follows are names of files, which may begin with a dash.
        end = arguments.index("--")
        files = [f"./{text}" if text.startswith("-") else text for text in arguments[end + 1 :]]
        arguments = arguments[:end] + files
    # Names of files and key=value may also stand between the options.
    return parser.parse_intermixed_args(arguments, argparse.Namespace(command=command))


def _require_known_options(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Ends the program, as the parser does, at an unknown option, and says what may be meant.

    The parser itself would first complain of an option that is missing because it is misspelled.
    """
    known = parser._option_string_actions
    for text in itertools.takewhile(lambda text: text != "--", arguments):
        flag = text.partition("=")[0]
        # argparse takes numbers and texts with spaces for values.
        if text == "-" or flag in known or not re.fullmatch(r"-(?![\d.]+$)[^ ]*", text):
            continue
        keys = []
        if any(action.dest == "overrides" for action in parser._actions):
            from transformer_mt.config.problems import known_keys  # imports the schema

            keys = [f"{key}=..." for key in known_keys(flag.lstrip("-").replace("-", "_"))]
        hint = f"; did you mean {keys[0]}?" if keys else _did_you_mean(flag, known)
        parser.error(f"{flag}: unknown option{hint}")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def module_of(command: str) -> str:
    """Returns the name of the module of a command."""
    name = command.replace("-", "_")
    # `import` can't be the name of a module.
    return f"transformer_mt.commands.{name}{'_' if keyword.iskeyword(name) else ''}"


def parsers_of(
    command: str,
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser | None]:
    """The parser of the command line, and the parser of one command with all its arguments (None if
    there is no such command)."""
    formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=100)
    style: dict[str, Any] = {"formatter_class": formatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(
        prog="python -m transformer_mt",
        description="Train, use and measure Transformer translation models with PaddlePaddle.",
        epilog=EXIT_CODES,
        **style,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        description = textwrap.fill(summary, 100)
        own = commands.add_parser(name, help=summary, description=description, **style)
        if name == command:
            module = import_module(module_of(name))
            text = (module.__doc__ or "").partition("\n\n")[2]  # none with `python -OO`
            own.epilog = f"{text}\n{EXIT_CODES}"
            own.set_defaults(run=module.run)
            module.add_arguments(own)
    return parser, commands.choices.get(command)
