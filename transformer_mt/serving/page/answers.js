// The sentences of the text and what the server has answered to them. Answers are kept by model and
// sentence, so that one that comes late replaces nothing newer.

import { translations } from "./server.js";
import { sentenceFinder } from "./text.js";

const MOST_SENTENCES = 50; // in a request
const MOST_REQUESTS = 2; // at a time
const MOST_ANSWERS = 5_000; // kept

/** The model in use, or null as long as none is known. */
export let card = null;

/**
 * The lines of the text: [{indent, sentences: [{start, text, old}]}]. `start` is the place in the
 * text, and `old` the translation that stood there until the sentence gets its own.
 */
export let lines = [];

let findSentences = () => [];
let whenAnswered = () => {};
// {text, alignment, words, source_words, outputs}, as in the server's answer, or {problem: Error}.
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
  card = other;
  findSentences = sentenceFinder(card.source_lang);
}

/** Finds the sentences of a text and asks for those that have no answer yet. */
export function translate(text) {
  const before = allSentences();
  let start = 0;
  lines = text.split("\n").map((line) => {
    const sentences = findSentences(line);
    for (const sentence of sentences) sentence.start += start;
    start += line.length + 1;
    return { indent: line.match(/^\s*/)[0], sentences };
  });
  inheritOld(before, allSentences());
  request();
}

/** Replaces the translation of a sentence by one of its outputs. */
export function choose(sentence, { text, alignment, words }) {
  answers.set(keyOf(sentence.text), { ...answerOf(sentence), text, alignment, words });
  whenAnswered();
}

/** Forgets what went wrong and may go better now. Too long a sentence stays too long. */
export function forgetProblems() {
  for (const [key, { problem }] of answers)
    if (problem && problem.status !== 413 && problem.status !== 422) answers.delete(key);
}

/** What is shown for a sentence: its translation, the old one, or the sentence if it was refused. */
export function shownText(sentence) {
  const answer = answerOf(sentence);
  if (!answer) return sentence.old;
  return answer.problem ? sentence.text : answer.text;
}

/** What stands between the sentences of a translation. */
export const glue = () => (card.target_spaces ? " " : "");

/** The whole translation, with the lines of the text. */
export function wholeTranslation() {
  return lines
    .map(({ indent, sentences }) => indent + sentences.map(shownText).filter(Boolean).join(glue()))
    .join("\n");
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
    const settings = { model: card.name, ...(card.alignment && { alignment: true }) };
    found = await translations(texts, settings, one.stop.signal);
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
