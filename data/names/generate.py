#!/usr/bin/env python3
"""Generate an English-German corpus of messages with names and numbers that training never sees.

    python data/names/generate.py [--output DIR]

Each pair is made from a template with a surname and a number. Most templates have a day or a thing
too. Surnames are made of syllables, and numbers have three to six digits. Train, dev and test each
have their own surnames and numbers. The text is tokenised. `vocabulary` holds all of its words,
including the names and numbers of dev and test, as a list of customers would.

The same seed gives the same files with every Python version, because the only random function used
is ``Random.random``.
"""

import argparse
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEED = 2024
SIZES = {"train": 4000, "dev": 200, "test": 500}  # made in this order
NAMES = {"train": 2000, "dev": 200, "test": 500}  # the number of surnames, and of numbers
SPECIAL = ["<pad>", "<s>", "<e>", "<unk>"]

# {who} is a person as the subject, and {whom} is a person as an object.
TEMPLATES = """
{who} is staying in room {number} . = {who} wohnt in Zimmer {number} .
{who} is in room {number} {day} . = {who} ist {day} in Zimmer {number} .
{who} has the customer number {number} . = {who} hat die Kundennummer {number} .
{who} has paid {number} euros . = {who} hat {number} Euro bezahlt .
{who} has not paid the {number} euros yet . = {who} hat die {number} Euro noch nicht bezahlt .
{who} cannot come {day} , please call {number} . = {who} kann {day} nicht kommen , bitte rufen Sie {number} an .
{who} is bringing {thing} to room {number} . = {who} bringt {thing} in Zimmer {number} .
{who} is picking up {thing} {day} , the number is {number} . = {who} holt {day} {thing} ab , die Nummer ist {number} .
{who} has lost {thing} with the number {number} . = {who} hat {thing} mit der Nummer {number} verloren .
{who} is looking for {thing} with the number {number} . = {who} sucht {thing} mit der Nummer {number} .
{who} would like to know whether {number} euros are enough . = {who} möchte wissen , ob {number} Euro genug sind .
Has {who} found {thing} in room {number} ? = Hat {who} {thing} in Zimmer {number} gefunden ?
Is {who} coming to room {number} {day} ? = Kommt {who} {day} in Zimmer {number} ?
Does {who} know that {thing} costs {number} euros ? = Weiß {who} , dass {thing_subject} {number} Euro kostet ?
When is {who} moving to room {number} ? = Wann zieht {who} in Zimmer {number} um ?
Please call {whom} at {number} {day} . = Bitte rufen Sie {whom} {day} unter {number} an .
Please send {thing} to {whom} for {number} euros . = Bitte schicken Sie {thing} für {number} Euro an {whom} .
Please give {whom} {thing} with the number {number} . = Bitte geben Sie {whom} {thing} mit der Nummer {number} .
We are sending {whom} {number} euros {day} . = Wir schicken {whom} {day} {number} Euro .
We have reserved room {number} for {whom} . = Wir haben Zimmer {number} für {whom} reserviert .
I am meeting {whom} in room {number} {day} . = Ich treffe {whom} {day} in Zimmer {number} .
I am waiting for {whom} in room {number} . = Ich warte in Zimmer {number} auf {whom} .
I have bought {thing} from {whom} for {number} euros . = Ich habe {whom} {thing} für {number} Euro abgekauft .
Room {number} is free {day} , please tell {whom} . = Zimmer {number} ist {day} frei , bitte sagen Sie es {whom} .
The number {number} belongs to {whom} . = Die Nummer {number} gehört {whom} .
The invoice {number} is for {whom} . = Die Rechnung {number} ist für {whom} .
"""  # noqa: E501
DAYS = """
on Monday = am Montag
on Tuesday = am Dienstag
on Wednesday = am Mittwoch
on Thursday = am Donnerstag
on Friday = am Freitag
on Saturday = am Samstag
on Sunday = am Sonntag
today = heute
tomorrow = morgen
this evening = heute Abend
next week = nächste Woche
"""
# German: as an object, as the subject.
THINGS = """
the key = den Schlüssel = der Schlüssel
the letter = den Brief = der Brief
the contract = den Vertrag = der Vertrag
the suitcase = den Koffer = der Koffer
the ticket = die Fahrkarte = die Fahrkarte
the bag = die Tasche = die Tasche
the lamp = die Lampe = die Lampe
the parcel = das Paket = das Paket
the book = das Buch = das Buch
the bicycle = das Fahrrad = das Fahrrad
"""
# German: as the subject, as an object.
TITLES = """
Ms = Frau = Frau
Mr = Herr = Herrn
"""
ONSETS = [*"bdfghjklmnprstvwz", "br", "dr", "fl", "gr", "kl", "kr", "pl", "st", "tr"]
VOWELS = "aeiou"
CODAS = [*"lmnrstk", "nd", "rg", "ck"]


def table(text):
    return [line.split(" = ") for line in text.strip().split("\n")]


class Generator:
    """Makes pairs of sentences from random numbers. Each split has its own surnames and numbers."""

    def __init__(self, rng):
        self.rng = rng
        self.used = set()
        self.templates, self.days, self.things, self.titles = map(
            table, (TEMPLATES, DAYS, THINGS, TITLES)
        )

    def pairs(self, split):
        """Returns the pairs of a split: a list of (English, German)."""
        names, numbers = (
            [self.new(make) for _ in range(NAMES[split])] for make in (self.name, self.number)
        )
        return [self.pair(self.choose(names), self.choose(numbers)) for _ in range(SIZES[split])]

    def pair(self, name, number):
        english, german = self.choose(self.templates)
        title, nominative, oblique = self.choose(self.titles)
        thing, object_, subject = self.choose(self.things)
        day, tag = self.choose(self.days)
        person = f"{title} {name}"
        english = english.format(who=person, whom=person, number=number, day=day, thing=thing)
        german = german.format(
            who=f"{nominative} {name}",
            whom=f"{oblique} {name}",
            number=number,
            day=tag,
            thing=object_,
            thing_subject=subject,
        )
        return english, german

    def choose(self, entries):
        return entries[int(self.rng.random() * len(entries))]

    def new(self, make):
        """Calls `make` until it returns something new, and returns that."""
        while (text := make()) in self.used:
            pass
        self.used.add(text)
        return text

    def name(self):
        """Returns a surname of two or three syllables."""
        syllables = [
            self.choose(ONSETS) + self.choose(VOWELS) for _ in range(self.choose([2, 2, 3]))
        ]
        return ("".join(syllables) + self.choose(CODAS)).capitalize()

    def number(self):
        """Returns a number of three to six digits, as text."""
        digits = self.choose([3, 4, 5, 6])
        return str(int((1 + 9 * self.rng.random()) * 10 ** (digits - 1)))


def main():
    parser = argparse.ArgumentParser(description="Generate the corpus of names and numbers.")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write the files to")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    generator = Generator(random.Random(SEED))
    words = set()
    for split in SIZES:
        pairs = generator.pairs(split)
        for side, language in enumerate(("en", "de")):
            lines = [pair[side] for pair in pairs]
            write(args.output / f"{split}.{language}", lines)
            words.update(word for line in lines for word in line.split())
    write(args.output / "vocabulary", SPECIAL + sorted(words))


def write(path, lines):
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))


if __name__ == "__main__":
    main()
