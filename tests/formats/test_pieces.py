"""Where the markup of a translation is: properties that hold for every source and translation."""

from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.formats.document import MARKUP
from transformer_mt.formats.pieces import Piece, arrange, core, text_of, with_whole_words, words_of
from transformer_mt.formats.splicing import Edits


def items_of(nested) -> list:
    """Texts and pieces, with a pair around each list in a list."""
    items = []
    for part in nested:
        if isinstance(part, list):
            opening, closing = Piece(f"<{len(part)}>", None), Piece("</>", None)
            opening.pair_with(closing)
            items += [opening, *items_of(part), closing]
        elif part in ("x", "br"):
            items.append(Piece(part, None, may_be_lost=part == "br"))
        else:
            items.append(part)
    return items


SOURCES = st.recursive(
    st.lists(st.sampled_from(["x", "br", "word", " ", "Ω "]), max_size=4),
    lambda inner: st.lists(inner | st.sampled_from(["x", "br", "word", " "]), max_size=4),
).map(items_of)


def test_a_text_is_its_own_translation():
    items = items_of(["a ", ["b", "x", ["c"]], "br", " d"])
    assert arrange(items, text_of(items)) == items


@given(SOURCES, st.lists(st.integers(0, 20) | st.sampled_from(["t", "u "]), max_size=12))
def test_pieces_are_there_once_and_in_pairs(items, parts):
    shown = [*MARKUP.findall(text_of(items)), "\ue000made up\ue001", "\ue001"]
    translation = "".join(p if isinstance(p, str) else shown[p % len(shown)] for p in parts)
    result = arrange(items, translation)
    pieces = [item for item in result if isinstance(item, Piece)]
    assert len(set(pieces)) == len(pieces) and set(pieces) <= {i for i in items if i not in shown}
    opened = []
    for piece in pieces:
        if piece.opens:
            opened.append(piece)
        elif piece.partner is not None:
            assert opened.pop() is piece.partner
    assert not opened
    kept = {i for i in items if isinstance(i, Piece) and i.partner is None and not i.may_be_lost}
    assert kept <= set(pieces)
    assert words_of(result) == "".join(part for part in parts if isinstance(part, str))


@given(SOURCES)
def test_words_and_pieces_keep_their_order_when_pairs_end_with_words(items):
    result = with_whole_words(items)
    assert words_of(result) == words_of(items)
    pieces = [[item for item in own if isinstance(item, Piece)] for own in (items, result)]
    assert pieces[0] == pieces[1]
    for before, piece, after in zip(result, result[1:], result[2:], strict=False):
        if isinstance(piece, Piece) and piece.partner and {type(before), type(after)} == {str}:
            assert not (before.endswith("word") and after.startswith("word"))


@given(SOURCES)
def test_what_is_around_a_text_has_no_words_and_no_halves_of_pairs(items):
    first, end = core(items)
    inside = items[first:end]
    assert not (words_of(items[:first]) + words_of(items[end:])).strip()
    for item in inside:
        if isinstance(item, Piece) and item.partner is not None:
            assert item.partner in inside
    if inside:
        # It begins and ends with words, or a pair with words in it that is not around everything.
        for edge in (inside[0], inside[-1]):
            if isinstance(edge, Piece):
                a, b = sorted((inside.index(edge), inside.index(edge.partner)))
                assert words_of(inside[a:b]).strip() and b - a < len(inside) - 1
            else:
                assert edge.strip()
    else:
        assert not words_of(items).strip()


@given(
    st.text(min_size=20), st.sets(st.integers(0, 20), min_size=6), st.lists(st.text(), min_size=3)
)
def test_edits_replace_ranges_and_what_is_in_them(text, cuts, new):
    a, b, c, d, e, f = sorted(cuts)[:6]
    edits = Edits(text)
    edits.replace(a, b, new[0])
    edits.replace(c, d, new[1])
    assert edits.all() == text[:a] + new[0] + text[b:c] + new[1] + text[d:]
    assert edits.between(b, f) == text[b:c] + new[1] + text[d:f]
    inside = edits.between(b, e)
    edits.replace(b, e, f"<{inside}{new[2]}>")
    whole = f"<{text[b:c]}{new[1]}{text[d:e]}{new[2]}>"
    assert edits.all() == text[:a] + new[0] + whole + text[e:]
