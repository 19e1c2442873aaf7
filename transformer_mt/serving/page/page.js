// The translation page: its text field, its buttons, and what it says about the model and the server.

import {
  allSentences,
  answerOf,
  card,
  forgetProblems,
  onAnswer,
  terms,
  translate,
  useCard,
  useTerms,
  wholeTranslation,
} from "./answers.js";
import { addFile, writeFiles } from "./files.js";
import { keep, onReopen } from "./history.js";
import { closeOthers } from "./others.js";
import { light, showPanes, showPlain } from "./panes.js";
import { ask, listeners, useToken } from "./server.js";
import { onTerms, refuseTerms, termsFor, writeTerms } from "./terms.js";
import { direction } from "./text.js";
import { language, languageName, number, switchLanguage, word, writeWords } from "./words.js";

const PAUSE = 300; // milliseconds without a keystroke after which the text is translated
const CONTROL = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
const MOST_CHARACTERS = 20_000; // of a text that is translated while it is typed

const canPoint = matchMedia("(hover: hover)").matches; // no phone can

const at = (id) => document.getElementById(id);
const source = at("source");

let cards = []; // of all models
let isTyping = false; // whether the text has changed since it was last translated

/** Translates the text as it is now, as far as it is not translated yet, and shows what is known. */
function update() {
  isTyping = false;
  if (!card) return;
  // Half a surrogate pair is no text that could be sent.
  const text = source.value.toWellFormed?.() ?? source.value;
  const isTooLong = text.length > MOST_CHARACTERS;
  if (!translate(isTooLong ? "" : text)) {
    at("working").textContent = word("working");
    return;
  }
  showPanes();
  const known = allSentences().map(answerOf);
  const isTranslated = known.some((answer) => answer?.text);
  at("translation").dataset.hint = word("target_hint");
  at("working").textContent = known.includes(undefined) ? word("working") : "";
  const hint = canPoint ? "hint_words" : "hint_words_touch";
  at("hint").textContent = isTranslated ? word(card.alignment ? hint : "hint") : "";
  at("count").textContent = text && `${number(text.length)} / ${number(MOST_CHARACTERS)}`;
  at("clear").hidden = !source.value;
  at("share").disabled = !source.value;
  at("copy").disabled = !isTranslated;
  const wrong = known.find((answer) => answer?.problem)?.problem;
  if (isTooLong) say("problem", word("too_long", number(text.length), number(MOST_CHARACTERS)));
  else say("problem", wrong ? word("not_translated", wrong.message) : "");
  refuseTerms(wrong?.isAboutTerms ? wrong.message : "");
  if (!isTranslated || known.includes(undefined) || wrong) return;
  const { name: model, source_lang, target_lang } = card;
  keep({ model, source_lang, target_lang, text, translation: wholeTranslation() });
}

onAnswer(() => {
  if (!isTyping) update();
});
onTerms((others) => {
  closeOthers();
  useTerms(others);
  update();
});

/** Writes a message into an element, which is hidden if there is none. */
function say(id, message) {
  const element = at(id);
  if (element.textContent !== message) element.textContent = message;
  element.hidden = !message;
}

// ---- The text field ----

let timer = 0;

/** Begins to wait for the end of the typing. */
function changed() {
  light(null);
  closeOthers();
  forgetProblems();
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  isTyping = true;
  showPlain(source.value);
  clearTimeout(timer);
  timer = setTimeout(update, PAUSE);
}

/** Puts a text into the field and translates it at once. */
function setText(text) {
  source.value = text;
  changed();
  clearTimeout(timer);
  update();
}

source.addEventListener("input", ({ isComposing }) => {
  changed();
  // A word that an input method is still composing is not translated yet.
  if (isComposing) clearTimeout(timer);
});
source.addEventListener("compositionend", changed);
at("clear").addEventListener("click", () => {
  setText("");
  source.focus();
});

// ---- Copying and sharing ----

async function copy(button, text, done) {
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    isCopied = copyBySelection(text);
  }
  const label = button.querySelector("span");
  label.textContent = word(isCopied ? done : "not_copied");
  label.setAttribute("aria-live", "polite");
  setTimeout(() => (label.textContent = word(label.dataset.word)), 2_500);
}

/** Copies where the browser has no clipboard for pages, as over HTTP from another machine. */
function copyBySelection(text) {
  const area = document.createElement("textarea");
  const focused = document.activeElement;
  area.value = text;
  area.className = "aside";
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}

at("copy").addEventListener("click", () => copy(at("copy"), wholeTranslation(), "copied"));
at("share").addEventListener("click", () => {
  const link = new URL(location.href);
  link.hash = new URLSearchParams({ model: card.name, text: source.value });
  history.replaceState(null, "", link);
  copy(at("share"), link.href, "shared");
});

/** Takes over what a link holds: a token, which does not stay in the address, a model, a text. */
function readLink() {
  const held = new URLSearchParams(location.hash.slice(1));
  if (held.has("token")) {
    useToken(held.get("token"));
    held.delete("token");
    const rest = String(held) && `#${held}`;
    history.replaceState(null, "", location.pathname + location.search + rest);
  }
  return { model: held.get("model"), text: held.get("text") };
}

addEventListener("hashchange", () => {
  const { model, text } = readLink();
  const hash = location.hash;
  if (model) useModel(model);
  if (text === null) return;
  setText(text);
  history.replaceState(null, "", hash);
});

// ---- Languages and models ----

const nameOfPair = ({ source_lang, target_lang }) =>
  `${languageName(source_lang)} → ${languageName(target_lang)}`;

/** The models from one language into another; without the second, into any. */
const cardsOf = (from, to) =>
  cards.filter((one) => one.source_lang === from && (!to || one.target_lang === to));

const opposite = () => cardsOf(card.target_lang, card.source_lang)[0];

/** Uses the model of this name, or the first one. */
function useModel(name) {
  useCard(cards.find((one) => one.name === name) ?? cards[0]);
  useTerms(termsFor(card, cards));
  source.lang = at("mirror").lang = card.source_lang;
  source.dir = at("mirror").dir = direction(card.source_lang);
  at("translation").lang = card.target_lang;
  at("translation").dir = direction(card.target_lang);
  writeModel();
  closeOthers();
  update();
}

/** Writes what depends on the model and on the language of the interface. */
function writeModel() {
  document.title = card ? `${nameOfPair(card)} · ${word("title")}` : word("title");
  at("language").textContent = word("other_language");
  at("language").lang = language === "en" ? "zh-CN" : "en";
  for (const key of document.querySelectorAll(".control")) key.textContent = CONTROL;
  if (!card) return;
  const { source_lang, target_lang } = card;
  const [from, to] = [languageName(source_lang), languageName(target_lang)];
  at("source-language").textContent = from;
  at("target-language").textContent = to;
  offer("from", cards.map((one) => one.source_lang), source_lang, languageName);
  offer("to", cardsOf(source_lang).map((one) => one.target_lang), target_lang, languageName);
  const names = cardsOf(source_lang, target_lang).map((one) => one.name);
  offer("model", names, card.name, String);
  at("choice").hidden = names.length < 2;
  at("swap").setAttribute("aria-disabled", !opposite());
  at("swap").title = word(opposite() ? "swap" : "no_pair", to, from);
  say("swap-note", "");
  const size = number(card.parameters, {
    notation: "compact",
    compactDisplay: "long",
    maximumSignificantDigits: 3,
  });
  const facts = [word("about_model", card.name, size)];
  // The server writes the number of pairs in English.
  const pairs = card.pairs === null ? "" : word("pairs", number(card.pairs));
  if (card.data) facts.push(word("about_data", card.data.replace(/[\d,]+ pairs$/, pairs)));
  if (card.test) {
    const { metric, score, interval } = card.test;
    const digits = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
    const both = [score, interval].filter((one) => one !== null && one !== undefined);
    facts.push(word("about_test", metric, both.map((one) => number(one, digits)).join(" ± ")));
  }
  at("about-model").textContent = facts.join(" · ");
  at("about").hidden = false;
}

/** Offers values to choose from, each once. A single one is only shown. */
function offer(id, values, chosen, nameOf) {
  const different = [...new Set(values)];
  at(id).replaceChildren(...different.map((value) => new Option(nameOf(value), value)));
  at(id).value = chosen;
  at(id).disabled = different.length < 2;
}

/** Exchanges the languages, and the text with its translation if that is complete. */
function swap() {
  if (!card) return;
  if (!opposite()) {
    say("swap-note", at("swap").title);
    return;
  }
  const isComplete = !isTyping && !at("working").textContent;
  const text = (isComplete && wholeTranslation()) || source.value;
  useModel(opposite().name);
  setText(text);
}

at("from").addEventListener("change", () => {
  const from = at("from").value;
  // The other language stays if it can; if it is the same now, the languages are exchanged.
  const [found] = [card.target_lang, card.source_lang, ""].flatMap((to) => cardsOf(from, to));
  useModel(found.name);
});
at("to").addEventListener("change", () => {
  useModel(cardsOf(card.source_lang, at("to").value)[0].name);
});
at("model").addEventListener("change", () => useModel(at("model").value));
at("swap").addEventListener("click", swap);
at("language").addEventListener("click", () => {
  switchLanguage();
  closeOthers();
  writeWords();
  writeModel();
  writeFiles();
  writeTerms();
  update();
});

// ---- Panels and the keyboard ----

for (const panel of document.querySelectorAll("dialog")) {
  panel.querySelector(".close").addEventListener("click", () => panel.close());
  // Only what is around a panel is no part of its content.
  panel.addEventListener("click", ({ target }) => target === panel && panel.close());
}
at("keys-open").addEventListener("click", () => at("keys").showModal());
onReopen(
  ({ model, source_lang, target_lang, text }) => {
    const found = cardsOf(source_lang, target_lang);
    useModel((found.find((one) => one.name === model) ?? found[0]).name);
    setText(text);
    source.focus();
  },
  ({ source_lang, target_lang }) => cardsOf(source_lang, target_lang).length > 0,
);

document.addEventListener("keydown", (event) => {
  const { key, code, isComposing } = event;
  if (key === "Escape") light(null);
  const isControl = event.ctrlKey || event.metaKey;
  if (!isControl || event.altKey || isComposing || document.querySelector("dialog[open]")) return;
  // On a keyboard without Latin letters, the key at the place of the S.
  const isS = /^[a-z]$/i.test(key) ? key.toLowerCase() === "s" : code === "KeyS";
  if (key === "Enter") {
    clearTimeout(timer);
    forgetProblems();
    update();
  } else if (event.shiftKey && isS) {
    swap();
  } else {
    return;
  }
  event.preventDefault();
});

// ---- Files ----

const holdsFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");

function addFiles(files) {
  if (card) for (const file of files) addFile(file, card, terms);
}

at("choose").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => {
  addFiles(at("file").files);
  at("file").value = "";
});
document.addEventListener("dragover", (event) => {
  if (!holdsFiles(event)) return;
  event.preventDefault();
  at("dropping").hidden = false;
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) at("dropping").hidden = true;
});
document.addEventListener("drop", (event) => {
  at("dropping").hidden = true;
  if (!holdsFiles(event)) return;
  event.preventDefault();
  addFiles(event.dataTransfer.files);
});

// ---- The server ----

let isAway = false;
let busyTimer = 0;

function setBusy(seconds) {
  clearTimeout(busyTimer);
  say("state", isAway ? word("away") : seconds ? word("busy", number(seconds)) : "");
  document.body.classList.toggle("away", isAway);
  if (seconds) busyTimer = setTimeout(() => setBusy(0), seconds * 1_000);
}

listeners.away = () => {
  isAway = true;
  setBusy(0);
};
listeners.back = () => {
  isAway = false;
  setBusy(0);
  // Another server may have taken the place of the one that was here. The first request for the
  // models, however, goes on by itself.
  if (card) loadModels(card.name);
};
listeners.busy = setBusy;
listeners.token = (wasWrong) =>
  new Promise((resolve) => {
    const form = at("token");
    form.hidden = false;
    at("token-wrong").textContent = wasWrong ? word("token_wrong") : "";
    at("token-text").focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      form.hidden = true;
      resolve(at("token-text").value.trim());
      at("token-text").value = "";
      source.focus();
    };
  });

/** Asks which models there are, and uses the one of this name. */
async function loadModels(name) {
  try {
    ({ models: cards } = await ask("models"));
  } catch (problem) {
    say("problem", problem.message);
    return;
  }
  if (cards.length) useModel(name);
  else say("problem", word("no_models"));
}

writeWords();
writeModel();
const link = readLink();
if (link.text !== null) source.value = link.text;
showPlain(source.value);
if (canPoint) source.focus();
loadModels(link.model);
