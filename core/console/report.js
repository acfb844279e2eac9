// An answer as it comes, line by line. Nothing of it is markup but what is listed here: heads, numbered lines, the level
// of a hazard, and the marks of citations.

const LEVELS = { 无隐患: "none", 一般隐患: "general", 疑似重大事故隐患: "suspected", 重大事故隐患: "major" };
const LEVEL_LINE = /^(隐患等级[:：]\s*)?(无隐患|一般隐患|疑似重大事故隐患|重大事故隐患)\s*$/;
const HEAD_LINE = /^(#{1,6})\s+(.*)$/;
const LABEL_LINE = /^(隐患等级|隐患分类|隐患描述|整改措施和建议|图片描述|确定隐患描述|整改建议)[:：](.*)$/;
const ITEM_LINE = /^(\d{1,3})[.、]\s?(.*)$/;
const MARKS = { agentic: /\[cite\^(\d{1,3})\]/g, hybrid: /〔(\d{1,3})〕/g };

/** `cite(n)` is a button for evidence n or null; `pick(text)` a button for an item of constrained generation or null. */
class Report {
  constructor(node, mode, cite, pick) {
    this.node = node;
    this.marks = MARKS[mode] || null;
    this.cite = cite;
    this.pick = pick;
    this.reset();
  }

  reset() {
    this.text = "";
    this.begun = ""; // the last line, which may go on
    this.last = null;
    this.node.replaceChildren();
  }

  /** Append a piece; only the last line is drawn again. */
  add(piece) {
    this.text += piece;
    const lines = (this.begun + piece).split("\n");
    this.begun = lines[lines.length - 1];
    lines.forEach((line, place) => {
      const drawn = this.draw(line);
      if (place === 0 && this.last) this.last.replaceWith(drawn);
      else this.node.append(drawn);
      this.last = drawn;
    });
  }

  /** Draw all of `text` anew: what was cited is known now. */
  show(text) {
    this.reset();
    if (text) this.add(text);
  }

  draw(line) {
    const level = LEVEL_LINE.exec(line);
    if (level) {
      return el("p", { class: "level-line" }, level[1] ? el("strong", { text: "隐患等级：" }) : null, el("span", { class: `level ${LEVELS[level[2]]}`, text: level[2] }));
    }
    const head = HEAD_LINE.exec(line);
    if (head) return el(head[1].length < 3 ? "h3" : "h4", {}, ...this.inline(head[2]));
    const label = LABEL_LINE.exec(line);
    if (label) return el("p", { class: "labelled" }, el("strong", { text: `${label[1]}：` }), ...this.inline(label[2]));
    const item = ITEM_LINE.exec(line);
    if (item) return el("p", { class: "item" }, el("span", { class: "ordinal", text: `${item[1]}. ` }), el("span", {}, ...this.itemOf(item[2])));
    return line.trim() ? el("p", {}, ...this.inline(line)) : el("span", { class: "gap" });
  }

  itemOf(text) {
    const button = this.pick(text);
    return button ? [button] : this.inline(text);
  }

  inline(text) {
    if (!this.marks) return [visible(text)];
    const parts = [];
    let end = 0;
    for (const mark of text.matchAll(this.marks)) {
      parts.push(visible(text.slice(end, mark.index)), this.cite(Number(mark[1])) || visible(mark[0]));
      end = mark.index + mark[0].length;
    }
    return [...parts, visible(text.slice(end))];
  }
}
