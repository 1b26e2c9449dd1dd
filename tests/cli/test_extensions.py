"""What installed packages add to the command line."""

import contextlib

import pytest

from spanfold.engine import ConfigError, extensions
from spanfold.engine.cli import main
from spanfold.engine.extensions import Command, Watching


class Entry:
    def __init__(self, name, loaded):
        self.name, self.value, self._loaded = name, f"somewhere:{name}", loaded

    def load(self):
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


@pytest.fixture
def announce(monkeypatch):
    """Let packages announce these entry points, and no others."""

    def set_to(**groups):
        monkeypatch.setattr(extensions, "entry_points", lambda group: groups.get(group.split(".")[1], []))
        extensions.commands.cache_clear()
        extensions.watchings.cache_clear()

    yield set_to
    monkeypatch.undo()
    extensions.commands.cache_clear()
    extensions.watchings.cache_clear()


def shout(needs=()):
    def arguments(parser):
        parser.add_argument("word")

    def run(args, terminal):
        terminal.line(args.word.upper())
        return 7

    return Command(name="shout", summary="say it loudly", needs=needs, arguments=arguments, run=run)


def test_a_command_of_another_package_runs(announce, capsys):
    announce(commands=[Entry("shout", shout())])
    assert main(["shout", "hello"]) == 7
    assert capsys.readouterr().out == "HELLO\n"


def test_what_a_command_needs_is_asked_for_before_it_runs(announce, capsys):
    announce(commands=[Entry("shout", shout(needs=("no_such_module.part",)))])
    assert main(["shout", "hello"]) == 2
    assert capsys.readouterr().err == "spanfold shout: spanfold shout needs no_such_module.part: pip install no_such_module.part\n"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([Entry("shout", ImportError("no spam"))], "cannot be loaded: no spam"),
        ([Entry("shout", "a string")], "is no Command but 'a string'"),
        ([Entry("shout", shout()), Entry("two", shout())], "two installed packages announce 'shout'"),
        ([Entry("check", Command(name="check", summary="", arguments=print, run=print))], "one of the engine's own"),
    ],
    ids=["broken", "no descriptor", "twice", "built in"],
)
def test_a_broken_announcement_is_one_line_and_leaves_the_engines_own_commands_alone(announce, capsys, entries, message):
    announce(commands=entries)
    assert main(["--help"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert main(["backends"]) == 0


def test_an_observer_of_another_package_watches_a_generation(announce, capsys):
    seen, order = [], []

    @contextlib.contextmanager
    def opened(args, terminal):
        order.append("opened")
        yield seen.append if args.watch else None
        order.append("closed")

    def arguments(parser):
        parser.add_argument("--watch", action="store_true", help="watch")

    announce(observers=[Entry("watch", Watching(name="watch", arguments=arguments, open=opened))])
    plain = ["generate", "hi", "--backend", "scripted", "--max-tokens", "4"]
    assert main(plain) == 0 and not seen
    assert main([*plain, "--watch"]) == 0
    assert len(seen) > 4 and order == ["opened", "closed"] * 2


def test_a_needed_module_that_is_there_is_not_missed():
    extensions.require("it", ("json", "json.decoder"), None)
    with pytest.raises(ConfigError, match=r"^it needs nowhere\.at_all: pip install 'spanfold\[x\]'$"):
        extensions.require("it", ("json", "nowhere.at_all"), "x")
