"""The texts of the golden arrays of random models."""

ENGLISH = """the house is old and small
a dog sees the cat in the garden
the children play with a red ball
we read books in the evening
she has two brothers and no sister
the bird sings on the roof of the house
it rains today: take your coat
he said "good morning" and left
where is the station? it's near
the water is cold, the sun is warm
I have 10 apples and 25 nuts
they walk along the river every day
the old man drinks tea & coffee
my friend lives in a big city
the train leaves at 7:30 - be quick!
this is the last page of the book
the quick brown fox jumps over a lazy dog
please open the window and close the door
nobody knows the answer to question #9
winter is long in the north
the teacher writes on the board
the baker's bread is fresh
we eat soup and bread at noon
zebras live in the zoo
he works for the king and queen
there is no light in this room
80% of them came by bus in 46 minutes""".splitlines()

GERMAN = """das Haus ist alt und klein
ein Hund sieht die Katze im Garten
die Kinder spielen mit einem roten Ball
wir lesen am Abend Bücher
sie hat zwei Brüder und keine Schwester
der Vogel singt auf dem Dach des Hauses
heute regnet es: nimm deinen Mantel mit
er sagte "guten Morgen" und ging
wo ist der Bahnhof? er ist in der Nähe
das Wasser ist kalt, die Sonne ist warm
ich habe 10 Äpfel und 25 Nüsse
sie gehen jeden Tag am Fluss entlang
der alte Mann trinkt Tee & Kaffee
mein Freund wohnt in einer großen Stadt
der Zug fährt um 7:30 ab - schnell!
das ist die letzte Seite des Buches
bitte öffne das Fenster und schließe die Tür
niemand kennt die Antwort auf Frage #9
der Winter im Norden ist lang
die Lehrerin schreibt an die Tafel
wir essen mittags Suppe und Brot
Zebras leben im Zoo
er arbeitet für den König
in diesem Zimmer ist kein Licht
80% kamen mit dem Bus in 46 Minuten
das geht so nicht, sagte Quinn""".splitlines()

# Each is one case; a test of the tokenizer compares their ids. The second and third begin with a
# code that the map of some models has, the next ones with one that none has.
TOKENIZED = [
    "the house is old and small",
    ">>deu<< the house is old",
    ">>fra<<the house is old",
    ">>xyz<< the house is old",
    "the >>deu<< house",
    "",
    "   the  house ",
    "the zoo has no quick zebras",
    "snow ☃ and 日本 fall",
    'he said "it\'s 7:30 - 80% of #9", true & null',
    "ﬁve ｆｕｌｌ ½ houses\u00a0here",
    "the </s> house <unk> <pad>",
]
TRANSLATED = [
    "the house is old and small",
    "a dog sees the cat in the garden",
    "we read books",
    "it rains today: take your coat",
    "the children play with a red ball in the evening",
    "the sun is warm",
    "nobody knows the answer",
    "my friend lives in a big city and drinks tea",
]
# The sources of the golden logits, of three lengths.
BATCH = ["the house is old and small", "tea", "a dog sees the cat in the garden"]
