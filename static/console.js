// Decides when the overview asks again; htmx does the asking and the morphing.
//
// A hidden or paused page asks nothing. Each failure doubles the pause up to half a minute, so that a service in trouble is not
// hammered by the very people who look after it; the figures then say that they are old instead of looking fresh.
(() => {
  "use strict";
  const region = document.getElementById("moving");
  const pulse = document.getElementById("pulse");
  const hold = document.getElementById("hold");
  if (!region || !window.htmx) return;

  const base = Number(region.dataset.pollMs) || 2000;
  const longest = 30000;
  let pause = base;
  let held = false;
  let timer = 0;

  function plan(ms) {
    clearTimeout(timer);
    // A tenth of jitter keeps many open pages from asking in the same instant.
    if (!held && !document.hidden) timer = setTimeout(ask, ms * (0.95 + Math.random() * 0.1));
  }

  function ask() {
    htmx.trigger(region, "console:refresh");
  }

  function say(text) {
    if (pulse.textContent !== text) pulse.textContent = text;
  }

  region.addEventListener("htmx:finally:request", (event) => {
    const status = event.detail?.ctx?.response?.status ?? 0;
    if (status >= 200 && status < 400) {
      pause = base;
      document.body.classList.remove("stale");
      if (!held) say("");
    } else if (status !== 401) {
      pause = Math.min(pause * 2, longest);
      document.body.classList.add("stale");
      const since = document.getElementById("stamp")?.textContent ?? "";
      say(`Not updating since ${since}${status ? ` (${status})` : ""}`);
    }
    if (status !== 401) plan(pause);
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else if (!held) ask();
  });

  hold.hidden = false;
  hold.addEventListener("click", () => {
    held = !held;
    hold.textContent = held ? "Resume" : "Pause";
    say(held ? "Paused" : "");
    if (held) clearTimeout(timer);
    else ask();
  });

  plan(base);
})();
