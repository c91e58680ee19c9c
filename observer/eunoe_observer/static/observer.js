// What the live pages need besides htmx: a retry, a status word, the reader's own time, and an end to growth.
(() => {
  "use strict";
  const MOST_ROWS = 500; // a tab left open for weeks must not grow for ever; older rows are a page away
  const RETRY_MS = 2000;
  const day = new Intl.DateTimeFormat(undefined, { day: "2-digit", month: "short" });
  const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

  const localize = (element) => {
    const moment = new Date(element.dateTime);
    const today = moment.toDateString() === new Date().toDateString();
    const text = today ? time.format(moment) : `${day.format(moment)} ${time.format(moment)}`;
    if (element.textContent === text && element.title) return;
    element.textContent = text;
    element.title = whole.format(moment);
  };

  const say = (word) => {
    const status = document.querySelector("[data-live]");
    if (!status || status.textContent === word) return;
    status.textContent = word;
    status.dataset.live = word;
  };

  new MutationObserver((changes) => {
    for (const change of changes) {
      for (const node of change.addedNodes) {
        if (node.nodeType !== Node.ELEMENT_NODE) continue;
        if (node.matches("tr[id^='run-']")) {
          node.classList.add("fresh");
          const rows = node.parentElement ? node.parentElement.rows : [];
          while (rows.length > MOST_ROWS) rows[rows.length - 1].remove();
        }
      }
    }
    document.querySelectorAll("time[datetime]").forEach(localize);
  }).observe(document.getElementById("main"), { childList: true, characterData: true, subtree: true });
  document.querySelectorAll("time[datetime]").forEach(localize);

  document.addEventListener("htmx:sse:after:connection", () => say("live"));
  document.addEventListener("htmx:sse:before:connection", ({ detail }) => {
    if (detail.connection.attempt > 0) say("reconnecting");
  });
  document.addEventListener("htmx:sse:error", () => say("reconnecting"));
  document.addEventListener("htmx:sse:close", ({ detail }) => say(detail?.reason === "message" ? "finished" : "reconnecting"));

  // hx-sse comes back after a break, but gives up on a stream that never opened.
  document.addEventListener("htmx:finally:request", ({ target, detail }) => {
    if (!target.hasAttribute || !target.hasAttribute("hx-sse:connect")) return;
    const type = detail.ctx?.response?.raw?.headers.get("content-type");
    if (type?.includes("text/event-stream")) return;
    say("reconnecting");
    setTimeout(() => htmx.trigger(target, "live:retry"), RETRY_MS);
  });
})();
