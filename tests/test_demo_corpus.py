"""The demo corpus is what its generator writes, and its German is right.

The checks of the German use lists written by hand in this file, not the grammar's own tables.
"""

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"
SIZES = {"train": 8000, "dev": 500, "test": 500}


def read_lines(split, language):
    text = (DEMO / f"{split}.{language}").read_bytes().decode("utf-8")
    assert text.endswith("\n") and "\r" not in text
    return text[:-1].split("\n")


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("demo_generate", DEMO / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus():
    """``corpus[split]`` is the list of (English, German) pairs."""
    sides = {split: (read_lines(split, "en"), read_lines(split, "de")) for split in SIZES}
    assert {split: len(english) for split, (english, _) in sides.items()} == SIZES
    return {split: list(zip(*pairs, strict=True)) for split, pairs in sides.items()}


@pytest.fixture(scope="module")
def all_pairs(corpus):
    return [pair for split in SIZES for pair in corpus[split]]


# ---- the files ----------------------------------------------------------------------------


def test_files_are_what_the_generator_writes(tmp_path):
    subprocess.run(
        [sys.executable, str(DEMO / "generate.py"), "--output", str(tmp_path)], check=True
    )
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(f"{split}.{lang}" for split in SIZES for lang in ("en", "de"))
    for name in names:
        assert (tmp_path / name).read_bytes() == (DEMO / name).read_bytes(), name


def test_no_duplicates_within_or_between_the_splits(all_pairs):
    for side in (0, 1):
        assert len({pair[side] for pair in all_pairs}) == len(all_pairs)


def test_english_words_of_dev_and_test_occur_in_train(corpus):
    def words(pairs):
        return {word for english, _ in pairs for word in re.findall(r"[a-z]+", english.lower())}

    assert words(corpus["dev"] + corpus["test"]) <= words(corpus["train"])


# ---- hand-written translations ------------------------------------------------------------

# Clock times and separable verbs; verb second, sentence bracket, perfect; verb last; gender, case,
# adjective endings, contractions; kein, nicht, plurals, numbers.
HAND_WRITTEN = """\
The train to Berlin leaves at half past three. | Der Zug nach Berlin fährt um halb vier ab.
The bus from Vienna arrives at quarter to five. | Der Bus aus Wien kommt um Viertel vor fünf an.
The film starts at one o'clock. | Der Film fängt um ein Uhr an.
Anna, I am calling you tomorrow. | Anna, ich rufe dich morgen an.
I would like to call you tomorrow. | Ich möchte Sie morgen anrufen.
Paul, please open the window in the kitchen. | Paul, mach bitte das Fenster in der Küche auf.
Tomorrow we are going to Berlin. | Morgen fahren wir nach Berlin.
We went to Berlin yesterday. | Wir sind gestern nach Berlin gefahren.
Last week I invited my friends. | Letzte Woche habe ich meine Freunde eingeladen.
On Monday she has to visit the museum. | Am Montag muss sie das Museum besuchen.
I do not know whether the train from Hamburg arrives on time today. |
    Ich weiß nicht, ob der Zug aus Hamburg heute pünktlich ankommt.
Maria says that Peter is picking her up from the airport on Sunday. |
    Maria sagt, dass Peter sie am Sonntag vom Flughafen abholt.
I cannot go to the cinema because I am ill. | Ich kann nicht ins Kino gehen, weil ich krank bin.
If it rains tomorrow, we will stay at home. | Wenn es morgen regnet, werden wir zu Hause bleiben.
The blue jacket costs eighty-five euros. | Die blaue Jacke kostet fünfundachtzig Euro.
I am looking for a red coat. | Ich suche einen roten Mantel.
She is looking for warm shoes. | Sie sucht warme Schuhe.
My younger sister lives in a small flat in Cologne. |
    Meine jüngere Schwester wohnt in Köln in einer kleinen Wohnung.
Excuse me, how do I get to the bank? | Entschuldigung, wie komme ich zur Bank?
How do we get from the station to the museum? | Wie kommen wir vom Bahnhof zum Museum?
The black cat is under the table. | Die schwarze Katze ist unter dem Tisch.
Please put the book on the table. | Legen Sie das Buch bitte auf den Tisch.
He is not helping his colleague on Friday. | Er hilft seinem Kollegen am Freitag nicht.
Julia likes the white hat. | Der weiße Hut gefällt Julia.
We like the white hat. | Der weiße Hut gefällt uns.
I would like the soup with fresh bread, please. | Ich hätte gern die Suppe mit frischem Brot, bitte.
Peter does not drink coffee. | Peter trinkt keinen Kaffee.
I am not buying a new shirt today. | Ich kaufe heute kein neues Hemd.
They are not visiting the castle today. | Sie besuchen das Schloss heute nicht.
We have two sons and a daughter. | Wir haben zwei Söhne und eine Tochter.
Room twenty-one is on the second floor. | Zimmer einundzwanzig ist im zweiten Stock.
A ticket to Munich costs 35.50 euros. | Eine Fahrkarte nach München kostet 35,50 Euro.
"""


def restrict(grammar, generate, english):
    """Leave only rules with words of ``english``, so that sampling soon hits this sentence."""
    target = set(re.findall(r"\w+", english.lower()))

    def only_target_words(text):
        return set(re.findall(r"\w+", generate.SYMBOL.sub(" ", text).lower())) <= target

    def fits(entry):
        if isinstance(entry, generate.Noun):
            return only_target_words(entry.en) or only_target_words(entry.en_plural)
        if isinstance(entry, generate.Pronoun):
            return any(only_target_words(form) for form in entry.en[:3])
        if isinstance(entry, generate.Verb):
            verb, _, rest = entry.en.partition(" ")
            forms = [verb, *grammar.verbs["en"][verb].split()]
            return any(only_target_words(f"{form} {rest}") for form in forms)
        return only_target_words(entry.en)

    def children(entry):
        return [name.rstrip("0123456789") for name in grammar._symbols(entry)]

    classes = {name: list(filter(fits, entries)) for name, entries in grammar.classes.items()}
    size = None
    while size != (size := sum(map(len, classes.values()))):  # until nothing more drops out
        for name, entries in classes.items():
            classes[name] = [e for e in entries if all(classes[child] for child in children(e))]
    grammar.classes = classes


@pytest.mark.parametrize("pair", HAND_WRITTEN.replace("|\n   ", "|").splitlines())
def test_hand_written_pair_is_what_the_grammar_says(generate, pair):
    english, german = pair.split(" | ")
    grammar, rng = generate.Grammar(), random.Random(0)
    restrict(grammar, generate, english)
    assert grammar.classes["Sentence"], "the grammar does not produce this English sentence"
    for _ in range(20000):
        node = grammar.sample(rng)
        if node is not None and grammar.sentence(node, "en") == english:
            assert grammar.sentence(node, "de") == german
            return
    pytest.fail("the grammar does not produce this English sentence")


@pytest.mark.slow
def test_every_english_sentence_has_one_translation(generate):
    grammar, rng, translation = generate.Grammar(), random.Random(1), {}
    for _ in range(15000):
        node = grammar.sample(rng)
        if node is not None:
            german = grammar.sentence(node, "de")
            assert translation.setdefault(grammar.sentence(node, "en"), german) == german


# ---- forms --------------------------------------------------------------------------------

MASCULINE = "Zug Bahnhof Bruder Sohn Tisch Mantel Hut Kaffee Salat Termin Arzt Park Flughafen"
FEMININE = "Katze Schwester Mutter Suppe Jacke Bank Kirche Bibliothek Fahrkarte Tasche Lampe Tante"
NEUTER = "Hemd Museum Kino Brot Zimmer Buch Schloss Pferd Krankenhaus Konzert Haus"
IMPOSSIBLE = [  # words that never stand directly before these nouns in the singular
    (MASCULINE, "eine einer keine keiner meine meiner unsere unserer die das zur ins diese"),
    (FEMININE, "ein einen einem kein keinen mein meinem unser unserem das den dem im am zum vom"),
    (NEUTER, "eine einen einer keinen meinen meiner unsere unserer die den zur diese diesen"),
]


def test_no_determiner_of_the_wrong_gender(all_pairs):
    text = "\n".join(german for _, german in all_pairs)
    for nouns, determiners in IMPOSSIBLE:
        pattern = rf"\b({'|'.join(determiners.split())}) ({'|'.join(nouns.split())})\b"
        matches = re.finditer(pattern, text, re.IGNORECASE)
        assert not [match[0] for match in matches if match[2] in nouns.split()]
        for noun in nouns.split():  # the check would be void for a noun that never occurs
            assert re.search(rf"\b{noun}\b", text), noun
