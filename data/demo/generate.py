#!/usr/bin/env python3
"""Generate the English-German demo corpus from the synchronous grammar in grammar.yaml.

    python data/demo/generate.py [--output DIR]

A derivation is sampled once, top down, and then read off twice: once through the English
side of every rule and once through the German side.  The notation of the rules is explained
at the top of grammar.yaml.

The same seed gives the same files with every Python version, because the only random function
used is ``Random.random``, and nothing depends on the order of a set or on hash values.
"""

import argparse
import random
import re
from collections import namedtuple
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
SEED = 2024
SIZES = {"train": 8000, "dev": 500, "test": 500}  # sampled in this order
LENGTHS = range(4, 15)  # words a sentence may have, on either side
CASES = ("nom", "acc", "dat", "obj")  # "obj" is the English object form (me, him, ...)

SYMBOL = re.compile(r"<(\w+)(?:\.(\w+))?(?:@(\w+))?>")
BRACKET = re.compile(r"\[(?:(nom|acc|dat) )?([^\]]*)\]")

# What a nonterminal can be rewritten to.
Phrase = namedtuple("Phrase", "en de weight")
Verb = namedtuple("Verb", "en verb middle negated weight")
Noun = namedtuple("Noun", "en en_plural gender de de_oblique de_plural weight")
Pronoun = namedtuple("Pronoun", "en de weight")
Node = namedtuple("Node", "entry children")  # of the derivation tree

# The properties of the subject on which verbs and possessives depend.
Features = namedtuple("Features", "person possessive reflexive")


def parse_phrase(text, weight):
    """``a <Noun> = [ein_ <Noun>]``"""
    english, german = text.split(" = ")
    return Phrase(english, german, weight)


def parse_verb(text, weight):
    """``visit the <Sight> = besuchen | ~ [acc d_ <Sight>] | [acc d_ <Sight>] ~ nicht``"""
    english, german = text.split(" = ")
    verb, middle, negated = (part.strip() for part in (german + "|~|~").split("|")[:3])
    return Verb(english, verb, middle, negated, weight)


def parse_noun(text, weight):
    """``roll, rolls = das Brötchen, Brötchen``, or one form per side if it is always plural."""
    english, german = (side.split(", ") for side in text.split(" = "))
    if len(german) == 1:
        return Noun(english[0], english[0], "pl", german[0], german[0], german[0], weight)
    gender, word = german[0].split()
    word, _, oblique = word.partition("/")
    gender = {"der": "m", "die": "f", "das": "n"}[gender]
    return Noun(english[0], english[1], gender, word, oblique or word, german[1], weight)


def parse_pronoun(text, weight):
    """``we, us, our, pl = wir, uns, uns, uns, unser, pl`` (see grammar.yaml)"""
    english, german = (side.split(", ") for side in text.split(" = "))
    return Pronoun(english, german, weight)


PARSERS = {
    "pronouns": parse_pronoun,
    "nouns": parse_noun,
    "verb_phrases": parse_verb,
    "words": parse_phrase,
    "rules": parse_phrase,
}


class Grammar:
    """The rules and lexicon of grammar.yaml, ready to sample sentence pairs from."""

    def __init__(self, path=HERE / "grammar.yaml"):
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        self.verbs = data["verbs"]
        self.determiners = data["determiners"]
        self.adjective_endings = data["adjective_endings"]
        self.contractions = data["contractions"]
        self.classes = {}
        for section, parse in PARSERS.items():
            for name, lines in data[section].items():
                self.classes[name] = list(self._read(lines, parse))

    def _read(self, lines, parse):
        for line in lines:
            weight, text = re.fullmatch(r"(?:\((\d+)\) )?(.*)", line).groups()
            included = re.fullmatch(r"<(\w+)>", text)
            if included:  # a line "<Other>" takes in everything that Other can be
                for entry in self.classes[included[1]]:
                    yield entry._replace(weight=entry.weight * int(weight or 1))
            else:
                yield parse(text, int(weight or 1))

    # ---- sampling a derivation ----

    def sample(self, rng, symbol="Sentence", used=None):
        """Samples a derivation tree. Returns None if it would use the same word twice."""
        used = [] if used is None else used
        entry = choose(rng, self.classes[symbol.rstrip("0123456789")])
        symbols = self._symbols(entry)
        is_word = not symbols or isinstance(entry, Verb)
        if is_word and not isinstance(entry, Pronoun):
            if entry[:-1] in used:
                return None
            used.append(entry[:-1])  # without the weight
        children = {}
        for name in symbols:
            children[name] = self.sample(rng, name, used)
            if children[name] is None:
                return None
        return Node(entry, children)

    def _symbols(self, entry):
        """Returns the nonterminals of both sides of a rule, each once, in order of appearance."""
        if not isinstance(entry, (Phrase, Verb)):
            return []
        templates = " ".join(part for part in entry if isinstance(part, str))
        names = dict.fromkeys(match[1] for match in SYMBOL.finditer(templates))
        return [name for name in names if name.rstrip("0123456789") in self.classes]

    # ---- reading a derivation off, on one side ----

    def sentence(self, node, side):
        """Returns the complete English ("en") or German ("de") sentence of a derivation."""
        text = " ".join(self.render(node, side).split())
        text = re.sub(r" ([.,?!])", r"\1", text)
        if side == "en":
            text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
        else:
            for full, short in self.contractions.items():
                text = re.sub(rf"\b{full}\b", short, text)
                text = re.sub(rf"\b{full.capitalize()}\b", short.capitalize(), text)
        return text[0].upper() + text[1:]

    def render(self, node, side, form="", case="nom", subject=None):
        """Returns the words of one node, in the form that its symbol asks for."""
        case = form if form in CASES else case
        entry = node.entry
        if isinstance(entry, Noun):
            return self._noun(entry, side, case, form == "pl")
        if isinstance(entry, Pronoun):
            index = {"nom": 0, "acc": 1, "obj": 1, "dat": 2}[case]
            return (entry.en if side == "en" else entry.de)[index]
        if isinstance(entry, Verb):
            return self._verb(node, side, form, subject)
        return self._fill(getattr(entry, side), node.children, side, case, subject)

    def _fill(self, template, children, side, case="nom", subject=None):
        """Replaces the symbols of a template, and inflects the [noun phrases] in it."""

        def symbol(match, case=case):
            name, form, controller = match.groups()
            controlling = children[controller] if controller else subject
            if name in children:
                return self.render(children[name], side, form or "", case, controlling)
            features = self.features(controlling, side)
            if name == "own":
                return features.possessive
            if name == "refl":
                return features.reflexive
            return self._finite(name, side, features)

        def bracket(match):
            inner_case = match[1] or case
            words = SYMBOL.sub(lambda inner: symbol(inner, inner_case), match[2])
            head = [
                m
                for m in SYMBOL.finditer(match[2])
                if m[1] in children and isinstance(children[m[1]].entry, Noun)
            ][-1]
            gender = "pl" if head[2] == "pl" else children[head[1]].entry.gender
            return self._inflect(words, gender, inner_case)

        return SYMBOL.sub(symbol, BRACKET.sub(bracket, template))

    def _noun(self, noun, side, case, plural):
        if side == "en":
            return noun.en_plural if plural else noun.en
        if not plural and noun.gender != "pl":
            return noun.de if case == "nom" else noun.de_oblique
        needs_n = case == "dat" and not noun.de_plural.endswith(("n", "s"))
        return noun.de_plural + ("n" if needs_n else "")

    def _inflect(self, words, gender, case):
        """Gives every German word that ends in ``_`` the ending of its noun phrase.

        The endings of the adjectives depend on the determiner before them, if there is one.
        """
        column = ("m", "f", "n", "pl").index(gender)
        declension, result = "none", []
        for word in words.split():
            stem = word[:-1]
            if not word.endswith("_"):
                result.append(word)
            elif stem in self.determiners:
                declension, endings = self.determiners[stem]["then"], self.determiners[stem][case]
                result.append(
                    self.determiners[stem].get("stem", stem) + endings.split()[column].strip("-")
                )
            else:
                result.append(stem + self.adjective_endings[declension][case].split()[column])
        return " ".join(result)

    def _finite(self, verb, side, features):
        """Returns a finite verb form, without the particle of a separable verb."""
        persons = ["1sg", "2sg", "3sg", "pl"]
        if side == "de":
            return self.verbs["de"][verb][0].split()[persons.index(features.person)]
        forms = self.verbs["en"][verb]
        if isinstance(forms, dict):  # "be"
            return forms[features.person]
        return forms.split()[0] if features.person == "3sg" else verb

    def _verb(self, node, side, form, subject):
        """Returns one part of a verb phrase (see "verb phrases" in grammar.yaml)."""
        entry = node.entry
        features = self.features(subject, side) if subject else None
        if side == "en":
            verb, _, rest = entry.en.partition(" ")
            if form == "fin":
                verb = self._finite(verb, "en", features)
            elif form != "inf":
                verb = self.verbs["en"][verb].split()[["ing", "past"].index(form) + 1]
            return verb + " " + self._fill(rest, node.children, "en", "obj", subject)
        if form in ("pre", "post", "npre", "npost"):
            middle = entry.negated if form.startswith("n") else entry.middle
            part = middle.split("~")[form.endswith("post")]
            return self._fill(part, node.children, "de", "acc", subject)
        _, perfect, particle = (self.verbs["de"][entry.verb] + ["", ""])[:3]
        if form == "inf":
            return entry.verb
        if form == "prt":
            return particle
        auxiliary, participle = perfect.split() if perfect else ("", "")
        if form == "part":
            return participle
        if form == "aux":
            return self._finite(auxiliary, "de", features)
        finite = self._finite(entry.verb, "de", features)
        return particle + finite if form == "end" else finite  # "end": of a subordinate clause

    def features(self, node, side, plural=False):
        """Returns the person, possessive and reflexive that belong to a subject."""
        entry = node.entry
        if isinstance(entry, Pronoun):
            if side == "en":
                return Features(entry.en[3], entry.en[2], None)
            return Features(entry.de[5], entry.de[4], entry.de[3])
        if isinstance(entry, Phrase):
            if " and " in entry.en:
                return self._third_person("pl", side)
            *_, head = SYMBOL.finditer(entry.de)
            return self.features(node.children[head[1]], side, head[2] == "pl")
        return self._third_person("pl" if plural else entry.gender, side)

    @staticmethod
    def _third_person(gender, side):
        english, german = {
            "m": ("his", "sein"),
            "f": ("her", "ihr"),
            "n": ("its", "sein"),
            "pl": ("their", "ihr"),
        }[gender]
        person = "pl" if gender == "pl" else "3sg"
        return Features(person, english if side == "en" else german, "sich")


def choose(rng, entries):
    """Draws one of the entries, with a probability proportional to its weight."""
    point = rng.random() * sum(entry.weight for entry in entries)
    for entry in entries:
        point -= entry.weight
        if point < 0:
            return entry
    return entries[-1]


def pairs(grammar, rng):
    """Yields sentence pairs without end. Neither side of a pair has been seen before."""
    seen = {"en": set(), "de": set()}
    while True:
        node = grammar.sample(rng)
        if node is None:
            continue
        pair = {side: grammar.sentence(node, side) for side in seen}
        if any(len(text.split()) not in LENGTHS for text in pair.values()):
            continue
        if any(pair[side] in seen[side] for side in seen):
            continue
        for side, text in pair.items():
            seen[side].add(text)
        yield pair["en"], pair["de"]


def main():
    parser = argparse.ArgumentParser(description="Generate the English-German demo corpus.")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write the files to")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    source = pairs(Grammar(), random.Random(SEED))
    for split, size in SIZES.items():
        chosen = [next(source) for _ in range(size)]
        for index, language in enumerate(("en", "de")):
            text = "".join(pair[index] + "\n" for pair in chosen)
            (args.output / f"{split}.{language}").write_bytes(text.encode("utf-8"))


if __name__ == "__main__":
    main()
