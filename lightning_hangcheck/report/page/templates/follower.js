"use strict";
(() => {
  const PERFETTO = "https://ui.perfetto.dev";
  const LOOK_MS = 2000;
  const PING_MS = 100;
  const MOST_PINGS = 600;
  const report = document.getElementById("report");
  const said = document.getElementById("said");
  let known = { mark: null, around: "" };
  const follow = async () => {
    try {
      const answer = await fetch("state");
      if (!answer.ok) throw new Error(answer.statusText);
      const now = await answer.json();
      if (known.mark === null) report.src = `report.html${location.hash}`;
      else if (known.mark !== now.mark) report.contentWindow.location.reload();
      known = now;
      if (said.dataset.gone) said.textContent = "";
      delete said.dataset.gone;
    } catch {
      said.dataset.gone = "yes";
      said.textContent = "hangcheck report --serve does not answer; what is shown is the last it told";
    }
    setTimeout(follow, LOOK_MS);
  };
  const handOver = (opened, buffer) => {
    let pings = 0;
    const stop = () => {
      clearInterval(ping);
      removeEventListener("message", hear);
    };
    const hear = (event) => {
      if (event.source !== opened || event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      const trace = { buffer, title: document.title, fileName: "hangcheck_trace.json" };
      opened.postMessage({ perfetto: trace }, PERFETTO);
      said.textContent = "handed over";
    };
    const ping = setInterval(() => {
      pings += 1;
      if (opened.closed || pings > MOST_PINGS) {
        stop();
        said.textContent = "Perfetto did not answer; hangcheck report --perfetto FILE writes the trace";
      } else opened.postMessage("PING", PERFETTO);
    }, PING_MS);
    addEventListener("message", hear);
  };
  document.getElementById("perfetto").addEventListener("click", async () => {
    const opened = window.open(`${PERFETTO}/${known.around}`);
    if (!opened) {
      said.textContent = "the browser blocked the new tab; allow this page to open one";
      return;
    }
    said.textContent = "making the trace";
    const answer = await fetch("trace.json").catch(() => null);
    if (answer?.ok) handOver(opened, await answer.arrayBuffer());
    else {
      opened.close();
      said.textContent = "there is no trace before there is a verdict";
    }
  });
  follow();
})();
