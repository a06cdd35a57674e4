"""The scripts of `openshelf completion`: one function for each shell.

All three work alike. The words before the cursor say which command it is; the last of them, whether the value of an
option is wanted; otherwise commands, options or arguments are offered. Words come from our own parsers and are quoted;
names of spaces are those that a space can have, and no shell ever evaluates another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from openshelf.cli._arguments import FILES, SPACES
from openshelf.cli._tree import Command, Option

_DIRECTORY = '"${OPENSHELF_DIR:-/dev/shm/openshelf-$(id -u)}"'
_BASH = """\
# bash completion of openshelf; made by `openshelf completion bash`
_openshelf_spaces() {
    local one
    for one in @DIRECTORY@/*/control; do
        one=${one%/control} one=${one##*/}
        [[ $one =~ ^[A-Za-z0-9_][A-Za-z0-9._-]*$ ]] && printf '%s\\n' "$one"
    done
}
_openshelf() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at="" i offered="" options="" takes=""
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${COMP_WORDS[i]}" in
            @PATHS@) at+=" ${COMP_WORDS[i]}" ;;
        esac
    done
    case "$at $prev" in
@VALUES@
        *) case "$at" in
@COMMANDS@
        esac ;;
    esac
    [[ $cur == -* ]] && offered=$options
    [[ $takes == *spaces* ]] && offered+=" $(_openshelf_spaces)"
    mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$cur")
    if [[ $takes == *files* ]]; then
        compopt -o filenames 2> /dev/null
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$cur")
    fi
}
complete -F _openshelf openshelf"""
_ZSH = """\
#compdef openshelf
# zsh completion of openshelf; made by `openshelf completion zsh`
_openshelf() {
    emulate -L zsh
    setopt extendedglob
    local at="" i takes=""
    local -a offered options found
    for ((i = 2; i < CURRENT; i++)); do
        case "$at ${words[i]}" in
            (@PATHS@) at+=" ${words[i]}" ;;
        esac
    done
    case "$at ${words[CURRENT-1]}" in
@VALUES@
        (*) case "$at" in
@COMMANDS@
        esac ;;
    esac
    if [[ ${words[CURRENT]} == -* ]]; then
        offered=($options)
    elif [[ $takes == *spaces* ]]; then
        found=(@DIRECTORY@/*/control(N:h:t))
        offered+=(${(M)found:#[A-Za-z0-9_]([A-Za-z0-9._-])#})
    fi
    (( $#offered )) && compadd -- $offered
    [[ $takes == *files* ]] && _files
    return 0
}
if [[ $funcstack[1] == _openshelf ]]; then
    _openshelf "$@"
else
    compdef _openshelf openshelf
fi"""


def _quoted(text: str) -> str:
    """As one word of bash or zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _path(command: Command) -> str:
    return "".join(f" {word}" for word in command.path)


def _filled(script: str, parts: Mapping[str, Iterable[str]]) -> str:
    for name, lines in parts.items():
        script = script.replace(f"@{name}@", ("|" if name == "PATHS" else "\n").join(lines))
    return script.replace("@DIRECTORY@", _DIRECTORY)


def _arms(commands: list[Command], case: str, listed: str) -> dict[str, list[str]]:
    """The lines of the two `case` of bash and zsh. `case` is how a pattern is written, `listed` how words are."""

    def arm(pattern: str, words: Iterable[str], options: Iterable[str], takes: str) -> str:
        parts = [
            f"offered={listed % ' '.join(words)}",
            f"options={listed % ' '.join(options)}",
            f"takes={_quoted(takes)}",
        ]
        return f"        {case % _quoted(pattern)} {'; '.join(parts)} ;;"

    values = [
        arm(f"{_path(command)} {name}", option.choices, (), option.takes)
        for command in commands
        for option in command.options
        if option.takes
        for name in option.names
    ]
    offered = [
        arm(
            _path(command), [*(name for name, _ in command.commands), *command.choices], _names(command.options),
            " ".join(command.takes),
        )
        for command in commands
    ]  # fmt: skip
    return {"PATHS": [_quoted(_path(one)) for one in commands if one.path], "VALUES": values, "COMMANDS": offered}


def _names(options: Iterable[Option]) -> list[str]:
    return [name for option in options for name in option.names]


def bash(commands: list[Command]) -> str:
    return _filled(_BASH, _arms(commands, "%s)", "'%s'"))


def zsh(commands: list[Command]) -> str:
    return _filled(_ZSH, _arms(commands, "(%s)", "(%s)"))


_FISH = """\
# fish completion of openshelf; made by `openshelf completion fish`
function __openshelf_spaces
    set -l directory $OPENSHELF_DIR
    test -n "$directory"; or set directory /dev/shm/openshelf-(id -u)
    for one in $directory/*/control
        string match -r '^[A-Za-z0-9_][A-Za-z0-9._-]*$' -- (basename (dirname $one))
    end
end
function __openshelf_at
    set -l at ''
    for word in (commandline -opc)[2..]
        contains -- "$at $word" @PATHS@; and set at "$at $word"
    end
    test "$at" = "$argv"
end
complete -c openshelf -f"""


def fish(commands: list[Command]) -> str:
    lines = []
    for command in commands:
        here = f"complete -c openshelf -n {_fish(f'__openshelf_at {_fish(_path(command))}')}"
        lines += [f"{here} -a {name} -d {_fish(help)}" for name, help in command.commands]
        lines += [f"{here} -a {_fish(' '.join(command.choices))}"] if command.choices else []
        lines += [f"{here} {_fish_values(takes)}" for takes in sorted({*command.takes})]
        for option in command.options:
            names = " ".join(f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in option.names)
            value = f" {_fish_values(option.takes, option.choices)}" if option.takes else ""
            lines.append(f"{here} {names}{value} -d {_fish(option.help)}")
    paths = " ".join(_fish(_path(one)) for one in commands if one.path)
    return "\n".join([_FISH.replace("@PATHS@", paths), *lines])


def _fish_values(takes: str, choices: tuple[str, ...] = ()) -> str:
    if takes == SPACES:
        return "-xa '(__openshelf_spaces)'"
    if takes == FILES:
        return "-rF"
    return f"-xa {_fish(' '.join(choices))}"


def _fish(text: str) -> str:
    """As one word of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: Mapping[str, Callable[[list[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
