"""Words from a table, and rare ones by their letters."""

from dynbatch.tasks.words import Lexicon, spelled_share


def test_common_words_are_looked_up_and_others_are_spelled():
    sentences = ["the cat sat".split(), "the dog sat".split(), ["cat"]]
    lexicon = Lexicon.build([*sentences, ["the"]], min_count=3)
    ids = lexicon.encode(("the", "dog", "sat", "zap"))
    assert [lexicon.words.tokens[k] for k in ids.common] == ["the"]
    spelled = [[lexicon.characters.tokens[k] for k in word] for word in ids.rare]
    assert spelled == [["d", "o", "g"], ["s", "a", "t"], ["<unk>", "a", "<unk>"]]
    assert ids.order.tolist() == [0, 1, 2, 3]
    assert lexicon.encode(("cat", "the")).order.tolist() == [1, 0]
    assert spelled_share([ids, lexicon.encode(("the", "the"))]) == 3 / 6
