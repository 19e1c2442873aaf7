"""Terms whose translations are given: how the translation of a line comes to have them.

The search can be made to write one of the forms of a term (see `decoding.constraints`). A model
that was trained with data.annotate_terms reads the translations beside the words, and chooses the
form by itself (see `data.annotation`).
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_mt.data.annotation import annotated
from transformer_mt.data.subword import Subwords
from transformer_mt.data.terms import Term, Terms
from transformer_mt.decoding.engine import Constraint
from transformer_mt.decoding.protection import spelled
from transformer_mt.utils.languages import has_spaces


@dataclass(frozen=True)
class GivenTerms:
    """Terms whose translations are given.

    Attributes:
        terms: the list.
        way: as `engine.way_of_terms`.
        target_lang: the language of the translations.
    """

    terms: Terms
    way: str
    subwords: Subwords
    target_lang: str

    def annotated(self, text: str) -> str:
        """A text with the usual translations of its terms beside them."""
        found = [
            (end, term.forms[0]) for _, end, term in self.terms.find(text) if not term.is_forbidden
        ]
        return annotated(text, found, self.target_lang)

    def constraints(self, text: str) -> tuple[Constraint, ...]:
        """The constraints that follow from the terms of a text, each once, whatever its number of
        occurrences. A form that the model can't write is left out."""
        # Whether something is before a term in the source, as a quotation mark is. Otherwise its
        # translation begins a word, because within one it would be a part of another word.
        is_within: dict[Term, bool] = {}
        for start, _, term in self.terms.find(text):
            is_after = text[:start][-1:].strip() != "" or not has_spaces(self.target_lang)
            is_within[term] = is_within.get(term, term.is_forbidden) or is_after
        found = []
        for term, within in is_within.items():
            # At the start of a sentence, a form has a capital letter.
            texts = (own for form in term.forms for own in (form, form[:1].upper() + form[1:]))
            ids = dict.fromkeys(i for own in texts for i in spelled(own, self.subwords, within))
            if ids:
                found.append(Constraint(tuple(ids), is_forbidden=term.is_forbidden))
        return tuple(found)
