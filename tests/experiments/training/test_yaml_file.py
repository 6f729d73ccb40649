import pytest

from rnnorm.experiments.training.recipe import recipe_file, recipe_names
from rnnorm.experiments.training.yaml_file import read_yaml

LAUGHS = "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.fixture
def read(tmp_path):
    def of(text):
        (tmp_path / "own.yaml").write_text(text)
        return read_yaml(tmp_path / "own.yaml")

    return of


def test_aliases_and_merges_are_read(read):
    assert read("a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}\n") == {
        "a": {"b": 1},
        "c": {"b": 1},
        "d": {"b": 1, "e": 2},
    }
    assert read("") is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (LAUGHS, "values, more than the limit of 10,000"),
        ("a: &a [*a]\n", "values, more than the limit of 10,000"),
        ("[" * 5000, "nested too deeply"),
        ("a: 2023-13-45\n", "month must be in 1..12"),
        ("a: !!timestamp x\n", "is not YAML"),
        ("a: !!int ''\n", "is not YAML"),
        ("a: " + "x" * (1 << 18), "more than 262,144 bytes, the limit"),
    ],
)
def test_what_is_refused_names_the_file(read, text, what):
    with pytest.raises(ValueError, match=rf"own\.yaml.*{what}"):
        read(text)


def test_a_trusted_file_is_read_as_any_other():
    paths = [recipe_file(name) for name in recipe_names()]
    assert [read_yaml(path, trusted=True) for path in paths] == [read_yaml(path) for path in paths]


def test_a_trusted_file_that_is_broken_is_named(tmp_path):
    (tmp_path / "own.yaml").write_text("a: [1")
    with pytest.raises(ValueError, match=r"own\.yaml is not YAML"):
        read_yaml(tmp_path / "own.yaml", trusted=True)
