"use strict";
document.addEventListener("change", ({ target }) => {
  let shown = 0;
  for (const card of document.getElementById("cards").children) {
    card.hidden = target.value !== "" && card.dataset.verdict !== target.value;
    shown += !card.hidden;
  }
  document.getElementById("count").textContent = `${shown} ${shown === 1 ? "input" : "inputs"}`;
});
