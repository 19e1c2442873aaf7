"""Runs commands of the program one after another in one process, as an attack needs thousands.

Reads a line of JSON for each, {"arguments", "stdin"}, and answers with one, {"code", "stdout",
"stderr"}. What a command writes, by Python or not, goes into files that are read afterwards.
"""

import json
import os
import sys
import tempfile

from transformer_mt.cli import main


def run(arguments: list[str], stdin: str) -> dict[str, object]:
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        given.write(bytes.fromhex(stdin))
        given.seek(0)
        for descriptor, file in enumerate((given, stdout, stderr)):
            os.dup2(file.fileno(), descriptor)
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse
            code = stop.code
        sys.stdout.flush()
        sys.stderr.flush()
        said = []
        for file in (stdout, stderr):
            file.seek(0)
            said.append(file.read().decode("utf-8", "backslashreplace"))
    return {"code": code, "stdout": said[0], "stderr": said[1]}


if __name__ == "__main__":
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in questions:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)
