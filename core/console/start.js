// Tabs, the state of the service, the key; and the beginning.

const PANELS = ["talk", "retrieval", "verify"];
const LOADING_POLL_MS = 3000;

function showPanel(name) {
  for (const panel of PANELS) {
    const tab = byId(`tab-${panel}`);
    tab.setAttribute("aria-selected", String(panel === name));
    tab.tabIndex = panel === name ? 0 : -1;
    byId(`panel-${panel}`).hidden = panel !== name;
  }
}

function listenTabs() {
  PANELS.forEach((panel, place) => {
    const tab = byId(`tab-${panel}`);
    tab.addEventListener("click", () => showPanel(panel));
    tab.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: place + 1, ArrowLeft: place - 1 + PANELS.length, Home: 0, End: PANELS.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const next = PANELS[moves[event.key] % PANELS.length];
      showPanel(next);
      byId(`tab-${next}`).focus();
    });
  });
}

/** Ask the service how it is, and show what of this page it can do. */
async function lookAtService() {
  let health = null;
  try {
    health = await getJson("/health");
  } catch (error) {
    showService("down", error.code === "unreachable" ? "连不上服务" : error.message);
    return;
  }
  const state = health.index.state;
  const needsKey = !("capacity" in health);
  const labels = needsKey ? null : await scopeLabels();
  const words = { ready: readyWords(health), loading: "索引加载中", missing: "没有索引", degraded: "部分可用" };
  showScopes(health, labels);
  showFacts(health);
  composer.maxPhotos = health.vision.max_images || composer.maxPhotos;
  const sees = health.vision.configured;
  showAbilities({ rag: true, agentic: sees, hybrid: sees && health.hybrid_generation.configured, answer: sees, observe: sees });
  showService(needsKey ? "locked" : state, needsKey ? (savedKey() ? "密钥不正确" : "需要密钥") : words[state] || state);
  if (state === "loading") setTimeout(lookAtService, LOADING_POLL_MS);
}

function readyWords(health) {
  return health.profile.num_docs === undefined ? "就绪" : `${health.profile.num_docs} 条条文`;
}

function showService(state, text) {
  byId("service").dataset.state = state;
  write(byId("service-text"), text);
}

async function scopeLabels() {
  try {
    return (await getJson("/profiles")).profiles;
  } catch {
    return null;
  }
}

function showScopes(health, labels) {
  for (const id of ["scope", "retrieval-scope", "verify-scope"]) {
    const select = byId(id);
    const chosen = select.value;
    const names = health.available_scopes;
    const options = names.map((name) => el("option", { value: name, text: labels?.[name] ? `${labels[name].label}（${labels[name].num_docs} 条）` : name }));
    select.replaceChildren(el("option", { value: "", text: "服务缺省" }), ...options);
    if (names.includes(chosen)) select.value = chosen;
  }
}

function showFacts(health) {
  const yes = (part, words) => (part.configured ? words || "已配置" : "未配置");
  const facts = [
    ["版本", health.version],
    ["缺省范围", `${health.profile.label}（${health.profile.scope}）`],
    ["检索方式", health.profile.retrieval_method],
    ["重排", health.rerank.method],
    ["条文选取", yes(health.generation, health.generation.model || "本机按得分")],
    ["看图模型", yes(health.vision, health.vision.model)],
    ["垂域+RAG 文本模型", yes(health.hybrid_generation, health.hybrid_generation.model)],
    ["视觉版本", health.vision.profile],
    ["索引", health.index.built_at && `${health.index.num_docs} 条，构建于 ${health.index.built_at}`],
    ["索引问题", (health.index.faults || []).join("；")],
  ];
  byId("service-facts").replaceChildren(...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]));
}

function openService(words = "") {
  write(byId("key-note"), words);
  const dialog = byId("service-dialog");
  if (!dialog.open) dialog.showModal();
  if (words) byId("key").focus();
}

function listenService() {
  byId("service").addEventListener("click", () => {
    openService();
    lookAtService();
  });
  byId("close-service").addEventListener("click", () => byId("service-dialog").close());
  byId("key-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const key = byId("key").value.trim();
    byId("key").value = "";
    if (!/^[\x21-\x7e]*$/.test(key)) return write(byId("key-note"), "密钥只有可见的 ASCII 字符，请检查输入法。");
    saveKey(key);
    await lookAtService();
    const isRefused = byId("service").dataset.state === "locked";
    write(byId("key-note"), isRefused ? (savedKey() ? "密钥不正确。" : "已清除密钥。") : "密钥可用。");
    if (!isRefused) byId("service-dialog").close();
  });
}

function listenForms() {
  byId("retrieval-form").addEventListener("submit", (event) => {
    event.preventDefault();
    debugRetrieval();
  });
  byId("verify-form").addEventListener("submit", (event) => {
    event.preventDefault();
    verifyCitations();
  });
}

showExamples();
showModes();
listenComposer();
listenTabs();
listenForms();
listenService();
lookAtService();
