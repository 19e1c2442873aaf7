// The sentences of the text and what the server has answered to them. Answers are kept by model and
// sentence, so that one that comes late replaces nothing newer.

import { ask, translations } from "./server.js";
import { inUnits } from "./text.js";

const MOST_SENTENCES = 50; // in a request
const MOST_REQUESTS = 2; // at a time
const MOST_ANSWERS = 5_000; // kept, and as many lines with their sentences

/** The model in use, or null as long as none is known. */
export let card = null;

/** How terms are translated, as in requests: lists of a term, its translation and other forms. */
export let terms = [];

/**
 * The lines of the text: [{indent, sentences: [{start, shift, text, before, old}]}]. `start` is the
 * place in the text where `text` begins, after as many characters as `shift` that the text has not
 * (a tag). `before` stands before its translation, and `old` is the translation that stood there
 * until the sentence gets its own.
 */
export let lines = [];

let whenAnswered = () => {};
const parts = new Map(); // the sentences of each line: [{start, shift, text, before}]
const guessed = new Set(); // the keys of lines whose sentences the server could not tell
let finding = null; // stops the request for the sentences of lines
// {text, alignment, words, source_words, warnings, outputs}, as in the server's answer, or {problem: Error}.
const answers = new Map();
const requests = new Set(); // those under way: {keys, stop}

const keyOf = (text) => `${card.name}\n${text}`;

/** The answer to a sentence, or undefined. */
export const answerOf = (sentence) => answers.get(keyOf(sentence.text));

/** All sentences of the text. */
export const allSentences = () => lines.flatMap((line) => line.sentences);

/** Calls a function whenever answers have come or changed. */
export function onAnswer(callback) {
  whenAnswered = callback;
}

/** Translates with another model. */
export function useCard(other) {
  // A translation into another language does not stand in for one that is not there yet.
  if (other.name !== card?.name) for (const sentence of allSentences()) sentence.old = "";
  card = other;
}

/** Translates with other terms, and so everything anew. */
export function useTerms(others) {
  if (JSON.stringify(others) === JSON.stringify(terms)) return;
  for (const sentence of allSentences()) sentence.old = shownText(sentence);
  for (const one of requests) one.stop.abort();
  answers.clear();
  terms = others;
}

/** What every request for a translation has beside its text. */
export const settings = () => ({
  model: card.name,
  ...(card.alignment && { alignment: true }),
  ...(terms.length && { terms }),
});

/**
 * Asks for the sentences of the text that have no answer yet. Returns false if the server is to tell
 * first where they are; then nothing else has changed.
 */
export function translate(text) {
  const texts = text.split("\n");
  const unknown = [...new Set(texts)].filter((line) => line.trim() && !parts.has(keyOf(line)));
  finding?.abort();
  if (unknown.length) {
    findParts(unknown.slice(0, card.limits.lines));
    return false;
  }
  const before = allSentences();
  let start = 0;
  lines = texts.map((line) => {
    const own = parts.get(keyOf(line)) ?? [];
    const sentences = own.map((part) => ({ ...part, start: start + part.start }));
    start += line.length + 1;
    return { indent: line.match(/^\s*/)[0], sentences };
  });
  inheritOld(before, allSentences());
  request();
  return true;
}

/** Asks the server for the sentences of lines. */
async function findParts(texts) {
  const stop = new AbortController();
  finding = stop;
  const model = card.name;
  let found;
  try {
    ({ parts: found } = await ask("parts", { model, text: texts }, stop.signal));
  } catch {
    if (stop.signal.aborted) return;
    // What is wrong with a line is said when its translation is asked for.
    found = texts.map((line) => [{ start: 0, end: [...line].length, text: line, before: "" }]);
    for (const line of texts) guessed.add(keyOf(line));
  }
  if (stop.signal.aborted || model !== card.name) return;
  if (parts.size > MOST_ANSWERS) parts.clear();
  texts.forEach((line, index) => {
    const places = inUnits(line, found[index].map(({ start, end }) => [start, end]));
    const own = found[index].map(({ text, before }, number) => {
      const [start, end] = places[number];
      return { start, shift: text.length - (end - start), text, before };
    });
    parts.set(keyOf(line), own);
  });
  whenAnswered();
}

/** Replaces the translation of a sentence by one of its outputs. */
export function choose(sentence, { text, alignment, words, warnings }) {
  answers.set(keyOf(sentence.text), { ...answerOf(sentence), text, alignment, words, warnings });
  whenAnswered();
}

/** Forgets what went wrong and may go better now. Too long a sentence stays too long. */
export function forgetProblems() {
  for (const key of guessed) parts.delete(key);
  guessed.clear();
  for (const [key, { problem }] of answers)
    if (problem && problem.status !== 413 && problem.status !== 422) answers.delete(key);
}

/** What is shown for a sentence: its translation, the old one, or the sentence if it was refused. */
export function shownText(sentence) {
  const answer = answerOf(sentence);
  if (!answer) return sentence.old;
  return answer.problem ? sentence.text : answer.text;
}

/** The whole translation, with the lines of the text. */
export function wholeTranslation() {
  return lines
    .map(({ indent, sentences }) => indent + sentences.map(withSpace).join(""))
    .join("\n");
}

const withSpace = (sentence) => shownText(sentence) && sentence.before + shownText(sentence);

/** Gives each sentence that is new the translation that was shown in its place. */
function inheritOld(before, now) {
  const isSame = (one, two) => one && two && one.text === two.text;
  let first = 0;
  while (isSame(before[first], now[first])) first += 1;
  let last = 1;
  while (before.length - last >= first && isSame(before.at(-last), now.at(-last))) last += 1;
  now.forEach((sentence, index) => {
    if (index < first) sentence.old = before[index].old;
    else if (index > now.length - last) sentence.old = before.at(index - now.length).old;
    else sentence.old = index <= before.length - last ? shownText(before[index]) : "";
  });
}

/** Asks for what is missing, and gives up requests of which nothing is needed any more. */
function request() {
  const keys = new Map(allSentences().map(({ text }) => [keyOf(text), text]));
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
    found = await translations(texts, settings(), one.stop.signal);
  } catch (problem) {
    found = texts.map(() => problem);
  }
  requests.delete(one);
  if (!one.stop.signal.aborted)
    found.forEach((answer, index) => {
      answers.set(keys[index], answer instanceof Error ? { problem: answer } : answer);
    });
  forgetOldest();
  whenAnswered();
}

function forgetOldest() {
  const needed = new Set(allSentences().map(({ text }) => keyOf(text)));
  for (const key of answers.keys()) {
    if (answers.size <= MOST_ANSWERS) break;
    if (!needed.has(key)) answers.delete(key);
  }
}
