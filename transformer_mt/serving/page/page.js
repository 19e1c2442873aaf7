// The translation page: two panes, the text on one side and its translation on the other.

import { addFile, writeFiles } from "./files.js";
import { address, ask, listeners, Problem, translations, useToken } from "./server.js";
import { difference, direction, inWords, sentenceFinder } from "./text.js";
import { language, languageName, number, switchLanguage, word, writeWords } from "./words.js";

const PAUSE = 300; // milliseconds without a keystroke after which the text is translated
const MOST_CHARACTERS = 20_000; // of a text that is translated while it is typed
const MOST_SENTENCES = 50; // in a request
const MOST_REQUESTS = 2; // at a time
const MOST_ANSWERS = 5_000; // kept
const MOST_OTHERS = 5; // translations of a sentence to choose from

const at = (id) => document.getElementById(id);
const [source, mirror, translation, others] = ["source", "mirror", "translation", "others"].map(at);

let cards = [];
let card = null; // the model in use
let findSentences = () => [];
// The lines of the text: [{indent, sentences: [{start, text, old}]}]. `old` is the translation that
// stood in the place of a sentence until its own one arrives.
let lines = [];
// What the server said about a sentence, by model and sentence: {text, score, alignment,
// source_words, words, outputs}, or {problem}.
const answers = new Map();
let isTyping = false; // whether the text has changed since its sentences were found
const requests = new Set(); // those under way: {keys, stop}
const rows = []; // the lines of the translation as they are shown: {element, parts}
const views = new Map(); // by "line.sentence", the elements of the words: {source, target}
let shownMirror = [];

// ---- From the text to its translation ----

const keyOf = (text) => `${card.name}\n${text}`;
const answerOf = (sentence) => answers.get(keyOf(sentence.text));

/** Finds the sentences of the text, asks for those that have no answer yet, and shows the rest. */
function update() {
  isTyping = false;
  if (!card) return;
  const text = source.value.toWellFormed?.() ?? source.value;
  const isTooLong = text.length > MOST_CHARACTERS;
  const before = lines.flatMap((line) => line.sentences);
  let start = 0;
  lines = (isTooLong ? "" : text).split("\n").map((line) => {
    const sentences = findSentences(line);
    for (const sentence of sentences) sentence.start += start;
    start += line.length + 1;
    return { indent: line.match(/^\s*/)[0], sentences };
  });
  inheritOld(before, lines.flatMap((line) => line.sentences));
  request();
  const length = [number(text.length), number(MOST_CHARACTERS)];
  show(isTooLong ? word("too_long", ...length) : null);
}

/** Gives each sentence that is new the translation that was shown in its place. */
function inheritOld(before, now) {
  const isSame = (one, two) => one && two && one.text === two.text;
  let first = 0;
  while (isSame(before[first], now[first])) first += 1;
  let last = 1;
  while (before.length - last >= first && isSame(before.at(-last), now.at(-last))) last += 1;
  for (let index = first; index <= now.length - last; index += 1) {
    const old = index <= before.length - last ? before[index] : null;
    now[index].old = old ? shownText(old) : "";
  }
}

/** Asks for what is missing, and gives up requests of which nothing is needed any more. */
function request() {
  const keys = new Map(
    lines.flatMap((line) => line.sentences.map(({ text }) => [keyOf(text), text])),
  );
  for (const one of requests) if (!one.keys.some((key) => keys.has(key))) one.stop.abort();
  const running = [...requests].filter((one) => !one.stop.signal.aborted);
  const isAsked = (key) => answers.has(key) || running.some((one) => one.keys.includes(key));
  const missing = [...keys.keys()].filter((key) => !isAsked(key));
  const most = Math.min(MOST_SENTENCES, card.limits.lines);
  for (let free = MOST_REQUESTS - running.length; free > 0 && missing.length; free -= 1) {
    const some = missing.splice(0, most);
    fetchAnswers(some, some.map((key) => keys.get(key)));
  }
}

async function fetchAnswers(keys, texts) {
  const one = { keys, stop: new AbortController() };
  requests.add(one);
  let found;
  try {
    const settings = { model: card.name, ...(card.alignment && { alignment: true }) };
    found = await translations(texts, settings, one.stop.signal);
  } catch (problem) {
    found = texts.map(() => problem);
  }
  requests.delete(one);
  if (!one.stop.signal.aborted) {
    setBusy(0);
    found.forEach((answer, index) => {
      answers.set(keys[index], answer instanceof Error ? { problem: answer } : answer);
    });
    forgetOldest();
  }
  if (!isTyping) update();
}

function forgetOldest() {
  const needed = new Set(lines.flatMap((line) => line.sentences.map(({ text }) => keyOf(text))));
  for (const key of answers.keys()) {
    if (answers.size <= MOST_ANSWERS) break;
    if (!needed.has(key)) answers.delete(key);
  }
}

/** Forgets what went wrong and may go better now. Too long a sentence stays too long. */
function forgetProblems() {
  for (const [key, { problem }] of answers)
    if (problem && problem.status !== 413 && problem.status !== 422) answers.delete(key);
}

/** What is shown for a sentence: its translation, the old one, or the sentence if it was refused. */
function shownText(sentence) {
  const answer = answerOf(sentence);
  if (!answer) return sentence.old;
  return answer.problem ? sentence.text : answer.text;
}

/** The whole translation, with the lines of the text. */
function wholeTranslation() {
  const glue = card.target_spaces ? " " : "";
  return lines
    .map(({ indent, sentences }) => indent + sentences.map(shownText).filter(Boolean).join(glue))
    .join("\n");
}

// ---- Showing it ----

/** Shows the translation as far as it is known. Lines that did not change are left alone. */
function show(tooLong) {
  const all = lines.flatMap((line) => line.sentences);
  const known = all.map(answerOf);
  lines.forEach((line, index) => showLine(line, index));
  for (const row of rows.splice(lines.length)) row.element.remove();
  translation.classList.toggle("empty", all.length === 0);
  translation.dataset.hint = word("target_hint");
  showMirror();
  setTabStop();
  at("working").textContent = known.includes(undefined) ? word("working") : "";
  at("clear").hidden = !source.value;
  at("share").disabled = !source.value;
  at("copy").disabled = !known.some((answer) => answer?.text);
  const wrong = known.find((answer) => answer?.problem)?.problem;
  const refused = wrong && (wrong instanceof Problem ? wrong.message : String(wrong));
  say("problem", tooLong ?? (refused ? word("not_translated", refused) : ""));
  at("hint").textContent = known.some((answer) => answer?.text)
    ? word(card.alignment ? "hint_words" : "hint")
    : "";
}

/** Writes a message into an element, which is hidden if there is none. */
function say(id, message) {
  const element = at(id);
  if (element.textContent !== message) element.textContent = message;
  element.hidden = !message;
}

function showLine(line, index) {
  const parts = [line.indent, card, ...line.sentences.flatMap((one) => [answerOf(one), shownText(one)])];
  const row = rows[index] ?? { element: document.createElement("p"), parts: [] };
  if (!rows[index]) {
    rows.push(row);
    translation.append(row.element);
  }
  if (parts.length === row.parts.length && parts.every((part, i) => part === row.parts[i])) return;
  row.parts = parts;
  const focused = row.element.contains(document.activeElement)
    ? document.activeElement.dataset.sentence
    : null;
  const glue = card.target_spaces ? " " : "";
  const shown = line.sentences.flatMap((sentence, number) => [
    number > 0 ? glue : "",
    sentenceElement(sentence, index, number),
  ]);
  row.element.dir = direction(card.target_lang);
  row.element.replaceChildren(line.indent, ...shown);
  if (focused !== null) row.element.querySelector(`[data-sentence="${focused}"]`)?.focus();
}

function sentenceElement(sentence, line, number) {
  const element = document.createElement("span");
  const answer = answerOf(sentence);
  element.className = "sentence";
  element.dataset.line = line;
  element.dataset.sentence = number;
  if (!answer || answer.problem) {
    element.classList.add(answer ? "refused" : "old");
    element.textContent = shownText(sentence);
    return element;
  }
  element.setAttribute("role", "button");
  element.setAttribute("aria-haspopup", "dialog");
  element.tabIndex = -1;
  const words = [];
  element.append(...withWords(answer.text, answer.words ?? [], words));
  views.set(`${line}.${number}`, { ...views.get(`${line}.${number}`), target: words });
  return element;
}

/** The nodes of a text with an element around each word, which goes into `elements` too. */
function withWords(text, spans, elements) {
  return inWords(text, spans).map((piece) => {
    if (piece.word === undefined) return piece.text;
    const element = document.createElement("span");
    element.textContent = piece.text;
    element.dataset.word = piece.word;
    elements[piece.word] = element;
    return element;
  });
}

/**
 * Copies the text behind the text field, where its words can be lit. The copy gives the field its
 * height, too.
 */
function showMirror() {
  const all = lines.flatMap((line) => line.sentences);
  const parts = [source.value, card, ...all.map((sentence) => answerOf(sentence)?.source_words)];
  if (parts.length === shownMirror.length && parts.every((one, i) => one === shownMirror[i])) return;
  shownMirror = parts;
  const text = source.value;
  const nodes = [];
  let position = 0;
  lines.forEach((line, index) => {
    line.sentences.forEach((sentence, number) => {
      const spans = answerOf(sentence)?.source_words;
      const key = `${index}.${number}`;
      views.set(key, { ...views.get(key), source: [] });
      if (!spans) return;
      const element = document.createElement("span");
      element.dataset.line = index;
      element.dataset.sentence = number;
      element.append(...withWords(sentence.text, spans, views.get(key).source));
      nodes.push(text.slice(position, sentence.start), element);
      position = sentence.start + sentence.text.length;
    });
  });
  mirror.replaceChildren(...nodes, `${text.slice(position)}\n`);
}

// ---- Words that belong together ----

let lit = [];

/** Lights a word, and the words of the other side that belong to it. */
function light(element) {
  const place = element?.closest("[data-sentence]")?.dataset;
  const sentence = place && lines[place.line]?.sentences[place.sentence];
  const answer = sentence && answerOf(sentence);
  for (const one of lit) one.classList.remove("lit", "partner");
  lit = [];
  if (!answer?.alignment || element.dataset.word === undefined) return;
  const view = views.get(`${place.line}.${place.sentence}`);
  const index = Number(element.dataset.word);
  const isSource = mirror.contains(element);
  const [here, there] = isSource ? [0, 1] : [1, 0];
  const linked = answer.alignment.filter((pair) => pair[here] === index).map((pair) => pair[there]);
  const partners = linked.map((word) => (isSource ? view.target : view.source)[word]).filter(Boolean);
  element.classList.add("lit");
  for (const partner of partners) partner.classList.add("partner");
  lit = [element, ...partners];
}

/** The word of the text under a point of the text field. */
function wordUnder(x, y) {
  return document.elementsFromPoint(x, y).find((one) => one.dataset.word && mirror.contains(one));
}

/** The word of the text at the cursor. */
function wordAtCursor() {
  const position = source.selectionStart;
  for (const [index, line] of lines.entries())
    for (const [number, { start, text }] of line.sentences.entries()) {
      if (position < start || position > start + text.length) continue;
      let offset = start;
      for (const piece of mirror.querySelector(
        `[data-line="${index}"][data-sentence="${number}"]`,
      )?.childNodes ?? []) {
        offset += piece.textContent.length;
        if (position < offset) return piece.nodeType === Node.ELEMENT_NODE ? piece : undefined;
      }
    }
  return undefined;
}

let frame = 0;
source.addEventListener("pointermove", ({ clientX, clientY }) => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => light(wordUnder(clientX, clientY)));
});
for (const element of [source, translation])
  element.addEventListener("pointerleave", ({ pointerType }) => {
    cancelAnimationFrame(frame);
    if (pointerType === "mouse") light(null);
  });
source.addEventListener("click", () => light(wordAtCursor()));
source.addEventListener("keyup", ({ key }) => {
  if (/^(Arrow|Home|End|Page)/.test(key)) light(wordAtCursor());
});
translation.addEventListener("pointerover", ({ target }) => light(target));

// ---- The sentences by keyboard, and their other translations ----

const sentenceElements = () => [...translation.querySelectorAll("[role=button]")];

/** One sentence can be reached by the Tab key, the others from there by the arrow keys. */
function setTabStop() {
  const all = sentenceElements();
  const stop = all.find((one) => one === document.activeElement) ?? all[0];
  for (const one of all) one.tabIndex = one === stop ? 0 : -1;
}

translation.addEventListener("focusin", setTabStop);
translation.addEventListener("keydown", (event) => {
  const sentence = event.target.closest("[role=button]");
  const steps = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 };
  if (!sentence) return;
  if (event.key === "Enter" || event.key === " ") openOthers(sentence);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const all = sentenceElements();
    all[all.indexOf(sentence) + steps[event.key]]?.focus();
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    const words = [...sentence.querySelectorAll("[data-word]")];
    const forward = direction(card.target_lang) === "rtl" ? -1 : 1;
    const next = words.findIndex((one) => lit[0] === one) + steps[event.key] * forward;
    light(words[Math.max(0, next)] ?? words.at(-1));
  } else return;
  event.preventDefault();
});
translation.addEventListener("click", ({ target }) => {
  const sentence = target.closest("[role=button]");
  if (sentence && getSelection().isCollapsed) openOthers(sentence);
});

let open = null; // the sentence whose other translations are shown: {line, sentence, stop}

async function openOthers(element) {
  closeOthers();
  const { line, sentence } = element.dataset;
  const { text } = lines[line].sentences[sentence];
  const mine = { line, sentence, stop: new AbortController() };
  open = mine;
  element.classList.add("open");
  element.setAttribute("aria-expanded", "true");
  others.hidden = false;
  fillOthers(text);
  placeOthers(element);
  focusOthers();
  const key = keyOf(text);
  if (card.n_best > 1 && !answers.get(key).outputs) {
    const n_best = Math.min(MOST_OTHERS, card.n_best);
    const settings = { model: card.name, n_best, scores: true };
    if (card.alignment) settings.alignment = true;
    try {
      const [found] = await translations([text], settings, mine.stop.signal);
      if (found instanceof Problem) throw found;
      answers.get(key).outputs = found.outputs;
    } catch (problem) {
      if (!mine.stop.signal.aborted) fillOthers(text, problem.message);
      return;
    }
    if (open !== mine) return;
    fillOthers(text);
    placeOthers(element);
    focusOthers();
  }
}

/** Puts the keyboard's focus on the current translation among the others. */
function focusOthers() {
  (others.querySelector("[aria-pressed=true]") ?? others.querySelector("button")).focus();
}

function fillOthers(text, problem) {
  const key = keyOf(text);
  const { text: current, outputs } = answers.get(key);
  const nodes = [];
  const add = (tag, name, ...content) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (tag === "button") element.type = "button";
    element.append(...content);
    nodes.push(element);
    return element;
  };
  const close = add("button", "close", "✕");
  close.setAttribute("aria-label", word("close"));
  close.addEventListener("click", closeOthers);
  if (card.n_best > 1) {
    add("h2", "", word("others"));
    if (problem) add("p", "problem", problem);
    else if (!outputs) add("p", "quiet", word("others_wait"));
    else if (outputs.length < 2) add("p", "quiet", word("others_none"));
  }
  for (const output of outputs?.length > 1 ? outputs : []) {
    const says = document.createElement("bdi");
    const [before, different, after] = difference(output.text, current);
    const mark = document.createElement("b");
    mark.textContent = different;
    says.append(before, mark, after);
    const score = document.createElement("span");
    score.className = "quiet";
    const digits = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
    score.textContent = output.score === undefined ? "" : number(output.score, digits);
    const button = add("button", "output", says, score);
    button.setAttribute("aria-pressed", output.text === current);
    button.dir = direction(card.target_lang);
    button.addEventListener("click", () => choose(key, output));
  }
  if (outputs?.length > 1) add("p", "quiet", word("score_note"));
  if (card.attention) {
    const map = add("button", "map", `${word("map")} ↗`);
    map.title = word("map_note");
    map.addEventListener("click", () => openMap(text, current));
  }
  others.replaceChildren(...nodes);
}

/** Under the sentence; on a narrow screen the style puts it at the lower edge of the window. */
function placeOthers(element) {
  const box = [...element.getClientRects()].at(-1) ?? element.getBoundingClientRect();
  const right = at("panes").getBoundingClientRect().right;
  const left = Math.max(12, Math.min(box.left, right - others.offsetWidth));
  others.style.left = `${left + scrollX}px`;
  others.style.top = `${box.bottom + scrollY + 6}px`;
  const hidden = box.bottom + 12 - others.getBoundingClientRect().top;
  if (hidden > 0) scrollBy({ top: hidden });
}

function choose(key, { text, alignment, words }) {
  answers.set(key, { ...answers.get(key), text, alignment, words });
  update();
  closeOthers();
}

function closeOthers() {
  if (!open) return;
  const { line, sentence, stop } = open;
  const hadFocus = others.contains(document.activeElement);
  open = null;
  stop.abort();
  others.hidden = true;
  for (const element of translation.querySelectorAll(".open")) {
    element.classList.remove("open");
    element.removeAttribute("aria-expanded");
  }
  const place = `[data-line="${line}"][data-sentence="${sentence}"]`;
  if (hadFocus) translation.querySelector(place)?.focus();
}

/** Opens the page of the attention map. The tab has to be opened before the answer is there. */
async function openMap(text, target) {
  const tab = window.open("", "_blank");
  try {
    const { url } = await ask("attention", { model: card.name, source: text, target });
    if (tab) {
      tab.opener = null;
      tab.location.replace(address(url));
    }
  } catch (problem) {
    tab?.close();
    fillOthers(text, problem.message);
  }
}

document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") {
    closeOthers();
    light(null);
  }
});
document.addEventListener("pointerdown", ({ target }) => {
  if (!others.contains(target)) closeOthers();
});

// ---- The text field ----

let timer = 0;

function changed() {
  light(null);
  closeOthers();
  forgetProblems();
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  isTyping = true;
  shownMirror = [];
  mirror.textContent = `${source.value}\n`;
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
  button.textContent = word(isCopied ? done : "not_copied");
  button.setAttribute("aria-live", "polite");
  setTimeout(() => (button.textContent = word(button.dataset.word)), 2_500);
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

// ---- Models ----

const nameOfPair = ({ source_lang, target_lang }) =>
  `${languageName(source_lang)} → ${languageName(target_lang)}`;

/** Uses the model of this name, or the first one. */
function useModel(name) {
  card = cards.find((one) => one.name === name) ?? cards[0];
  findSentences = sentenceFinder(card.source_lang);
  source.lang = card.source_lang;
  translation.lang = card.target_lang;
  source.dir = mirror.dir = direction(card.source_lang);
  translation.dir = direction(card.target_lang);
  writeModel();
  closeOthers();
  update();
}

const opposite = () =>
  cards.find((one) => one.source_lang === card.target_lang && one.target_lang === card.source_lang);

/** Writes what depends on the model and on the language of the interface. */
function writeModel() {
  document.title = card ? `${nameOfPair(card)} · ${word("title")}` : word("title");
  at("language").textContent = word("other_language");
  at("language").lang = language === "en" ? "zh-CN" : "en";
  if (!card) return;
  at("choice").hidden = cards.length < 2;
  const options = cards.map((one) => new Option(`${nameOfPair(one)} (${one.name})`, one.name));
  at("model").replaceChildren(...options);
  at("model").value = card.name;
  at("swap").hidden = !opposite();
  const [from, to] = [languageName(card.source_lang), languageName(card.target_lang)];
  at("source-language").textContent = from;
  at("target-language").textContent = to;
  const size = number(card.parameters, {
    notation: "compact",
    compactDisplay: "long",
    maximumSignificantDigits: 3,
  });
  const facts = [word("about_model", from, to, card.name, size)];
  if (card.test) {
    const { metric, score, interval } = card.test;
    const digits = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
    const both = [score, interval].filter((one) => one !== null && one !== undefined);
    facts.push(word("about_test", metric, both.map((one) => number(one, digits)).join(" ± ")));
  }
  at("about-model").textContent = facts.join(language === "zh" ? "" : " ");
  // The server writes the number of pairs in English.
  const pairs = card.pairs === null ? "" : word("pairs", number(card.pairs));
  at("about-limits").textContent = word("about_limits", card.data?.replace(/[\d,]+ pairs$/, pairs));
  at("about").hidden = false;
}

at("model").addEventListener("change", () => useModel(at("model").value));
at("swap").addEventListener("click", () => {
  const text = wholeTranslation();
  useModel(opposite().name);
  setText(text);
});
at("language").addEventListener("click", () => {
  switchLanguage();
  closeOthers();
  writeWords();
  writeModel();
  writeFiles();
  update();
});

// ---- Files ----

const holdsFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");

function addFiles(files) {
  if (card) for (const file of files) addFile(file, card);
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
  // Another server may have taken the place of the one that was here.
  loadModels();
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
    };
  });

async function loadModels(name = card?.name) {
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
if (matchMedia("(hover: hover)").matches) source.focus();
loadModels(link.model);
