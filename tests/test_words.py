"""Words are found in the text, whatever the tokenizer makes of it; a word scores as its best piece does."""

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers

from diffmask.explanation.text_units import Span, Token, group_tokens, max_over_tokens, sentence_spans, word_spans
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
