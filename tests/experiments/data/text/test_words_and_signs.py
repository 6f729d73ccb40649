from rnnorm.experiments.data.text.rated import words_and_signs


def test_words_and_signs_are_split():
    assert words_and_signs("Don't: a 'so-so' film &amp; :-)") == [
        *("don't", ":", "a", "'", "so", "-", "so", "'", "film", "&", ":-)")
    ]
