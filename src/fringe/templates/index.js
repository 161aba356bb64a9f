"use strict";
const show = (verdict) => {
  let shown = 0;
  for (const card of document.getElementById("cards").children) {
    card.hidden = verdict !== "" && card.dataset.verdict !== verdict;
    shown += !card.hidden;
  }
  document.getElementById("count").textContent = `${shown} ${shown === 1 ? "input" : "inputs"}`;
};
document.addEventListener("change", ({ target }) => show(target.value));
addEventListener("pageshow", () => show(document.querySelector("input:checked")?.value ?? "")); // a browser keeps the choice when one comes back
