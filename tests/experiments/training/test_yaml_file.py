import pytest

from rnnorm.experiments.recipe.recipe import dump_yaml, read_yaml, recipe_file, recipe_names

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
        ("a: !!timestamp x\n", "is not YAML"),
        ("a: !!int ''\n", "is not YAML"),
        ("a: " + "x" * (1 << 18), "more than 262,144 bytes, the limit"),
    ],
)
def test_what_is_refused_names_the_file(read, text, what):
    with pytest.raises(ValueError, match=rf"own\.yaml.*{what}"):
        read(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5e3", 500.0),
        ("-.5", -0.5),
        ("+1e-3", 1e-3),
        ("1.", 1.0),
        ("1_000", 1000),
        # of old octal and base 60, a number of another size would be made
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-.inf", -float("inf")),
    ],
)
def test_numbers_are_those_of_yaml_1_2(read, text, number):
    found = read(f"a: {text}")["a"]
    assert found == number
    assert type(found) is type(number)


@pytest.mark.parametrize(
    "text",
    ["'1e-4'", "1e", "e3", ".e3", "1e-", "1.2.3", "1:30", "2020-01-31", "0b1", "nan", "inf", "0o8"],
)
def test_text_stays_text(read, text):
    assert read(f"a: {text}") == {"a": text.strip("'")}


def test_what_is_written_reads_as_the_same(read):
    given = {"text": ["1e-4", ".5e3", "010", "1:30", "true", "ü"], "numbers": [1e-4, 1e20, 10]}
    assert read(dump_yaml(given)) == given


def test_a_trusted_file_is_read_as_any_other():
    paths = [recipe_file(name) for name in recipe_names()]
    assert [read_yaml(path, trusted=True) for path in paths] == [read_yaml(path) for path in paths]


def test_a_trusted_file_that_is_broken_is_named(tmp_path):
    (tmp_path / "own.yaml").write_text("a: [1")
    with pytest.raises(ValueError, match=r"own\.yaml is not YAML"):
        read_yaml(tmp_path / "own.yaml", trusted=True)
