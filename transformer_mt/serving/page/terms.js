// The terms that one gives, with their translations. What is typed stays in this browser, for each
// pair of languages.

import { number, word } from "./words.js";

// What a request may have, as in serving/requests.py.
const MOST_TERMS = 2_000;
const MOST_TEXTS = 20; // of a term: itself, its translation and the forms of that
const LONGEST = 200; // characters of a text
const FORBIDDEN = "forbidden";
const PAUSE = 500; // milliseconds without a keystroke after which the terms are used
const MOST_NAMED = 10; // lines that cannot be read

const section = document.getElementById("terms");
const field = document.getElementById("terms-text");
const state = document.getElementById("terms-state");
const wrong = document.getElementById("terms-wrong");

let card = null;
let found = read("");
let refusal = ""; // the server's
let whenChanged = () => {};
const texts = new Map(); // what was typed, by its key in the browser's storage

const stored = () => `transformer_mt.terms.${card.source_lang}-${card.target_lang}`;
const usable = () => (card?.terms ? found.terms : []);

/** Calls a function with the terms whenever they have changed. */
export function onTerms(callback) {
  whenChanged = callback;
}

/** Shows the terms of a model's languages, and returns them as requests have them. */
export function termsFor(other, cards) {
  card = other;
  section.hidden = !cards.some((one) => one.terms);
  const text = texts.get(stored()) ?? remembered();
  if (field.value !== text) field.value = text;
  found = read(text);
  writeTerms();
  return usable();
}

/** Shows why the server has refused the terms; an empty message if it has not. */
export function refuseTerms(message) {
  if (message === refusal) return;
  refusal = message;
  writeTerms();
}

/** Writes what is to be said about the terms, in the language of the interface. */
export function writeTerms() {
  const { terms, bare, long, many } = found;
  const messages = [];
  if (terms.length && card && !card.terms) messages.push(word("terms_unable"));
  if (refusal) messages.push(refusal);
  if (bare.length) messages.push(word("terms_bare", named(bare), bare.length === 1));
  if (long.length) {
    const limits = [number(MOST_TEXTS), number(LONGEST)];
    messages.push(word("terms_long", named(long), long.length === 1, ...limits));
  }
  if (many.length) messages.push(word("terms_many", number(many[0]), number(MOST_TERMS)));
  const message = messages.join("\n");
  if (wrong.textContent !== message) wrong.textContent = message;
  field.setAttribute("aria-invalid", Boolean(message));
  const unread = bare.length + long.length + many.length;
  const counts = [];
  if (terms.length) {
    const name = card?.terms ? "terms_count" : "terms_unused";
    counts.push(word(name, number(terms.length), terms.length === 1));
  }
  if (unread) counts.push(word("terms_not_read", number(unread), unread === 1));
  state.textContent = counts.join(" · ");
}

/**
 * The terms of a text, and the numbers of the lines that have none: `bare` have no translation,
 * `long` have too much, and `many` come after all that a request may have.
 */
export function read(text) {
  const read = { terms: [], bare: [], long: [], many: [] };
  text.split("\n").forEach((line, index) => {
    if (!line.trim() || line.startsWith("#")) return;
    const columns = columnsOf(line.trimEnd()).map((column) => column.trim());
    const isForbidden = columns.length > 2 && columns.at(-1) === FORBIDDEN;
    const [term, ...forms] = columns.slice(0, columns.length - isForbidden);
    const own = [term, ...forms.filter(Boolean)];
    if (isForbidden) own.push(FORBIDDEN);
    if (!term || own.length - isForbidden < 2) read.bare.push(index + 1);
    else if (own.length > MOST_TEXTS || own.some(isLong)) read.long.push(index + 1);
    else if (read.terms.length === MOST_TERMS) read.many.push(index + 1);
    else read.terms.push(own);
  });
  return read;
}

// The server counts code points.
const isLong = (text) => [...text].length > LONGEST;

/** A term, its translation and so on. Only tabs separate if there are any, because texts have commas. */
function columnsOf(line) {
  if (line.includes("\t")) return line.split("\t");
  const place = line.search(/[=＝]/);
  const end = place < 0 ? line.search(/[,，]/) : place;
  return end < 0 ? [line] : [line.slice(0, end), ...line.slice(end + 1).split(/[=＝,，]/)];
}

function named(lines) {
  const some = lines.slice(0, MOST_NAMED).map((line) => number(line));
  return some.join(", ") + (lines.length > MOST_NAMED ? " …" : "");
}

// ---- The field ----

let timer = 0;

function changed() {
  // Half a surrogate pair is no text that could be sent.
  const text = field.value.toWellFormed?.() ?? field.value;
  texts.set(stored(), text);
  try {
    if (text) localStorage.setItem(stored(), text);
    else localStorage.removeItem(stored());
  } catch {
    // The browser stores nothing. The terms then last as long as the page.
  }
  clearTimeout(timer);
  const mine = card;
  timer = setTimeout(() => {
    if (mine !== card) return; // The terms of another pair are shown already.
    found = read(text);
    writeTerms();
    whenChanged(usable());
  }, PAUSE);
}

field.addEventListener("input", ({ isComposing }) => {
  changed();
  // A word that an input method is still composing is not used yet.
  if (isComposing) clearTimeout(timer);
});
field.addEventListener("compositionend", changed);

function remembered() {
  try {
    return localStorage.getItem(stored()) ?? "";
  } catch {
    return "";
  }
}
