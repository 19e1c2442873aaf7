// The window with the other translations of a sentence, and with the way to its attention map.

import { answerOf, card, choose, settings } from "./answers.js";
import { button, icon } from "./elements.js";
import { sentenceOf, warningsOf } from "./panes.js";
import { address, ask, Problem, translations } from "./server.js";
import { difference, direction } from "./text.js";
import { number, word } from "./words.js";

const MOST_OTHERS = 5; // translations of a sentence to choose from

const translation = document.getElementById("translation");
const others = document.getElementById("others");
const panes = document.getElementById("panes");

let open = null; // whose window is open: {line, sentence, stop}

/** The element of the sentence whose window is open. It is replaced when its line changes. */
const openElement = () =>
  translation.querySelector(`[data-line="${open.line}"][data-sentence="${open.sentence}"]`);

/** Closes the window. If it had the focus, the sentence gets it. */
export function closeOthers() {
  if (!open) return;
  const hadFocus = others.contains(document.activeElement);
  const element = openElement();
  open.stop.abort();
  open = null;
  others.hidden = true;
  element?.classList.remove("open");
  element?.removeAttribute("aria-expanded");
  if (hadFocus) element?.focus();
}

async function openOthers(element) {
  closeOthers();
  const sentence = sentenceOf(element);
  const mine = { ...element.dataset, stop: new AbortController() };
  open = mine;
  element.classList.add("open");
  element.setAttribute("aria-expanded", "true");
  others.hidden = false;
  const show = (problem) => {
    fill(sentence, problem);
    place(openElement());
    (others.querySelector("[aria-pressed=true]") ?? others.querySelector("button")).focus();
  };
  show();
  const answer = answerOf(sentence);
  if (card.n_best < 2 || answer.outputs) return;
  try {
    answer.outputs = await outputsOf(sentence, mine.stop.signal);
  } catch (problem) {
    if (open === mine) show(problem.message);
    return;
  }
  if (open === mine) show();
}

async function outputsOf(sentence, signal) {
  const n_best = Math.min(MOST_OTHERS, card.n_best);
  const more = { ...settings(), n_best, scores: true };
  const [found] = await translations([sentence.text], more, signal);
  if (found instanceof Problem) throw found;
  return found.outputs;
}

/** Writes what the window shows. */
function fill(sentence, problem) {
  const { text, outputs } = answerOf(sentence);
  const title = document.createElement("h2");
  title.textContent = word("others");
  const close = button("close", icon("close"));
  close.setAttribute("aria-label", word("close"));
  close.addEventListener("click", closeOthers);
  // What is above the translations is there at once, so that it does not move under the mouse.
  const nodes = [title, close];
  if (card.attention) {
    const map = button("map", `${word("map")} ↗`);
    map.title = word("map_note");
    map.addEventListener("click", () => openMap(sentence));
    nodes.splice(1, 0, map);
  }
  nodes.push(...warningsOf(answerOf(sentence)).map((text) => paragraph("warning", text)));
  if (problem) nodes.push(paragraph("problem", problem));
  if (outputs?.length > 1) {
    nodes.push(...outputs.map((output) => outputButton(sentence, output, text)));
    nodes.push(paragraph("quiet", word("score_note")));
  } else if (!problem) {
    const isComing = card.n_best > 1 && !outputs;
    nodes.push(paragraph("quiet", word(isComing ? "others_wait" : "others_none")));
  }
  others.replaceChildren(...nodes);
}

/** A button that replaces the translation of a sentence. What is not in `current` is marked. */
function outputButton(sentence, output, current) {
  const [before, different, after] = difference(output.text, current);
  const mark = document.createElement("b");
  mark.textContent = different;
  const says = document.createElement("bdi");
  says.append(before, mark, after);
  const score = document.createElement("span");
  score.className = "quiet";
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  score.textContent = output.score === undefined ? "" : number(output.score, digits);
  const element = button("output", says, score);
  element.setAttribute("aria-pressed", output.text === current);
  element.dir = direction(card.target_lang);
  element.addEventListener("click", () => {
    choose(sentence, output);
    closeOthers();
  });
  return element;
}

function paragraph(name, text) {
  const element = document.createElement("p");
  element.className = name;
  element.textContent = text;
  return element;
}

/** Under the sentence; on a narrow screen the style puts it at the lower edge of the window. */
function place(element) {
  const box = [...element.getClientRects()].at(-1);
  const right = panes.getBoundingClientRect().right;
  const left = Math.max(12, Math.min(box.left, right - others.offsetWidth));
  others.style.left = `${left + scrollX}px`;
  others.style.top = `${box.bottom + scrollY + 6}px`;
  const hidden = box.bottom + 12 - others.getBoundingClientRect().top;
  if (hidden > 0) scrollBy({ top: hidden });
}

/** Opens the page of the attention map. The tab has to be opened before the answer is there. */
async function openMap(sentence) {
  const tab = window.open("", "_blank");
  try {
    const query = { model: card.name, source: sentence.text, target: answerOf(sentence).text };
    const { url } = await ask("attention", query);
    if (tab) {
      tab.opener = null;
      tab.location.replace(address(url));
    }
  } catch (problem) {
    tab?.close();
    if (open) fill(sentence, problem.message);
  }
}

translation.addEventListener("click", ({ target }) => {
  const element = target.closest("[role=button]");
  if (element && getSelection().isCollapsed) openOthers(element);
});
translation.addEventListener("keydown", (event) => {
  const element = event.target.closest("[role=button]");
  if (!element || (event.key !== "Enter" && event.key !== " ")) return;
  event.preventDefault();
  openOthers(element);
});
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") closeOthers();
});
document.addEventListener("pointerdown", ({ target }) => {
  if (!others.contains(target)) closeOthers();
});
