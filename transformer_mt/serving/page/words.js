// The words of the interface in English and in Chinese. A function takes the values that its text
// contains, already formatted for the language.

// What the kinds of warnings about a translation are about. The server says more in English.
const KINDS = {
  span: "Tag or placeholder",
  number: "Number",
  empty: "Nothing",
  punctuation: "Mark at the end",
  length: "Length",
  repetition: "Repetition",
  copied: "Not translated",
  term: "Term",
};
const CHINESE_KINDS = {
  span: "标记或占位符",
  number: "数字",
  empty: "没有译文",
  punctuation: "句末标点与原文不同",
  length: "译文与原文的长度相差过大",
  repetition: "译文中有不应有的重复",
  copied: "原文未经翻译",
  term: "术语",
};

const ENGLISH = {
  title: "Translation",
  model: "Model",
  other_language: "中文",
  languages: "Languages",
  from: "Translate from",
  to: "Translate into",
  swap: "Swap the languages",
  no_pair: (source, target) => `No model for ${source} → ${target} is loaded.`,
  clear: "Clear the text",
  source: "Text to translate",
  source_hint: "Type or paste a text, or drop a .txt file.",
  target_hint: "The translation appears here.",
  file: "Translate a file …",
  share: "Copy a link",
  shared: "Link copied. It contains the text.",
  copy: "Copy",
  copied: "Copied",
  not_copied: "The browser did not allow copying.",
  working: "Translating …",
  hint: "Click a sentence for other translations.",
  hint_words: "Point at a word to see its source. Click a sentence for more.",
  hint_words_touch: "Tap a word to see its source and more.",
  caution: "Machine translation: check names and numbers.",
  away: "The server does not answer; trying again.",
  busy: (seconds) => `The server is busy; trying again in ${seconds} s.`,
  broken: "The connection broke off several times during this request.",
  not_json: "The server's answer could not be read. Is the address right?",
  status: (code) => `The server answered with the error ${code}.`,
  no_models: "The server offers no model.",
  too_long: (length, most) =>
    `The text has ${length} characters; at most ${most} are translated while you type. ` +
    "Save it as a .txt file and drop the file here.",
  not_translated: (detail) => `A sentence was not translated: ${detail}`,
  token: "This server asks for a token. Whoever runs it can give you one.",
  token_use: "Use this token",
  token_wrong: "The server does not accept this token.",
  others: "Other translations",
  others_none: "The model has no other translation of this sentence.",
  others_wait: "Looking for other translations …",
  score_note: "The number is the model's score. The nearer to 0, the more likely it finds the text.",
  warning: (kind, what) => `${KINDS[kind] ?? kind}: ${what}.`,
  map: "Attention map",
  map_note: "opens in a new tab",
  close: "Close",
  drop: "Drop the file to translate it",
  files: "Files",
  cancel: "Cancel",
  remove: "Remove",
  download: "Download",
  file_waiting: "Waiting",
  file_count: (done, all) => `${done} of ${all} lines`,
  file_done: (all) => `${all} lines translated`,
  file_missing: (line, detail) => `Line ${line} was not translated and is empty: ${detail}`,
  file_encoding: "This is not plain text in UTF-8. Save it as a text file with the encoding UTF-8.",
  file_large: (most) => `The file is larger than ${most} MB. Split it.`,
  file_empty: "The file is empty.",
  terms: "Terms",
  terms_label: "One term per line, with its translation",
  terms_hint: "term = translation, another form\nterm = translation, forbidden",
  terms_help:
    "Put a tab, = or a comma between them. Other forms of the translation, such as the plural, may " +
    "follow. End a line with “forbidden” if its translation must not be used. Each pair of languages " +
    "has its own terms, and your browser remembers them.",
  terms_count: (count, isOne) => `${count} ${isOne ? "term" : "terms"}`,
  terms_unused: (count, isOne) => `${count} ${isOne ? "term" : "terms"} not used`,
  terms_not_read: (count, isOne) => `${count} ${isOne ? "line" : "lines"} not read`,
  terms_bare: (lines, isOne) =>
    `${isOne ? "Line" : "Lines"} ${lines}: expected a term and its translation, with a tab, = or a ` +
    "comma between them.",
  terms_long: (lines, isOne, texts, characters) =>
    `${isOne ? "Line" : "Lines"} ${lines}: more than ${texts} texts, or one of more than ` +
    `${characters} characters.`,
  terms_many: (line, most) => `From line ${line} on: more than ${most} terms.`,
  terms_unable: "This model cannot follow terms, so it translates without them.",
  about_model: (name, parameters) => `Model ${name}: ${parameters} parameters`,
  about_data: (data) => `trained on ${data}`,
  about_test: (metric, score) => `${score} ${metric} on its test set`,
  pairs: (count) => `${count} pairs`,
  privacy: "Your text is sent only to the server of this page.",
  history: "History",
  history_on: "Keep a history",
  history_note: "The last 50 translations. They stay in this browser and are sent nowhere.",
  history_empty: "Nothing here yet.",
  history_clear: "Clear all",
  history_sure: (count) => `Delete all ${count}?`,
  history_delete: (text) => `Delete: ${text}`,
  keys: "Keyboard",
  keys_translate: "Translate now",
  keys_close: "Close a panel",
  keys_next: "Go to the next button or pane",
  keys_translation: "In the translation",
  keys_sentences: "Go to the sentence before or after",
  keys_words: "Light the words one after the other",
  keys_others: "Show other translations of the sentence",
};

const CHINESE = {
  title: "翻译",
  model: "模型",
  other_language: "English",
  languages: "语言",
  from: "原文语言",
  to: "译文语言",
  swap: "交换语言",
  no_pair: (source, target) => `没有加载${source} → ${target}的模型。`,
  clear: "清空文本",
  source: "要翻译的文本",
  source_hint: "输入或粘贴文本，也可以拖入 .txt 文件。",
  target_hint: "译文显示在这里。",
  file: "翻译文件",
  share: "复制链接",
  shared: "链接已复制，其中包含文本。",
  copy: "复制",
  copied: "已复制",
  not_copied: "浏览器不允许复制。",
  working: "正在翻译…",
  hint: "点击句子可查看其他译法。",
  hint_words: "指向一个词可看到它的来源，点击句子可查看更多。",
  hint_words_touch: "轻点一个词，可看到它的来源和其他译法。",
  caution: "机器翻译，请核对人名和数字。",
  away: "服务器没有响应，正在重试。",
  busy: (seconds) => `服务器繁忙，${seconds} 秒后重试。`,
  broken: "处理该请求时连接多次中断。",
  not_json: "无法读取服务器的回答。请检查地址是否正确。",
  status: (code) => `服务器返回错误 ${code}。`,
  no_models: "服务器没有提供模型。",
  too_long: (length, most) =>
    `文本有 ${length} 个字符；边输入边翻译最多支持 ${most} 个字符。` +
    "请保存为 .txt 文件后拖到这里。",
  not_translated: (detail) => `有一个句子没有翻译：${detail}`,
  token: "此服务器需要令牌。请向运行服务器的人索取。",
  token_use: "使用此令牌",
  token_wrong: "服务器不接受此令牌。",
  others: "其他译法",
  others_none: "模型对这个句子没有其他译法。",
  others_wait: "正在查找其他译法…",
  score_note: "数字是模型的评分，越接近 0，模型认为译文越可能。",
  warning: (kind, what) => {
    const name = CHINESE_KINDS[kind] ?? kind;
    if (kind === "term") {
      const [, term, forms, problem] = what.match(/^(.*): (.*) is (missing|forbidden)$/s) ?? [];
      const all = forms?.replaceAll(" or ", "或");
      return `${name}：${term} ${problem === "missing" ? "应译为" : "不得译为"} ${all}。`;
    }
    if (kind !== "span" && kind !== "number") return `${name}。`;
    const missing = what.replace(/^(.*) is missing$/s, "缺少 $1");
    return `${name}：${missing.replace(/^(.*) is not in the source$/s, "原文中没有 $1")}。`;
  },
  map: "注意力图",
  map_note: "在新标签页中打开",
  close: "关闭",
  drop: "松开即可翻译文件",
  files: "文件",
  cancel: "取消",
  remove: "移除",
  download: "下载",
  file_waiting: "等待中",
  file_count: (done, all) => `${done} / ${all} 行`,
  file_done: (all) => `已翻译 ${all} 行`,
  file_missing: (line, detail) => `第 ${line} 行没有翻译，留为空行：${detail}`,
  file_encoding: "这不是 UTF-8 编码的纯文本。请另存为 UTF-8 编码的文本文件。",
  file_large: (most) => `文件超过 ${most} MB，请拆分。`,
  file_empty: "文件是空的。",
  terms: "术语",
  terms_label: "每行一个术语及其译文",
  terms_hint: "术语 = 译文, 译文的其他形式\n术语 = 译文, forbidden",
  terms_help:
    "用制表符、等号或逗号分隔，译文后面可以再写其他形式（例如复数）。" +
    "行末写 forbidden 表示不使用该译文。每个语言对有各自的术语表，由浏览器保存。",
  terms_count: (count) => `${count} 个术语`,
  terms_unused: (count) => `${count} 个术语未使用`,
  terms_not_read: (count) => `${count} 行无法读取`,
  terms_bare: (lines) =>
    `第 ${lines.replaceAll(", ", "、")} 行：应为术语和译文，中间用制表符、等号或逗号分隔。`,
  terms_long: (lines, isOne, texts, characters) =>
    `第 ${lines.replaceAll(", ", "、")} 行：超过 ${texts} 项，或有一项超过 ${characters} 个字符。`,
  terms_many: (line, most) => `从第 ${line} 行起：术语超过 ${most} 个。`,
  terms_unable: "此模型不能使用术语表，翻译时不会用到它。",
  about_model: (name, parameters) => `模型 ${name}：${parameters}个参数`,
  about_data: (data) => `训练数据：${data}`,
  about_test: (metric, score) => `测试集得分 ${score} ${metric}`,
  pairs: (count) => `${count} 个句对`,
  privacy: "你的文本只发送给本页面的服务器。",
  history: "历史记录",
  history_on: "保存历史记录",
  history_note: "最近 50 条翻译，只保存在此浏览器中，不会发送到任何地方。",
  history_empty: "暂无记录。",
  history_clear: "全部清除",
  history_sure: (count) => `删除全部 ${count} 条？`,
  history_delete: (text) => `删除：${text}`,
  keys: "键盘快捷键",
  keys_translate: "立即翻译",
  keys_close: "关闭面板",
  keys_next: "转到下一个按钮或窗格",
  keys_translation: "在译文中",
  keys_sentences: "转到上一句或下一句",
  keys_words: "逐个高亮单词",
  keys_others: "显示这句话的其他译法",
};

export const LANGUAGES = { en: ENGLISH, zh: CHINESE };
const STORED = "transformer_mt.language";

/** The language of the interface, "en" or "zh": the one chosen before, or the browser's. */
export let language = remembered() ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");

/** The text of this name in the language of the interface. */
export function word(name, ...values) {
  const text = LANGUAGES[language][name];
  return typeof text === "function" ? text(...values) : text;
}

/** Changes to the other language and remembers it. */
export function switchLanguage() {
  language = language === "en" ? "zh" : "en";
  try {
    localStorage.setItem(STORED, language);
  } catch {
    // The browser stores nothing. The language then lasts as long as the page.
  }
}

/** Writes the interface's texts and labels into the document. */
export function writeWords() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-word]"))
    element.textContent = word(element.dataset.word);
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", word(element.dataset.label));
    if (element.tagName === "BUTTON") element.title = word(element.dataset.label);
  }
  for (const element of document.querySelectorAll("[data-placeholder]"))
    element.placeholder = word(element.dataset.placeholder);
}

/** A number as the language of the interface writes it. */
export function number(value, options) {
  return new Intl.NumberFormat(language, options).format(value);
}

/** The name of a language such as de or zh-CN, or the code itself if it has no name. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames(language, { type: "language" }).of(code) || code;
  } catch {
    return code;
  }
}

function remembered() {
  try {
    const stored = localStorage.getItem(STORED);
    return stored in LANGUAGES ? stored : null;
  } catch {
    return null;
  }
}
