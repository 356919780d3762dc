// Carries an action on all matching tasks on, step by step, while the page is open. Without this script the button
// Continue carries out one step.
"use strict";
(() => {
  const form = document.getElementById("wheel-bulk");
  const state = document.getElementById("wheel-bulk-state");
  if (!form) return;
  let running = false;

  async function run() {
    running = true;
    try {
      for (;;) {
        const answer = await fetch(location.href, {
          method: "POST",
          body: new FormData(form),
          headers: { Accept: "application/json" },
          redirect: "error",
        });
        if (!answer.ok) throw new Error(answer.status);
        const step = await answer.json();
        state.innerHTML = step.html;
        form.elements.step.value = step.step;
        if (!step.goes_on) {
          form.hidden = !state.querySelector(".errornote");
          break;
        }
      }
    } catch {
      form.submit(); // the page says what is wrong, and has the button
    }
    running = false;
  }

  form.addEventListener("submit", (event) => {
    if (event.submitter?.name === "stop") return;
    event.preventDefault();
    if (!running) run();
  });
  run();
})();
