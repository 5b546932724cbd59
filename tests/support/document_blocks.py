"""The blocks of a document, run as a reader would run them: one after another, in one folder.

Python blocks share one namespace. A block whose first line (after a `#!`) is a comment with the
name of a file, as `# train.py`, is written to that file instead, and a later command must use it.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import click

from feedline.cli.commands import feedline
from feedline.runs import RunConfig
from processes import environment

__all__ = ["Block", "BlockRunner", "blocks_of"]

ROOT = Path(__file__).parent.parent.parent
SHELLS = ("sh", "bash", "console")
#: Options of Slurm that documents may use; it is not at hand to ask.
SLURM_OPTIONS = {
    *("--gpus-per-node", "--job-name", "--nodes", "--ntasks-per-node", "--open-mode"),
    *("--output", "--requeue", "--signal", "--time"),
}
#: What the commands of a block may take, which is much more than they do on an idle machine.
SECONDS_PER_BLOCK = 300

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w+-]*)[^`\n]*\n(?P<text>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_FENCE = re.compile(r"^ *(```|~~~)", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_EXIT_CODE = re.compile(r"<!-- exits with (\d+) -->\s*\Z")
_FILE_NAME = re.compile(r"\A(?:#!.*\n)?# ([\w./-]+\.\w+)\n")
_IMPORTS_JAX = re.compile(r"^\s*(import|from) (feedline\.)?jax\b", re.MULTILINE)
_COMMAND = re.compile(r"^\s*(\$|feedline|pip|make|torchrun|python|import|from) ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of a document, and the exit code that `<!-- exits with 2 -->` before it promises."""

    language: str
    text: str
    line: int
    #: The heading that it stands under.
    heading: str = ""
    exit_code: int = 0

    @property
    def file_name(self) -> str | None:
        """The file that this block is written to, if it names one."""
        named = _FILE_NAME.match(self.text)
        return named[1] if named else None


def blocks_of(document: Path) -> list[Block]:
    """Return the blocks of a document, in order; every fence must belong to one."""
    text = document.read_text(encoding="utf-8")
    found = []
    heading, end = "", 0
    for match in _BLOCK.finditer(text):
        code = _EXIT_CODE.search(text, 0, match.start())
        # Only between blocks, because a comment in one looks like a heading.
        heading = [heading, *_HEADING.findall(text, end, match.start())][-1]
        end = match.end()
        found.append(
            Block(
                language=match["language"],
                text=textwrap.dedent(match["text"]),
                line=text.count("\n", 0, match.start("text")) + 1,
                heading=heading,
                exit_code=int(code[1]) if code else 0,
            )
        )
    assert len(_FENCE.findall(text)) == 2 * len(found), f"{document}: a fence that is not closed"
    return found


@dataclass
class BlockRunner:
    """Runs the blocks of one document in one folder, which must be the working directory."""

    document: Path
    folder: Path
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    #: Files that were written, and that no command has used yet.
    unused: set[str] = field(default_factory=set)

    def run(self, block: Block) -> None:
        """Run a block, or check what cannot be run here."""
        where = f"{self.document}:{block.line}"
        if block.language in SHELLS:
            self.unused = {name for name in self.unused if name not in block.text}
        if block.language in ("python", *SHELLS) and block.file_name is not None:
            self._write(block, block.file_name)
            self.unused.add(block.file_name)
        elif block.language == "python":
            assert not _IMPORTS_JAX.search(block.text), (
                f"{where}: jax must not be imported where others fork; name a file, and run that"
            )
            # Blank lines before, so that line numbers match.
            padded = "\n" * (block.line - 1) + block.text
            exec(compile(padded, str(self.document), "exec"), self.names)
        elif block.language in SHELLS:
            code, output = run_commands(commands_of(block), self.folder)
            assert code == block.exit_code, f"{where} exits with {code}:\n{output}"
        elif block.language == "yaml":
            path = self._write(block, block.file_name or "run.yaml")
            if block.file_name is None or "\ndata:" in block.text:
                RunConfig.load(path)
        else:
            assert block.language in ("", "text"), f"{where}: what is {block.language}?"
            assert block.language or not looks_like_code(block.text), f"{where}: in what language?"

    def _write(self, block: Block, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return path


def commands_of(block: Block) -> list[str]:
    """Return the commands of a block, one to a line; in a console they stand after a `$`."""
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith(("$ ", "> "))]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def run_commands(commands: list[str], folder: Path) -> tuple[int, str]:
    """Run commands in a folder; return their exit code and what they printed.

    Those that must not run inside of the tests are checked instead. No process is left behind.
    """
    script = "\n".join(":" if check_instead(command, folder) else command for command in commands)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    before = processes_in(folder)
    # A file, and no pipe: a process that is left behind would keep that open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=folder,
                env={**environment(), "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS_PER_BLOCK,
            )
        finally:
            left = end_processes_in(folder, but=before)
        assert not left, f"processes that the commands left behind: {left}"
        output.seek(0)
        return done.returncode, output.read()


def end_processes_in(folder: Path, but: dict[int, str]) -> list[str]:
    """End the processes that still work in a folder after a moment; return what they were."""
    end = time.monotonic() + 2
    while (found := processes_in(folder).keys() - but) and time.monotonic() < end:
        time.sleep(0.05)
    names = [processes_in(folder).get(pid, "one that has ended") for pid in found]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return names


def processes_in(folder: Path) -> dict[int, str]:
    """Return the other processes that work in a folder, with their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = Path(os.readlink(process / "cwd")).is_relative_to(folder.resolve())
            if inside and int(process.name) != os.getpid():
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # It has ended meanwhile, or is not ours.
    return found


def check_instead(command: str, folder: Path) -> bool:
    """Check a command that must not run inside of the tests; return whether it is such a one."""
    if not command.startswith(("make ", "pip install ", "feedline demo", "sbatch ", "srun ")):
        return False
    match shlex.split(command, comments=True):
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
            assert {word for word in targets if "=" not in word} <= known, command
        case ["pip", "install", *packages]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
            known = set(project["project"]["optional-dependencies"])
            for name, extras in re.findall(r"([\w.]+)\[([\w,]+)\]", " ".join(packages)):
                assert name in ("feedline", "."), command
                assert set(extras.split(",")) <= known, command
        case ["feedline", "demo", *arguments]:
            demo = feedline.get_command(click.Context(feedline), "demo")
            assert demo is not None
            known = {option for parameter in demo.params for option in parameter.opts}
            assert {word for word in arguments if word.startswith("-")} <= known, command
        case ["sbatch", *options, script]:
            text = (folder / script).read_text(encoding="utf-8")
            _check_slurm([*options, *re.findall(r"^#SBATCH +(\S+)", text, re.MULTILINE)], command)
        case ["srun", *words]:
            _check_slurm(list(takewhile(lambda word: word.startswith("-"), words)), command)
    return True


def _check_slurm(options: list[str], command: str) -> None:
    assert {option.partition("=")[0] for option in options} <= SLURM_OPTIONS, command


def looks_like_code(text: str) -> bool:
    """Whether a block without a language should have one: drawings and output may not."""
    if _COMMAND.search(text):
        return True
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False
