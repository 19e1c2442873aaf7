"""A copy of the shell scripts that needs no network: where a script would install something, a fake
Python stands in, which answers the questions setup.sh asks and records what it was told to do."""

import re
import shutil
import subprocess

from packaging.requirements import Requirement

from tests.support import ROOT

REQUIREMENTS = [
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-ctranslate2.txt",
    "requirements-gpu.txt",
]
STAMP = ".venv/.setup_stamp"
# Everything the scripts call; nothing else is on their PATH here, so no real Python and no GPU.
TOOLS = "awk bash cat cksum cp df dirname flock ls mkdir mv readlink rm sh sleep tail tr"

FAKE_PYTHON = """#!/bin/sh
case "$*" in
*ensurepip*) echo "@ANSWER@" ;;
*find_spec*) cat "${0%/*}/has" ;;
"-m venv "*)
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "3.11" >"$3/bin/has"
    ;;
"-m transformer_mt path") echo "$PYTHONPATH" ;;
"-m transformer_mt "* | "-m pytest"*) echo "in $PWD:"; for a in "$@"; do echo "<$a>"; done ;;
"-I -m pip"*)
    echo "$*" >>"$HOME/pip.txt"
    cp .venv/tmp/*.txt "$HOME/given/"
    i=0
    while [ -e "$HOME/pip-waits" ] && [ $i -lt 300 ]; do sleep 0.2; i=$((i + 1)); done
    if [ -e "$HOME/pip-fails" ]; then cat "$HOME/pip-fails"; exit 1; fi
    ;;
esac
"""


class Project:
    """A copy of the scripts in a folder of its own, with nothing but fakes on the PATH."""

    def __init__(self, folder):
        self.root = folder / "pro ject"
        self.bin = folder / "bin"
        self.home = folder / "home"
        self.elsewhere = folder / "else where"
        for made in (self.root, self.bin, self.home / "given", self.elsewhere):
            made.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name in REQUIREMENTS:
            shutil.copy(ROOT / name, self.root)
        for tool in TOOLS.split():
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)

    def program(self, name, text):
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def python(self, name, answer="ok 3.11"):
        return self.program(name, FAKE_PYTHON.replace("@ANSWER@", answer))

    def start(self, script, *args, shell="bash", **env):
        return subprocess.Popen(
            [*shell.split(), str(self.root / "scripts" / script), *args],
            cwd=self.elsewhere,
            env={"PATH": str(self.bin), "HOME": str(self.home), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script, *args, **env):
        process = self.start(script, *args, **env)
        process.stdout_text, process.stderr_text = process.communicate(timeout=60)
        return process

    def given(self, name):
        """A list of packages as pip found it in .venv/tmp."""
        return (self.home / "given" / name).read_text()

    def pip_calls(self):
        path = self.home / "pip.txt"
        calls = path.read_text().splitlines() if path.exists() else []
        calls = [call.removeprefix("-I -m pip ") for call in calls]
        return [re.sub(r"(?<= )/.*?/(?=\.venv/tmp/)", "", call) for call in calls]


def requirements(name):
    """What a list of requirements names, without the hashes."""
    lines = re.findall(r"(?m)^[A-Za-z][^#\\\n]*", (ROOT / name).read_text())
    return [Requirement(line.strip()) for line in lines]
