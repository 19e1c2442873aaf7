// Texts: their lines, sentences and words, and the direction they are written in.

const RIGHT_TO_LEFT = ["ar", "arc", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi"];

// A sentence does not end after these, though the browser's rules say so where a capital follows.
const ABBREVIATION = /(^|[\s("'“„])(\p{Lu}|Mr|Mrs|Ms|Dr|Prof|St|Mt|Nr|No|Hr|Fr|Mme|Mlle|Sr|Sra|bzw|ca|vgl|vs)\.\s*$/u;
// In these languages a number with a full stop is an ordinal: "am 3. Oktober".
const ORDINALS = /^(cs|da|de|et|fi|hr|hu|is|lv|nb|nn|no|pl|sk|sl|sr|tr)\b/;
const ORDINAL = /(^|\s)\d{1,2}\.\s*$/;

/** "rtl" if the language is written from right to left, else "auto". */
export function direction(code) {
  const [language, script] = code.split(/[-_]/);
  return RIGHT_TO_LEFT.includes(language) || /^(Arab|Hebr)$/.test(script) ? "rtl" : "auto";
}

/** What finds the sentences of a language's text. */
export function sentenceFinder(code) {
  let segmenter;
  try {
    segmenter = new Intl.Segmenter(code.replaceAll("_", "-"), { granularity: "sentence" });
  } catch {
    // The code is not that of a language, or the browser has no segmenter: a line is a sentence.
    segmenter = Intl.Segmenter && new Intl.Segmenter("en", { granularity: "sentence" });
  }
  const hasOrdinals = ORDINALS.test(code);
  const goesOn = (text) => ABBREVIATION.test(text) || (hasOrdinals && ORDINAL.test(text));

  /** The sentences of a line, without the white space around them: [{start, text}]. */
  return (line) => {
    const parts = [];
    for (const { segment, index } of segmenter?.segment(line) ?? [{ segment: line, index: 0 }]) {
      const last = parts.at(-1);
      if (last && goesOn(last.text)) last.text += segment;
      else parts.push({ start: index, text: segment });
    }
    return parts
      .map(({ start, text }) => ({ start: start + text.length - text.trimStart().length, text: text.trim() }))
      .filter(({ text }) => text);
  };
}

/**
 * Spans [start, end) in Unicode code points as spans in UTF-16 units, in which JavaScript counts.
 */
export function inUnits(text, spans) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return spans.map(([start, end]) => [units[start] ?? text.length, units[end] ?? text.length]);
}

/** A text in pieces, [{text, word}], where `word` is the index of the span or undefined. */
export function inWords(text, spans) {
  const pieces = [];
  let at = 0;
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

/** The words of a text and what stands between them. */
function parts(text) {
  if (!Intl.Segmenter) return text.split(/(\s+)/);
  const words = new Intl.Segmenter(undefined, { granularity: "word" }).segment(text);
  return Array.from(words, ({ segment }) => segment);
}
