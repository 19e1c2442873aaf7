// Files that are translated line by line and offered for download.

import { Problem, translations } from "./server.js";
import { number, word } from "./words.js";

const LARGEST = 20; // MB
const MOST_LINES = 100; // in a request
// A request should take about this many milliseconds, so that the bar moves and others get a turn.
const PACE = 2_000;

const jobs = new Set();
let turn = Promise.resolve();

/** Translates a file with a model and terms as soon as those before it are done. */
export function addFile(file, card, terms) {
  const job = new Job(file, card, terms);
  jobs.add(job);
  const list = document.querySelector("#files ul");
  list.append(job.element);
  list.parentElement.hidden = false;
  list.parentElement.scrollIntoView({ block: "nearest" });
  turn = turn.then(() => job.run());
}

/** Writes the texts of all files again, in the language of the interface. */
export function writeFiles() {
  for (const job of jobs) job.write();
}

class Job {
  constructor(file, card, terms) {
    this.file = file;
    this.card = card;
    this.settings = { model: card.name, ...(terms.length && { terms }) };
    this.name = targetName(file.name, card);
    this.stop = new AbortController();
    this.done = 0;
    this.all = 0;
    this.missing = null; // the first line that was refused: [its number, the message]
    this.state = "waiting"; // then "running", and at last "done" or "failed"
    this.element = document.createElement("li");
    this.bar = document.createElement("progress");
    this.says = document.createElement("span");
    this.says.setAttribute("role", "status");
    this.link = document.createElement("a");
    this.link.download = this.name;
    this.link.className = "button";
    this.button = document.createElement("button");
    this.button.type = "button";
    this.button.addEventListener("click", () => this.end());
    const title = document.createElement("bdi");
    title.textContent = file.name;
    this.element.append(title, this.bar, this.says, this.link, this.button);
    this.write();
  }

  /** Writes how far it is. */
  write() {
    const isOver = this.state === "done" || this.state === "failed";
    this.says.textContent = this.message();
    this.element.classList.toggle("failed", this.state === "failed");
    this.bar.hidden = isOver;
    this.bar.setAttribute("aria-label", this.file.name);
    if (this.state === "running") {
      this.bar.max = this.all;
      this.bar.value = this.done;
    }
    this.link.hidden = this.state !== "done";
    this.link.textContent = word("download");
    this.button.textContent = word(isOver ? "remove" : "cancel");
  }

  message() {
    if (this.state === "waiting") return word("file_waiting");
    if (this.state === "failed") return this.problem.message;
    if (this.state === "running") return word("file_count", number(this.done), number(this.all));
    const missing = this.missing ? [word("file_missing", ...this.missing)] : [];
    return [word("file_done", number(this.all)), ...missing].join(" ");
  }

  async run() {
    if (this.stop.signal.aborted) return;
    this.state = "running";
    try {
      const blob = new Blob(await this.translated(), { type: "text/plain" });
      this.link.href = URL.createObjectURL(blob);
      this.state = "done";
    } catch (problem) {
      if (this.stop.signal.aborted) return;
      this.problem = problem;
      this.state = "failed";
    }
    this.write();
  }

  /** Its lines in the other language, with the line ends of the file between them. */
  async translated() {
    const [lines, ends] = await readLines(this.file);
    const results = lines.map(() => "");
    // A blank line is the same in every language.
    const numbers = [...lines.keys()].filter((line) => lines[line].trim());
    this.all = ends.filter(Boolean).length + Boolean(lines.at(-1));
    let size = 10;
    for (let at = 0; at < numbers.length; ) {
      this.done = numbers[at];
      this.write();
      const chunk = this.chunk(lines, numbers.slice(at, at + size));
      const began = performance.now();
      const answers = await translations(
        chunk.map((line) => lines[line]),
        this.settings,
        this.stop.signal,
      );
      // One line in a thousand may be too long. If all are refused, something else is wrong.
      if (chunk.length > 1 && answers.every((one) => one instanceof Problem)) throw answers[0];
      answers.forEach((answer, index) => {
        const line = chunk[index];
        if (answer instanceof Problem) this.missing ??= [number(line + 1), answer.message];
        else results[line] = answer.text;
      });
      at += chunk.length;
      const factor = performance.now() - began < PACE ? 2 : 0.5;
      size = Math.min(MOST_LINES, this.card.limits.lines, Math.max(1, Math.round(size * factor)));
    }
    return results.flatMap((line, index) => [line, ends[index]]);
  }

  /** As many of these lines as fit into a request, but at least one. */
  chunk(lines, numbers) {
    let room = this.card.limits.body / 2;
    const rest = numbers.findIndex((line) => (room -= 3 * lines[line].length + 3) < 0);
    return rest < 0 ? numbers : numbers.slice(0, Math.max(1, rest));
  }

  /** Cancels it, or removes it if it is over. */
  end() {
    this.stop.abort();
    if (this.link.href) URL.revokeObjectURL(this.link.href);
    jobs.delete(this);
    this.element.remove();
    document.querySelector("#files").hidden = jobs.size === 0;
    document.querySelector("#choose").focus();
  }
}

/** The lines of a file and what ends each of them. */
async function readLines(file) {
  if (file.size > LARGEST * 2 ** 20) throw new Problem(0, word("file_large", LARGEST));
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Problem(0, word("file_encoding"));
  }
  if (text.includes("\0")) throw new Problem(0, word("file_encoding"));
  if (!text) throw new Problem(0, word("file_empty"));
  const parts = text.split(/(\r\n|\n|\r)/);
  const lines = parts.filter((_, index) => index % 2 === 0);
  return [lines, lines.map((_, index) => parts[2 * index + 1] ?? "")];
}

/** The name of the translation: letter.txt and letter.en.txt become letter.de.txt. */
function targetName(name, card) {
  const [, stem, end] = name.match(/^(.*?)(\.[^.]*)?$/s);
  const languageEnd = `.${card.source_lang}`;
  const bare = stem.endsWith(languageEnd) ? stem.slice(0, -languageEnd.length) : stem;
  if (end === languageEnd) return `${stem}.${card.target_lang}`;
  return `${bare}.${card.target_lang}${end ?? ""}`;
}
