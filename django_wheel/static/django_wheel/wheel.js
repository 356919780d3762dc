// Keeps the live part of the wheel page up to date. Without it the page loads itself anew every few seconds.
"use strict";
(() => {
  const live = document.getElementById("wheel-live");
  const lost = document.getElementById("wheel-lost");
  if (!live) return;
  const everyMs = 1000;
  const giveUpMs = 10000;
  let misses = 0;

  function show(html) {
    const open = new Set([...live.querySelectorAll("details[open]")].map((one) => one.id));
    const active = document.activeElement;
    const focused = live.contains(active) && active.getAttribute("href");
    live.innerHTML = html;
    for (const one of live.querySelectorAll("details")) one.open = open.has(one.id);
    if (focused) [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
  }

  function busy() {
    const selection = document.getSelection();
    return document.hidden || (selection && !selection.isCollapsed && live.contains(selection.anchorNode));
  }

  async function refresh() {
    try {
      if (!busy()) {
        const answer = await fetch(live.dataset.url, { signal: AbortSignal.timeout(giveUpMs), redirect: "error" });
        if (!answer.ok) throw new Error(answer.status);
        show(await answer.text());
      }
      misses = 0;
    } catch {
      misses += 1;
    }
    lost.hidden = misses < 2;
    setTimeout(refresh, everyMs * Math.min(1 + misses, 10));
  }

  setTimeout(refresh, everyMs);
})();
