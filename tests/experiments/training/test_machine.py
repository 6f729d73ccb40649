import platform

import pytest

from rnnorm.experiments.training import machine

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: {name}
stepping\t: 1

processor\t: 1
cpu family\t: 26
model\t\t: 2
model name\t: another
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AMD EPYC", "AMD EPYC (family 25, model 17)"),
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor"),
    ],
)
def test_a_name_without_a_number_is_told_with_family_and_model(name, said, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(name=name))
    assert machine.processor() == said


@pytest.mark.parametrize("cpuinfo", [None, "Features\t: fp asimd\n"])
def test_without_a_name_in_cpuinfo_the_platform_is_asked(cpuinfo, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert machine.processor() == (platform.processor() or platform.machine())
