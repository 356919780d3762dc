// Shows the progress of a bulk action every second, until it is over. The scheduler carries the action out, whether this
// page is open or not. Without this script the page reloads itself every few seconds.
"use strict";
(() => {
  const state = document.getElementById("wheel-bulk-state");
  const form = document.getElementById("wheel-bulk");
  const lost = document.getElementById("wheel-bulk-lost");
  if (!form) return;
  let shown = "";
  let pauseMs = 1000;

  async function show() {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "application/json" }, redirect: "error" });
      if (!answer.ok) throw new Error(answer.status);
      const found = await answer.json();
      if (found.html !== shown) {
        const open = state.querySelector("details")?.open ?? false;
        state.innerHTML = shown = found.html;
        const details = state.querySelector("details");
        if (details) details.open = open;
      }
      for (const button of form.elements) {
        if (button.name === "do") button.hidden = !found.doings[button.value];
      }
      lost.hidden = true;
      pauseMs = 1000;
      if (found.over) return;
    } catch {
      lost.hidden = false; // what is shown is out of date
      pauseMs = Math.min(pauseMs * 2, 30000);
    }
    setTimeout(show, pauseMs);
  }

  setTimeout(show, pauseMs);
})();
