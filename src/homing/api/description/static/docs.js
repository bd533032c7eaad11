"use strict";
// Filters the operations by the search text, and opens the one in the URL's fragment. The page also works without this script.
const find = document.getElementById("find");
const entries = document.querySelectorAll("[data-find]");
find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const entry of entries) {
    const text = entry.dataset.find;
    entry.classList.toggle("gone", !words.every((word) => text.includes(word)));
  }
});
function open() {
  const named = document.getElementById(location.hash.slice(1));
  const details = named && named.querySelector("details");
  if (details) details.open = true;
}
addEventListener("hashchange", open);
open();
