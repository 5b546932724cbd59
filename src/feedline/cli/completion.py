"""`feedline completion`."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

from feedline.cli.printing import Outcome, command
from feedline.errors import InvalidValueError

_SHELLS = ("bash", "zsh", "fish")


@command
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.pass_context
def completion(context: click.Context, shell: str | None) -> Outcome:
    """Print the script that lets a shell complete commands, options and files.

    SHELL is bash (4.4 or newer), zsh or fish; by default the one in $SHELL. Add the line for your
    shell from the examples, and open a new terminal.

    \b
    Examples:
      feedline completion bash > ~/.feedline-complete.bash
      echo 'source ~/.feedline-complete.bash' >> ~/.bashrc
      feedline completion zsh > ~/.feedline-complete.zsh
      echo 'source ~/.feedline-complete.zsh' >> ~/.zshrc    # after compinit
      feedline completion fish > ~/.config/fish/completions/feedline.fish
    """
    if shell is None:
        shell = os.path.basename(os.environ.get("SHELL", ""))
        if shell not in _SHELLS:
            raise InvalidValueError(
                f"SHELL={os.environ.get('SHELL', '')!r} must be one of {', '.join(_SHELLS)}; pass "
                "one, as in feedline completion bash"
            )
    made = get_completion_class(shell)
    assert made is not None
    group = context.find_root().command
    # By its template: source() would run bash to look at its version.
    script = made.source_template % made(group, {}, "feedline", "_FEEDLINE_COMPLETE").source_vars()
    return Outcome({"shell": shell, "script": script}, lambda: click.echo(script))
