"""`fluid completion SHELL`: print a script that completes the commands and their options in bash, zsh or fish."""

import argparse
import functools
import re
from collections.abc import Mapping
from typing import Any

from fluid.cli import common

_BASH = """_fluid() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{names}"
  elif [[ "$word" == -* ]]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _fluid fluid"""
# zsh can run the bash completion script, after zsh's own completion is set up.
_ZSH = "autoload -Uz compinit bashcompinit\n(( $+functions[compdef] )) || compinit\nbashcompinit"


def add(commands: Any) -> None:
    """Declare the command `fluid completion` and its arguments."""
    parser = common.command(
        commands,
        "completion",
        functools.partial(run, commands.choices),
        "a script that completes commands and options in a shell; eval it in ~/.bashrc or ~/.zshrc",
        'eval "$(fluid completion bash)"\nfluid completion fish > ~/.config/fish/completions/fluid.fish',
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(parsers: Mapping[str, argparse.ArgumentParser], given: argparse.Namespace) -> int:
    """Print the completion script for the chosen shell."""
    if given.shell == "fish":
        print("\n".join(_fish(parsers)))
        return 0
    cases = "\n".join(f'    {name}) words="{" ".join(_options(parser))}" ;;' for name, parser in parsers.items())
    script = _BASH.format(names=" ".join(parsers), cases=cases)
    print(script if given.shell == "bash" else f"{_ZSH}\n{script}")
    return 0


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return ["--help", *dict.fromkeys(re.findall(r"--[a-z][a-z-]*", parser.format_usage()))]


def _fish(parsers: Mapping[str, argparse.ArgumentParser]) -> list[str]:
    lines = []
    for name, parser in parsers.items():
        summary = (parser.description or "").replace("'", "")
        lines.append(f"complete -c fluid -f -n __fish_use_subcommand -a {name} -d '{summary}'")
        here = f"complete -c fluid -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{here} -l {option.removeprefix('--')}" for option in _options(parser)]
    return lines
