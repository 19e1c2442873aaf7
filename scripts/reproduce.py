"""Repeats a row of the table of results: trains, translates, scores, and compares the scores with
the recorded ones.

Rows are the folders of docs/results. The commands of a row are in its file row.yaml. The runs are
written to runs/reproduce/ROW. A command that was interrupted, also with Ctrl-C, continues when it
is typed again. docs/results.md explains the rows and their scores.

examples:
  bash scripts/reproduce.sh --list
  bash scripts/reproduce.sh multi30k_en_de
  bash scripts/reproduce.sh tatoeba_zh_en --data data/tatoeba_zh-en
  bash scripts/reproduce.sh multi30k_en_de --seed 2

exit codes:
  0 the mean is in the recorded interval, or nothing was recorded    1 it is not, or a step failed
  2 wrong arguments    130 Ctrl-C    143 SIGTERM    129 SIGHUP (the terminal was lost)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from published import record
from published.row import ROOT, Places, Row, find, rows
from published.steps import run_all
from transformer_mt.utils import signals
from transformer_mt.utils.console import discard, say, show, warn
from transformer_mt.utils.errors import Interrupted, UsageError, UserError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bash scripts/reproduce.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("row", metavar="ROW", nargs="?", help="the row to repeat")
    parser.add_argument("--list", action="store_true", help="list the rows, and train nothing")
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        type=Path,
        help="the folder of the corpus (default: it is downloaded, if that is possible)",
    )
    parser.add_argument(
        "--runs",
        metavar="FOLDER",
        type=Path,
        default=ROOT / "runs" / "reproduce",
        help="the folder to train in (default: runs/reproduce of this project)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=int,
        help="run this seed of the row alone (default: all of its seeds)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the scores into docs/results, instead of comparing them; seeds that were "
        "recorded before stay there",
    )
    options = parser.parse_args()
    try:
        with signals.raised():
            exit_code = run(options)
            sys.stdout.flush()
        return exit_code
    except UsageError as error:
        say(f"error: {error}")
        return 2
    except UserError as error:
        say(f"error: {error}")
        return 1
    except BrokenPipeError:  # the reader of the output, such as head, has read enough
        discard(sys.stdout)
        return 1
    except Interrupted as stop:
        say("interrupted; the same command goes on from here")
        return stop.exit_code


def run(options: argparse.Namespace) -> int:
    """Does what the arguments ask for.

    Returns: the exit code.
    """
    if options.list:
        return list_rows()
    if options.row is None:
        raise UsageError("give the name of a row, or --list to see all of them")
    row = find(options.row)
    for name in ("data", "runs"):
        # A config would read it as a variable of the environment.
        if "$" in str(folder := getattr(options, name)):
            raise UsageError(f"--{name}: {folder}: give a folder without $ in its path")
    data = require_data(row, options.data)
    seeds = seeds_of(row, options.seed)
    return reproduce(row, Places(options.runs.absolute(), data), seeds, options.record)


def list_rows() -> int:
    """Prints the rows."""
    for row in rows().values():
        show(f"{row.name}\n    {row.title}\n    budget    {row.budget}\n    corpus    {row.corpus}")
        if row.is_recorded:
            found = record.recorded(row)
            for protocol in row.protocols:
                show(f"    {protocol:12} BLEU {record.summary(found, protocol, 'bleu')}")
        else:
            show("    not recorded yet")
    return 0


def require_data(row: Row, folder: Path | None) -> Path | None:
    """Returns the folder of the corpus.

    Raises:
        UsageError: it is needed and missing.
    """
    if folder is None and not row.downloads:
        raise UsageError(
            f"{row.name} is trained on {row.corpus}, which can't be downloaded. Give --data FOLDER"
        )
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--data: {folder}: there is no such folder")
    return folder and folder.absolute()


def seeds_of(row: Row, seed: int | None) -> list[int]:
    """Returns the seeds to run: one, or all of the row.

    Raises:
        UsageError: it is not a seed of the row.
    """
    if seed is not None and seed not in row.seeds:
        known = ", ".join(map(str, row.seeds))
        raise UsageError(f"--seed {seed}: the seeds of {row.name} are {known}")
    return row.seeds if seed is None else [seed]


def reproduce(row: Row, places: Places, seeds: list[int], is_record: bool) -> int:
    """Runs the steps of some seeds of a row, and what they need of other rows, and shows the
    scores."""
    for name, own_seeds in (row.needs | {row.name: seeds}).items():
        other = find(name)
        run_all(other.commands(places, own_seeds), places.of(name))
    found = record.of_runs(row, places, seeds)
    if is_record:
        record.keep(row, places, found)
        say(f"written to {row.folder}; the line of docs/results.md is")
        show(record.table_line(row))
        return 0
    return compare(row, found, record.recorded(row) if row.is_recorded else None)


def compare(row: Row, found: dict, then: dict | None) -> int:
    """Prints the scores beside the recorded ones.

    Returns: the exit code.
    """
    show(f"{row.name}: {row.title}")
    is_inside = True
    for protocol in row.protocols:
        for metric in ("bleu", "chrf"):
            now = record.summary(found, protocol, metric)
            line = f"{protocol:12} {metric:5} {now}"
            if then is not None:
                before = record.summary(then, protocol, metric)
                line += f"   recorded {before}"
                if not before.contains(now.mean):
                    is_inside = False
                    line += "   OUTSIDE of its interval"
            show(line)
    if then is None:
        say("there are no recorded scores to compare with")
        return 0
    other = [name for name, known in then["data"].items() if found["data"].get(name) != known]
    if other:
        warn(f"the recorded scores are of another text: {', '.join(other)} differ")
    return 0 if is_inside else 1


if __name__ == "__main__":
    sys.exit(main())
