"""Words are found in the text, whatever the tokenizer makes of it; a word scores as its best piece does."""

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers

from diffmask.errors import InputError
from diffmask.explanation.text_units import (
    Span,
    Token,
    Unit,
    group_tokens,
    is_punctuation,
    mark_span,
    max_over_tokens,
    sentence_spans,
    split_units,
    unit_gaps,
    word_spans,
)
from support.tiny_models import byte_pairs, word_pieces


def cut(text: str, spans: list[Span]) -> list[str]:
    return [text[first:last] for first, last in spans]


def tokens_of(tokenizer, text: str) -> list[Token]:  # type: ignore[no-untyped-def]
    found = tokenizer(text, add_special_tokens=False).encodings[0]
    return [Token(piece, span) for piece, span in zip(found.tokens, found.offsets, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A fast, funny movie.", ["A", "fast", ",", "funny", "movie", "."]),
        ("don't re-watch -- ever", ["don't", "re-watch", "-", "-", "ever"]),
        ("cafe\u0301 наив नमस्ते", ["cafe\u0301", "наив", "नमस्ते"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("电影好", ["电", "影", "好"]),
        ("ok 👩\u200d👧 🙂🙂", ["ok", "👩\u200d👧", "🙂", "🙂"]),
        ("", []),
        (" \n\t", []),
    ],
)
def test_words_are_runs_of_letters_and_everything_else_stands_alone(text: str, expected: list[str]) -> None:
    assert cut(text, word_spans(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A mess . But fun !", ["A mess .", "But fun !"]),
        ('He said "no." Then 3.5 stars', ['He said "no."', "Then 3.5 stars"]),
        ("one\ntwo", ["one", "two"]),
        ("好。坏", ["好。", "坏"]),
        ("", []),
    ],
)
def test_sentences_end_at_full_stops_and_lines(text: str, expected: list[str]) -> None:
    assert cut(text, sentence_spans(text)) == expected


@pytest.mark.parametrize("tokenizer", [word_pieces(), byte_pairs()], ids=["word pieces", "byte pairs"])
@pytest.mark.parametrize("text", ["the acting was enjoyable , good", "bad good", "so-so 🙂 é good!"])
def test_every_token_is_in_one_word_and_every_word_reads_as_in_the_text(tokenizer, text: str) -> None:  # type: ignore[no-untyped-def]
    tokens = tokens_of(tokenizer, text)
    units = group_tokens(text, word_spans(text), tokens)
    assert [unit.text for unit in units] == cut(text, word_spans(text))
    # A byte pair that is nothing but its space belongs to no word.
    spelt = [place for place, token in enumerate(tokens) if text[slice(*token.span)].strip()]
    assert [place for unit in units for place in unit.tokens] == spelt


def test_byte_pairs_that_carry_their_space_make_the_word_without_it() -> None:
    text = "so bad goods"
    units = group_tokens(text, word_spans(text), tokens_of(byte_pairs(), text))
    assert [unit.text for unit in units] == ["so", "bad", "goods"]
    assert [len(unit.tokens) for unit in units] == [2, 1, 2]


def test_a_tokenizer_that_takes_a_text_as_one_word_gives_the_same_words() -> None:
    raw = Tokenizer(models.BPE({"▁": 0, "a": 1, "b": 2, "▁a": 3}, [("▁", "a")]))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    found = raw.encode("a bb")
    assert set(found.word_ids) == {0}, "its own words are no help"
    tokens = [Token(piece, span) for piece, span in zip(found.tokens, found.offsets, strict=True)]
    assert [unit.text for unit in group_tokens("a bb", word_spans("a bb"), tokens)] == ["a", "bb"]


def test_words_that_share_a_token_are_one() -> None:
    tokens = [Token("wow", (0, 3)), Token("!?", (3, 5)), Token("ok", (6, 8))]
    units = group_tokens("wow!? ok", word_spans("wow!? ok"), tokens)
    assert [(unit.text, unit.tokens) for unit in units] == [("wow", (0,)), ("!?", (1,)), ("ok", (2,))]


def test_spans_take_the_tokens_they_touch_and_overlapping_spans_are_one() -> None:
    tokens = tokens_of(word_pieces(), "the plot is good")
    assert [unit.tokens for unit in group_tokens("the plot is good", [(0, 6), (12, 16)], tokens)] == [(0, 1), (3,)]
    assert [unit.text for unit in group_tokens("the plot is good", [(4, 9), (0, 8)], tokens)] == ["the plot "]


def test_a_word_scores_as_its_best_piece_at_every_layer() -> None:
    tokens = tokens_of(word_pieces(), "highly enjoyable")
    units = group_tokens("highly enjoyable", word_spans("highly enjoyable"), tokens)
    scores = torch.tensor([[0.1, 0.9, 0.3, 0.2], [0.4, 0.0, 0.5, 0.6]])
    assert torch.equal(max_over_tokens(scores, units), torch.tensor([[0.9, 0.3], [0.4, 0.6]]))
    assert max_over_tokens(scores, []).shape == (2, 0)


def tokens_at(*spans: tuple[int, int], segment: int = 0) -> list[Token]:
    return [Token(f"piece {number}", span, segment) for number, span in enumerate(spans)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a'b", ["a'b"]),
        ("(a'b", ["(", "a'b"]),
        ("a\u3400b\u9fffc", ["a", "\u3400", "b", "\u9fff", "c"]),
        ("a\u33ffb\ua000", ["a", "\u33ff", "b\ua000"]),
        ("snake_case", ["snake_case"]),
    ],
)
def test_words_at_the_edges_of_the_rules(text: str, expected: list[str]) -> None:
    assert cut(text, word_spans(text)) == expected


def test_the_gaps_of_a_pair_have_a_line_break_between_its_texts() -> None:
    first, second = "So, so good!", "Not bad."
    units = [
        Unit("so", (4, 6), 0, (0,)),
        Unit("good", (7, 11), 0, (1,)),
        Unit("Not", (0, 3), 1, (2,)),
        Unit("bad", (4, 7), 1, (3,)),
    ]
    assert unit_gaps(first, second, units) == ("So, ", " ", "!\n", " ", ".")
    assert unit_gaps(first, second, units[:2]) == ("So, ", " ", "!\nNot bad.")
    assert unit_gaps(first, second, units[3:]) == ("So, so good!\nNot ", ".")
    assert unit_gaps(first, None, units[:2]) == ("So, ", " ", "!")
    assert unit_gaps(first, second, []) == ("So, so good!\nNot bad.",)


def test_a_span_is_marked_around_the_units_it_touches() -> None:
    units = [Unit("so", (0, 2), 0, (0,)), Unit("good", (3, 7), 0, (1,)), Unit("so", (0, 2), 1, (2,))]
    gaps = ("", " ", "\n", "!")
    assert mark_span(gaps, units, (0, 0, 2)) == ("«", "» ", "\n", "!")
    assert mark_span(gaps, units, (0, 1, 4)) == ("«", " ", "»\n", "!")
    assert mark_span(gaps, units, (0, 2, 3)) == gaps  # between the units, touching neither
    assert mark_span(gaps, units, (1, 0, 9)) == ("", " ", "\n«", "»!")
    assert mark_span(gaps, units, (1, 2, 9)) == gaps


def test_a_text_and_its_pair_are_split_as_asked_for() -> None:
    text, pair = "A mess, but fun. I loved it!", "So did I."
    tokens = [
        *tokens_at((0, 1), (2, 6), (6, 7), (8, 11), (12, 15), (15, 16), (17, 18), (19, 24), (25, 27), (27, 28)),
        *tokens_at((0, 2), (3, 6), (7, 8), (8, 9), segment=1),
    ]

    def units(granularity: str | list[Span], second: str | None = pair) -> list[tuple[str, int, tuple[int, ...]]]:
        return [(unit.text, unit.segment, unit.tokens) for unit in split_units(text, second, tokens, granularity)]

    assert units("sentence") == [
        ("A mess, but fun.", 0, (0, 1, 2, 3, 4, 5)),
        ("I loved it!", 0, (6, 7, 8, 9)),
        ("So did I.", 1, (10, 11, 12, 13)),
    ]
    assert units("clause")[:2] == [("A mess,", 0, (0, 1, 2)), ("but fun.", 0, (3, 4, 5))]
    assert units("word")[:3] == [("A", 0, (0,)), ("mess", 0, (1,)), (",", 0, (2,))] and len(units("word")) == 14
    assert units("word", None)[-1] == ("!", 0, (9,)) and len(units("word", None)) == 10
    assert units("token")[0] == ("piece 0", 0, (0,)) and units("token")[-1] == ("piece 3", 1, (13,))
    assert units([(0, 6), (8, 15)]) == [("A mess", 0, (0, 1)), ("but fun", 0, (3, 4))]
    with pytest.raises(InputError, match="'words' is not a granularity; nearest: 'word'"):
        split_units(text, pair, tokens, "words")


def test_a_token_is_by_default_the_first_of_its_kind_in_the_first_text() -> None:
    assert (Token("a", (0, 1)).segment, Token("a", (0, 1)).copy) == (0, 0)


def test_maxima_are_taken_over_tokens_and_keep_the_layers() -> None:
    scores = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
    units = [Unit("a", (0, 1), 0, (0, 2)), Unit("b", (1, 2), 0, (1,))]
    assert max_over_tokens(scores, units).tolist() == [[2.0, 5.0], [4.0, 0.0]]
    assert max_over_tokens(scores[0], units).tolist() == [2.0, 5.0]
    assert max_over_tokens(scores, []).shape == (2, 0)


def test_only_punctuation_is_punctuation() -> None:
    assert [is_punctuation(text) for text in ("?!", "a!", "!a", "-")] == [True, False, False, True]
