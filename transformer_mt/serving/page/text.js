// Texts: their words, and the direction they are written in.

const RIGHT_TO_LEFT = ["ar", "arc", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi"];

/** "rtl" if the language is written from right to left, else "auto". */
export function direction(code) {
  const [language, script] = code.split(/[-_]/);
  return RIGHT_TO_LEFT.includes(language) || /^(Arab|Hebr)$/.test(script) ? "rtl" : "auto";
}

/**
 * Spans [start, end) in Unicode code points as spans in UTF-16 units, in which JavaScript counts.
 */
export function inUnits(text, spans) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return spans.map(([start, end]) => [units[start] ?? text.length, units[end] ?? text.length]);
}

/** A text from a place on in pieces, [{text, word}]; `word` is the index of the span, if any. */
export function inWords(text, spans, from = 0) {
  const pieces = [];
  let at = from;
  inUnits(text, spans).forEach(([start, end], word) => {
    if (start < at || end <= start) return;
    if (start > at) pieces.push({ text: text.slice(at, start) });
    pieces.push({ text: text.slice(start, end), word });
    at = end;
  });
  if (at < text.length) pieces.push({ text: text.slice(at) });
  return pieces;
}

/** The part of `text` that differs from `other`, in whole words: [before, different, after]. */
export function difference(text, other) {
  const [one, two] = [parts(text), parts(other)];
  const most = Math.min(one.length, two.length);
  let first = 0;
  while (first < most && one[first] === two[first]) first += 1;
  let last = 0;
  while (last < most - first && one.at(-1 - last) === two.at(-1 - last)) last += 1;
  const end = one.length - last;
  return [one.slice(0, first), one.slice(first, end), one.slice(end)].map((some) => some.join(""));
}

/** Whether a text is what another one became while it was typed on or corrected. */
export function isEdited(text, before) {
  const [start, , end] = difference(text, before);
  const same = start.length + end.length;
  return text.startsWith(before) || same >= 0.8 * Math.max(text.length, before.length);
}

/** The words of a text and what stands between them. */
function parts(text) {
  if (!Intl.Segmenter) return text.split(/(\s+)/);
  const words = new Intl.Segmenter(undefined, { granularity: "word" }).segment(text);
  return Array.from(words, ({ segment }) => segment);
}
