"use strict";
// Finds operations by what is typed, and opens the one that an address names. Without it the page is whole too.
const find = document.getElementById("find");
const entries = document.querySelectorAll("[data-find]");
find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const entry of entries) {
    const said = entry.dataset.find;
    entry.classList.toggle("gone", !words.every((word) => said.includes(word)));
  }
});
function open() {
  const named = document.getElementById(location.hash.slice(1));
  const details = named && named.querySelector("details");
  if (details) details.open = true;
}
addEventListener("hashchange", open);
open();
