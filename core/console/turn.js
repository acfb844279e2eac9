// One turn: a question, and everything that comes back for it, as it comes.

const MODES = {
  rag: { name: "条文问答", path: "/rag", hint: "检索条文，选出与问题直接相关的几条。", placeholder: "例如：脚手架基础积水怎么办" },
  agentic: { name: "智能生成", path: "/vision/agentic", hint: "看图的模型自行检索法规，写出带引用的隐患判定。", placeholder: "可留空：请检测图中的安全隐患" },
  hybrid: { name: "垂域+RAG", path: "/vision/hybrid", hint: "看图模型描述隐患，文本模型检索并撰写依据与措施。", placeholder: "可留空：请检测图中的安全隐患" },
  answer: { name: "自由生成", path: "/vision/answer", hint: "只看图，不检索法规，最快。", placeholder: "可留空：请检测图中的安全隐患" },
  observe: { name: "观察", path: "/vision/observe", hint: "只给出一个隐患标签与观察文字，不出报告。", placeholder: "可留空" },
};
const STAGE_NAMES = { OBSERVATION: "观察", SEARCH_PLAN: "检索计划", EVIDENCE_REVIEW: "证据复核", FINAL_REASONING: "最终推理" };
const RESET_REASONS = { correction: "回答未通过校验，正在更正", format: "回答已按格式整理", level: "隐患等级已按判定标准调整", thinking: "前面的文字是模型的思考，已撤回" };
const RUNNING = "进行中";
const SCENES = { unsupported_scene: "非施工现场", insufficient_visual_evidence: "画面不足以判定", not_assessed: "未作隐患判定" };

class Turn {
  /** `query` is what was asked, `photos` what was sent with it, `again` what asks once more. */
  constructor(number, mode, query, photos, again) {
    this.number = number;
    this.mode = mode;
    this.query = query;
    this.photos = photos;
    this.answer = "";
    this.ok = false;
    this.docs = [];
    this.cards = new Map();
    this.stopper = new AbortController();
    this.again = again;
    this.build();
    this.report = new Report(this.body, mode, (n) => this.citation(n), (text) => this.pickOf(text));
    this.started = performance.now();
    this.clock = setInterval(() => this.tick(), 1000);
  }

  build() {
    const words = `第 ${this.number + 1} 轮 · ${MODES[this.mode].name}`;
    const pictures = this.photos.map((photo, place) => el("img", { src: photo.url, alt: `照片 ${place + 1}`, width: photo.width, height: photo.height }));
    const question = el("div", { class: "question" }, el("h2", { class: "turn-name", text: words }), this.query ? el("p", { class: "said", text: this.query }) : null, pictures.length ? el("div", { class: "pictures" }, ...pictures) : null);
    this.stage = el("span", { class: "stage", text: "正在发送" });
    this.seconds = el("span", { class: "seconds", "aria-hidden": "true" });
    this.status = el("p", { class: "status" }, el("span", { class: "spinner", "aria-hidden": "true" }), this.stage, this.seconds);
    this.steps = el("ol", { class: "steps" });
    this.process = el("details", { class: "more", open: true, hidden: true }, el("summary", { text: "过程", on: () => (this.isProcessTouched = true) }), this.steps);
    this.thoughts = el("p", { class: "thoughts" });
    this.reasoning = el("details", { class: "more", hidden: true }, el("summary", { text: "推理" }), this.thoughts);
    this.body = el("div", { class: "report", "aria-busy": "true", tabindex: "-1", role: "region", "aria-label": `第 ${this.number + 1} 轮的回答` });
    this.foot = el("div", { class: "foot" });
    this.evidence = el("aside", { class: "evidence", "aria-label": "条文", hidden: true });
    const answer = el("div", { class: "answer" }, this.status, el("div", { class: "trail" }, this.process, this.reasoning), this.body, this.foot);
    this.node = el("article", { class: "turn", "aria-label": words }, question, el("div", { class: "columns" }, answer, this.evidence));
  }

  tick() {
    write(this.seconds, `${Math.round((performance.now() - this.started) / 1000)} 秒`);
  }

  /** Send `body` and show what comes. Never throws. */
  async run(body) {
    try {
      const final = await this.fetch(body);
      this.finish(final);
    } catch (error) {
      this.fail(error instanceof ServiceError ? error : new ServiceError("page", `页面出错：${error.message}`));
    } finally {
      clearInterval(this.clock);
      this.status.hidden = true;
      this.body.removeAttribute("aria-busy");
      if (!this.isProcessTouched) this.process.open = false;
    }
  }

  fetch(body) {
    const { path } = MODES[this.mode];
    if (this.mode === "observe") {
      this.progress({ label: "正在观察图片", status: "running" });
      return postJson(path, body, this.stopper.signal);
    }
    return postStream(`${path}/stream`, body, (name, data) => this.take(name, data), this.stopper.signal);
  }

  stop() {
    this.stopper.abort();
  }

  take(name, data) {
    const takers = {
      progress: () => this.progress(data),
      retrieval: () => this.found(data),
      trace: () => this.step(data.name, data.name, data.status, data.summary),
      // A round of searches is told by both, under one name.
      agent: () => this.step(data.kind === "search" ? data.label : data.event_id, data.label, data.status, ""),
      token: () => (data.channel === "reasoning" ? this.think(data.text) : this.say(data.text)),
      answer_reset: () => this.restart(data.reason),
    };
    if (Object.hasOwn(takers, name)) takers[name]();
  }

  progress({ label, status, heartbeat }) {
    if (heartbeat || !label) return;
    write(this.stage, label);
    if (status === "running") announce(label);
  }

  /** A step of the work: one line per key, running or done. */
  step(key, label, status, summary) {
    this.process.hidden = false;
    let line = [...this.steps.children].find((child) => child.dataset.key === key);
    if (!line) {
      line = el("li", { "data-key": key }, el("span", { class: "step-name" }), el("span", { class: "step-summary" }));
      this.steps.append(line);
    }
    line.className = status === "running" ? "running" : status === "done" ? "done" : "failed";
    write(line.firstChild, label || "");
    if (summary || line.lastChild.textContent === RUNNING || status === "running") write(line.lastChild, summary || (status === "running" ? RUNNING : ""));
    if (status === "running") write(this.stage, label || "");
  }

  think(text) {
    this.reasoning.hidden = false;
    this.thoughts.append(visible(text));
  }

  say(text) {
    if (!this.report.text) write(this.stage, "正在作答");
    this.report.add(text);
  }

  /** All that was said so far is void. */
  restart(reason) {
    this.report.reset();
    const words = RESET_REASONS[reason] || "回答作废重发";
    this.resets = (this.resets || 0) + 1;
    this.step(`reset ${this.resets}`, words, "done", "此前的文字已清除");
    announce(words);
  }

  found(data) {
    this.docs = data.retrieval_docs || [];
    const round = data.round ? `第 ${data.round} 轮` : "";
    announce(`${round}检索到 ${this.docs.length} 条条文`);
    this.showEvidence([]);
  }

  /** Cards for `this.docs`: those of `chosen` (numbers from 1) first and open, the others under a lid. */
  showEvidence(chosen, words = "引用的条文") {
    this.cards.clear();
    const isFinal = chosen.length > 0;
    const all = this.docs.map((doc, place) => [place + 1, doc]);
    const first = chosen.map((number) => all[number - 1]).filter(Boolean);
    const rest = all.filter(([number]) => !chosen.includes(number));
    const list = (entries, open) => el("ol", { class: "cards" }, ...entries.map(([number, doc]) => this.card(number, doc, open, chosen)));
    const lid = el("details", { class: "more", open: !isFinal && rest.length <= 3 }, el("summary", { text: isFinal ? `其余候选 ${rest.length} 条` : `检索到 ${rest.length} 条` }), list(rest, false));
    this.evidence.replaceChildren(
      ...[isFinal ? el("h3", { text: `${words} ${first.length} 条` }) : null, isFinal ? list(first, true) : null, rest.length ? lid : null].filter(Boolean),
    );
    this.evidence.hidden = !this.docs.length;
  }

  /** What was chosen is numbered as the answer numbers it; evidence has numbers of its own, candidates none. */
  card(number, doc, open, chosen) {
    const label = this.mode === "rag" ? chosen.indexOf(number) + 1 || "" : number;
    const card = articleCard(doc, { number: label, open });
    this.cards.set(number, card);
    return card;
  }

  /** The button of a citation, null where there is no such evidence. */
  citation(number) {
    const doc = this.docs[number - 1];
    if (!doc && this.docs.length) return null;
    if (!doc) return el("span", { class: "cite", text: String(number) });
    return el("button", { type: "button", class: "cite", text: String(number), "aria-label": `引用 ${number}：${articleName(doc)}`, on: (event) => openCard(this.cards.get(number), event.currentTarget) });
  }

  /** The button of a chosen article, null for text that is none. */
  pickOf(text) {
    if (this.mode !== "rag") return null;
    const place = this.docs.findIndex((doc) => articleName(doc) === text);
    if (place < 0) return null;
    return el("button", { type: "button", class: "pick", text, on: (event) => openCard(this.cards.get(place + 1), event.currentTarget) });
  }

  finish(final) {
    const outcome = this.mode === "rag" ? final.generation : final;
    this.answer = outcome.answer_text ?? outcome.answer ?? outcome.text ?? "";
    this.ok = final.ok && Boolean(this.answer);
    this.docs = (this.mode === "rag" ? final.retrieval.retrieval_docs : final.retrieval_docs) || [];
    this.showEvidence(outcome.pred_indices || outcome.citations || [], this.mode === "rag" ? "选定的条文" : "引用的条文");
    this.report.show(this.answer);
    if (outcome.error) this.foot.append(errorBox(new ServiceError(outcome.error.code, outcome.error.message, { requestId: final.request_id })));
    this.showFinal(final, outcome);
    announce(outcome.error ? `没有得到回答：${outcome.error.message}` : this.summary(outcome));
  }

  summary(outcome) {
    const cited = (outcome.pred_indices || outcome.citations || []).length;
    return cited ? `回答完成，引用 ${cited} 条条文。` : "回答完成。";
  }

  showFinal(final, outcome) {
    const warnings = [...new Set([...((final.retrieval || {}).warnings || []), ...(final.warnings || [])])];
    if (outcome.reasoning_stages?.length) this.showStages(outcome.reasoning_stages);
    else if (outcome.thinking || outcome.reasoning) this.showThinking(outcome.thinking || outcome.reasoning);
    for (const node of [this.chips(final), warningList(warnings), this.actions(), this.facts(final, outcome), rawJson(final)]) {
      if (node) this.foot.append(node);
    }
  }

  showThinking(text) {
    this.reasoning.hidden = false;
    write(this.thoughts, text);
  }

  showStages(stages) {
    const list = el("ol", { class: "stages" }, ...stages.map((stage) => el("li", {}, el("strong", { text: STAGE_NAMES[stage.label] || stage.label }), el("p", { class: "thoughts", text: stage.content }))));
    this.reasoning.hidden = false;
    this.reasoning.lastChild.replaceWith(list);
  }

  chips(final) {
    const words = [];
    if (SCENES[final.scene_status]) words.push(SCENES[final.scene_status]);
    for (const category of new Set(final.hazard_categories || [])) if (category) words.push(`分类：${category}`);
    if (final.hazard_label) words.push(`标签：${final.hazard_label}`);
    if (final.is_non_scene) words.push("非施工现场");
    if (final.parse_status === "failed") words.push(`未能解析：${final.parse_error}`);
    if (final.evidence_status === "none" && final.citations) words.push("没有检索到条文");
    return words.length ? el("ul", { class: "chips", "aria-label": "判定结果" }, ...words.map((text) => el("li", { text }))) : null;
  }

  actions() {
    const copy = navigator.clipboard ? el("button", { type: "button", class: "button", text: "复制回答", on: () => this.copy() }) : null;
    const verify = this.answer ? el("button", { type: "button", class: "button", text: "核对引用", on: () => verifyText(this.answer) }) : null;
    return el("div", { class: "actions" }, copy, verify, this.ok ? null : this.retryButton());
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.answer);
      announce("已复制");
    } catch {
      announce("浏览器不允许复制");
    }
  }

  retryButton() {
    return el("button", { type: "button", class: "button", text: "重试", on: () => this.again() });
  }

  facts(final, outcome) {
    const total = (final.runtime_stats || {}).total_time_ms ?? final.elapsed_ms;
    const tokens = (outcome.usage || {}).total_tokens;
    const words = [outcome.model, outcome.generation_model, outcome.provider === "local" && "本机按得分选取", total !== undefined && milliseconds(total), tokens && `${tokens} tokens`, final.request_id];
    return el("p", { class: "small", text: words.filter(Boolean).join(" · ") });
  }

  fail(error) {
    const partial = error.details.partial_answer || "";
    if (partial && partial !== this.report.text) this.report.show(partial);
    if (this.report.text) this.body.classList.add("unfinished");
    this.foot.append(errorBox(error), el("div", { class: "actions" }, this.retryButton()));
    if (error.code === "unauthorized") openService("需要密钥，或密钥不正确。");
  }
}
