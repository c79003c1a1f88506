"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const PAGE = 10;
  const layerOf = new Map(); // by method: 0 is the score over all layers, i its i-th layer
  const hidden = new Set();
  let found = [];
  let shown = PAGE;

  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  // What stands between words is isolated too, where it is more than space.
  const gapOf = (gap) => (gap.trim() ? make("bdi", "", gap) : gap);
  const whole = (text) => text.words.map((word, i) => text.gaps[i] + word).join("") + text.gaps[text.words.length];
  data.texts.forEach((text, i) => { text.number = i + 1; text.lower = whole(text).toLowerCase(); });

  const valuesOf = (scores, method) => {
    const layer = layerOf.get(method) || 0;
    return layer && scores.layers ? scores.layers[layer - 1] : scores.all;
  };
  const number = (thousandths, scale) => {
    if (thousandths === null) return "not a number";
    const value = (thousandths / 1000) * scale;
    const size = Math.abs(value);
    const text = size === 0 ? "0" : size >= 100 ? size.toFixed(0) : size >= 0.01 ? size.toFixed(size >= 10 ? 1 : 2) : size.toPrecision(1);
    return value < 0 ? "−" + text : text;
  };
  const ranksOf = (values) => {
    const order = values.map((_, i) => i).sort((a, b) => (values[b] ?? -Infinity) - (values[a] ?? -Infinity));
    const ranks = [];
    order.forEach((word, place) => {
      const tied = place > 0 && values[word] === values[order[place - 1]];
      ranks[word] = tied ? ranks[order[place - 1]] : place + 1;
    });
    return ranks;
  };

  // One method's view of one text.
  const paint = (view) => {
    const text = data.texts[view.dataset.text];
    const method = Number(view.dataset.method);
    const scores = text.scores[method];
    const values = valuesOf(scores, method);
    const ranks = ranksOf(values);
    view.querySelectorAll(".word").forEach((word, i) => {
      const value = values[i] ?? 0;
      word.style.setProperty("--p", String(Math.abs(value) / 10));
      word.classList.toggle("against", value < -80);
      word.toggleAttribute("data-strong", Math.abs(value) >= 500);
      word.dataset.value = number(values[i], scores.scale);
      word.dataset.rank = ranks[i] + " of " + values.length;
      word.setAttribute("aria-label", text.words[i] + ": " + word.dataset.value + ", rank " + word.dataset.rank);
    });
    const slider = view.querySelector("input");
    if (slider) {
      const layer = layerOf.get(method) || 0;
      const name = layer ? scores.names[layer - 1] : "all layers";
      slider.value = String(layer);
      slider.setAttribute("aria-valuetext", name);
      view.querySelector("output").textContent = name;
    }
  };

  const sliderFor = (scores, method) => {
    const label = make("label", "", "Layer: ");
    label.append(make("output"));
    const slider = make("input");
    slider.type = "range";
    slider.min = "0";
    slider.max = String(scores.layers.length);
    slider.addEventListener("input", () => {
      layerOf.set(method, Number(slider.value));
      document.querySelectorAll('.view[data-method="' + method + '"]').forEach(paint);
    });
    label.append(slider);
    return label;
  };

  const viewOf = (text, place, method) => {
    const scores = text.scores[method];
    const view = make("div", "view");
    view.dataset.text = String(place);
    view.dataset.method = String(method);
    const who = make("div", "who");
    const name = make("bdi", "", data.methods[method]);
    name.id = "who-" + place + "-" + method;
    who.append(name);
    if (scores.layers) who.append(sliderFor(scores, method));
    const words = make("div", "words");
    words.dir = "auto";
    words.setAttribute("role", "list");
    words.setAttribute("aria-labelledby", name.id);
    text.words.forEach((word, i) => {
      words.append(gapOf(text.gaps[i]));
      const span = make("bdi", "word", word);
      span.setAttribute("role", "listitem");
      span.tabIndex = i ? -1 : 0;
      span.dataset.place = String(i);
      words.append(span);
    });
    words.append(gapOf(text.gaps[text.words.length]));
    view.append(who, words);
    paint(view);
    return view;
  };

  const tableOf = (text) => {
    const table = make("table", "plain");
    const methods = data.methods.map((_, i) => i).filter((i) => text.scores[i]);
    const head = table.createTHead().insertRow();
    for (const name of ["word", ...methods.map((i) => data.methods[i])]) {
      const cell = make("th", "", name);
      cell.scope = "col";
      head.append(cell);
    }
    const body = table.createTBody();
    text.words.forEach((word, i) => {
      const row = body.insertRow();
      const first = make("th");
      first.scope = "row";
      first.append(make("bdi", "", word));
      row.append(first);
      for (const method of methods) row.append(make("td", "", number(text.scores[method].all[i], text.scores[method].scale)));
    });
    return table;
  };

  const factsOf = (text) => {
    const facts = make("header");
    facts.append(make("h3", "", "Text " + text.number));
    const decision = make("span", "", "model says ");
    const named = make("b");
    named.append(make("bdi", "", text.prediction));
    decision.append(named, " (" + text.probability.toFixed(2) + ")");
    facts.append(decision);
    if (text.gold !== null) {
      const right = text.gold === text.prediction;
      facts.append(make("span", right ? "right" : "wrong", (right ? "✓ label " : "✗ label ") + text.gold));
    }
    if (text.apart !== null) facts.append(make("span", "", "disagreement " + text.apart.toFixed(2)));
    return facts;
  };

  const cardOf = (text) => {
    const place = text.number - 1;
    const card = make("article", "text");
    card.setAttribute("aria-label", "Text " + text.number);
    card.append(factsOf(text));
    data.methods.forEach((_, method) => {
      if (text.scores[method] && !hidden.has(method)) card.append(viewOf(text, place, method));
    });
    const details = make("details");
    details.append(make("summary", "", "Values as a table"));
    details.addEventListener("toggle", () => {
      if (details.childElementCount > 1) return;
      const wide = make("div", "wide");
      wide.tabIndex = 0;
      wide.append(tableOf(text));
      details.append(wide);
    });
    card.append(details);
    return card;
  };

  // Which texts are shown.
  const ORDERS = {
    apart: (a, b) => (b.apart ?? -9) - (a.apart ?? -9),
    together: (a, b) => (a.apart ?? 9) - (b.apart ?? 9),
    unsure: (a, b) => a.probability - b.probability,
  };
  const matches = (text) =>
    text.lower.includes(at("search").value.trim().toLowerCase()) &&
    (!at("task")?.value || text.task === Number(at("task").value)) &&
    (!at("class").value || text.prediction === at("class").value) &&
    (!at("right").value || (text.gold !== null && (text.gold === text.prediction) === (at("right").value === "right"))) &&
    (Number(at("apart").value) === 0 || (text.apart ?? 0) >= Number(at("apart").value));
  const draw = (from) => {
    if (!from) at("list").replaceChildren();
    at("list").append(...found.slice(from, shown).map(cardOf));
    at("more").hidden = shown >= found.length;
    at("more").textContent = "Show " + Math.min(PAGE, found.length - shown) + " more texts";
    const few = Math.min(shown, found.length);
    at("count").textContent = found.length
      ? few + " of " + found.length + (found.length === 1 ? " matching text" : " matching texts") + " shown, " + data.texts.length + " in all"
      : "No text matches; " + data.texts.length + " in all";
  };
  const choose = () => {
    at("apart-value").textContent = Number(at("apart").value).toFixed(2);
    found = data.texts.filter(matches);
    if (ORDERS[at("order").value]) found.sort(ORDERS[at("order").value]);
    shown = PAGE;
    draw(0);
  };
  for (const id of ["search", "task", "class", "right", "order", "apart"]) at(id)?.addEventListener("input", choose);
  at("numbers").addEventListener("input", () => at("list").classList.toggle("numbers", at("numbers").checked));
  at("more").addEventListener("click", () => {
    const from = shown;
    shown += PAGE;
    draw(from);
    at("list").children[from].querySelector(".word")?.focus();
  });
  document.querySelector(".tools").addEventListener("submit", (event) => event.preventDefault());
  data.methods.forEach((name, method) => {
    const label = make("label", "check");
    const box = make("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("input", () => {
      if (box.checked) hidden.delete(method); else hidden.add(method);
      draw(0);
    });
    label.append(box, make("bdi", "", name));
    at("which").append(label);
  });

  // A word's value, under the pointer or the keyboard's focus.
  const tip = at("tip");
  let marked = [];
  const leave = () => {
    tip.hidden = true;
    marked.forEach((word) => word.classList.remove("same"));
    marked = [];
  };
  const show = (word) => {
    leave();
    const view = word.closest(".view");
    const shortened = word.textContent.length > 60 ? word.textContent.slice(0, 60) + "…" : word.textContent;
    tip.replaceChildren(make("b", "", word.dataset.value), " · rank " + word.dataset.rank + " · ", make("bdi", "", shortened), make("br"), make("bdi", "", data.methods[view.dataset.method]));
    tip.hidden = false;
    const box = word.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(box.left, innerWidth - size.width - 8)) + "px";
    tip.style.top = (box.top > size.height + 12 ? box.top - size.height - 8 : Math.min(box.bottom + 8, innerHeight - size.height - 8)) + "px";
    marked = [...view.parentElement.querySelectorAll('.word[data-place="' + word.dataset.place + '"]')];
    marked.forEach((one) => one.classList.add("same"));
  };
  const wordUnder = (event) => (event.target instanceof Element ? event.target.closest(".word") : null);
  for (const [kind, act] of [["pointerover", show], ["focusin", show], ["pointerout", leave], ["focusout", leave]]) {
    at("list").addEventListener(kind, (event) => { const word = wordUnder(event); if (word) act(word); });
  }
  const stay = () => {
    const word = document.activeElement.closest(".word");
    if (word) show(word); else leave();
  };
  addEventListener("scroll", () => { if (!tip.hidden) stay(); }, { passive: true });

  // Arrow keys go from word to word, and to the same word in the next method.
  const neighbour = (word, key) => {
    const words = [...word.parentElement.querySelectorAll(".word")];
    const place = Number(word.dataset.place);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (step) return words[place + step];
    if (key === "Home") return words[0];
    if (key === "End") return words[words.length - 1];
    const views = [...word.closest(".text").querySelectorAll(".view")];
    const next = views[views.indexOf(word.closest(".view")) + { ArrowDown: 1, ArrowUp: -1 }[key]];
    return next && next.querySelectorAll(".word")[place];
  };
  at("list").addEventListener("keydown", (event) => {
    const word = wordUnder(event);
    if (event.key === "Escape") leave();
    if (!word || !["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const next = neighbour(word, event.key);
    if (!next) return;
    next.parentElement.querySelectorAll('.word[tabindex="0"]').forEach((one) => { one.tabIndex = -1; });
    next.tabIndex = 0;
    next.focus();
  });

  const most = Math.max(0, ...data.texts.map((text) => text.apart ?? 0));
  at("apart").max = String(Math.ceil(most * 100) / 100);
  choose();
})();
