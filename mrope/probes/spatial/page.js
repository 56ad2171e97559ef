"use strict";
/* Shows the samples one by one, and switches the colours. What a model said is only ever set as text, never as markup. */
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const THEME = "mrope-theme";
  const stored = (use) => {
    try {
      return use(localStorage);
    } catch {
      return null; /* a browser may refuse storage, to files above all: the choice then lasts until the next load */
    }
  };
  const chosen = stored((storage) => storage.getItem(THEME));
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const showTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored((storage) => storage.setItem(THEME, root.dataset.theme));
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);
  showTheme();

  /* Only what can be scrolled is worth a stop of the tab key. */
  const watch = new ResizeObserver((entries) => {
    for (const wide of new Set(entries.map((entry) => entry.target.closest(".wide"))))
      if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
      else wide.removeAttribute("tabindex");
  });
  for (const wide of document.querySelectorAll(".wide")) {
    watch.observe(wide);
    watch.observe(wide.firstElementChild);
  }

  const held = document.getElementById("data");
  if (!held) return;
  const { samples, pictures } = JSON.parse(held.textContent);
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const card = document.getElementById("sample");
  const count = document.getElementById("count");
  const browser = document.getElementById("browser");

  const make = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const drawing = document.querySelector("svg").namespaceURI; /* that of the figures, so that the page names no address */
  const svg = (tag, attributes) => {
    const made = document.createElementNS(drawing, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const boxWords = (box) => box.map((side) => side.toFixed(0)).join(", ");
  const answerOf = (sample) => sample.answer || (sample.box ? boxWords(sample.box) : "");

  const options = samples.map((sample, place) => {
    const option = make("div", `option ${sample.outcome}`);
    option.id = `option-${place}`;
    option.setAttribute("role", "option");
    option.append(make("b", "", sample.outcome), make("span", "", sample.id), make("small", "", `seed ${sample.seed}`));
    option.addEventListener("click", () => show(place));
    return option;
  });
  const searched = samples.map((one) =>
    [one.id, one.prompt, one.answer, one.reply, one.read, one.failure, one.group, one.tags].join("\n").toLowerCase(),
  );
  list.append(...options);

  let shown = [];
  let current = -1;

  function filter(keep) {
    const data = new FormData(form);
    const outcomes = data.getAll("outcome");
    const words = data.get("words").trim().toLowerCase();
    shown = [];
    samples.forEach((sample, place) => {
      const fits =
        (!data.get("task") || sample.task === data.get("task")) &&
        (!data.get("seed") || String(sample.seed) === data.get("seed")) &&
        (!outcomes.length || outcomes.includes(sample.outcome)) &&
        (!words || searched[place].includes(words));
      options[place].hidden = !fits;
      if (fits) shown.push(place);
    });
    const noun = samples.length === 1 ? "sample" : "samples";
    count.textContent = `${shown.length.toLocaleString("en")} of ${samples.length.toLocaleString("en")} ${noun}`;
    show(shown.includes(keep) ? keep : (shown[0] ?? -1));
  }

  function show(place) {
    if (current >= 0) options[current].removeAttribute("aria-selected");
    current = place;
    if (place < 0) {
      list.removeAttribute("aria-activedescendant");
      card.replaceChildren(make("p", "muted", "No sample fits."));
      return;
    }
    const option = options[place];
    option.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", option.id);
    const top = option.offsetTop;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + option.offsetHeight > list.scrollTop + list.clientHeight)
      list.scrollTop = top + option.offsetHeight - list.clientHeight;
    card.replaceChildren(...described(samples[place]));
  }

  function step(by) {
    if (!shown.length) return;
    const at = Math.min(shown.length - 1, Math.max(0, shown.indexOf(current) + by));
    show(shown[at]);
  }

  function described(sample) {
    const head = make("div", "turn");
    const at = shown.indexOf(current);
    for (const [name, by, there] of [["Previous", -1, at > 0], ["Next", 1, at < shown.length - 1]]) {
      const button = make("button", "", name);
      button.type = "button";
      button.setAttribute("aria-disabled", String(!there));
      button.addEventListener("click", () => {
        step(by);
        card.querySelectorAll(".turn button")[by < 0 ? 0 : 1].focus();
      });
      head.append(button);
    }
    head.append(make("span", "muted", `${(at + 1).toLocaleString("en")} of ${shown.length.toLocaleString("en")}`));

    const row = make("div", "pictures");
    sample.pictures.forEach(([number, words], place) => row.append(figure(sample, number, words, place)));
    const parts = [head, row];
    if (sample.left) {
      const noun = sample.left === 1 ? "picture or frame lies" : "pictures or frames lie";
      parts.push(make("p", "muted", `${sample.left} more ${noun} between these.`));
    }

    const title = make("p", "title");
    title.append(make("span", `badge ${sample.outcome}`, sample.outcome), make("code", "", sample.id));
    title.append(make("span", "muted", `seed ${sample.seed}`));
    parts.push(title, make("p", "question", sample.prompt));

    const facts = make("dl", "facts");
    const fact = (name, value, className) => {
      if (value === "" || value === null) return;
      const said = make("dd", className);
      said.append(value);
      facts.append(make("dt", "", name), said);
    };
    fact("right answer", answerOf(sample), "answer");
    fact("said", sample.reply, "said");
    if (!sample.reply && !sample.failure && !sample.scores.length) fact("said", make("em", "muted", "nothing"));
    fact("no reply", sample.failure, "said");
    if (sample.read !== sample.reply) fact("read as", sample.read, "answer");
    if (sample.share > 0 && sample.share < 1) fact("right in part", `${(100 * sample.share).toFixed(1)} %`);
    if (sample.scores.length) fact("scores", scored(sample));
    if (sample.scores.length < 2) fact("choices", sample.choices);
    fact("tags", sample.tags);
    if (sample.group) {
      const button = make("button", "", sample.group);
      button.type = "button";
      button.title = "show the samples of this group";
      button.addEventListener("click", () => {
        const keep = current;
        form.reset();
        form.elements.words.value = sample.group;
        filter(keep);
        list.focus();
      });
      fact("group", button);
    }
    parts.push(facts);
    return parts;
  }

  function figure(sample, number, words, place) {
    const made = make("figure", sample.pictures.length > 2 ? "small" : "");
    if (number === null) {
      made.append(make("p", "muted", "This picture is not in the folder."));
      return made;
    }
    const [source, width, height] = pictures[number];
    const frame = make("div", "frame");
    const image = make("img");
    image.src = source;
    image.width = width;
    image.height = height;
    image.alt = `${words}, ${width} x ${height} pixels`;
    frame.append(image);
    if (sample.box && sample.where === place) frame.append(drawn(sample, width, height));
    made.append(frame);
    const size = `${width} x ${height}`;
    made.append(make("figcaption", "", sample.pictures.length > 1 ? `${words}, ${size}` : `${size} pixels`));
    return made;
  }

  function drawn(sample, width, height) {
    const over = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "over", "aria-hidden": "true" });
    const rect = ([left, top, right, bottom], className) =>
      over.append(
        svg("rect", { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top), class: className }),
      );
    rect(sample.box, "right");
    const read = sample.read.split(" ").map(Number);
    if (sample.read && read.every(Number.isFinite)) {
      if (read.length === 4) rect(read, sample.outcome);
      const [x, y] = read.length === 4 ? [(read[0] + read[2]) / 2, (read[1] + read[3]) / 2] : read;
      if (read.length === 2) over.append(svg("circle", { cx: x, cy: y, r: Math.max(width, height) / 60, class: sample.outcome }));
    }
    return over;
  }

  function scored(sample) {
    const most = Math.max(...sample.scores.map(([, value]) => value));
    const weights = sample.scores.map(([, value]) => Math.exp(value - most));
    const all = make("div", "scores");
    sample.scores.forEach(([name, value], place) => {
      const bar = make("span", name === sample.answer ? "bar right" : "bar");
      bar.style.width = `${(100 * weights[place]).toFixed(1)}%`;
      const room = make("span", "room");
      room.append(bar);
      all.append(make("b", "", name), room, make("code", "", value.toFixed(2)));
    });
    return all;
  }

  const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10 };
  browser.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const by = STEPS[event.key] ?? { Home: -samples.length, End: samples.length }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const lost = card.contains(document.activeElement);
    step(by);
    if (lost) card.focus({ preventScroll: true });
  });
  form.addEventListener("input", () => filter(current));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => filter(current)));
  for (const link of document.querySelectorAll("a[data-task]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault(); /* which would take the focus */
      form.reset();
      form.elements.task.value = link.dataset.task;
      for (const tick of form.querySelectorAll("input[name=outcome]")) tick.checked = tick.value === link.dataset.outcome;
      filter(-1);
      document.getElementById("samples").scrollIntoView();
      list.focus({ preventScroll: true });
    });
  }
  form.hidden = browser.hidden = false;
  filter(-1);
})();
