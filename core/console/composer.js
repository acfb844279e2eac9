// What is being asked next: mode, photos, words, options.

const composer = { mode: "rag", photos: [], maxPhotos: 4, modes: { rag: true } };

function showModes() {
  byId("modes").append(
    ...Object.entries(MODES).map(([mode, { name, hint }]) => {
      const input = el("input", { type: "radio", name: "mode", value: mode, id: `mode-${mode}`, class: "unseen" });
      input.addEventListener("change", () => chooseMode(mode));
      return el("label", { class: "mode", for: `mode-${mode}`, title: hint }, input, el("span", { text: name }));
    }),
  );
  chooseMode("rag");
}

function chooseMode(mode) {
  composer.mode = mode;
  byId(`mode-${mode}`).checked = true;
  const missing = composer.modes[mode] === false ? "服务没有配置这一模式所需的模型。" : "";
  write(byId("mode-hint"), missing || MODES[mode].hint).classList.toggle("missing", Boolean(missing));
  byId("question").placeholder = MODES[mode].placeholder;
  for (const field of document.querySelectorAll("#options [data-modes]")) {
    field.hidden = !field.dataset.modes.split(" ").includes(mode);
  }
  byId("options").hidden = ![...document.querySelectorAll("#options [data-modes]")].some((field) => !field.hidden);
  showTray();
}

/** `able` says of each mode whether the service can do it. */
function showAbilities(able) {
  composer.modes = able;
  for (const mode of Object.keys(MODES)) byId(`mode-${mode}`).parentElement.classList.toggle("missing", able[mode] === false);
  chooseMode(composer.mode);
}

function optionsOf(mode) {
  const fields = { scope: byId("scope").value, topk: number("topk"), max_items: number("max-items"), max_search_rounds: number("rounds") };
  const thinking = byId("thinking").value;
  if (thinking) fields[mode === "rag" ? "generation_enable_thinking" : "enable_thinking"] = thinking === "true";
  const wanted = { rag: ["scope", "topk", "max_items", "generation_enable_thinking"], agentic: ["scope", "topk", "max_search_rounds", "enable_thinking"], hybrid: ["scope", "max_search_rounds", "enable_thinking"], answer: ["enable_thinking"], observe: [] }[mode];
  return Object.fromEntries(wanted.filter((name) => fields[name] !== undefined && fields[name] !== "").map((name) => [name, fields[name]]));
}

function number(id) {
  const { value } = byId(id);
  return value === "" ? undefined : Number(value);
}

function note(text) {
  write(byId("composer-note"), text);
}

async function addPhotos(files) {
  note("");
  const faults = [];
  for (const file of files) {
    if (composer.photos.length >= composer.maxPhotos) {
      faults.push(`一次至多 ${composer.maxPhotos} 张照片，多出的没有添加。`);
      break;
    }
    try {
      composer.photos.push(await takePhoto(file));
    } catch (error) {
      faults.push(error instanceof PhotoError ? error.message : `${nameOf(file)} 打不开。`);
    }
    if (composer.mode === "rag" && composer.photos.length) chooseMode(["agentic", "hybrid", "answer", "observe"].find((mode) => composer.modes[mode] !== false) || "agentic");
    showTray();
  }
  if (faults.length) note(faults.join(" "));
  else announce(`共 ${composer.photos.length} 张照片`);
}

function removePhoto(photo) {
  composer.photos = composer.photos.filter((other) => other !== photo);
  if (photo.turn === null) forgetPhoto(photo);
  showTray();
  byId("question").focus();
}

function showTray() {
  const tray = byId("tray");
  tray.hidden = composer.mode === "rag" || !composer.photos.length;
  tray.replaceChildren(
    ...composer.photos.map((photo, place) => {
      const words = `照片 ${place + 1}${photo.turn === null ? "" : `，来自第 ${photo.turn + 1} 轮`}`;
      const remove = el("button", { type: "button", class: "remove", text: "×", "aria-label": `移除${words}`, on: () => removePhoto(photo) });
      return el("li", {}, el("img", { src: photo.url, alt: words, width: photo.width, height: photo.height }), photo.turn === null ? null : el("span", { class: "from", text: `第 ${photo.turn + 1} 轮` }), remove);
    }),
  );
}

async function send() {
  const mode = composer.mode;
  const query = byId("question").value.trim();
  note("");
  if (mode === "rag" && !query) return note("请先写下问题。");
  if (mode !== "rag" && !composer.photos.length) return note("请先拍照或选图。");
  byId("question").value = "";
  fit(byId("question"));
  const turn = startTurn(mode, query, mode === "rag" ? [] : [...composer.photos], optionsOf(mode));
  showTray();
  return turn;
}

/** As high as its text. */
function fit(area) {
  area.rows = Math.min(6, area.value.split("\n").length);
}

function listenComposer() {
  const question = byId("question");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (talk.running) talk.running.stop();
    else send();
  });
  question.addEventListener("input", () => fit(question));
  question.addEventListener("keydown", (event) => {
    // With a soft keyboard Enter is a new line; while an input method composes it chooses a word.
    const isSending = event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
    if (!isSending || matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    if (!talk.running) send();
  });
  for (const input of [byId("camera"), byId("files")]) {
    input.addEventListener("change", async () => {
      const files = [...input.files];
      input.value = ""; // so that the same photo can be chosen again
      await addPhotos(files);
    });
  }
  byId("new-talk").addEventListener("click", () => {
    forgetTalk();
    composer.photos.forEach(forgetPhoto);
    composer.photos = [];
    showTray();
    announce("已开始新对话");
    question.focus();
  });
  listenDrops();
}

function filesOf(transfer) {
  return [...(transfer?.files || [])];
}

function listenDrops() {
  const cover = byId("drop");
  const isFiles = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  document.addEventListener("paste", (event) => {
    const files = filesOf(event.clipboardData);
    if (!files.length) return;
    event.preventDefault();
    showPanel("talk");
    addPhotos(files);
  });
  document.addEventListener("dragover", (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    cover.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) cover.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    cover.hidden = true;
    showPanel("talk");
    addPhotos(filesOf(event.dataTransfer));
  });
}
