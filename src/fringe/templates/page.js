"use strict";
// What a part of the page does; a page of several boxes has one for each. It ends with the signal.
const start = (page, signal) => {
  const $ = (id) => document.getElementById(id);
  const [points, , height, width] = page.maps.shape;
  const small = Math.max(page.width, page.height) <= 64;
  const bytes = Int8Array.from(atob(page.maps.data), (c) => c.charCodeAt(0));
  const stops = {
    strength: ["#7f1e6c", "#9d2964", "#bc3754", "#d54a41", "#ea632a", "#f78212", "#fca50a", "#f9cb35", "#f1ef75"],
    signed: ["#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f"],
  };
  const state = { point: points - 1, k: 0, view: "strength", picture: "image", timer: 0 };
  const pictures = {};

  // Maps: decoded, smoothed where the image is large, and coloured.
  const colours = Object.fromEntries(Object.entries(stops).map(([name, hex]) => {
    const rgb = hex.map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
    return [name, (t) => {
      const x = Math.min(Math.max(t, 0), 1) * (rgb.length - 1), i = Math.min(Math.floor(x), rgb.length - 2);
      return rgb[i].map((c, channel) => c + (x - i) * (rgb[i + 1][channel] - c));
    }];
  }));
  const smooth = (values, part) => {  // more where signs cancel, as in signed.png
    const sigma = Math.max(width, height) / part, reach = Math.ceil(3 * sigma);
    const weights = Array.from({ length: 2 * reach + 1 }, (_, i) => Math.exp(-0.5 * ((i - reach) / sigma) ** 2));
    const total = weights.reduce((a, b) => a + b);
    const along = (source, size, stride) => source.map((_, at) => {
      const place = Math.floor(at / stride) % size;
      return weights.reduce((sum, weight, i) => {
        const moved = Math.min(Math.max(place + i - reach, 0), size - 1);
        return sum + weight * source[at + (moved - place) * stride];
      }, 0) / total;
    });
    return along(along(values, width, 1), height, width);
  };
  const cache = new Map();
  const values = (point, k, view) => {
    const key = [point, k, view].join();
    if (!cache.has(key)) {
      const size = width * height, start = (point * page.classes.length + k) * size;
      const levels = Float32Array.from(bytes.subarray(start, start + size), (q) => (q / 127) * Math.abs(q / 127));
      const shown = view === "signed" ? levels : levels.map(Math.abs);
      cache.set(key, small ? shown : smooth(shown, view === "signed" ? 90 : 150));
    }
    return cache.get(key);
  };
  const scale = (k, view) => {
    const key = ["scale", k, view].join();
    if (!cache.has(key)) {
      const sizes = values(points - 1, k, view).map(Math.abs).sort();
      cache.set(key, sizes[Math.ceil(0.99 * (sizes.length - 1))] || sizes[sizes.length - 1]);
    }
    return cache.get(key);
  };
  const drawMap = () => {
    const { point, k, view } = state, signed = view === "signed", top = scale(k, view) || 1;
    const opacity = $("opacity").value / 100, pixels = new ImageData(width, height);
    values(point, k, view).forEach((value, i) => {
      const share = Math.max(-1, Math.min(1, value / top));
      const rgb = colours[view](signed ? (share + 1) / 2 : share);
      pixels.data.set([...rgb, 255 * opacity * Math.abs(share) ** (signed ? 0.6 : 0.8)], 4 * i);
    });
    $("map").getContext("2d").putImageData(pixels, 0, 0);
    const empty = page.maps.scales[k] === 0;
    $("empty").hidden = !empty;
    $("empty").textContent = "The map is zero or not finite.";
  };
  const drawLegend = () => {
    const bar = $("bar").getContext("2d"), pixels = new ImageData(64, 1);
    for (let i = 0; i < 64; i++) pixels.data.set([...colours[state.view](i / 63), 255], 4 * i);
    bar.putImageData(pixels, 0, 0);
    [$("low").textContent, $("high").textContent] = state.view === "signed" ? ["against", "for the class"] : ["weak", "strong evidence"];
    document.body.classList.toggle("signed", state.view === "signed");
  };
  const paint = (canvas, image) => {
    if (!image) return;
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    canvas.getContext("2d").drawImage(image, 0, 0);
  };

  // Numbers
  const chance = (one) => one.probability === null ? one.score?.toPrecision(3).replace("-", "−") ?? "–" : percent(one.probability);
  const percent = (p) => p === null ? "–" : p > 0 && p < 0.001 ? "< 0.1%" : `${(100 * p).toFixed(1)}%`;
  const raised = (digits) => [...digits.replace("+", "")].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  const power = (x) => x.toExponential(1).replace(/e(.*)/, (_, digits) => `×10${raised(digits)}`);
  const number = (x) => x === null ? "–" : (Math.abs(x) >= 1000 || (x !== 0 && Math.abs(x) < 0.01) ? power(x) : x.toFixed(2)).replace("-", "−");
  const drawBars = () => {
    const now = page.snapshots[state.point].probabilities, rest = now.includes(null) ? 0 : 1 - now.reduce((sum, p) => sum + p, 0);
    [...$("bars").children].forEach((row, i) => {
      const p = i < now.length ? now[i] : Math.max(0, rest);
      row.querySelector(".number").textContent = percent(p);
      row.querySelector(".track span").style.width = `${100 * (p || 0)}%`;
      row.classList.toggle("target", i < now.length && page.predictions[i].index === page.classes[state.k].index);
      if (i === now.length) row.hidden = rest < 5e-4;
    });
  };
  const describe = () => {
    const shown = page.snapshots[state.point], chosen = page.classes[state.k];
    const where = page.predictions.findIndex((label) => label.index === chosen.index), p = shown.probabilities[where];
    const best = shown.probabilities.reduce((a, q, i) => (q ?? -1) > (shown.probabilities[a] ?? -1) ? i : a, 0);
    const score = page.path ? page.path.scores[state.k][shown.step] : chosen.score; // of what is no class
    let text = `“${page.predictions[where].label}” has ${p === null && score !== null ? `a score of ${number(score)}` : percent(p)}`;
    if (best !== where && shown.probabilities[best] !== null) text += `, “${page.predictions[best].label}” ${percent(shown.probabilities[best])}`;
    if (page.path) {
      const score = page.path.scores[state.k], alone = best === where && chosen.label === page.predictions[where].label;
      text = `Step ${shown.step} of ${page.path.steps}: ${text}. ${alone ? "Its score" : `The score of “${chosen.label}”`} went from ${number(score[0])} to ${number(score[shown.step])}`;
      $("slider").setAttribute("aria-valuetext", `step ${shown.step} of ${page.path.steps}, ${chosen.label} ${percent(p)}`);
      $("entropy").textContent = `${number(shown.entropy)} of ${number(page.path.largest_entropy)} nats`;
    }
    $("status").textContent = `${text}.`;
    $("image").setAttribute("aria-label", state.picture === "image" ? `The input ${page.id} after step ${shown.step}` : `Its change after step ${shown.step}, amplified`);
    $("map").setAttribute("aria-label", `${state.view === "signed" ? "Signed evidence" : "Strength of the evidence"} for ${chosen.label} after step ${shown.step}, over the input`);
  };

  // The curve of the entropy: 320 x 128, with its axes at the left and at the bottom.
  const chart = page.path && (() => {
    const { entropy, steps, largest_entropy: limit } = page.path;
    const x = (step) => 6 + (308 * step) / Math.max(steps, 1);
    const y = (nats) => 104 - 84 * Math.min((nats ?? 0) / limit, 1.1);
    const add = (kind, attributes, text = "") => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      element.textContent = text;
      return $("chart").appendChild(element);
    };
    const line = entropy.map((nats, step) => `${step ? "L" : "M"}${x(step).toFixed(1)} ${y(nats).toFixed(1)}`).join("");
    add("path", { class: "area", d: `${line}L${x(steps)} 104L${x(0)} 104Z` });
    add("line", { x1: 6, x2: 314, y1: 104, y2: 104 });
    add("line", { class: "limit", x1: 6, x2: 314, y1: y(limit), y2: y(limit) });
    add("text", { x: 6, y: 13 }, "uniform prediction");
    add("text", { x: 6, y: 121 }, "input");
    add("text", { x: 314, y: 121, "text-anchor": "end" }, `step ${steps}`);
    const cursor = add("line", { class: "cursor", y1: 20, y2: 104 });
    add("path", { d: line });
    page.snapshots.forEach(({ step, entropy: nats }) => add("circle", { cx: x(step), cy: y(nats), r: 3 }));
    const dot = add("circle", { class: "now", r: 5 });
    $("chart").addEventListener("click", (event) => {
      const box = $("chart").getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * 320;
      const distance = page.snapshots.map(({ step }) => Math.abs(x(step) - at));
      go(distance.indexOf(Math.min(...distance)));
    });
    return ({ step, entropy: nats }) => {
      for (const [element, name] of [[cursor, "x1"], [cursor, "x2"], [dot, "cx"]]) element.setAttribute(name, x(step));
      dot.setAttribute("cy", y(nats));
    };
  })();

  const draw = () => {
    paint($("image"), pictures[state.picture][state.point]);
    drawMap();
    drawBars();
    describe();
    if (chart) chart(page.snapshots[state.point]);
    const box = page.snapshots[state.point].box;
    if (box) document.querySelectorAll(".moved").forEach((rect) => {
      const [x, y, right, bottom] = box;
      for (const [name, value] of Object.entries({ x, y, width: Math.max(right - x, 0), height: Math.max(bottom - y, 0) })) rect.setAttribute(name, value);
    });
  };
  const go = (point) => {
    state.point = Math.max(0, Math.min(points - 1, point));
    if (page.path) $("slider").value = state.point;
    draw();
  };
  const stop = () => {
    clearInterval(state.timer);
    state.timer = 0;
    $("icon").setAttribute("d", "M4 2l10 6-10 6z");
    $("play").setAttribute("aria-label", "Play the path");
    $("status").setAttribute("aria-live", "polite");
  };
  const play = () => {
    if (state.timer) return stop();
    $("status").setAttribute("aria-live", "off");
    go(state.point === points - 1 ? 0 : state.point);
    state.timer = setInterval(() => { go(state.point + 1); if (state.point === points - 1) stop(); }, 450);
    $("icon").setAttribute("d", "M3 2h4v12H3zM9 2h4v12H9z");
    $("play").setAttribute("aria-label", "Stop");
  };
  const choose = (k) => {
    const chosen = page.classes[(state.k = k)];
    for (const [id, text] of [["name", chosen.label], ["chance", chance(chosen)], ["sentence", chosen.sentence],
      ["word", chosen.verdict.replaceAll("_", " ")], ["advice", chosen.advice]]) $(id).textContent = text;
    $("verdict").className = `verdict ${chosen.tone}`;
    draw();
  };
  const select = (name, value) => {
    const input = document.querySelector(`input[name=${name}][value="${value}"]`);
    if (input) { input.checked = true; input.dispatchEvent(new Event("change", { bubbles: true })); }
  };
  const printed = { before: () => { stop(); printed.point = state.point; go(points - 1); }, after: () => go(printed.point) };

  const listen = (target, event, action) => target.addEventListener(event, action, { signal });
  listen(signal, "abort", stop);
  listen(document, "change", ({ target }) => {
    if (target.name === "class") choose(Number(target.value));
    if (target.name === "picture") { state.picture = target.value; draw(); }
    if (target.name === "view") { state.view = target.value; drawLegend(); draw(); }
  });
  listen(document, "keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    // what has the focus may use these itself
    if ((move || event.key === " ") && event.target.closest("input, button, summary, .scroll")) return;
    if (move && page.path) { stop(); go(state.point + move); }
    else if (event.key === " " && page.path) play();
    else if (Number(event.key) >= 1 && Number(event.key) <= page.classes.length) select("class", event.key - 1);
    else if (event.key.toLowerCase() === "s") select("view", state.view === "signed" ? "strength" : "signed");
    else return;
    event.preventDefault();
  });
  $("opacity").addEventListener("input", drawMap);
  if (page.path) {
    $("slider").addEventListener("input", () => { stop(); go(Number($("slider").value)); });
    $("play").addEventListener("click", play);
    listen(window, "beforeprint", printed.before);
    listen(window, "afterprint", printed.after);
  }
  document.body.classList.toggle("small", small);
  // a tall image is as high as a screen at most
  document.body.style.setProperty("--widest", `${(44 * page.width) / page.height}rem`);
  // its last squares may reach over the edge of the image
  $("map").style.width = `${(100 * width * page.maps.pool) / page.width}%`;
  $("map").style.height = `${(100 * height * page.maps.pool) / page.height}%`;
  const load = (data) => data && Object.assign(new Image(), { src: `data:image/webp;base64,${data}` });
  pictures.image = page.snapshots.map(({ image }) => load(image));
  pictures.change = page.snapshots.map(({ change }) => load(change));
  drawLegend();
  Promise.allSettled([...pictures.image, ...pictures.change].map((image) => image && image.decode())).then(() => {
    if (signal.aborted) return;
    paint($("base"), pictures.image[0]);
    draw();
    document.body.dataset.ready = "true";
  });
};
(() => {
  const shown = document.getElementById("page");
  const parts = [shown, ...document.querySelectorAll("template")].map((part) => (part.content || part).cloneNode(true));
  let ending;
  const show = () => {
    const at = Number((location.hash.match(/^#box-([0-9]+)$/) || [0, 1])[1]) - 1, part = parts[at] || parts[0];
    if (ending) ending.abort();
    if (ending || at > 0) shown.replaceChildren(...part.cloneNode(true).childNodes);
    ending = new AbortController();
    const page = JSON.parse(document.getElementById("data").textContent);
    if (parts.length > 1) document.title = `${page.classes[0].label} · ${page.id}`;
    start(page, ending.signal);
  };
  if (parts.length > 1) addEventListener("hashchange", show);
  show();
})();
