// What the pages do beyond links, forms and htmx: keys, local time, copying, and closing open menus.
"use strict";
(() => {
  const store = {
    get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private mode */ } },
  };
  const two = (number) => String(number).padStart(2, "0");

  function localText(date, precise) {
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
    return precise === "day" ? `${day} ${time}` : precise === "minute" ? time.slice(0, 5) : time;
  }

  function showTimes() {
    const local = store.get("homing-time") === "local";
    for (const element of document.querySelectorAll("time[data-utc]")) {
      const wanted = local ? localText(new Date(element.dateTime), element.dataset.form) : element.dataset.utc;
      if (element.textContent !== wanted) element.textContent = wanted;
    }
    for (const button of document.querySelectorAll("button[hidden]")) button.hidden = false;
    for (const button of document.querySelectorAll("[data-zone]")) {
      button.textContent = local ? "Local" : "UTC";
      button.setAttribute("aria-label", local ? "Times are local; show UTC" : "Times are UTC; show local time");
    }
  }

  function typing(element) {
    return element && (element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName));
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const help = document.getElementById("keys");
    if (event.key === "/") {
      const box = document.querySelector("input[data-find]");
      if (box) { event.preventDefault(); box.focus(); box.select(); }
    } else if (event.key === "?" && help) {
      event.preventDefault();
      if (help.open) help.close(); else help.showModal();
    } else if (event.key === "r") {
      location.reload();
    }
  });

  // Browsers offer the clipboard only to pages from https or from this machine. Elsewhere, the text is selected.
  function copy(source, button) {
    if (!source) return;
    const select = () => {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected, press Ctrl+C";
    };
    if (!navigator.clipboard) select();
    else navigator.clipboard.writeText(source.textContent).then(() => { button.textContent = "Copied"; }, select);
  }

  document.addEventListener("click", (event) => {
    const target = event.target.closest("button, a, summary");
    if (target?.matches("[data-zone]")) {
      store.set("homing-time", store.get("homing-time") === "local" ? "utc" : "local");
      showTimes();
    } else if (target?.matches("[data-copy]")) {
      copy(document.getElementById(target.dataset.copy), target);
    } else if (target?.matches("[data-close]")) {
      target.closest("dialog")?.close();
    } else if (target?.matches("[data-width]")) {
      const frame = document.getElementById("message");
      frame?.classList.toggle("phone", target.dataset.width === "phone");
      for (const one of document.querySelectorAll("[data-width]")) one.setAttribute("aria-pressed", String(one === target));
    }
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary")?.focus();
    }
  });

  // A lost stream is shown: old figures must not look current.
  const note = (text, lost = false) => {
    const place = document.getElementById("stream");
    if (!place || place.textContent === text) return;
    place.textContent = text;
    place.classList.toggle("lost", lost);
  };
  document.addEventListener("htmx:sse:after:connection", () => note("live"));
  document.addEventListener("htmx:sse:after:message", (event) => {
    if (event.detail.message.event === "stale") note("out of date: the figures cannot be read, trying again", true);
    else note("live");
    showTimes();
  });
  const ended = "out of date: your session has ended, load the page again";
  document.addEventListener("htmx:sse:error", (event) => {
    note(event.detail.status === 401 ? ended : "out of date: connection lost, trying again", true);
  });
  // A stream that cannot be opened at all, because too many are open.
  document.addEventListener("htmx:response:error", (event) => {
    if (!event.target.hasAttribute?.("hx-sse:connect")) return;
    note(event.detail.ctx.response.status === 401 ? ended : "not live: load the page again for newer figures", true);
  });
  document.addEventListener("htmx:sse:close", () => note("not live"));
  document.addEventListener("htmx:after:swap", showTimes);
  document.addEventListener("DOMContentLoaded", showTimes);
  const here = document.querySelector("nav [aria-current]");  // on a phone, the menu scrolls
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 24;
  if (document.readyState !== "loading") showTimes();
})();
