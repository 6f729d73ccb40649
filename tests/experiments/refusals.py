"""What the command says where it refuses."""

import pytest

from rnnorm.experiments.commands.cli import main


def failure(arguments, capsys):
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"rnnorm {arguments[0]}: ")
    assert "Traceback" not in said
    return said


def misspelt(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: rnnorm ")
    return said.splitlines()[-1]
