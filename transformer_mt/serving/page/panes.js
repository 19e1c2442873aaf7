// The two panes: the translation, the copy of the text behind the text field, and the words that
// belong together, which are lit on both sides.

import { answerOf, card, lines, shownText } from "./answers.js";
import { direction, inWords } from "./text.js";
import { language, word } from "./words.js";

const source = document.getElementById("source");
const mirror = document.getElementById("mirror");
const translation = document.getElementById("translation");

const rows = []; // the lines of the translation as they are shown: {element, parts}
let mirrored = []; // what the copy of the text was made of
// The elements of words by side, line, sentence and word.
const words = { source: new Map(), target: new Map() };
let lit = []; // the elements that are lit, first the one that is pointed at

/** Shows the translation as far as it is known. Lines that did not change are left alone. */
export function showPanes() {
  lines.forEach(showLine);
  for (const row of rows.splice(lines.length)) row.element.remove();
  translation.classList.toggle("empty", !lines.some((line) => line.sentences.length));
  showMirror();
  setTabStop();
}

/** Makes the copy of a text whose words are not known yet. It gives the text field its height. */
export function showPlain(text) {
  mirrored = [];
  mirror.textContent = `${text}\n`;
}

/** The elements of the sentences that have their translation. */
export const sentenceElements = () => [...translation.querySelectorAll("[role=button]")];

/** The sentence that an element of a pane belongs to, or undefined. */
export function sentenceOf(element) {
  const { line, sentence } = element.closest("[data-sentence]")?.dataset ?? {};
  return lines[line]?.sentences[sentence];
}

/** Lights a word, and the words of the other side that belong to it; with null, nothing is lit. */
export function light(element) {
  for (const one of lit) one.classList.remove("lit", "partner");
  lit = [];
  const sentence = element && sentenceOf(element);
  const alignment = sentence && answerOf(sentence)?.alignment;
  if (!alignment || element.dataset.word === undefined) return;
  const { line, sentence: number } = element.parentElement.dataset;
  const [here, there, side] = mirror.contains(element) ? [0, 1, "target"] : [1, 0, "source"];
  const linked = alignment.filter((pair) => pair[here] === Number(element.dataset.word));
  const found = linked.map((pair) => words[side].get(`${line}.${number}.${pair[there]}`));
  const partners = found.filter(Boolean);
  element.classList.add("lit");
  for (const partner of partners) partner.classList.add("partner");
  lit = [element, ...partners];
}

function showLine(line, index) {
  const shown = line.sentences.flatMap((sentence) => [answerOf(sentence), shownText(sentence)]);
  const parts = [line.indent, card, language, ...shown];
  const row = rows[index] ?? { element: document.createElement("p"), parts: [] };
  if (!rows[index]) {
    rows.push(row);
    translation.append(row.element);
  }
  if (isSame(parts, row.parts)) return;
  row.parts = parts;
  const hasFocus = row.element.contains(document.activeElement);
  const place = hasFocus && `[data-sentence="${document.activeElement.dataset.sentence}"]`;
  row.element.dir = direction(card.target_lang);
  row.element.replaceChildren(line.indent);
  line.sentences.forEach((sentence, number) => {
    row.element.append(sentence.before, sentenceElement(sentence, index, number));
  });
  if (hasFocus) row.element.querySelector(place)?.focus();
}

/** What the server has found wrong with a translation, in sentences. */
export const warningsOf = ({ warnings }) =>
  (warnings ?? []).map(({ kind, what }) => word("warning", kind, what));

function sentenceElement(sentence, line, number) {
  const answer = answerOf(sentence);
  if (answer && !answer.problem) {
    const element = wordsElement("target", line, number, answer.text, answer.words ?? []);
    element.className = "sentence";
    element.setAttribute("role", "button");
    element.setAttribute("aria-haspopup", "dialog");
    element.tabIndex = -1;
    if (answer.warnings) {
      // A description of the button: it is shown on hover, and read by screen readers.
      element.title = warningsOf(answer).join("\n");
      element.classList.add("warned");
    }
    return element;
  }
  const element = document.createElement("span");
  element.className = `sentence ${answer ? "refused" : "old"}`;
  element.textContent = shownText(sentence);
  return element;
}

function showMirror() {
  const text = source.value;
  const places = lines.flatMap((line) => line.sentences.map((one) => answerOf(one)?.source_words));
  const parts = [text, card, ...places];
  if (isSame(parts, mirrored)) return;
  mirrored = parts;
  const nodes = [];
  let position = 0;
  lines.forEach((line, index) =>
    line.sentences.forEach((sentence, number) => {
      const spans = answerOf(sentence)?.source_words;
      if (!spans) return;
      nodes.push(text.slice(position, sentence.start));
      const { shift } = sentence;
      nodes.push(wordsElement("source", index, number, sentence.text, spans, shift));
      position = sentence.start + sentence.text.length - shift;
    }),
  );
  mirror.replaceChildren(...nodes, `${text.slice(position)}\n`);
}

/**
 * The element of a sentence, with an element around each of its words. The first `shift` characters
 * are left out.
 */
function wordsElement(side, line, sentence, text, spans, shift = 0) {
  const whole = document.createElement("span");
  Object.assign(whole.dataset, { line, sentence });
  for (const piece of inWords(text, spans, shift)) {
    if (piece.word === undefined) {
      whole.append(piece.text);
      continue;
    }
    const element = document.createElement("span");
    element.textContent = piece.text;
    element.dataset.word = piece.word;
    words[side].set(`${line}.${sentence}.${piece.word}`, element);
    whole.append(element);
  }
  return whole;
}

const isSame = (one, two) => one.length === two.length && one.every((part, i) => part === two[i]);

// ---- Pointing at words ----

/** The word of the text under a point of the text field. */
function wordUnder(x, y) {
  return document.elementsFromPoint(x, y).find((one) => one.dataset.word && mirror.contains(one));
}

/** The word of the text at the cursor. */
function wordAtCursor() {
  const position = source.selectionStart;
  let start = 0;
  for (const part of mirror.childNodes) {
    if (position < start + part.textContent.length) {
      let offset = start;
      for (const piece of part.childNodes) {
        offset += piece.textContent.length;
        if (position < offset) return piece.dataset && piece;
      }
      return undefined;
    }
    start += part.textContent.length;
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
// A word is dark again when the focus leaves its text, but for the other translations of it. A tap
// lights its word before the focus moves, so that word stays lit.
for (const [element, words] of [[source, mirror], [translation, null]])
  element.addEventListener("focusout", ({ target, relatedTarget }) => {
    if (!relatedTarget?.closest("#others") && (words ?? target).contains(lit[0])) light(null);
  });

// ---- The keyboard ----

/** One sentence can be reached by the Tab key, the others from there by the arrow keys. */
function setTabStop() {
  const all = sentenceElements();
  const stop = all.find((one) => one === document.activeElement) ?? all[0];
  for (const one of all) one.tabIndex = one === stop ? 0 : -1;
}

const STEPS = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 };

translation.addEventListener("focusin", setTabStop);
translation.addEventListener("keydown", (event) => {
  const sentence = event.target.closest("[role=button]");
  const step = STEPS[event.key];
  if (!sentence || !step) return;
  event.preventDefault();
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const all = sentenceElements();
    all[all.indexOf(sentence) + step]?.focus();
  } else {
    const all = [...sentence.querySelectorAll("[data-word]")];
    const forward = direction(card.target_lang) === "rtl" ? -step : step;
    const next = all.indexOf(lit[0]) + forward;
    light(all[Math.min(Math.max(0, next), all.length - 1)] ?? null);
  }
});
