"use strict";
const $ = (id) => document.getElementById(id);
const { items } = JSON.parse($("data").textContent);
const stops = ["#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f"]
  .map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
const colour = (share) => {
  const x = (0.5 + 0.45 * share) * (stops.length - 1), i = Math.min(Math.floor(x), stops.length - 2);
  return stops[i].map((c, channel) => Math.round(c + (x - i) * (stops[i + 1][channel] - c)));
};
const paint = (element, value, largest) => {
  const rgb = colour(Math.min(Math.max(value / largest, -1), 1)), bright = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
  element.classList.toggle("fixed", value === 0);
  element.style.backgroundColor = value === 0 ? "" : `rgb(${rgb.join()})`;
  element.style.color = value === 0 ? "" : bright > 127 ? "#1f2328" : "#fff";
  element.title = value === 0 ? "" : value.toPrecision(3).replace("-", "−");
};
const show = (k) => {
  const item = items[k];
  const size = (values) => Math.max(0, ...values.map(Math.abs));
  const largest = size(item.values) || size(item.before) || 1; // of the prompt, which the answer before would else outshine
  [...$("words").querySelectorAll("span")].forEach((word, i) => paint(word, item.values[i], largest));
  [...$("items").querySelectorAll("bdi")].forEach((token, i) => paint(token, i < k ? item.before[i] ?? 0 : 0, largest));
  $("name").textContent = item.label;
  $("chance").textContent = $("items").querySelectorAll("small")[k].textContent;
  $("verdict").className = `verdict ${item.tone}`;
  for (const [id, text] of Object.entries({ sentence: item.sentence, word: item.verdict, advice: item.advice })) $(id).textContent = text;
  $("status").textContent = item.score === null ? "" : `Score ${item.score.toPrecision(4).replace("-", "−")}${item.unit}; the strongest word has ${largest.toPrecision(3)}.`;
};
const chosen = () => Number(document.querySelector("#items input:checked").value);
document.addEventListener("change", () => show(chosen()));
addEventListener("pageshow", () => show(chosen())); // a browser keeps the choice when one comes back
document.body.dataset.ready = "true";
